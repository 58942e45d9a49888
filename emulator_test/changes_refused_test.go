package emulator_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestChangesRefusedAtEveryRequest refuses one request of each function about observed
// changes, each in turn. The function reports it. If it did not, a worker could take a change for
// handled, or a table for one without work.
func TestChangesRefusedAtEveryRequest(t *testing.T) {
	cell := func(row string) txn.Cell { return txn.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"} }
	observed := cell("bob").Column()
	letter := changes.DeadLetter{Cell: cell("bob"), Observer: "o", ChangeTS: 1, Attempts: 1}
	observe := func(ctx context.Context, c *txn.Client, row string) (*changes.Observation, error) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback()
		return changes.Observe(ctx, tx, cell(row))
	}
	for name, call := range map[string]func(context.Context, *txn.Client) error{
		"ObservedColumns": func(ctx context.Context, c *txn.Client) error {
			_, err := changes.ObservedColumns(ctx, c, "a")
			return err
		},
		"RegisterObserver": func(ctx context.Context, c *txn.Client) error {
			return changes.RegisterObserver(ctx, c, "a", observed, "another", false)
		},
		"UnregisterObserver": func(ctx context.Context, c *txn.Client) error {
			_, err := changes.UnregisterObserver(ctx, c, "a", "another")
			return err
		},
		"Indexes": func(ctx context.Context, c *txn.Client) error {
			_, err := changes.Indexes(ctx, c, "a")
			return err
		},
		"RegisterIndex": func(ctx context.Context, c *txn.Client) error {
			return changes.RegisterIndex(ctx, c, "a", changes.Index{Name: "i", Columns: []txn.Column{{Family: "f", Qualifier: "indexed"}}, Entries: "a/f"})
		},
		"UnregisterIndex": func(ctx context.Context, c *txn.Client) error {
			return changes.UnregisterIndex(ctx, c, "a", changes.Index{Name: "i", Entries: "a/f"})
		},
		"Notify": func(ctx context.Context, c *txn.Client) error { return changes.Notify(ctx, c, cell("bob")) },
		"ClearNotifications": func(ctx context.Context, c *txn.Client) error {
			return changes.ClearNotifications(ctx, c, changes.Cleared{Cell: cell("none"), UpTo: 1})
		},
		"SetFailure": func(ctx context.Context, c *txn.Client) error {
			return changes.SetFailure(ctx, c, cell("bob"), "o", format.Failure{ChangeTS: 1})
		},
		"Park":   func(ctx context.Context, c *txn.Client) error { return changes.Park(ctx, c, letter) },
		"Replay": func(ctx context.Context, c *txn.Client) error { return changes.Replay(ctx, c, letter) },
		"Drop":   func(ctx context.Context, c *txn.Client) error { return changes.Drop(ctx, c, letter) },
		"Observe": func(ctx context.Context, c *txn.Client) error {
			_, err := observe(ctx, c, "joe")
			return err
		},
		"Trail": func(ctx context.Context, c *txn.Client) error {
			o, err := observe(ctx, c, "joe")
			if err != nil {
				return err
			}
			if hops, err := changes.Trail(ctx, c, o, 9); err != nil || len(hops) != 1 {
				return fmt.Errorf("%v, %w", hops, err)
			}
			return nil
		},
		"DeadLetters": func(ctx context.Context, c *txn.Client) error { return errorOf(changes.DeadLetters(ctx, c)) },
		"Notifications": func(ctx context.Context, c *txn.Client) error {
			return errorOf(changes.Notifications(ctx, c, "a", nil))
		},
		"Sweep":        func(ctx context.Context, c *txn.Client) error { return errorOf(changes.Sweep(ctx, c, "a", nil)) },
		"Observations": func(ctx context.Context, c *txn.Client) error { return errorOf(changes.Observations(ctx, c, "a", nil)) },
		"FindUnfinished": func(ctx context.Context, c *txn.Client) error {
			now, err := c.Timestamp(ctx)
			if err != nil {
				return err
			}
			return errorOf(changes.FindUnfinished(ctx, c, "a", nil, now, true))
		},
		"SampleRowKeys": func(ctx context.Context, c *txn.Client) error {
			_, err := changes.SampleRowKeys(ctx, c, "a")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
				env.CreateTable("a", "f")
				if err := changes.RegisterObserver(t.Context(), env.Client, "a", observed, "o", false); err != nil {
					t.Fatal(err)
				}
				mustSet(t, env.Client, "1", "bob")
				if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { // a run of o
					o, err := changes.Observe(ctx, tx, cell("bob"))
					if err != nil {
						return err
					}
					changes.Acknowledge(tx, o, "o")
					set(tx, "2", "joe")
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if err := changes.Park(t.Context(), env.Client, letter); err != nil {
					t.Fatal(err)
				}
				for k := int64(1); ; k++ {
					var n, refused atomic.Int64
					n.Store(-1000)
					c := env.NewClient(txn.Config{TokenTTL: -1}, refuse(func(call txntest.Call) bool {
						if n.Add(1) != k {
							return false
						}
						refused.Add(1)
						return true
					})...)
					n.Store(0)
					err := call(t.Context(), c)
					if refused.Load() == 0 {
						if err != nil || k == 1 {
							t.Errorf("without a refusal: %v; %d requests", err, k-1)
						}
						t.Logf("%d requests", k-1)
						return
					}
					if status.Code(err) != codes.PermissionDenied {
						t.Errorf("request %d was refused: %v", k, err)
					}
				}
			})
		})
	}
}

// errorOf returns the error with which an iteration ends.
func errorOf[T any](all iter.Seq2[T, error]) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}
