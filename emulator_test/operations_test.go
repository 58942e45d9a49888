package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An operation of a client returns what it found or did.
type operation struct {
	name string
	// left is the step before which another client died. It wrote bob and joe.
	left  txntest.Step
	token bool // the client has a worker token
	parts bool // it is not atomic
	// repeats says that it completes what a failure has left, if it runs once more.
	repeats bool
	ahead   bool // it also sends requests that it does not need
	call    func(ctx context.Context, c *txn.Client) (any, error)
}

func operations() []operation {
	bob := txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"}
	value := func(v []byte, ok bool, err error) (any, error) { return fmt.Sprintf("%q %t", v, ok), err }
	rows := func(of func(context.Context, *txn.View) ([]bigtable.Row, error)) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			found, err := of(ctx, s.Table("a"))
			var all []string
			for _, r := range found {
				for _, items := range r {
					for _, i := range items {
						all = append(all, fmt.Sprintf("%s %s %s", i.Row, i.Column, i.Value))
					}
				}
			}
			return all, err
		}
	}
	scan := func(rs bigtable.RowSet, opts ...txn.ReadOption) func(context.Context, *txn.Client) (any, error) {
		return rows(func(ctx context.Context, v *txn.View) (all []bigtable.Row, err error) {
			for r, err := range v.ReadRows(ctx, rs, opts...) {
				if err != nil {
					return nil, err
				}
				all = append(all, r)
			}
			return all, nil
		})
	}
	update := func(f func(context.Context, *txn.Table) error, opts ...txn.TxnOption) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			tx, err := c.Begin(ctx, opts...)
			if err != nil {
				return nil, err
			}
			defer tx.Rollback()
			if err := f(ctx, tx.Table("a")); err != nil {
				return nil, err
			}
			ts, err := tx.Commit(ctx)
			return ts > tx.StartTS(), err
		}
	}
	locked := func(ctx context.Context, c *txn.Client) (all []txn.Cell, start tso.Timestamp, err error) {
		for l, err := range admin.Locks(ctx, c, "a", nil) {
			if err != nil {
				return nil, 0, err
			}
			all, start = append(all, l.Cell), l.StartTS
		}
		return all, start, nil
	}
	get := func(row string) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return value(s.Table("a").Get(ctx, row, "f", "q"))
		}
	}
	return []operation{
		{name: "get", call: get("joe")},
		{name: "get, its owner died before the commit", left: txntest.StepCommit, call: get("joe")},
		{name: "get, its owner died after the commit", left: txntest.StepSecondaries, call: get("joe")},
		{name: "read row", call: rows(func(ctx context.Context, v *txn.View) ([]bigtable.Row, error) {
			r, err := v.ReadRow(ctx, "joe")
			return []bigtable.Row{r}, err
		})},
		{name: "scan", call: scan(nil)},
		{name: "scan, owner died before the commit", left: txntest.StepCommit, call: scan(nil)},
		{name: "scan, owner died after the commit", left: txntest.StepSecondaries, call: scan(nil)},
		{name: "scan backwards", call: scan(bigtable.InfiniteRange(""), txn.Reverse(), txn.Limit(2))},
		{name: "latest", left: txntest.StepSecondaries, call: func(ctx context.Context, c *txn.Client) (any, error) {
			return value(c.Latest("a").Get(ctx, "joe", "f", "q"))
		}},
		{name: "latest row", left: txntest.StepCommit, call: func(ctx context.Context, c *txn.Client) (any, error) {
			r, err := c.Latest("a").ReadRow(ctx, "joe")
			return len(r["f"]), err
		}},
		{name: "held snapshot", token: true, call: func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx, txn.Hold())
			if err != nil {
				return nil, err
			}
			defer s.Release()
			return value(s.Table("a").Get(ctx, "joe", "f", "q"))
		}},
		{name: "snapshot of the past", call: func(ctx context.Context, c *txn.Client) (any, error) {
			now, err := c.Timestamp(ctx)
			if err != nil {
				return nil, err
			}
			s, err := c.Snapshot(ctx, txn.At(now))
			if err != nil {
				return nil, err
			}
			return value(s.Table("a").Get(ctx, "joe", "f", "q"))
		}},
		{name: "write", call: update(func(_ context.Context, a *txn.Table) error {
			for _, row := range []string{"bob", "joe", "new"} {
				a.Set(row, "f", "q", []byte("20"))
			}
			return nil
		})},
		{name: "write one row", call: update(func(_ context.Context, a *txn.Table) error {
			a.Set("bob", "f", "q", []byte("21"))
			return nil
		})},
		{name: "write with a token", token: true, call: update(func(_ context.Context, a *txn.Table) error {
			a.Set("bob", "f", "q", []byte("22"))
			return nil
		})},
		{name: "write without reads", call: update(func(_ context.Context, a *txn.Table) error {
			a.Set("bob", "f", "q", []byte("23"))
			a.Set("joe", "f", "q", []byte("23"))
			return nil
		})},
		{name: "write, owner died before the commit", left: txntest.StepCommit, call: update(func(_ context.Context, a *txn.Table) error {
			a.Set("joe", "f", "q", []byte("24"))
			return nil
		})},
		{name: "write, owner died after the commit", left: txntest.StepSecondaries, call: update(func(_ context.Context, a *txn.Table) error {
			a.Set("joe", "f", "q", []byte("24"))
			return nil
		})},
		{name: "read, then write", call: update(func(ctx context.Context, a *txn.Table) error {
			v, _, err := a.GetForUpdate(ctx, "joe", "f", "q")
			a.Set("bob", "f", "q", append(v, '+'))
			return err
		})},
		{name: "serializable", call: update(func(ctx context.Context, a *txn.Table) error {
			v, _, err := a.Get(ctx, "joe", "f", "q")
			a.Set("bob", "f", "q", append(v, '+'))
			return err
		}, txn.Serializable())},
		{name: "delete row", call: update(func(ctx context.Context, a *txn.Table) error { return a.DeleteRow(ctx, "joe") })},
		{name: "write an observed column", call: update(func(_ context.Context, a *txn.Table) error {
			a.Set("bob", "f", "seen", []byte("1"))
			a.Set("joe", "f", "seen", []byte("1"))
			return nil
		})},
		{name: "update", call: func(ctx context.Context, c *txn.Client) (any, error) {
			return nil, tryUpdate(ctx, c, "25", "bob", "joe")
		}},
		{name: "read of an unknown family", call: func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			_, _, err = s.Table("a").Get(ctx, "joe", "unknown", "q")
			if errors.Is(err, txn.ErrSchema) && strings.Contains(err.Error(), "has no family") {
				return "no family", nil
			}
			return nil, errors.Join(err, ctx.Err())
		}},
		{name: "check table", call: func(ctx context.Context, c *txn.Client) (any, error) { return nil, c.CheckTable(ctx, "a") }},
		{name: "locks", left: txntest.StepCommit, call: func(ctx context.Context, c *txn.Client) (any, error) {
			cells, _, err := locked(ctx, c)
			return cells, err
		}},
		{name: "resolve", left: txntest.StepCommit, call: func(ctx context.Context, c *txn.Client) (any, error) {
			for l, err := range admin.Locks(ctx, c, "a", nil) {
				if err != nil {
					return nil, err
				}
				s, err := admin.Resolve(ctx, c, l)
				return s.State, err
			}
			return nil, errors.New("no lock")
		}},
		{name: "resolve transaction", left: txntest.StepSecondaries, call: func(ctx context.Context, c *txn.Client) (any, error) {
			_, start, err := locked(ctx, c)
			if err != nil {
				return nil, err
			}
			s, n, err := admin.ResolveTransaction(ctx, c, bob, start)
			return fmt.Sprint(s.State, n), err
		}},
		{name: "status", left: txntest.StepSecondaries, call: func(ctx context.Context, c *txn.Client) (any, error) {
			_, start, err := locked(ctx, c)
			if err != nil {
				return nil, err
			}
			s, err := admin.TransactionStatus(ctx, c, bob, start)
			return s.State, err
		}},
		{name: "history", call: func(ctx context.Context, c *txn.Client) (any, error) {
			v, err := admin.History(ctx, c, "a", "joe")
			return len(v), err
		}},
		{name: "check", call: func(ctx context.Context, c *txn.Client) (any, error) {
			return nil, errorOf(admin.Check(ctx, c, "a", nil))
		}},
		{name: "tables", call: func(ctx context.Context, c *txn.Client) (any, error) {
			return admin.Tables(ctx, c)
		}},
		{name: "workers", token: true, call: func(ctx context.Context, c *txn.Client) (any, error) {
			w, err := admin.Workers(ctx, c)
			return len(w), err
		}},
		{name: "wait for observers", call: func(ctx context.Context, c *txn.Client) (any, error) {
			ts, err := notify.Wait(ctx, c, notify.WaitConfig{})
			return ts > 0, err
		}},
		{name: "bulk load", parts: true, call: func(ctx context.Context, c *txn.Client) (any, error) {
			r, err := admin.BulkLoad(ctx, c, "b", func(yield func(admin.BulkRow, error) bool) {
				for _, row := range []string{"r1", "r2"} {
					if !yield(admin.BulkRow{Row: row, Cells: []admin.BulkCell{{Family: "f", Qualifier: "q"}}}, nil) {
						return
					}
				}
			}, admin.BulkConfig{})
			return r.CommitTS > r.StartTS, err
		}},
		{name: "close", token: true, parts: true, call: func(ctx context.Context, c *txn.Client) (any, error) {
			if err := tryUpdate(ctx, c, "26", "bob", "joe"); err != nil {
				return nil, err
			}
			return nil, c.Close(ctx)
		}},
	}
}

// newOperated makes the tables of an operation.
func newOperated(t *testing.T, op operation) *txntest.Env {
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
	env.CreateTable("a", "f")
	env.CreateTable("b", "f")
	if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "seen"}, "o", false); err != nil {
		t.Fatal(err)
	}
	if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "weak"}, "w", true); err != nil {
		t.Fatal(err)
	}
	mustSet(t, env.Client, "1", "bob", "joe", "sue")
	if op.left != "" {
		leaveLocks(t, env, op.left)
	}
	return env
}
