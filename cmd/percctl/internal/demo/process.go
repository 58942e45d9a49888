package demo

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/telemetry"
)

// A process is a worker as the coordinator sees it. Only the fleet's goroutine
// uses it.
type process struct {
	number int
	slot   int // among the children of the coordinator
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	orders *json.Encoder

	owner   string // its token; empty until it is ready
	stats   stats
	stopped *stoppedReport // set once it reached its crash point
}

// An event is a report of a worker, or its end.
type event struct {
	process *process
	report  report
	exited  bool
	err     error // of an exited worker
}

// startProcess starts this program again as a worker. Its events end with
// exited.
func startProcess(number, slot int, at deployment, stderr io.Writer, events chan<- event) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{number: number, slot: slot}
	p.cmd = exec.Command(self, append([]string{"demo", "worker"}, at.args()...)...)
	p.cmd.Args[0] = os.Args[0]
	p.cmd.Env = telemetry.ChildEnv(slot)
	p.cmd.Stderr = stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.orders = json.NewEncoder(p.stdin)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		reports := json.NewDecoder(stdout)
		for {
			var r report
			// A worker that was killed ends in the middle of a line at worst.
			err := reports.Decode(&r)
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					_ = p.cmd.Process.Kill() // it does not talk like a worker
				}
				break
			}
			events <- event{process: p, report: r}
		}
		events <- event{process: p, exited: true, err: p.cmd.Wait()}
	}()
	return p, nil
}

// ready reports that the worker runs observers.
func (p *process) ready() bool { return p.owner != "" && p.stopped == nil }

// send gives an order, of which there are few: they fit into a pipe. A worker
// that is dead does not get it; its exit is an event of its own.
func (p *process) send(o order) { _ = p.orders.Encode(o) }

// kill sends SIGKILL.
func (p *process) kill() { _ = p.cmd.Process.Kill() }

// killed reports that a worker that exited was ended by a signal.
func (p *process) killed() bool {
	return p.cmd.ProcessState != nil && p.cmd.ProcessState.ExitCode() == -1
}
