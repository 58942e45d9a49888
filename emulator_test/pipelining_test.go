package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// warmStarts commits until the client has a start timestamp ready for the next
// transaction that reads nothing.
func warmStarts(t *testing.T, c *txn.Client) {
	t.Helper()
	for i := range 3 {
		putValue(t, c, fmt.Sprintf("warm%d", i), "w", txn.WriteOnly())
		synctest.Wait()
	}
}

// Write-only transactions that follow each other have a critical path of three round
// trips: prewrite, commit_ts, primary. Other transactions have four.
func TestSequentialRoundTripsWriteOnly(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts []txn.TxnOption
		want int
	}{{"write only", []txn.TxnOption{txn.WriteOnly()}, 3}, {"any", nil, 4}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				delay := 10 * time.Millisecond
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, append(slow(delay), faults.DialOptions()...)...)
				for i := range 6 {
					begun := time.Now()
					asked := c.Stats().Timestamps
					putValue(t, c, fmt.Sprintf("row%d", i), "v", tt.opts...)
					got := int(time.Since(begun) / delay)
					if i < 3 {
						continue // these open the table, and show the client what its caller does
					}
					if got != tt.want {
						t.Errorf("transaction %d: %d sequential requests, want %d", i, got, tt.want)
					}
					if n := c.Stats().Timestamps - asked; n != 2 {
						t.Errorf("transaction %d: %d requests to the oracle, want 2", i, n)
					}
				}
			})
		})
	}
}

// No two transactions have the same start_ts, and each start_ts is above what its
// client has committed.
func TestStartsAheadAreGivenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		warmStarts(t, c)
		seen := map[tso.Timestamp]bool{}
		var last tso.Timestamp
		for i := range 10 {
			synctest.Wait()
			// Two transactions at a time, which write the same cells in turn. They do
			// not conflict with what the client has committed.
			one, two := begin(t, c, txn.WriteOnly()), begin(t, c, txn.WriteOnly())
			for _, tx := range []*txn.Txn{one, two} {
				if seen[tx.StartTS()] || tx.StartTS() <= last {
					t.Fatalf("start_ts %d was given before, or is not above the commit at %d", tx.StartTS(), last)
				}
				seen[tx.StartTS()] = true
			}
			one.Table("a").Set("one", "f", "q", fmt.Append(nil, i))
			two.Table("a").Set("two", "f", "q", fmt.Append(nil, i))
			for _, tx := range []*txn.Txn{one, two} {
				ts, err := tx.Commit(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				last = max(last, ts)
			}
		}
		if n := c.Stats().AheadTimestamps; n < 5 {
			t.Errorf("%d transactions began without a request to the oracle", n)
		}
	})
}

// A transaction that reads sees what was committed before it began, even if the client
// has an older timestamp ready.
func TestReadersDoNotStartAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		warmStarts(t, c)
		putValue(t, env.Client, "r", "by another client")
		tx := begin(t, c)
		defer tx.Rollback()
		b, ok, err := tx.Table("a").Get(t.Context(), "r", "f", "q")
		if err != nil || !ok {
			t.Errorf("the transaction misses a commit from before its begin: %q, %v, %v", b, ok, err)
		}
		if got := valueAt(t, takeSnapshot(t, c), "r"); got != "by another client" {
			t.Errorf("a snapshot shows %s", got)
		}
	})
}

// A transaction that began ahead conflicts with another client's later commit, instead
// of overwriting it, and Update retries above that commit. A timestamp that was
// requested long ago is not used.
func TestStartAheadConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		warmStarts(t, c)
		putValue(t, env.Client, "r", "by another client")
		tx := begin(t, c, txn.WriteOnly())
		tx.Table("a").Lock("r", "f", "q")
		tx.Table("a").Set("s", "f", "q", nil)
		if _, err := tx.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("%v, want a conflict with a later commit", err)
		}
		warmStarts(t, c)
		putValue(t, env.Client, "r", "again")
		runs := 0
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			runs++
			tx.Table("a").Set("r", "f", "q", []byte("last"))
			return nil
		}, txn.WriteOnly())
		if err != nil || runs != 2 {
			t.Errorf("%d runs, %v", runs, err)
		}
		if got := valueAt(t, takeSnapshot(t, env.Client), "r"); got != "last" {
			t.Errorf("%s", got)
		}

		warmStarts(t, c)
		n := c.Stats().AheadTimestamps
		putValue(t, env.Client, "r", "once more")
		<-time.After(200 * time.Millisecond)
		putValue(t, c, "r", "last", txn.WriteOnly())
		if got := c.Stats().AheadTimestamps; got != n {
			t.Error("a start timestamp was used 200 ms after it was asked for")
		}
	})
}

// The ttl of a lock counts from its start_ts. If the start_ts waited, the lock's ttl is
// longer by that time.
func TestStartAheadKeepsTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, waited = 2 * time.Second, 90 * time.Millisecond
		_, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1, LockTTL: ttl})
		warmStarts(t, c)
		<-time.After(waited)
		n := c.Stats().AheadTimestamps
		tx := begin(t, c, txn.WriteOnly())
		if c.Stats().AheadTimestamps != n+1 {
			t.Fatal("the transaction requested its start timestamp")
		}
		tx.Table("a").Set("r", "f", "q", nil)
		hold := faults.OnStep(txntest.StepCommit, txntest.Hold)
		done := commitInBackground(t.Context(), tx)
		<-hold.Fired()
		for l, err := range admin.Locks(t.Context(), c, "a", nil) {
			if err != nil || l.TTL < ttl+waited {
				t.Errorf("lock with a ttl of %v, %v", l.TTL, err)
			}
		}
		hold.Release()
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
}

// A write-only transaction refuses to read.
func TestWriteOnlyRefusesReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		tx := begin(t, c, txn.WriteOnly())
		defer tx.Rollback()
		a := tx.Table("a")
		a.Set("r", "f", "q", nil)
		_, _, get := a.Get(t.Context(), "r", "f", "q")
		_, _, forUpdate := a.GetForUpdate(t.Context(), "r", "f", "q")
		_, row := a.ReadRow(t.Context(), "r")
		_, observe := changes.Observe(t.Context(), tx, txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "q"})
		var rows error
		for _, err := range a.ReadRows(t.Context(), nil) {
			rows = err
		}
		for i, err := range []error{get, forUpdate, row, observe, rows, a.DeleteRow(t.Context(), "r")} {
			if !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		if n := faults.Count()[txntest.StepRead]; n != 0 {
			t.Errorf("%d reads", n)
		}
	})
}

// Each run of Update's function begins at a timestamp that the client requested after the
// pause before it. So the run shows what any client committed before its function was called:
// while the client removed the locks of the run before, and during the pause. And it shows
// what its own client has shown already. Before the fix the client requested the timestamp
// of the next run together with the removal.
func TestRetryBeginsAfterItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1, Backoff: txn.Backoff{Min: time.Second, Max: time.Second}})
		other := env.NewClient(txn.Config{TokenTTL: -1})
		putValue(t, env.Client, "r", "0")
		abort := faults.OnStep(txntest.StepAbort, txntest.Hold)
		var asked int64
		var runs []string
		done := inBackground(func() error {
			_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
				a, seen := tx.Table("a"), ""
				for _, row := range []string{"r", "removal", "pause"} {
					b, _, err := a.Get(ctx, row, "f", "q")
					if err != nil {
						return err
					}
					seen += string(b)
				}
				if runs = append(runs, seen); len(runs) == 1 {
					putValue(t, env.Client, "r", "1") // the conflict
					asked = c.Stats().Timestamps
				}
				a.Set("own", "f", "q", nil) // there is a lock to remove
				a.Set("r", "f", "q", []byte("2"))
				return nil
			})
			return err
		})
		<-abort.Fired()
		synctest.Wait()
		putValue(t, other, "removal", "+")
		shown := valueAt(t, takeSnapshot(t, c), "removal")
		abort.Release()
		synctest.Wait() // until the pause
		putValue(t, other, "pause", "+")
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		if len(runs) != 2 || runs[1] != "1++" {
			t.Errorf("the runs saw %q; the second one has to see what was committed before its call", runs)
		}
		if shown != "+" {
			t.Errorf("a snapshot between the runs shows %q", shown)
		}
		if n := c.Stats().Timestamps - asked; n != 3 {
			t.Errorf("%d timestamps, want one for the snapshot and two for the second run", n)
		}
	})
}

// Several clients write without waiting for their start timestamps, and read. A client
// that reads after another client's commit sees it, and a client sees its own commits
// in stale snapshots too. No increment of a counter is lost, with read cache and shared
// requests switched on.
func TestWriteOnlyRealTimeOrder(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var clients []*txn.Client
	for i := range 3 {
		clients = append(clients, env.NewClient(txn.Config{BatchReads: i}))
	}
	const each, writers = 8, 2 // of each client
	var wg sync.WaitGroup
	for i, c := range clients {
		for w := range writers {
			wg.Go(func() {
				row := fmt.Sprintf("row%d-%d", i, w)
				for n := range each {
					_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
						tx.Table("a").Set(row, "f", "q", fmt.Append(nil, n))
						tx.Table("a").Set("all", "f", "last", []byte(row))
						return nil
					}, txn.WriteOnly())
					if err != nil {
						t.Error(err)
						return
					}
					for j, reader := range clients {
						var opts []txn.SnapshotOption
						if j == i {
							opts = append(opts, txn.MaxStaleness(time.Hour))
						}
						s, err := reader.Snapshot(ctx, append(opts, txn.Named("order"))...)
						if err != nil {
							t.Error(err)
							return
						}
						got, _, err := s.Table("a").Get(ctx, row, "f", "q")
						if err != nil || string(got) != fmt.Sprint(n) {
							t.Errorf("client %d reads %q, %v after client %d's commit of %d", j, got, err, i, n)
						}
					}
					_, err = c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
						got, _, err := tx.Table("a").Get(ctx, "all", "f", "count")
						tx.Table("a").Set("all", "f", "count", append(got, '+'))
						return err
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	s := takeSnapshot(t, env.Client)
	got, _, err := s.Table("a").Get(ctx, "all", "f", "count")
	if err != nil || len(got) != len(clients)*writers*each {
		t.Errorf("%d of %d were counted, %v", len(got), len(clients)*writers*each, err)
	}
	var ahead, reused int64
	for _, c := range clients {
		ahead += c.Stats().AheadTimestamps
		reused += c.Stats().ReusedTimestamps
	}
	t.Logf("%d transactions began ahead, %d snapshots reused a timestamp", ahead, reused)
}

// A client that settles a commit counts it as one of its own. Before the fix, a
// write-only transaction began below it, at a timestamp requested ahead, and had a
// conflict.
func TestStartAheadAboveSettledCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		warmStarts(t, c)
		hold := faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
		ctx, cancel := context.WithCancel(t.Context())
		tx := begin(t, c)
		tx.Table("a").Set("r", "f", "q", []byte("1"))
		done := commitInBackground(ctx, tx)
		<-hold.Fired()
		synctest.Wait()
		cancel()
		var unknown *txn.UndeterminedError
		if o := <-done; !errors.As(o.err, &unknown) {
			t.Fatalf("%v, want an unknown outcome", o.err)
		}
		hold.Release()
		s, err := c.Settle(t.Context(), unknown)
		if err != nil || s.State != txn.StateCommitted {
			t.Fatalf("%v, %v", s.State, err)
		}
		tx = begin(t, c, txn.WriteOnly())
		if tx.StartTS() <= s.CommitTS {
			t.Errorf("a transaction begins at %d, below what its client has settled at %d", tx.StartTS(), s.CommitTS)
		}
		tx.Table("a").Set("r", "f", "q", []byte("2"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A stuckOracle does not answer its left-th request.
type stuckOracle struct {
	tso.Oracle
	left  atomic.Int64
	stuck chan struct{}
}

func (o *stuckOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if o.left.Add(-1) == 0 {
		close(o.stuck)
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return o.Oracle.Timestamp(ctx)
}

// If a timestamp requested ahead does not come, the client requests another one as soon
// as the first would be too old. Before the fix the transaction waited for up to
// Config.BackgroundTimeout.
func TestStartAheadThatIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		oracle := &stuckOracle{Oracle: env.Oracle(), stuck: make(chan struct{})}
		c := env.NewClient(txn.Config{TokenTTL: -1, Oracle: oracle, BackgroundTimeout: time.Hour})
		warmStarts(t, c)
		tx := begin(t, c, txn.WriteOnly())
		tx.Table("a").Set("r", "f", "q", []byte("1"))
		oracle.left.Store(2) // the request after the one for the commit_ts
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-oracle.stuck
		begun := time.Now()
		putValue(t, c, "r", "2", txn.WriteOnly())
		if d := time.Since(begun); d > time.Second {
			t.Errorf("a transaction waited %v for an answer that it could not use", d)
		}
	})
}
