//go:build unix

// Package cputime tells how much CPU time a process has used.
package cputime

import (
	"syscall"
	"time"
)

// Used is the CPU time that this process has used. Unlike the wall clock it hardly
// depends on what else the machine does.
func Used() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
