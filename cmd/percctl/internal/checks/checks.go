// Package checks is what percctl doctor and table verify look at: small checks
// in a list, each of one thing, run side by side and each for a bounded time.
// They change nothing.
package checks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// A Severity says how bad a finding is.
type Severity string

// The severities. Errors keep transactions from working, or endanger data;
// warnings want to be looked at; notes are good to know, and no reason to exit
// with 4.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// A Finding is one problem that a check found.
type Finding struct {
	Check    string   `json:"check"`    // check that found it
	Severity Severity `json:"severity"` // how bad it is: an error keeps transactions from working or endangers data, a warning needs attention, a note is good to know
	Subject  string   `json:"subject"`  // the table, family, column, client or server
	What     string   `json:"what"`     // what is wrong
	Why      string   `json:"why"`      // why it matters
	Fix      string   `json:"fix"`      // the command that fixes it, or what to do
}

// A State is how a check ended.
type State string

// The states. Skipped: it cannot be checked here, which is no fault. Failed:
// the check itself could not be made.
const (
	OK      State = "ok"
	Found   State = "found"
	Skipped State = "skipped"
	Failed  State = "failed"
)

// A Result is how a check ended.
type Result struct {
	Check    string    `json:"check"`    // name of the check
	State    State     `json:"state"`    // how the check ended: skipped means that it cannot be made here, failed that it ended in an error
	Detail   string    `json:"detail"`   // extent of the check, or why it was skipped or failed
	Findings []Finding `json:"findings"` // problems that it found
}

// find adds a finding.
func (r *Result) find(severity Severity, subject, what, why, fix string) {
	r.Findings = append(r.Findings, Finding{r.Check, severity, cli.Line(subject), cli.Line(what), why, fix})
}

// An Env is what checks look at.
type Env struct {
	At       *connect.Flags
	Bigtable *bigtable.Client
	Admin    *bigtable.AdminClient
	// Client is nil where none can be made; NoClient says why. It verifies
	// nothing by itself.
	Client   *txn.Client
	NoClient error
	// Oracle is the row, and OracleErr why it cannot be read.
	Oracle    tso.RowState
	OracleErr error
	// Tables are the transactional ones that are checked.
	Tables []string
	// Rows bounds how many rows of a table are looked at.
	Rows int
}

// A Check looks at one thing. Run returns an error when it could not be made.
type Check struct {
	Name string
	// Client says that it needs Env.Client.
	Client  bool
	Timeout time.Duration
	Run     func(context.Context, *Env, *Result) error
}

// errSkip makes a check Skipped.
type errSkip string

func (e errSkip) Error() string { return string(e) }

func skip(format string, args ...any) error { return errSkip(fmt.Sprintf(format, args...)) }

// Tables are the checks of single tables.
func Tables() []Check { return []Check{schema, families, policies, adoptions} }

// All are the checks of a deployment, in the order in which they are printed.
// One file holds a group of them.
func All() []Check {
	return []Check{
		metadataTable, appProfile, singleRow, permissions,
		oracleMode, clock,
		schema, families, policies, adoptions,
		locks, garbage,
		workers, observers, rawWrites, consistency,
	}
}

// parallelism is how many checks run at a time.
const parallelism = 4

// Run runs checks side by side and returns their results in order.
func Run(ctx context.Context, env *Env, all []Check, progress func(done int)) []Result {
	results := make([]Result, len(all))
	var g errgroup.Group
	g.SetLimit(parallelism)
	done := make(chan struct{}, len(all))
	for i, c := range all {
		g.Go(func() error {
			results[i] = c.run(ctx, env)
			done <- struct{}{}
			progress(len(done))
			return nil
		})
	}
	_ = g.Wait()
	return results
}

func (c *Check) run(ctx context.Context, env *Env) Result {
	r := Result{Check: c.Name, State: OK, Findings: []Finding{}}
	if c.Client && env.Client == nil {
		r.State, r.Detail = Skipped, "it needs a client of the deployment: "+cli.Line(env.NoClient.Error())
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := c.Run(ctx, env, &r)
	var skipped errSkip
	switch {
	case errors.As(err, &skipped):
		r.State, r.Detail = Skipped, string(skipped)
	case err != nil:
		r.State, r.Detail = Failed, cli.Line(err.Error())
		if ctx.Err() != nil {
			r.Detail = fmt.Sprintf("not finished after %v: %s", c.Timeout, r.Detail)
		}
	}
	if len(r.Findings) > 0 {
		r.State = Found
	}
	return r
}

// cannotLook turns the refusal of a service into a skip: emulators do not
// implement what they have no use for, and a permission to look may be missing
// where the permission to work is there.
func cannotLook(err error, permission string) error {
	switch status.Code(err) {
	case codes.Unimplemented:
		return skip("cannot be checked here: the emulator has no such thing")
	case codes.PermissionDenied, codes.Unauthenticated:
		return skip("cannot be checked by this account: it lacks %s", permission)
	}
	return err
}
