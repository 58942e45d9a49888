package emulator_test

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// changesOperations are functions about observed changes. They return what they found or did, without
// timestamps. Those whose names begin with "write" change something.
func changesOperations() map[string]func(context.Context, *txn.Client) (any, error) {
	cell := func(row string) txn.Cell { return txn.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"} }
	observed := cell("bob").Column()
	letter := changes.DeadLetter{Cell: cell("bob"), Observer: "o", ChangeTS: 1, Attempts: 1}
	nothing := func(f func(context.Context, *txn.Client) error) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) { return nil, f(ctx, c) }
	}
	inTxn := func(f func(context.Context, *txn.Txn) (any, error)) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			tx, err := c.Begin(ctx)
			if err != nil {
				return nil, err
			}
			defer tx.Rollback()
			return f(ctx, tx)
		}
	}
	committed := func(f func(context.Context, *txn.Txn) error) func(context.Context, *txn.Client) (any, error) {
		return inTxn(func(ctx context.Context, tx *txn.Txn) (any, error) {
			if err := f(ctx, tx); err != nil {
				return nil, err
			}
			_, err := tx.Commit(ctx)
			return nil, err
		})
	}
	position := func(ctx context.Context, c *txn.Client) (changes.SweepPosition, error) {
		all, err := changes.SweepPositions(ctx, c, func(context.Context) (time.Duration, error) { return 0, nil }, "a")
		if err != nil || len(all) != 1 {
			return changes.SweepPosition{}, fmt.Errorf("%d positions, %w", len(all), err)
		}
		return all[0], nil
	}
	counter := notify.Counter{Table: "a", Family: "f", Qualifier: "n", Shards: 1}
	return map[string]func(context.Context, *txn.Client) (any, error){
		"ObservedColumns": func(ctx context.Context, c *txn.Client) (any, error) { return changes.ObservedColumns(ctx, c, "a") },
		"write RegisterObserver": nothing(func(ctx context.Context, c *txn.Client) error {
			return changes.RegisterObserver(ctx, c, "a", observed, "another", false)
		}),
		"write UnregisterObserver": func(ctx context.Context, c *txn.Client) (any, error) {
			_, err := changes.UnregisterObserver(ctx, c, "a", "another")
			return nil, err
		},
		"Indexes": func(ctx context.Context, c *txn.Client) (any, error) { return changes.Indexes(ctx, c, "a") },
		"write RegisterIndex": nothing(func(ctx context.Context, c *txn.Client) error {
			return changes.RegisterIndex(ctx, c, "a", changes.Index{Name: "i", Columns: []txn.Column{{Family: "f", Qualifier: "indexed"}}, Entries: "a/f"})
		}),
		"write UnregisterIndex": nothing(func(ctx context.Context, c *txn.Client) error {
			return changes.UnregisterIndex(ctx, c, "a", changes.Index{Name: "i", Entries: "a/f"})
		}),
		"write Notify": nothing(func(ctx context.Context, c *txn.Client) error { return changes.Notify(ctx, c, cell("bob")) }),
		"write ClearNotifications": nothing(func(ctx context.Context, c *txn.Client) error {
			return changes.ClearNotifications(ctx, c, changes.Cleared{Cell: cell("none"), UpTo: 1})
		}),
		"write SetFailure": nothing(func(ctx context.Context, c *txn.Client) error {
			return changes.SetFailure(ctx, c, cell("bob"), "o", format.Failure{ChangeTS: 1})
		}),
		"write Park":   nothing(func(ctx context.Context, c *txn.Client) error { return changes.Park(ctx, c, letter) }),
		"write Replay": nothing(func(ctx context.Context, c *txn.Client) error { return changes.Replay(ctx, c, letter) }),
		"write Drop":   nothing(func(ctx context.Context, c *txn.Client) error { return changes.Drop(ctx, c, letter) }),
		"Observe": inTxn(func(ctx context.Context, tx *txn.Txn) (any, error) {
			o, err := changes.Observe(ctx, tx, cell("joe"))
			return err == nil && o.Pending("o"), err
		}),
		"Observe, acknowledged": inTxn(func(ctx context.Context, tx *txn.Txn) (any, error) {
			o, err := changes.Observe(ctx, tx, cell("bob"))
			return err == nil && o.Pending("o"), err
		}),
		"Previous": inTxn(func(ctx context.Context, tx *txn.Txn) (any, error) {
			o, err := changes.Observe(ctx, tx, cell("bob"))
			if err != nil {
				return nil, err
			}
			v, ok, err := changes.Previous(ctx, tx, o, "o")
			return fmt.Sprintf("%s %t", v, ok), err
		}),
		"Trail": func(ctx context.Context, c *txn.Client) (any, error) {
			return inTxn(func(ctx context.Context, tx *txn.Txn) (any, error) {
				o, err := changes.Observe(ctx, tx, cell("joe"))
				if err != nil {
					return nil, err
				}
				hops, err := changes.Trail(ctx, c, o, 9)
				return len(hops), err
			})(ctx, c)
		},
		"DeadLetters": func(ctx context.Context, c *txn.Client) (any, error) { return count(changes.DeadLetters(ctx, c)) },
		"Notifications": func(ctx context.Context, c *txn.Client) (any, error) {
			return count(changes.Notifications(ctx, c, "a", nil))
		},
		"write Sweep": func(ctx context.Context, c *txn.Client) (any, error) { return count(changes.Sweep(ctx, c, "a", nil)) },
		"Observations": func(ctx context.Context, c *txn.Client) (any, error) {
			pending := []bool{}
			for o, err := range changes.Observations(ctx, c, "a", nil) {
				if err != nil {
					return nil, err
				}
				pending = append(pending, o.Pending("o"))
			}
			return pending, nil
		},
		"FindUnfinished": func(ctx context.Context, c *txn.Client) (any, error) {
			now, err := c.Timestamp(ctx)
			if err != nil {
				return nil, err
			}
			return count(changes.FindUnfinished(ctx, c, "a", nil, now, true))
		},
		"SampleRowKeys": nothing(func(ctx context.Context, c *txn.Client) error {
			_, err := changes.SampleRowKeys(ctx, c, "a") // by chance
			return err
		}),
		"Journaled":   func(ctx context.Context, c *txn.Client) (any, error) { return changes.Journaled(ctx, c, "a") },
		"EnteredRows": func(ctx context.Context, c *txn.Client) (any, error) { return changes.EnteredRows(ctx, c, "a") },
		"write Pending": func(ctx context.Context, c *txn.Client) (any, error) {
			return count(changes.Pending(ctx, c, []string{"a"}, changes.Part{Of: 1}))
		},
		"write Enter": nothing(func(ctx context.Context, c *txn.Client) error {
			ts, err := c.Timestamp(ctx)
			if err != nil {
				return err
			}
			return changes.Enter(ctx, c, ts, cell("bob"), cell("joe"))
		}),
		"write SweepPositions": func(ctx context.Context, c *txn.Client) (any, error) {
			p, err := position(ctx, c)
			return p.Complete, err
		},
		"write MoveSweep": func(ctx context.Context, c *txn.Client) (any, error) {
			p, err := position(ctx, c)
			if err != nil {
				return nil, err
			}
			_, ok, err := changes.MoveSweep(ctx, c, p, "", true, 0)
			return ok, err
		},
		"AdvisoryLocks": func(ctx context.Context, c *txn.Client) (any, error) {
			locks := changes.AdvisoryLocks(c)
			by, err := locks.Holder(ctx, "none")
			return by.Owner, err
		},
		"write Backfill": func(ctx context.Context, c *txn.Client) (any, error) {
			return notify.Backfill(ctx, c, notify.BackfillConfig{Table: "a", Column: observed})
		},
		"write Counter.Add": committed(func(ctx context.Context, tx *txn.Txn) error { return counter.Add(ctx, tx, "n", 1) }),
		"write Counter.Observe": committed(func(ctx context.Context, tx *txn.Txn) error {
			return counter.Observe(ctx, tx, txn.Cell{Table: "a", Row: "k#shard-0000", Family: "f", Qualifier: "n.added"})
		}),
		"Counter.Read": func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return counter.Read(ctx, s.Table("a"), "k")
		},
	}
}

// newAcknowledged makes table a, whose column f:q the observer o watches. It has run on bob, and set joe,
// which is pending. Another change of bob is a dead letter. Row k has a counter.
func newAcknowledged(t *testing.T, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	cell := txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"}
	env := txntest.New(t, append(opts, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))...)
	env.CreateTable("a", "f")
	if err := changes.RegisterObserver(t.Context(), env.Client, "a", cell.Column(), "o", false); err != nil {
		t.Fatal(err)
	}
	mustSet(t, env.Client, "1", "bob")
	if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { // a run of o
		o, err := changes.Observe(ctx, tx, cell)
		if err != nil {
			return err
		}
		changes.Acknowledge(tx, o, "o")
		set(tx, "2", "joe")
		return notify.Counter{Table: "a", Family: "f", Qualifier: "n", Shards: 1}.Add(ctx, tx, "k", 3)
	}); err != nil {
		t.Fatal(err)
	}
	if err := changes.Park(t.Context(), env.Client, changes.DeadLetter{Cell: cell, Observer: "o", ChangeTS: 1, Attempts: 1}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // secondaries
	return env
}

// TestChangesRefusedAtEveryRequest fails one request of each function about observed
// changes, each in turn. If Bigtable refuses it, the function reports that. If it did not, a worker
// could take a change for handled, or a table for one without work. If the failure passes, the
// function reports it, or does what it does without the failure.
func TestChangesRefusedAtEveryRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for name, call := range changesOperations() {
		t.Run(name, func(t *testing.T) {
			run := func(t *testing.T, env *txntest.Env, k int64, code codes.Code) (r ran) {
				var n atomic.Int64
				var failed atomic.Bool
				n.Store(-1000)
				c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(txntest.Call) error {
					if n.Add(1) != k {
						return nil
					}
					failed.Store(true)
					return status.Error(code, "injected")
				})...)
				n.Store(0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r.result, r.err = call(ctx, c)
				r.fired = failed.Load()
				return r
			}
			if !strings.HasPrefix(name, "write ") {
				synctest.Test(t, func(t *testing.T) {
					env := newAcknowledged(t)
					failEach(t, func(k int64, code codes.Code) ran { return run(t, env, k, code) })
				})
				return
			}
			failEach(t, func(k int64, code codes.Code) (r ran) {
				synctest.Test(t, func(t *testing.T) {
					env := newAcknowledged(t)
					r = run(t, env, k, code)
					advance(time.Minute) // what failed in the background is sent again
					r.after = fmt.Sprint(storedColumns(t, env, "a", format.DefaultMetadataTable))
				})
				return r
			})
		})
	}
}

// TestUnregisterWithoutAnswer: an observer was there, although the first request has removed it and
// its answer was lost.
func TestUnregisterWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "q"}, "o", false); err != nil {
			t.Fatal(err)
		}
		faults.On("edit", func(c txntest.Call) bool { return c.Row == "schema/a" && c.Method == "CheckAndMutateRow" }, txntest.DropResponse, 1)
		for _, want := range []bool{true, false} {
			if found, err := changes.UnregisterObserver(t.Context(), c, "a", "o"); err != nil || found != want {
				t.Errorf("%t, %v, want %t", found, err, want)
			}
		}
	})
}

// failEach runs a function without a failure, and then with one of its requests failing, each in turn.
func failEach(t *testing.T, run func(k int64, code codes.Code) ran) {
	t.Helper()
	want := run(0, codes.OK)
	if want.err != nil {
		t.Error(want.err)
	}
	for k, more := int64(1), true; more; k += int64(reducedTo(5)) {
		got := run(k, codes.PermissionDenied)
		if more = got.fired; !more && k == 1 {
			t.Error("it sent no request")
		}
		if more && status.Code(got.err) != codes.PermissionDenied {
			t.Errorf("request %d was refused: %v", k, got.err)
		}
		got = run(k, codes.Unavailable)
		switch {
		case got.err == nil && (!reflect.DeepEqual(got.result, want.result) || got.after != want.after):
			t.Errorf("request %d was not answered (%t): %v, and then %s; want %v, and then %s", k, got.fired, got.result, got.after, want.result, want.after)
		case got.err != nil && status.Code(got.err) != codes.Unavailable:
			t.Errorf("request %d was not answered (%t): %v", k, got.fired, got.err)
		}
	}
}

// storedColumns returns what is stored in tables, by row and column, with the number of versions.
func storedColumns(t *testing.T, env *txntest.Env, tables ...string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, table := range tables {
		if err := env.Bigtable.Open(table).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			for _, items := range r {
				for _, i := range items {
					found[fmt.Sprintf("%s %q %q", table, i.Row, i.Column)]++
				}
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// count returns how many elements an iteration yields.
func count[T any](all iter.Seq2[T, error]) (n int, err error) {
	for _, err := range all {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
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
