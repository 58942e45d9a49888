package consolecmd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/lockcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/notifycmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

// program has the commands that the page may run.
var program = cli.Program{Name: "percctl", Commands: []cli.Command{lockcmd.NewCmd, notifycmd.NewCmd, gccmd.NewCmd}}

// commands runs commands of percctl as the command line does, over the console's
// connection.
type commands struct {
	flags *session.Flags
	begin func(func(context.Context)) // runs a function in the background
	wg    sync.WaitGroup

	mu   sync.Mutex
	jobs map[string]*job
	last []string // names, the oldest first
}

// A job is a command that runs or has run.
type job struct {
	Name    string `json:"name"`
	Command string `json:"command"` // as it is typed
	Text    string `json:"text"`    // what it has printed so far
	Done    bool   `json:"done"`
	Code    int    `json:"code"`  // exit code
	Error   string `json:"error"` // why it failed
}

// keptJobs is how many commands are remembered.
const keptJobs = 100

func newCommands(ctx context.Context, flags *session.Flags) *commands {
	c := &commands{flags: flags, jobs: map[string]*job{}}
	c.begin = func(f func(context.Context)) { c.wg.Go(func() { f(ctx) }) }
	return c
}

// wait waits for what runs in the background; its context has ended.
func (c *commands) wait() { c.wg.Wait() }

// at are the flags that lead to the deployment.
func (c *commands) at() (args []string) {
	f := &c.flags.Connect
	for _, flag := range []struct{ name, value string }{
		{"project", f.Project}, {"instance", f.Instance}, {"app-profile", f.AppProfile}, {"metadata-table", f.MetadataTable},
		{"oracle", f.Oracle.Servers}, {"oracle-ca", f.Oracle.CA}, {"oracle-cert", f.Oracle.Cert}, {"oracle-key", f.Oracle.Key},
	} {
		if flag.value != "" {
			args = append(args, "--"+flag.name+"="+flag.value)
		}
	}
	return args
}

// start starts a command: it makes the plan, or carries it out.
func (c *commands) start(args []string, carryOut bool) *job {
	consent := "--dry-run"
	if carryOut {
		consent = "--yes"
	}
	j := &job{Name: rand.Text(), Command: "percctl " + cli.Shell(args)}
	c.mu.Lock()
	c.jobs[j.Name], c.last = j, append(c.last, j.Name)
	if len(c.last) > keptJobs {
		delete(c.jobs, c.last[0])
		c.last = c.last[1:]
	}
	started := *j
	c.mu.Unlock()
	// The words of the command come first, then flags, then what begins with --.
	all := append(append([]string{args[0], args[1], consent}, c.at()...), args[2:]...)
	c.begin(func(ctx context.Context) {
		out := &output{commands: c, job: j}
		err := execute(ctx, all, out)
		c.mu.Lock()
		defer c.mu.Unlock()
		j.Done = true
		if err != nil {
			j.Error, j.Code = cli.Line(err.Error()), cli.ExitFailed
			if coded := (*cli.Error)(nil); errors.As(err, &coded) {
				j.Code = coded.Code
			}
		}
	})
	return &started
}

func execute(ctx context.Context, args []string, out io.Writer) error {
	root := program.Root(&cli.Streams{In: strings.NewReader(""), Out: out, Err: out})
	root.SetArgs(args)
	_, err := root.ExecuteContextC(ctx)
	return err
}

// job returns a command by its name.
func (c *commands) job(name string) (*job, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[name]
	if j == nil {
		return nil, session.NotFoundf("there is no such command; the console may have started again")
	}
	now := *j
	return &now, nil
}

// doctor runs the checks of percctl doctor, which wait for what the limits leave to them.
func (c *commands) doctor(ctx context.Context) (report *checks.Report, err error) {
	flags := *c.flags
	flags.Timeout = 0
	err = flags.Run(watch.Patient(ctx), &cli.Streams{In: bytes.NewReader(nil), Out: io.Discard, Err: io.Discard}, session.Bare, txn.Config{}, func(ctx context.Context, s *session.Session) (err error) {
		report, err = checks.Collect(ctx, s, checkedRows)
		return err
	})
	return report, err
}

// maxOutput bounds what is kept of the output of one command.
const maxOutput = 256 << 10

// An output keeps what a command prints.
type output struct {
	commands *commands
	job      *job
}

func (o *output) Write(b []byte) (int, error) {
	o.commands.mu.Lock()
	defer o.commands.mu.Unlock()
	if len(o.job.Text) < maxOutput {
		o.job.Text += string(b)
	}
	return len(b), nil
}
