package systematic

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// usageOf measures a process and its descendants. Progress is the time that threads ran
// or were ready to run: on a loaded machine, a thread that waits for a processor makes
// progress, too.
func usageOf(pid int) (u usage) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, thread := range threads {
		b, _ := os.ReadFile(thread + "/schedstat")
		if f := bytes.Fields(b); len(f) == 3 {
			ran, waited := nanoseconds(f[0]), nanoseconds(f[1])
			u.cpu += ran
			u.progress += ran + waited
		}
		children, _ := os.ReadFile(thread + "/children")
		for _, child := range bytes.Fields(children) {
			if n, err := strconv.Atoi(string(child)); err == nil {
				c := usageOf(n)
				u.cpu, u.progress, u.memory = u.cpu+c.cpu, u.progress+c.progress, u.memory+c.memory
			}
		}
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if f := bytes.Fields(b); len(f) > 1 {
		n, _ := strconv.Atoi(string(f[1]))
		u.memory += int64(n * os.Getpagesize())
	}
	return u
}

func nanoseconds(b []byte) time.Duration {
	n, _ := strconv.ParseInt(string(b), 10, 64)
	return time.Duration(n)
}
