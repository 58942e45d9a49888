//go:build !unix

package mutation

func mapped() []byte { return nil }
