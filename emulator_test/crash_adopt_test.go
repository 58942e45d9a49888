package emulator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// shortStride is the distance between crash points. If a test tries some of them only it is 3,
// which still comes to crash points of every kind.
func shortStride() int { return reducedTo(3) }

// reducedTo is the distance between cases: 1, or stride if a test tries some of its cases only.
func reducedTo(stride int) int {
	if long.Reduced() {
		return stride
	}
	return 1
}

// killedAt runs f as an operator whose process dies before its k-th request, or with
// after set after it. It reports whether f sent k requests.
func killedAt(t *testing.T, env *txntest.Env, k int, after bool, f func(context.Context, *bigtable.AdminClient, *bigtable.Client) error) bool {
	t.Helper()
	action := txntest.Crash
	if after {
		action = txntest.HoldResponse
	}
	faults := txntest.NewFaults(t)
	rule := faults.On("kill", func(c txntest.Call) bool { return c.N == k }, action, 1).Optional()
	bt, adminClient := env.Open(faults.DialOptions()...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := inBackground(func() error { return f(ctx, adminClient, bt) })
	select {
	case <-rule.Fired():
		synctest.Wait() // the request is applied now
		faults.Kill()
		cancel()
		<-ended
		return true
	case o := <-ended:
		if o.err != nil {
			t.Fatalf("without a crash: %v", o.err)
		}
		return false
	}
}

func adoptOnce(t *testing.T, env *txntest.Env) error {
	plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env))
	if err != nil {
		return err
	}
	return admin.Adopt(t.Context(), env.Admin, env.Bigtable, adoptA(env), plan)
}

// unlessUndone runs adopt. If an undo has already begun to drop families, adopt asks to
// complete the undo first; unlessUndone does so and runs adopt again.
func unlessUndone(t *testing.T, env *txntest.Env, adopt func() error) error {
	err := adopt()
	if !errors.Is(err, admin.ErrNotAdoptable) || !strings.Contains(err.Error(), "let UndoAdoption") {
		return err
	}
	if err := admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0); err != nil && !errors.Is(err, txn.ErrNotInitialized) {
		return err
	}
	return adopt()
}

// adoptionRecoveries are what the next operator does. If adopted is set, the table has
// to be adopted afterwards.
var adoptionRecoveries = []struct {
	name    string
	adopted bool
	run     func(*testing.T, *txntest.Env) error
}{
	{"a second adoption", true, func(t *testing.T, env *txntest.Env) error {
		return unlessUndone(t, env, func() error { return adoptOnce(t, env) })
	}},
	{"an undo", false, func(t *testing.T, env *txntest.Env) error {
		return admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0)
	}},
	{"two adoptions at once", true, func(t *testing.T, env *txntest.Env) error {
		return unlessUndone(t, env, func() error {
			first := inBackground(func() error { return adoptOnce(t, env) })
			second := inBackground(func() error { return adoptOnce(t, env) })
			// Either may fail because the other was first.
			if a, b := (<-first).err, (<-second).err; a != nil && b != nil {
				return errors.Join(a, b)
			}
			return nil
		})
	}},
}

// adoptionCrashes makes f crash at each of its requests, on a table that prepare has
// changed, and runs every recovery after each crash.
func adoptionCrashes(t *testing.T, prepare func(*testing.T, *txntest.Env), f func(context.Context, *txntest.Env, *bigtable.AdminClient, *bigtable.Client) error) {
	t.Helper()
	crashes, stride := 0, shortStride()
	for _, recovery := range adoptionRecoveries {
		for k, more := 1, true; more; k += stride {
			for _, after := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					defer func() {
						if t.Failed() {
							t.Logf("killed at request %d, after: %v; then %s", k, after, recovery.name)
						}
					}()
					env := newPlainRows(t, 3, txntest.WithoutTransport())
					cells, families := dumpTable(t, env, "a")
					if prepare != nil {
						prepare(t, env)
					}
					more = killedAt(t, env, k, after, func(ctx context.Context, adminClient *bigtable.AdminClient, bt *bigtable.Client) error {
						return f(ctx, env, adminClient, bt)
					})
					if c, _ := dumpTable(t, env, "a"); c != cells {
						t.Errorf("plain readers see other cells")
					}
					advance(3 * time.Minute) // longer than an operator waits for a dead one
					err := recovery.run(t, env)
					if !recovery.adopted {
						// Nothing is left to undo if nothing was begun, or all was undone.
						if err != nil && !errors.Is(err, txn.ErrNotInitialized) {
							t.Errorf("undo: %v", err)
						}
						if c, f := dumpTable(t, env, "a"); c != cells || f != families {
							t.Errorf("families %s, want %s; the same cells: %v", f, families, c == cells)
						}
						return
					}
					if err != nil {
						t.Error(err)
					}
					c := env.NewClient(txn.Config{TokenTTL: -1})
					wantValue(t, takeSnapshot(t, c), "r001", "value 1")
					mustSet(t, c, "new", "r001")
					wantValue(t, takeSnapshot(t, c), "r001", "new")
					checkTable(t, env, "a")
				})
				crashes++
			}
		}
	}
	if crashes*stride < 90 {
		t.Errorf("%d crashes", crashes)
	}
	t.Logf("%d crashes", crashes)
}

// TestCrashOfAdoption kills an adoption before and after every request. Plain readers
// do not notice. A second adoption completes the first, and an undo leaves nothing of
// it.
func TestCrashOfAdoption(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	adoptionCrashes(t, nil, func(ctx context.Context, env *txntest.Env, adminClient *bigtable.AdminClient, bt *bigtable.Client) error {
		plan, err := admin.PlanAdoption(ctx, adminClient, bt, adoptA(env))
		if err != nil {
			return err
		}
		return admin.Adopt(ctx, adminClient, bt, adoptA(env), plan)
	})
}

// TestCrashOfUndo kills an undo before and after every request.
func TestCrashOfUndo(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	adoptionCrashes(t, func(t *testing.T, env *txntest.Env) { mustAdopt(t, env, adoptA(env)) },
		func(ctx context.Context, env *txntest.Env, adminClient *bigtable.AdminClient, bt *bigtable.Client) error {
			return admin.UndoAdoption(ctx, adminClient, bt, adoptA(env), 0)
		})
}
