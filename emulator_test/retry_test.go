package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// everyRead is each way to read row bob of table a.
var everyRead = map[string]func(context.Context, *txn.Client) (string, error){
	"get in an update": func(ctx context.Context, c *txn.Client) (got string, err error) {
		runs := 0
		_, err = c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			v, _, err := tx.Table("a").Get(ctx, "bob", "f", "q")
			got = string(v)
			runs++
			return err
		})
		if err == nil && runs != 1 {
			err = fmt.Errorf("the function ran %d times", runs)
		}
		return got, err
	},
	"whole row":       readIn(func(ctx context.Context, v *txn.View) (bigtable.Row, error) { return v.ReadRow(ctx, "bob") }),
	"list of rows":    readIn(scanOf(bigtable.RowList{"bob", "tom"})),
	"range of rows":   readIn(scanOf(bigtable.NewRange("b", "c"))),
	"limited reverse": readIn(scanOf(bigtable.NewRange("b", "c"), txn.Limit(1), txn.Reverse())),
}

func readIn(read func(context.Context, *txn.View) (bigtable.Row, error)) func(context.Context, *txn.Client) (string, error) {
	return func(ctx context.Context, c *txn.Client) (string, error) {
		s, err := c.Snapshot(ctx)
		if err != nil {
			return "", err
		}
		row, err := read(ctx, s.Table("a"))
		if len(row["f"]) == 0 {
			return "", err
		}
		return string(row["f"][0].Value), err
	}
}

func scanOf(rs bigtable.RowSet, opts ...txn.ReadOption) func(context.Context, *txn.View) (bigtable.Row, error) {
	return func(ctx context.Context, v *txn.View) (found bigtable.Row, err error) {
		for row, err := range v.ReadRows(ctx, rs, opts...) {
			if err != nil {
				return nil, err
			}
			found = row
		}
		return found, nil
	}
}

// A read is tried again until the caller's context ends, whether requests hang or fail. Before
// the fix, one request that hung ended the read, and an Update with it, with an error that
// matched context.DeadlineExceeded although no deadline of the caller had passed.
func TestReadsAreRetried(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for name, read := range everyRead {
		for _, failing := range []txntest.Step{txntest.StepRead, txntest.StepSchema} {
			for _, action := range []txntest.Action{txntest.Crash, txntest.Delay, txntest.DropRequest} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, failing, action), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
						mustSet(t, env.Client, "1", "bob")
						rule := faults.On("read", step(failing), action, 3)
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						if got, err := read(ctx, a); err != nil || got != "1" {
							t.Errorf("%q, %v", got, err)
						}
						rule.Release()
					})
				})
			}
		}
	}
}

// NewClient tries its read again, as all reads do. Before the fix, one request that failed or
// hung ended NewClient.
func TestNewClientIsRetried(t *testing.T) {
	open := func(ctx context.Context, env *txntest.Env, faults *txntest.Faults) (*txn.Client, error) {
		bt, _ := env.Open(faults.DialOptions()...)
		return txn.NewClient(ctx, bt, txn.Config{TokenTTL: -1, RPCTimeout: time.Second, Backoff: txn.Backoff{Min: 1, Max: 1}})
	}
	for _, action := range []txntest.Action{txntest.Crash, txntest.Delay, txntest.DropRequest} {
		t.Run(fmt.Sprint(action), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				faults := txntest.NewFaults(t)
				rule := faults.On("safe point", step(txntest.StepSafePoint), action, 3)
				c, err := open(t.Context(), env, faults)
				if err != nil {
					t.Fatal(err)
				}
				rule.Release()
				closeNow(c)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		faults := txntest.NewFaults(t)
		faults.On("safe point", step(txntest.StepSafePoint), txntest.Crash, 0)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3500*time.Millisecond, errors.New("my cause"))
		defer cancel()
		o := <-inBackground(func() error { _, err := open(ctx, env, faults); return err })
		wantEnded(t, o, format.DefaultMetadataTable)
	})
}

// wantEnded fails the test unless four attempts failed until the context ended after 3.5 s.
func wantEnded(t *testing.T, o outcome, table string) {
	t.Helper()
	if !errors.Is(o.err, context.DeadlineExceeded) || o.took != 3500*time.Millisecond {
		t.Fatalf("%v after %v", o.err, o.took)
	}
	for _, says := range []string{fmt.Sprintf("read on table %q", table), "4 attempts failed", "my cause", "DeadlineExceeded", "the request's own deadline"} {
		if !strings.Contains(o.err.Error(), says) {
			t.Errorf("the error does not say %q: %v", says, o.err)
		}
	}
}

// The error of a read whose context ends says how many attempts failed, and the last cause.
func TestReadsEndWithTheirContext(t *testing.T) {
	for name, read := range everyRead {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second, Backoff: txn.Backoff{Min: 1, Max: 1}})
				mustSet(t, env.Client, "1", "bob")
				faults.On("read", step(txntest.StepRead), txntest.Crash, 0)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 3500*time.Millisecond, errors.New("my cause"))
				defer cancel()
				o := <-inBackground(func() error { _, err := read(ctx, a); return err })
				wantEnded(t, o, "a")
			})
		})
	}
}

// Requests that reach their own deadline are no deadline of the caller.
func TestRequestTimeoutIsNotTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The requests end before the row counts as ill.
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: 900 * time.Millisecond, LockTTL: time.Second})
		faults.On("requests of the row", stepOn(txntest.StepPrewrite, "bob"), txntest.Crash, 0)
		faults.On("its reads", stepOn(txntest.StepRead, "bob"), txntest.Crash, 0)
		_, err := beginSet(t, a, "1", "bob").Commit(t.Context())
		if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			t.Errorf("%v; want an error that matches no context's", err)
		}
	})
}

// A client has at most 1,000 reads under way. A read that waits for a place ends with its
// context.
func TestReadsAreAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, s, faults := newReads(t)
		held := faults.On("read", step(txntest.StepRead), txntest.Hold, 1000)
		var all sync.WaitGroup
		for range 1100 {
			all.Go(func() { wantValue(t, s, "bob", "1") })
		}
		synctest.Wait()
		if n := faults.Count()[txntest.StepRead]; n != 1000 {
			t.Errorf("%d reads are under way, want 1,000", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := s.Table("a").Get(ctx, "bob", "f", "q")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "other reads of this client") {
			t.Errorf("a read that waits for a place: %v", err)
		}
		for row, err := range s.Table("a").ReadRows(ctx, nil) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a scan that waits for a place: %v, %v", row, err)
			}
		}
		held.Release()
		all.Wait()
	})
}

// The consumer of a scan may read, even if the scan got the last place: it has one only until
// its first row arrives.
func TestScanGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, s, faults := newReads(t)
		rows := make([]string, 300) // more than a page
		for i := range rows {
			rows[i] = fmt.Sprintf("row%03d", i)
		}
		mustSet(t, env.Client, "2", rows...)
		held := faults.On("read", step(txntest.StepRead), txntest.Hold, 999)
		var all sync.WaitGroup
		for range 999 {
			all.Go(func() { wantValue(t, s, "bob", "1") })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := 0
		for _, err := range takeSnapshot(t, a).Table("a").ReadRows(ctx, nil) {
			if err == nil {
				_, _, err = s.Table("a").Get(ctx, "bob", "f", "q")
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != len(rows)+1 {
			t.Errorf("%d rows", n)
		}
		held.Release()
		all.Wait()
	})
}

// newReads returns a snapshot of a client whose requests the Faults can disturb. Row bob is 1.
func newReads(t *testing.T) (*txntest.Env, *txn.Client, *txn.Snapshot, *txntest.Faults) {
	t.Helper()
	env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
	mustSet(t, env.Client, "1", "bob")
	s := takeSnapshot(t, a)
	wantValue(t, s, "bob", "1")
	faults.Reset()
	return env, a, s, faults
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
