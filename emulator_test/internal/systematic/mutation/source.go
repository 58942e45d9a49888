package mutation

import "embed"

// Source is this package's source, for the overlay.
//
//go:embed mutation.go mapped_unix.go mapped_other.go
var Source embed.FS
