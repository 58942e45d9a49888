package demo

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"

	"github.com/percolator-bigtable/percolator/txn"
)

// A client is a worker process as the coordinator sees it. Only the
// coordinator's goroutine uses it.
type client struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	orders *json.Encoder

	owner   string       // its token; empty until it is ready
	working map[int]bool // documents that it has not acknowledged
	stats   txn.Stats
	stopped *stoppedReport // set once it reached its crash point
}

// An event is a report of a client, or its end.
type event struct {
	client *client
	report report
	exited bool
	err    error // of an exited client
}

// startClient starts this program again as a client. Its events end with
// exited.
func startClient(number int, at deployment, dir string, stderr io.Writer, events chan<- event) (*client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &client{number: number, working: map[int]bool{}}
	c.cmd = exec.Command(self, append([]string{"demo", "worker", "--dir", dir}, at.args()...)...)
	c.cmd.Args[0] = os.Args[0]
	c.cmd.Stderr = stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	c.orders = json.NewEncoder(c.stdin)
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		reports := json.NewDecoder(stdout)
		for {
			var r report
			// A client that was killed ends in the middle of a line at worst.
			err := reports.Decode(&r)
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					_ = c.cmd.Process.Kill() // it does not talk like a client
				}
				break
			}
			events <- event{client: c, report: r}
		}
		events <- event{client: c, exited: true, err: c.cmd.Wait()}
	}()
	return c, nil
}

// ready reports that the client takes orders.
func (c *client) ready() bool { return c.owner != "" && c.stopped == nil }

// send gives an order. It does not block, because a window of orders fits into
// a pipe. A client that is dead does not get it; its exit is an event of its
// own.
func (c *client) send(o order) { _ = c.orders.Encode(o) }

// kill sends SIGKILL.
func (c *client) kill() { _ = c.cmd.Process.Kill() }

// killed reports that a client that exited was ended by a signal.
func (c *client) killed() bool {
	return c.cmd.ProcessState != nil && c.cmd.ProcessState.ExitCode() == -1
}
