package emulator_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestCollectionRefusedAtEveryRequest refuses one request of a collection, each in turn.
// The collection reports it, and never says that it has finished. If the removals had not begun,
// it removes nothing. The next one completes the work. An error that is ignored is worst before
// the removals: a lock that was not resolved, or a safe point that was not published.
func TestCollectionRefusedAtEveryRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	run := func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
		return gc.Run(ctx, c, gc.Config{Retention: retention})
	}
	for _, of := range []struct {
		name    string
		resumed bool
		stride  int // if some cases are left out
		call    func(context.Context, *txn.Client) (*gc.Report, error)
	}{
		{"collection", false, 13, run},
		{"resumed", true, 13, run},
		{"plan", false, 5, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			return gc.Plan(ctx, c, gc.Config{Retention: retention})
		}},
		{"status", false, 1, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			_, err := gc.ReadStatus(ctx, c)
			return nil, err
		}},
	} {
		t.Run(of.name, func(t *testing.T) {
			k, stride := 1, reducedTo(of.stride)
			for more := true; more && !t.Failed(); k += stride {
				synctest.Test(t, func(t *testing.T) { more = refusedAt(t, k, of.resumed, of.call) })
			}
			last := k - 2*stride
			if t.Logf("up to request %d", last); last < 4 {
				t.Errorf("%d requests are too few", last)
			}
		})
	}
}

// refusedAt refuses the k-th request of a call, and reports whether there was one.
func refusedAt(t *testing.T, k int, resumed bool, call func(context.Context, *txn.Client) (*gc.Report, error)) bool {
	env := newGCEnv(t)
	stranded(t, env)
	runGC(t, env.Client, gc.Config{}) // from now on the delete of sue drains
	advance(time.Minute)
	leaveLocks(t, env, txntest.StepSecondaries) // bob is committed, joe is locked
	advance(retention + time.Minute)
	mustSet(t, env.Client, "10", "bob")
	if resumed {
		collect := step(txntest.StepCollectRow)
		if _, err := gc.Run(t.Context(), env.NewClient(txn.Config{TokenTTL: -1}, refuse(collect)...), gc.Config{Retention: retention}); err == nil {
			t.Fatal("not interrupted")
		}
	}
	var mu sync.Mutex
	var refused *txntest.Call
	var began time.Time
	n, after, saved, refusing := 0, 0, 0, false
	sweeping := resumed // parts of a table that are collected do not stop because of another
	c := env.NewClient(txn.Config{TokenTTL: -1}, refuse(func(call txntest.Call) bool {
		mu.Lock()
		defer mu.Unlock()
		if refusing && began.IsZero() && call.Row == "" {
			advance(3 * time.Second) // the fence does not end when the lease is renewed
			began = time.Now()
		}
		passed := time.Since(began)
		if !refusing || call.Row == "lock/gc" && n > 0 || !began.IsZero() && passed > 0 && passed < 2*time.Minute {
			return false // the lease and the client's view of the safe point, which are tried again
		}
		if call.Method == "SampleRowKeys" || strings.HasPrefix(call.Row, "families/") {
			return false // a collection does without
		}
		if refused != nil && !sweeping && call.Step == txntest.StepCollect {
			after++
		}
		n++
		if n == k {
			refused = &call
		}
		if refused == nil && call.Row == "gc" && call.Method == "CheckAndMutateRow" {
			// The safe point, the fence, the parts with locks, which are taken and then done, the
			// resolved safe point, and then the parts with versions.
			saved++
			sweeping = sweeping || saved == 7
		}
		return n == k
	})...)
	advance(5 * time.Second) // the client's own reads of the safe point come at other times
	mu.Lock()
	refusing = true
	mu.Unlock()
	r, err := call(t.Context(), c)
	mu.Lock()
	refusing = false
	// The client reads the safe point when it begins to work, and tries again if that is refused.
	triedAgain := refused != nil && refused.Step == txntest.StepSafePoint && refused.Method == "ReadRows" && err == nil
	if refused != nil && !triedAgain && (status.Code(err) != codes.PermissionDenied || r != nil && (r.Finished || r.Nothing) || after > 0) {
		t.Errorf("request %d, %s of row %q in %s, was refused: %v, %+v; %d removals after it", k, refused.Step, refused.Row, refused.Table, err, r, after)
	}
	if refused == nil && err != nil {
		t.Error(err)
	}
	if refused != nil {
		t.Logf("request %d, %s of row %q in %s", k, refused.Step, refused.Row, refused.Table)
	}
	mu.Unlock()
	last, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention})
	if err != nil || !last.Finished {
		t.Errorf("the next collection: %+v, %v", last, err)
	}
	now := takeSnapshot(t, env.Client)
	wantValue(t, now, "bob", "10")
	wantValue(t, now, "joe", "9")
	wantValue(t, now, "sue", "")
	for _, g := range garbage(t, env.Client, []string{"bob", "joe", "sue"}, last.SafePoint) {
		t.Errorf("left: %s", g)
	}
	if row := stored(t, env, "sue"); row != nil {
		t.Errorf("left of a deleted row: %v", row)
	}
	return refused != nil
}

// TestCollectionOfChangesRefusedAtEveryRequest refuses one request of a collection of changes, each
// in turn. Either the collection reports it, or it collects what it does without the refusal.
func TestCollectionOfChangesRefusedAtEveryRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	run := func(k int64) (total gc.Counts, err error, fired bool) {
		synctest.Test(t, func(t *testing.T) {
			env := changesEnv(t)
			writer := env.NewClient(txn.Config{})
			mustSet(t, writer, "1", "bob", "joe")
			mustSet(t, writer, "2", "bob", "joe")
			advance(retention + time.Minute)
			var n atomic.Int64
			var refused atomic.Bool
			n.Store(-1000)
			c := env.NewClient(txn.Config{TokenTTL: -1}, refuse(func(txntest.Call) bool {
				if n.Add(1) != k {
					return false
				}
				refused.Store(true)
				return true
			})...)
			n.Store(0)
			var r *gc.Report
			if r, err = gc.Run(t.Context(), c, gc.Config{Retention: retention, FullEvery: 24 * time.Hour}); r != nil {
				total = r.Total
			}
			fired = refused.Load()
		})
		return total, err, fired
	}
	want, err, _ := run(0)
	if err != nil || want.Cells == 0 {
		t.Fatalf("%+v, %v", want, err)
	}
	for k, more := int64(1), true; more; k += int64(shortStride()) {
		var got gc.Counts
		if got, err, more = run(k); err == nil && got != want || err != nil && status.Code(err) != codes.PermissionDenied {
			t.Errorf("request %d: %+v, %v; want %+v", k, got, err, want)
		}
	}
}
