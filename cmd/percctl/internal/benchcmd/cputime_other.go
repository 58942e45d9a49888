//go:build !unix

package benchcmd

import "time"

// cpuTime is not known here; what is derived from it is 0.
func cpuTime() time.Duration { return 0 }
