// Package doctor checks a deployment. Each check looks at one thing and returns findings:
// what is wrong, why it matters, and how to fix it. The checks run side by side, each for a
// bounded time, and change nothing. percctl doctor and percctl table verify print them.
//
//	d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: bt, Admin: btAdmin, Rows: 1000}
//	end, err := d.Open(ctx)
//	…
//	defer end()
//	d.Tables, err = admin.Tables(ctx, d.Client)
//	…
//	for _, result := range doctor.Run(ctx, d, doctor.All(), nil) {
//		…
//	}
//
// The fixes name commands of percctl, gcloud and cbt. Subjects, details and what is wrong
// may contain stored bytes: escape them before you print them on a terminal.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Severity says how bad a finding is.
type Severity string

// The severities. Errors keep transactions from working, or endanger data;
// warnings need attention; notes are good to know.
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

// The states. Skipped: it cannot be checked here, which is no fault. Partial: a check that
// reads tables did not get through all of them in its time, and found nothing until then.
// Failed: the check itself could not be made.
const (
	OK      State = "ok"
	Found   State = "found"
	Skipped State = "skipped"
	Partial State = "partial"
	Failed  State = "failed"
)

// A Result is how a check ended.
type Result struct {
	Check    string    `json:"check"`    // name of the check
	State    State     `json:"state"`    // how the check ended: skipped means that it cannot be made here, partial that it did not get through all tables in its time, failed that it ended in an error
	Detail   string    `json:"detail"`   // extent of the check, or why it was skipped or failed
	Findings []Finding `json:"findings"` // problems that it found

	unfinished int           // tables that were not read to their end
	reached    func(float64) // says which part of the check is done; nil: nobody asks
}

// find adds a finding.
func (r *Result) find(severity Severity, subject, what, why, fix string) {
	r.Findings = append(r.Findings, Finding{r.Check, severity, subject, what, why, fix})
}

// eachTable looks at the tables, several at a time, until ctx ends. look adds its
// findings to the Result that it gets, which is its own. A table that look does not get
// through in time counts as unfinished; any other error ends the check.
func (r *Result) eachTable(ctx context.Context, d *Deployment, look func(ctx context.Context, table string, r *Result) error) error {
	parts := make([]Result, len(d.Tables))
	var mu sync.Mutex
	done := 0.0 // tables
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(parallelism)
	for i, table := range d.Tables {
		g.Go(func() error {
			parts[i].Check = r.Check
			at := 0.0
			parts[i].reached = func(part float64) {
				mu.Lock()
				defer mu.Unlock()
				done, at = done+part-at, part
				if r.reached != nil {
					r.reached(done / float64(len(parts)))
				}
			}
			defer parts[i].reached(1)
			err := look(each, table, &parts[i])
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
			if err != nil {
				parts[i].unfinished++
			}
			return nil
		})
	}
	err := g.Wait()
	for _, p := range parts {
		r.Findings = append(r.Findings, p.Findings...)
		r.unfinished += p.unfinished
	}
	return err
}

// A Deployment is what the checks look at. Set the exported fields, and call Open.
type Deployment struct {
	Bigtable *bigtable.Client
	Admin    *bigtable.AdminClient
	// Project and Instance name the instance, for advice.
	Project, Instance string
	// MetadataTable defaults to format.DefaultMetadataTable.
	MetadataTable string
	// AppProfile is the app profile of Bigtable. Defaults to Bigtable's default one.
	AppProfile string
	// Instances connects to the service that says what app profiles are. Without it, the
	// check of the app profile is skipped.
	Instances func(context.Context) (*bigtable.InstanceAdminClient, error)
	// Servers returns a client of the servers of an oracle in served mode, or nil if there is
	// none. Defaults to one that asks the leader without TLS.
	Servers func(tso.RowState) (*tso.Client, error)
	// Emulator says that it is an emulator. Some problems exist only there, others never.
	Emulator bool
	// Tables are the transactional tables to check.
	Tables []string
	// Patience multiplies how long each check may take. 0 is 1.
	Patience int
	// Rows bounds how many rows, locks or notifications of a table the checks look at.
	Rows int

	// Client is set by Open. It is nil if none can be made, and then NoClient says why.
	// It verifies nothing by itself.
	Client   *txn.Client
	NoClient error

	served    *admin.Oracle // nil in direct mode
	oracle    tso.RowState
	oracleErr error // why the row cannot be read
	// lag is how far timestamps of direct mode are behind the clock, before the checks take any:
	// that moves the row. Without busy nobody took any.
	lag  time.Duration
	busy bool
}

// closeTimeout bounds how long the client of the checks takes to close.
const closeTimeout = 2 * time.Second

// Open reads the oracle's row and makes a client of as much as there is: the checks say
// what is missing. It fails only if Bigtable does not answer. Call end when done.
func (d *Deployment) Open(ctx context.Context) (end func(), err error) {
	if d.MetadataTable == "" {
		d.MetadataTable = format.DefaultMetadataTable
	}
	d.oracle, d.oracleErr = tso.ReadRow(ctx, d.Bigtable.OpenTable(d.MetadataTable), tso.RowConfig{})
	switch status.Code(d.oracleErr) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unauthenticated:
		return nil, d.oracleErr
	}
	if errors.Is(d.oracleErr, context.DeadlineExceeded) || errors.Is(d.oracleErr, context.Canceled) {
		return nil, d.oracleErr
	}
	if d.oracle.Mode == tso.ModeDirect {
		d.lag, d.busy, _ = tso.DirectLag(ctx, d.Bigtable.OpenTable(d.MetadataTable), tso.RowConfig{}) // after an error the checks say more
	}
	cfg := txn.Config{MetadataTable: d.MetadataTable, TokenTTL: -1}
	end = func() {}
	if d.oracleErr != nil && !errors.Is(d.oracleErr, tso.ErrNotInitialized) {
		d.NoClient = d.oracleErr
		return end, nil
	}
	if d.oracle.Mode == tso.ModeServed {
		d.served = &admin.Oracle{Table: d.Bigtable.OpenTable(d.MetadataTable), Servers: d.servers, Reads: true}
		cfg.Oracle, end = d.served, d.served.Close
	}
	if d.Client, d.NoClient = txn.NewClient(ctx, d.Bigtable, cfg); d.NoClient != nil {
		d.Client = nil
		return end, nil
	}
	closeServers := end
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = d.Client.Close(ctx) // it committed nothing
		closeServers()
	}, nil
}

// servers returns a client of the oracle's servers, or nil if none leads. It has to be closed.
func (d *Deployment) servers(row tso.RowState) (*tso.Client, error) {
	switch {
	case d.Servers != nil:
		return d.Servers(row)
	case row.Address == "":
		return nil, nil
	}
	return tso.NewClient(tso.ClientConfig{Addresses: []string{row.Address}, Timeout: 2500 * time.Millisecond})
}

// now is the oracle's time, for ages.
func (d *Deployment) now(ctx context.Context) (tso.Timestamp, error) {
	if d.served != nil {
		return d.served.Now(ctx)
	}
	return d.Client.Timestamp(ctx)
}

// A Check looks at one thing. Run returns an error when it could not be made.
type Check struct {
	Name string
	// Client says that it needs Deployment.Client.
	Client  bool
	Timeout time.Duration
	Run     func(context.Context, *Deployment, *Result) error
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

// A Progress says how far Run is.
type Progress struct {
	Done    int      // checks that have ended
	Part    float64  // of all checks, between 0 and 1: those that have ended, and the tables that running checks have read
	Running []string // the names of the checks that run now
}

// Run runs checks side by side and returns their results in order. It calls progress, which
// may be nil, as the checks make progress, one call at a time.
func Run(ctx context.Context, d *Deployment, all []Check, progress func(Progress)) []Result {
	results, parts := make([]Result, len(all)), make([]float64, len(all))
	var g errgroup.Group
	g.SetLimit(parallelism)
	var mu sync.Mutex
	var now Progress
	tell := func(i int, part float64) {
		mu.Lock()
		defer mu.Unlock()
		now.Part += (part - parts[i]) / float64(len(all))
		parts[i] = part
		if progress != nil {
			progress(now)
		}
	}
	for i, c := range all {
		g.Go(func() error {
			mu.Lock()
			now.Running = append(slices.Clone(now.Running), c.Name)
			mu.Unlock()
			results[i] = c.run(ctx, d, func(part float64) { tell(i, part) })
			mu.Lock()
			now.Done++
			now.Running = slices.DeleteFunc(slices.Clone(now.Running), func(name string) bool { return name == c.Name })
			mu.Unlock()
			tell(i, 1)
			return nil
		})
	}
	_ = g.Wait()
	return results
}

func (c *Check) run(ctx context.Context, d *Deployment, reached func(float64)) Result {
	r := Result{Check: c.Name, State: OK, Findings: []Finding{}, reached: reached}
	if c.Client && d.Client == nil {
		r.State, r.Detail = Skipped, "it needs a client of the deployment: "+d.NoClient.Error()
		if errors.Is(d.NoClient, txn.ErrNotInitialized) || errors.Is(d.NoClient, tso.ErrNotInitialized) {
			r.Detail = "it needs the metadata table"
		}
		return r
	}
	timeout := c.Timeout * time.Duration(max(d.Patience, 1))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.Run(ctx, d, &r)
	var skipped errSkip
	switch {
	case errors.As(err, &skipped):
		r.State, r.Detail = Skipped, string(skipped)
	case err != nil:
		r.State, r.Detail = Failed, err.Error()
		if ctx.Err() != nil {
			r.Detail = fmt.Sprintf("not finished after %v: %s", timeout, r.Detail)
		}
	}
	if r.unfinished > 0 {
		r.State = Partial
		r.Detail += fmt.Sprintf("; after %v, %d of %d tables were not read to their end", timeout, r.unfinished, len(d.Tables))
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
