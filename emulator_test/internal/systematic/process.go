package systematic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A usage is what a process and its descendants have used.
type usage struct {
	cpu      time.Duration
	progress time.Duration
	memory   int64 // bytes
}

// Bounds of a process. They are far from what any test does without a mutant.
const (
	// lookEvery is how often a process is measured.
	lookEvery = 50 * time.Millisecond
	// maxMemory is in bytes. A loop that appends reaches it in seconds.
	maxMemory = 3 << 30
	// idleShare is the part of a period in which an idle process makes progress, at most:
	// timers wake it, and on a loaded machine its threads then wait for a processor. A
	// process that works makes progress all the time.
	idleShare = 5
	// longest is a process's elapsed time, whatever it does.
	longest = 20 * time.Minute
)

// A limit is what a process may use before it counts as hanging.
type limit struct {
	cpu time.Duration
	// idle is how long it may make no progress. Elapsed time is no other bound, because
	// it depends on what else the machine does.
	idle time.Duration
}

// limitFor allows five times what the tests used without a mutant, and the slack.
func (s Suite) limitFor(cpu, wall time.Duration) limit {
	return limit{cpu: 5*cpu + s.Slack, idle: 2*wall + s.Slack}
}

// An outcome is how a process ended.
type outcome struct {
	failed bool
	// hung says why the process was killed, or nothing.
	hung      string
	out       string
	cpu, wall time.Duration
}

// run runs a test binary.
func run(ctx context.Context, binary, dir string, env, args []string, l limit) (o outcome, err error) {
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), long.Variable+"=1"), env...)
	var out tailBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	group(cmd)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return o, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	o.hung, err = watch(ctx, cmd, done, l)
	o.wall = time.Since(began)
	if p := cmd.ProcessState; p != nil {
		o.cpu = p.UserTime() + p.SystemTime()
	}
	o.out = out.String()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return o, ctx.Err()
	case o.hung != "" || errors.As(err, &exit):
		o.failed = true
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return o, err
	}
	return o, nil
}

// watch waits until the process ends, or kills it.
func watch(ctx context.Context, cmd *exec.Cmd, done <-chan error, l limit) (hung string, err error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	began := time.Now()
	type sample struct {
		at       time.Time
		progress time.Duration
	}
	var samples []sample // of the last l.idle
	for {
		select {
		case err := <-done:
			return "", err
		case <-ctx.Done():
			hung = "interrupted"
		case now := <-tick.C:
			u := usageOf(cmd.Process.Pid)
			if n := len(samples); n > 0 && u.progress < samples[n-1].progress {
				samples = nil // a child ended and took its progress away
			}
			samples = append(samples, sample{now, u.progress})
			idle := false
			for first := samples[0]; now.Sub(first.at) > l.idle; first = samples[0] {
				idle = u.progress > 0 && u.progress-first.progress < now.Sub(first.at)/idleShare
				samples = samples[1:]
			}
			switch {
			case u.cpu > l.cpu:
				hung = fmt.Sprintf("it used more than %v of CPU time", l.cpu)
			case idle:
				hung = fmt.Sprintf("it was idle for %v", l.idle.Round(time.Second))
			case u.memory > maxMemory:
				hung = fmt.Sprintf("it used more than %d MiB of memory", maxMemory>>20)
			case now.Sub(began) > longest:
				hung = fmt.Sprintf("it ran longer than %v", longest)
			}
		}
		if hung != "" {
			end(cmd)
			return hung, <-done
		}
	}
}

// A tailBuffer keeps the beginning of what is written to it, and the end.
type tailBuffer struct{ first, last bytes.Buffer }

const keep = 1 << 20

func (b *tailBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if room := keep - b.first.Len(); room > 0 {
		b.first.Write(p[:min(room, n)])
		p = p[min(room, n):]
	}
	b.last.Write(p)
	if over := b.last.Len() - keep; over > keep {
		b.last.Next(over)
	}
	return n, nil
}

func (b *tailBuffer) String() string { return b.first.String() + b.last.String() }

var _ io.Writer = &tailBuffer{}
