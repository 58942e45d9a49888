package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// latestValue reads f:q of a row of table a at its present; "absent" if it does not exist.
func latestValue(t *testing.T, c *txn.Client, row string) string {
	t.Helper()
	b, ok, err := c.Latest("a").Get(t.Context(), row, "f", "q")
	switch {
	case err != nil:
		t.Fatal(err)
	case ok != (b != nil):
		t.Errorf("the value %v is present: %v", b, ok)
	case !ok:
		return "absent"
	}
	return string(b)
}

func wantLatest(t *testing.T, c *txn.Client, row, want string) {
	t.Helper()
	if got := latestValue(t, c, row); got != want {
		t.Errorf("the latest value of row %s is %q, want %q", row, got, want)
	}
}

// A read of the latest state is one request, and none to the oracle. It shows what another
// client has just committed.
func TestLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		count := func(want int) {
			t.Helper()
			if n := faults.Count(); n[txntest.StepRead] != want || len(n) > 1 {
				t.Errorf("%v; want %d reads", n, want)
			}
			faults.Reset()
		}
		wantLatest(t, c, "r", "absent")
		count(1)
		for _, v := range []string{"1", "", "2"} {
			putValue(t, env.Client, "r", v)
			wantLatest(t, c, "r", v)
			count(1)
		}
		row, err := c.Latest("a").ReadRow(t.Context(), "r")
		if err != nil || rowText(row) == "" {
			t.Errorf("%v, %v", row, err)
		}
		count(1)
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Delete("r", "f", "q")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		wantLatest(t, c, "r", "absent")
		count(1)
		if n := c.Stats().LatestReads; n != 6 {
			t.Errorf("%d reads are counted", n)
		}
		if _, _, err := c.Latest("a").Get(t.Context(), "", "f", "q"); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a read without a row key: %v", err)
		}
		if _, _, err := c.Latest("a").Get(t.Context(), "r", "unknown", "q"); !errors.Is(err, txn.ErrInvalid) && !errors.Is(err, txn.ErrSchema) {
			t.Errorf("a read of an unknown family: %v", err)
		}
		faults.Reset()
		if _, err := c.Latest("a").ReadRow(t.Context(), ""); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a read of a row without a key: %v", err)
		}
		if _, err := c.Latest("a").ReadRow(t.Context(), "r", txn.CellsPerRow(-1)); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a read of -1 cells: %v", err)
		}
		count(0)
		closed := env.NewClient(txn.Config{})
		if err := closed.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := closed.Latest("a").ReadRow(t.Context(), "r"); !errors.Is(err, txn.ErrClosed) {
			t.Errorf("a read of a closed client: %v", err)
		}
	})
}

// A read of the latest state waits for no live transaction. Primary and secondary cells show
// the older value until the commit point, and the new one from then on, also while the
// secondary is still locked.
func TestLatestBesideACommit(t *testing.T) {
	for _, old := range []string{"absent", "1"} {
		t.Run(old, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
				if old != "absent" {
					mustSet(t, env.Client, old, "p", "s")
				}
				slow := txntest.NewFaults(t)
				owner := env.NewClient(txn.Config{}, slow.DialOptions()...)
				commit := slow.OnStep(txntest.StepCommit, txntest.Hold)
				secondary := slow.OnStep(txntest.StepSecondaries, txntest.Hold)
				ended := commitInBackground(t.Context(), beginSet(t, owner, "2", "p", "s"))
				<-commit.Fired()
				began := time.Now()
				faults.Reset()
				wantLatest(t, c, "p", old)
				if n := faults.Count(); n[txntest.StepRead] != 2 || len(n) > 1 {
					t.Errorf("beside the primary lock: %v; want 2 reads", n)
				}
				wantLatest(t, c, "s", old)
				if took := time.Since(began); took > 0 {
					t.Errorf("the reads took %v", took)
				}
				commit.Release()
				if o := <-ended; o.err != nil {
					t.Fatal(o.err)
				}
				<-secondary.Fired()
				wantLatest(t, c, "s", "2")
				wantLatest(t, c, "p", "2")
				secondary.Release()
			})
		})
	}
}

// columns are the two columns of a row of TestLatestIsOneTimestamp.
func setColumn(tx *txn.Txn, qualifier, value string) {
	tx.Table("a").Set("r", "f", qualifier, []byte(value))
}

// A read of two columns shows the row as of one timestamp. The first transaction has its
// commit_ts and is late; the second one commits another column above it. If the read showed the
// second without the first, no snapshot would agree: those that show the second also show the
// first.
func TestLatestIsOneTimestamp(t *testing.T) {
	for _, pass := range []bool{false, true} {
		t.Run(fmt.Sprint("pass=", pass), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1, PassLocks: pass})
				slow := txntest.NewFaults(t)
				owner := env.NewClient(txn.Config{PassLocks: pass}, slow.DialOptions()...)
				commit := slow.OnStep(txntest.StepCommit, txntest.Hold)
				first := begin(t, owner)
				setColumn(first, "x", "first")
				ended := make(chan tso.Timestamp, 1)
				go func() {
					ts, err := first.Commit(t.Context())
					if err != nil {
						t.Error(err)
					}
					ended <- ts
				}()
				<-commit.Fired()
				second := begin(t, env.Client)
				setColumn(second, "y", "second")
				at, err := second.Commit(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				read := make(chan string, 1)
				go func() {
					row, err := c.Latest("a").ReadRow(t.Context(), "r")
					if err != nil {
						t.Error(err)
					}
					read <- rowText(row)
				}()
				synctest.Wait()
				if waits := len(read) == 0; waits == pass {
					t.Errorf("the read waits: %v", waits)
				}
				commit.Release()
				committed := <-ended
				want, err := takeSnapshot(t, c, txn.At(at)).Table("a").ReadRow(t.Context(), "r")
				if err != nil {
					t.Fatal(err)
				}
				if got := <-read; got != rowText(want) {
					t.Errorf("the read showed %q; the row at %d is %q", got, at, rowText(want))
				}
				if (committed > at) != pass {
					t.Errorf("the first transaction committed at %d, the second at %d", committed, at)
				}
			})
		})
	}
}

// A dead transaction's locks do not block a read of the latest state, and it removes them.
func TestLatestMeetsTheDead(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprint("committed=", committed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
				mustSet(t, env.Client, "1", "p", "s")
				doomed := txntest.NewFaults(t)
				owner := env.NewClient(txn.Config{TokenTTL: -1}, doomed.DialOptions()...)
				until, want := doomed.OnStep(txntest.StepCommit, txntest.DropRequest), "1"
				if committed {
					until, want = doomed.OnStep(txntest.StepSecondaries, txntest.DropRequest), "2"
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := commitInBackground(ctx, beginSet(t, owner, "2", "p", "s"))
				<-until.Fired()
				doomed.Kill()
				cancel()
				<-ended
				wantLatest(t, c, "s", want)
				advance(time.Minute)
				for _, row := range []string{"p", "s"} {
					wantLatest(t, c, row, want)
					raw, err := env.Bigtable.Open("a").ReadRow(t.Context(), row)
					if err != nil || len(raw[format.LockFamily]) > 0 {
						t.Errorf("row %s has the locks %v, error %v", row, raw[format.LockFamily], err)
					}
				}
				closing, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				_ = owner.Close(closing) // its requests fail
			})
		})
	}
}

// A read of the latest state never fails because of garbage collection. Between its two
// requests, what the first one named is replaced and collected.
func TestLatestBesideCollection(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for _, old := range []string{"committed", "plain", "none"} {
		t.Run(old, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, _, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
				switch old {
				case "committed":
					mustSet(t, env.Client, "1", "r")
				case "plain":
					m := bigtable.NewMutation()
					m.Set("f", "q", bigtable.Now(), []byte("1"))
					if err := env.Bigtable.Open("a").Apply(t.Context(), "r", m); err != nil {
						t.Fatal(err)
					}
				}
				slow := txntest.NewFaults(t)
				owner := env.NewClient(txn.Config{TokenTTL: -1}, slow.DialOptions()...)
				commit := slow.OnStep(txntest.StepCommit, txntest.Hold)
				ended := commitInBackground(t.Context(), beginSet(t, owner, "2", "r"))
				<-commit.Fired()
				reads := 0
				c := env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: 24 * time.Hour}, txntest.Intercept(func(c txntest.Call) error {
					if c.Step != txntest.StepRead {
						return nil
					}
					if reads++; reads != 2 {
						return nil
					}
					commit.Release()
					if o := <-ended; o.err != nil {
						return o.err
					}
					for range 3 { // plain data goes last
						advance(2 * retention)
						if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, Plain: true}); err != nil {
							return err
						}
					}
					return nil
				})...)
				if _, err := c.Timestamp(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantLatest(t, c, "r", "2")
				if reads < 3 {
					t.Errorf("%d reads; want one after the collection", reads)
				}
			})
		})
	}
}

// A stale snapshot of the client is not older than what it has shown as the latest.
func TestStalenessBehindLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, env.Client, "r", "1")
		if _, err := c.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		putValue(t, env.Client, "r", "2")
		wantLatest(t, c, "r", "2")
		before := c.Stats()
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(time.Hour)), "r"); got != "2" {
			t.Errorf("after 2 was shown as the latest, a stale snapshot shows %s", got)
		}
		// A delete is a state, too.
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Delete("r", "f", "q")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		wantLatest(t, c, "r", "absent")
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(time.Hour)), "r"); got != "absent" {
			t.Errorf("after the row was absent, a stale snapshot shows %s", got)
		}
		if n := c.Stats().ReusedTimestamps - before.ReusedTimestamps; n != 2 {
			t.Errorf("%d timestamps reused", n)
		}
		// The state does not become younger by that: the oracle was asked long ago.
		advance(time.Minute)
		wantLatest(t, c, "r", "absent")
		takeSnapshot(t, c, txn.MaxStaleness(time.Minute))
		if n := c.Stats().Timestamps - before.Timestamps; n != 1 {
			t.Errorf("%d requests to the oracle", n)
		}
	})
}

// Damaged data is an error, and never a value: a record without data, and a record above the
// oracle's time, which would make every stale snapshot read in the future.
func TestLatestOfDamagedData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		ts := putValue(t, env.Client, "r", "1")
		c := env.NewClient(txn.Config{})
		raw := env.Bigtable.Open("a")
		row, err := raw.ReadRow(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		future := bigtable.NewMutation()
		future.Set(format.WriteFamily, "f:q", ts.Add(time.Hour).Cell(), row[format.WriteFamily][0].Value)
		future.Set("f", "q", row["f"][0].Timestamp, []byte("1"))
		if err := raw.Apply(t.Context(), "future", future); err != nil {
			t.Fatal(err)
		}
		gone := bigtable.NewMutation()
		gone.DeleteCellsInColumn("f", "q")
		if err := raw.Apply(t.Context(), "r", gone); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"r", "future"} {
			if _, _, err := c.Latest("a").Get(t.Context(), key, "f", "q"); !errors.Is(err, format.ErrCorrupt) {
				t.Errorf("row %s: %v", key, err)
			}
		}
		if s := takeSnapshot(t, c, txn.MaxStaleness(time.Hour)); s.ReadTS() > ts.Add(time.Minute) {
			t.Errorf("a stale snapshot is at %d, in the future", s.ReadTS())
		}
	})
}

// A client that has only read asks the oracle when its estimate of the time is too old to tell
// whether a commit_ts is possible.
func TestLatestAsksWhenInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := &shiftedOracle{Oracle: tso.NewLocal(tso.LocalConfig{})}
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{Oracle: ahead, TokenTTL: -1}))
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{Oracle: ahead, TokenTTL: -1}, []grpc.DialOption{}...)
		for i, want := range []int64{1, 1, 2, 2} {
			if i == 2 {
				ahead.shift = tso.Timestamp(time.Minute.Microseconds()) // a failover skips time
			}
			putValue(t, env.Client, "r", fmt.Sprint(i))
			wantLatest(t, c, "r", fmt.Sprint(i))
			if n := c.Stats().Timestamps; n != want {
				t.Errorf("read %d: %d requests to the oracle so far, want %d", i, n, want)
			}
		}
	})
}

// A shiftedOracle runs ahead of another one.
type shiftedOracle struct {
	tso.Oracle
	shift tso.Timestamp
}

func (o *shiftedOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	ts, err := o.Oracle.Timestamp(ctx)
	return ts + o.shift, err
}
