package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// newPlain makes table a without this library, with the rows r000 to r099.
func newPlain(t *testing.T, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	return newPlainRows(t, 100, opts...)
}

func newPlainRows(t *testing.T, n int, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	env := txntest.New(t, append(opts, txntest.Embedded())...)
	ctx := t.Context()
	if err := env.Admin.CreateTable(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"f", "g"} {
		if err := env.Admin.CreateColumnFamily(ctx, "a", f); err != nil {
			t.Fatal(err)
		}
	}
	policy := bigtable.UnionPolicy(bigtable.MaxVersionsPolicy(5), bigtable.MaxAgePolicy(24*365*100*time.Hour))
	if err := env.Admin.SetGCPolicy(ctx, "a", "g", policy); err != nil {
		t.Fatal(err)
	}
	var rows []string
	var muts []*bigtable.Mutation
	for i := range n {
		m := bigtable.NewMutation()
		m.Set("f", "q", bigtable.Now()-1e6, []byte("old"))
		m.Set("f", "q", bigtable.Now(), fmt.Appendf(nil, "value %d", i))
		m.Set("g", "\x00/:%", bigtable.Now(), []byte{0, 0xff})
		rows, muts = append(rows, fmt.Sprintf("r%03d", i)), append(muts, m)
	}
	if errs, err := env.Bigtable.Open("a").ApplyBulk(ctx, rows, muts); err != nil || errs != nil {
		t.Fatal(err, errs)
	}
	return env
}

func adoptA(env *txntest.Env) admin.AdoptConfig {
	return admin.AdoptConfig{
		Table: "a", ClearPolicies: true,
		Instance: fmt.Sprintf("projects/%s/instances/%s", env.Project, env.Instance),
	}
}

func mustAdopt(t *testing.T, env *txntest.Env, cfg admin.AdoptConfig) {
	t.Helper()
	plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Adopt(t.Context(), env.Admin, env.Bigtable, cfg, plan); err != nil {
		t.Fatal(err)
	}
}

// dumpTable returns every cell of a table as text, and its families with their
// garbage-collection policies.
func dumpTable(t *testing.T, env *txntest.Env, table string) (cells, families string) {
	t.Helper()
	var lines []string
	err := env.Bigtable.Open(table).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		for _, items := range r {
			for _, it := range items {
				lines = append(lines, fmt.Sprintf("%q %q %d %q", it.Row, it.Column, it.Timestamp, it.Value))
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	info, err := env.Admin.TableInfo(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	var fams []string
	for _, f := range info.FamilyInfos {
		fams = append(fams, f.Name+" "+f.GCPolicy)
	}
	slices.Sort(fams)
	return strings.Join(lines, "\n"), strings.Join(fams, ", ")
}

func checkTable(t *testing.T, env *txntest.Env, table string) {
	t.Helper()
	c := env.NewClient(txn.Config{TokenTTL: -1})
	for v, err := range admin.Check(t.Context(), c, table, nil) {
		t.Errorf("violation: %v, %v", v, err)
	}
}

// An adoption rewrites no data: plain readers and transactions see the same values
// before and after it. It refuses a table with a garbage-collection policy.
func TestAdopt(t *testing.T) {
	t.Parallel()
	env := newPlain(t)
	before, _ := dumpTable(t, env, "a")
	refused := adoptA(env)
	refused.ClearPolicies = false
	plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, refused)
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Refusals) != 1 || !errors.Is(plan.Refusals[0], admin.ErrNotAdoptable) || !strings.Contains(plan.Refusals[0].Error(), "family g has the garbage-collection policy") {
		t.Errorf("refusals of a table with a policy: %v", plan.Refusals)
	}
	if err := admin.Adopt(t.Context(), env.Admin, env.Bigtable, refused, plan); !errors.Is(err, admin.ErrNotAdoptable) {
		t.Errorf("adopting it despite the refusal: %v, want ErrNotAdoptable", err)
	}
	if _, families := dumpTable(t, env, "a"); strings.Contains(families, "_lock") {
		t.Errorf("a refused adoption changed families to %s", families)
	}

	plan, err = admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env))
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Refusals) > 0 || len(plan.Create) != 5 || plan.Rows != 100 || !plan.Whole {
		t.Errorf("plan %+v", plan)
	}
	if want := (admin.AdoptionFamily{Name: "g", Policy: "(versions() > 5 || age() > 36500d)", Clear: true, Expiry: 24 * 365 * 100 * time.Hour}); len(plan.Families) != 2 || plan.Families[1] != want {
		t.Errorf("families %+v, want %+v", plan.Families, want)
	}
	if err := admin.Adopt(t.Context(), env.Admin, env.Bigtable, adoptA(env), plan); err != nil {
		t.Fatal(err)
	}
	after, _ := dumpTable(t, env, "a")
	if before != after {
		t.Errorf("cells before:\n%s\nafter:\n%s", before, after)
	}
	c := env.NewClient(txn.Config{TokenTTL: -1})
	wantValue(t, takeSnapshot(t, c), "r042", "value 42")
	mustSet(t, c, "new", "r042")
	wantValue(t, takeSnapshot(t, c), "r042", "new")
	row, err := env.Bigtable.Open("a").ReadRow(t.Context(), "r042", bigtable.RowFilter(bigtable.LatestNFilter(1)))
	if err != nil || string(row["f"][0].Value) != "new" {
		t.Errorf("a plain reader sees %v, %v", row, err)
	}
	checkTable(t, env, "a")

	// A second adoption has nothing to do. After a commit an undo is refused.
	plan, err = admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env))
	if err != nil || !plan.Adopted {
		t.Errorf("%+v, %v", plan, err)
	}
	var written *admin.WrittenError
	if err := admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), time.Minute); !errors.As(err, &written) || written.Cell.Row != "r042" || !errors.Is(err, admin.ErrWritten) {
		t.Errorf("undo after a commit: %v, want ErrWritten", err)
	}
	checkTable(t, env, "a")
}

// Adopt refuses a table with cells at or above 1e17 µs: a client would take them for
// cells of transactions.
func TestAdoptRefusesCellsOfTransactions(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		env := newPlain(t)
		m := bigtable.NewMutation()
		m.Set("f", "q2", 1e17, []byte("from the year 5138"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "r077", m); err != nil {
			t.Fatal(err)
		}
		cfg := adoptA(env)
		cfg.WholeScan = whole
		plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.Refusals) != 1 || !strings.Contains(plan.Refusals[0].Error(), "a/r077/f:q2 has a cell at timestamp 100000000000000000 µs") {
			t.Errorf("whole %v: refusals %v", whole, plan.Refusals)
		}
	}
}

// A plan that reads only a sample of the table stays within its bound, and says that it
// is a sample.
func TestAdoptSample(t *testing.T) {
	t.Parallel()
	env := newPlain(t)
	cfg := adoptA(env)
	cfg.SampleRows = 10
	plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Whole || plan.Rows > 10+64 || plan.Rows == 0 {
		t.Errorf("%d rows, whole %v", plan.Rows, plan.Whole)
	}
}

// An undo restores families and policies as they were before the adoption, and leaves
// the cells alone.
func TestUndoAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPlain(t)
		cells, families := dumpTable(t, env, "a")
		if err := admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0); !errors.Is(err, txn.ErrNotInitialized) {
			t.Errorf("undo without an adoption: %v", err)
		}
		mustAdopt(t, env, adoptA(env))
		if err := admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0); err != nil {
			t.Fatal(err)
		}
		if c, f := dumpTable(t, env, "a"); c != cells || f != families {
			t.Errorf("families %s, want %s; the same cells: %v", f, families, c == cells)
		}
		c := env.NewClient(txn.Config{TokenTTL: -1})
		if err := c.CheckTable(t.Context(), "a"); !errors.Is(err, txn.ErrNotInitialized) {
			t.Errorf("opening the table after the undo: %v", err)
		}
		mustAdopt(t, env, adoptA(env))
		mustSet(t, c, "1", "bob")
		checkTable(t, env, "a")
	})
}

// A client that opened the table before the undo commits while the undo waits. Whenever
// it does, either the commit survives and the undo fails, or the commit fails.
func TestUndoAdoptionMeetsWriter(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for _, after := range []time.Duration{0, time.Second, 30 * time.Second, 59 * time.Second, 61 * time.Second, 119 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newPlain(t)
				mustAdopt(t, env, adoptA(env))
				c := env.NewClient(txn.Config{TokenTTL: -1})
				if err := c.CheckTable(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				undone := inBackground(func() error {
					return admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0)
				})
				advance(after)
				synctest.Wait()
				cerr := tryUpdate(t.Context(), c, "survives", "bob")
				uerr := (<-undone).err
				switch {
				case cerr == nil && !errors.Is(uerr, admin.ErrWritten):
					t.Fatalf("the commit succeeded, and so the undo has to fail with ErrWritten: %v", uerr)
				case cerr != nil && (!errors.Is(cerr, txn.ErrNotInitialized) || uerr != nil):
					t.Fatalf("commit: %v; undo: %v", cerr, uerr)
				case cerr != nil && after < time.Minute:
					t.Errorf("a client with a fresh schema could not commit: %v", cerr)
				case cerr == nil:
					wantValue(t, takeSnapshot(t, env.NewClient(txn.Config{TokenTTL: -1})), "bob", "survives")
					checkTable(t, env, "a")
				}
			})
		})
	}
}

// After an undo that was interrupted while it waits, an adoption can cancel it, and a
// second undo can complete it.
func TestUndoAdoptionInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPlain(t)
		_, families := dumpTable(t, env, "a")
		mustAdopt(t, env, adoptA(env))
		interrupt := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := admin.UndoAdoption(ctx, env.Admin, env.Bigtable, adoptA(env), 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("interrupted undo: %v, want its context's error", err)
			}
		}
		interrupt()
		plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env))
		if err != nil || !plan.Resumes || plan.Adopted {
			t.Fatalf("%+v, %v", plan, err)
		}
		mustAdopt(t, env, adoptA(env))
		c := env.NewClient(txn.Config{TokenTTL: -1})
		wantValue(t, takeSnapshot(t, c), "r001", "value 1")
		interrupt()
		if err := admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0); err != nil {
			t.Fatal(err)
		}
		if _, f := dumpTable(t, env, "a"); f != families {
			t.Errorf("families %s, want %s", f, families)
		}
	})
}

// An adoption that runs while an undo waits makes the table transactional again. The
// undo notices, and does not drop families that are in use.
func TestAdoptStopsUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPlain(t)
		mustAdopt(t, env, adoptA(env))
		undone := inBackground(func() error {
			return admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0)
		})
		advance(time.Minute)
		mustAdopt(t, env, adoptA(env))
		if o := <-undone; o.err == nil || !strings.Contains(o.err.Error(), "adopted it again") {
			t.Errorf("undo: %v", o.err)
		}
		mustSet(t, env.NewClient(txn.Config{TokenTTL: -1}), "1", "bob")
		checkTable(t, env, "a")
	})
}

// An adoption that fails after it cleared a policy can be completed, and undoing it
// restores the policy.
func TestAdoptionInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail, failed atomic.Bool
		env := newPlain(t, txntest.WithServerOptions(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if m, ok := req.(*adminpb.ModifyColumnFamiliesRequest); ok && m.Modifications[0].GetCreate() != nil && m.Modifications[0].Id == format.MarkFamily && fail.Load() {
				failed.Store(true)
				return nil, status.Error(codes.Internal, "injected")
			}
			return next(ctx, req)
		})))
		_, families := dumpTable(t, env, "a")
		fail.Store(true)
		plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env))
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.Adopt(t.Context(), env.Admin, env.Bigtable, adoptA(env), plan); status.Code(err) != codes.Internal && !strings.Contains(err.Error(), "injected") || !failed.Load() {
			t.Fatalf("%v; the fault fired: %v", err, failed.Load())
		}
		if err := admin.Adopt(t.Context(), env.Admin, env.Bigtable, adoptA(env), plan); !errors.Is(err, admin.ErrNotAdoptable) {
			t.Errorf("adopting by a plan that is out of date: %v", err)
		}
		fail.Store(false)
		mustAdopt(t, env, adoptA(env))
		mustUndo := admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0)
		if _, f := dumpTable(t, env, "a"); f != families || mustUndo != nil {
			t.Errorf("families %s, want %s; %v", f, families, mustUndo)
		}
	})
}
