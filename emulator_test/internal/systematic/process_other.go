//go:build !linux

package systematic

// usageOf is known on Linux only. Elsewhere a process may run for its elapsed time.
func usageOf(int) usage { return usage{} }
