//go:build unix

package benchcmd

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used. Unlike the wall clock it hardly
// depends on what else the machine does.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
