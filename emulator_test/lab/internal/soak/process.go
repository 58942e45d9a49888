package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// A message is one line that a process writes.
type message struct {
	// Ready is in the first message: the server's address, or the client's token.
	Ready *string `json:",omitempty"`
	// Record is a record of the history.
	Record *history.Record `json:",omitempty"`
	// Faults counts the faults of this client since the last message.
	Faults map[string]int `json:",omitempty"`
	// Used counts uses of features since the last message.
	Used map[string]int `json:",omitempty"`
	// Settled is the owner of a lock that the client has resolved.
	Settled string `json:",omitempty"`
	// Timestamps and Observed count, since the last message, the timestamps that the
	// client received and the changes that its observers acknowledged.
	Timestamps, Observed int64 `json:",omitempty"`
	// Batch is a round of a burner.
	Batch *batch `json:",omitempty"`
	// Problem describes something that must not happen.
	Problem string `json:",omitempty"`
	At      time.Time
}

// newProcessCmd makes the command with which a soak starts its processes.
func newProcessCmd(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "process SPEC",
		Short:  "A process of lab soak",
		Hidden: true,
		Args:   cli.ExactArgs(1, "a specification in JSON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var sp spec
			if err := json.Unmarshal([]byte(args[0]), &sp); err != nil {
				return cli.Usagef("%w", err)
			}
			return sp.run(cmd.Context(), s)
		},
	}
}

// A process is a running process of a soak.
type process struct {
	*child.Process
	spec  spec
	ready chan string   // receives the value of its first message
	ended chan struct{} // closed when it has ended

	mu    sync.Mutex
	owner string // of a client: its worker token
}

// start starts this program again. It calls handle with each message, one at a time.
func start(sp spec, handle func(*process, message)) (*process, error) {
	arg, err := json.Marshal(sp)
	if err != nil {
		return nil, err
	}
	env := slices.DeleteFunc(telemetry.NextChildEnv(), func(e string) bool { return strings.HasPrefix(e, "BIGTABLE_EMULATOR_HOST=") })
	c, err := child.Start(context.Background(), child.Config{Name: fmt.Sprint(sp.Role, " ", sp.Process), Args: []string{"soak", "process", string(arg)}, Env: env})
	if err != nil {
		return nil, err
	}
	p := &process{Process: c, spec: sp, ready: make(chan string, 1), ended: make(chan struct{})}
	c.Each(func(line []byte) {
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			m = message{Problem: fmt.Sprintf("a process wrote the line %q: %v", line, err), At: time.Now()}
		}
		if m.Ready == nil {
			handle(p, m)
			return
		}
		p.mu.Lock()
		p.owner = *m.Ready
		p.mu.Unlock()
		p.ready <- *m.Ready
	})
	go func() { defer close(p.ended); _ = c.Wait() }()
	return p, nil
}

// await waits for the first message, and returns its value.
func (p *process) await(ctx context.Context) (string, error) {
	select {
	case s := <-p.ready:
		return s, nil
	case <-p.ended:
		return "", fmt.Errorf("the process ended at once: %w", p.Wait())
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// kill ends the process with SIGKILL, and returns when all of its messages are handled.
func (p *process) kill() {
	p.Kill()
	_ = p.Wait()
}
