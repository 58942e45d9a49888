package lockcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// parallelism bounds the locks that are resolved at a time.
const parallelism = 16

// A resolver resolves locks and counts them.
type resolver struct {
	mu            sync.Mutex
	forward, back int // as the library reports it: what this client did
	done          int // locks that need no more attention
	left          []leftLock
	failed        int
	failure       error // the first
	total         int
}

// leftLock is a lock whose transaction is not decided yet.
type leftLock struct {
	lock format.Lock
	of   *inspect.Transaction
}

// resolved is the client's OnResolve.
func (r *resolver) resolved(res format.Resolution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if res.Status.State == txn.StateCommitted {
		r.forward++
	} else {
		r.back++
	}
}

// run resolves the locks of all transactions. It returns the error of a context that ended, and
// counts other errors.
func (r *resolver) run(ctx context.Context, s *session.Session, all []*inspect.Transaction) error {
	var locks []format.Lock
	var of []*inspect.Transaction
	for _, t := range all {
		locks = append(locks, t.Found...)
		of = append(of, slices.Repeat([]*inspect.Transaction{t}, len(t.Found))...)
	}
	r.total = len(locks)
	err := admin.ResolveLocks(ctx, s.Client(), locks, func(i int, status format.Status, err error) {
		switch {
		case err != nil && ctx.Err() != nil:
		case err != nil:
			r.failed++
			r.failure = cmp.Or(r.failure, err)
		case status.Final():
			r.done++
			s.Progress.Of(float64(r.done)/float64(max(r.total, 1)), r.done, "lock")
			s.Progress.Set("%d of %d locks resolved", r.done, r.total)
		default:
			r.left = append(r.left, leftLock{lock: locks[i], of: of[i]})
		}
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	return r.look(ctx, s)
}

// look drops from what was left the locks that their owners have removed in
// the meantime.
func (r *resolver) look(ctx context.Context, s *session.Session) error {
	there := make([]bool, len(r.left))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelism)
	for i, left := range r.left {
		g.Go(func() error {
			for l, err := range admin.Locks(gctx, s.Client(), left.lock.Cell.Table, bigtable.RowList{left.lock.Cell.Row}) {
				if err != nil {
					return err
				}
				if l.Cell == left.lock.Cell && l.StartTS == left.lock.StartTS {
					there[i] = true
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var still []leftLock
	for i, l := range r.left {
		if there[i] {
			still = append(still, l)
		} else {
			r.done++
		}
	}
	r.left = still
	return nil
}

// A result is what lock resolve did.
type result struct {
	Project       string                 `json:"project"`           // Google Cloud project
	Instance      string                 `json:"instance"`          // Bigtable instance
	Tables        []string               `json:"tables"`            // tables that were read
	DryRun        bool                   `json:"dry_run"`           // whether --dry-run was given
	Locks         int                    `json:"locks"`             // locks that were found
	RolledForward int                    `json:"rolled_forward"`    // locks that this run rolled forward
	RolledBack    int                    `json:"rolled_back"`       // locks that this run rolled back, primaries in other tables included
	ByOthers      int                    `json:"settled_by_others"` // locks that other clients resolved, or their owners removed, during the run
	LeftAlive     int                    `json:"left_alive"`        // locks that stay because their owners may be alive
	Failed        int                    `json:"failed"`            // locks that could not be resolved because of an error
	Unfinished    int                    `json:"unfinished"`        // locks that an interrupt or timeout left, or whose answer it cut off
	Left          []*inspect.Transaction `json:"left"`              // transactions of the locks in left_alive, the oldest first

	failure error
}

func (r *resolver) result(p *plan) *result {
	res := &result{
		Project: p.Project, Instance: p.Instance, Tables: p.Tables, Locks: p.Locks, Left: []*inspect.Transaction{},
		RolledForward: r.forward, RolledBack: r.back, LeftAlive: len(r.left), Failed: r.failed, failure: r.failure,
	}
	// A primary in another table is rolled back too, and counted.
	res.ByOthers = max(0, r.done-r.forward-r.back)
	res.Unfinished = max(0, p.Locks-r.done-res.LeftAlive-res.Failed)
	seen := map[*inspect.Transaction]bool{}
	for _, l := range r.left {
		if !seen[l.of] {
			seen[l.of] = true
			res.Left = append(res.Left, l.of)
		}
	}
	slices.SortFunc(res.Left, func(a, b *inspect.Transaction) int { return cmp.Compare(a.StartTS, b.StartTS) })
	return res
}

func (r *result) text(w io.Writer, style cli.Style) error {
	table := cli.NewTable(w)
	for _, row := range []struct {
		what   string
		n      int
		always bool
	}{
		{"rolled forward", r.RolledForward, true},
		{"rolled back", r.RolledBack, true},
		{"left alive", r.LeftAlive, true},
		{"resolved by other clients", r.ByOthers, false},
		{"failed", r.Failed, false},
		{"not reached", r.Unfinished, false},
	} {
		if row.always || row.n > 0 {
			cli.WriteRow(table, row.what, fmt.Sprint(row.n))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, t := range r.Left {
		if i == shownTransactions {
			fmt.Fprintf(w, "… and %s more\n", cli.Count(len(r.Left)-i, "transaction"))
			break
		}
		fmt.Fprintf(w, "left: %s %d: %s\n", t.Primary, t.StartTS, t.Verdict)
	}
	return nil
}

// verdict is the error that the exit code comes from; ended is that of a
// context that ended in between.
func (r *result) verdict(ended error) error {
	switch {
	case errors.Is(ended, context.Canceled):
		return fmt.Errorf("interrupted: %s not resolved; run the command again to continue", cli.Count(r.Unfinished, "lock"))
	case ended != nil:
		return fmt.Errorf("%w: %s not resolved; run the command again to continue", ended, cli.Count(r.Unfinished, "lock"))
	case r.Failed > 0:
		return fmt.Errorf("%s could not be resolved; the first error: %w", cli.Count(r.Failed, "lock"), r.failure)
	case r.LeftAlive > 0:
		return session.Foundf("%s of live transactions left; run the command again later", cli.Count(r.LeftAlive, "lock"))
	}
	return nil
}
