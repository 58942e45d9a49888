//go:build unix

// Package cputime reads the CPU time of this process.
package cputime

import (
	"syscall"
	"time"
)

// Used returns the CPU time that this process has used. Unlike elapsed time, it hardly
// depends on other processes of the machine.
func Used() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
