package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

var observed = admin.TableSpec{Name: "a", Families: []string{"f"}, Observed: []txn.Column{{Family: "f", Qualifier: "q"}}}

// A commit with an outdated schema left a newly observed column without its
// notify cell, however old the schema was; closed by fresh (table.go).
func TestNewlyObservedColumn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, _ := newRegression(t, txn.Config{TokenTTL: -1})
		mustSet(t, a, "1", "bob")
		env.InitTable(observed)
		pass(24 * time.Hour)
		mustSet(t, a, "2", "bob")
		if n := len(stored(t, env, "bob")[format.NotifyFamily]); n != 1 {
			t.Errorf("%d notify cells after the first commit since the column is observed, want 1", n)
		}
	})
}

// InitTable, run again to add a family, forgot which columns are observed;
// closed by newSchema (init.go). An empty list, which is not nil, forgets them.
func TestInitTableKeepsObservedColumns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.InitTable(observed)
		for _, tt := range []struct {
			spec admin.TableSpec
			want int
		}{
			{admin.TableSpec{Name: "a", Families: []string{"g"}}, 1},
			{admin.TableSpec{Name: "a", Observed: []txn.Column{}}, 0},
		} {
			env.InitTable(tt.spec)
			row := "bob" + tt.spec.Name
			c := env.NewClient(txn.Config{TokenTTL: -1})
			before := len(stored(t, env, row)[format.NotifyFamily])
			mustSet(t, c, "1", row)
			if n := len(stored(t, env, row)[format.NotifyFamily]) - before; n != tt.want {
				t.Errorf("%d notify cells after InitTable with %+v, want %d", n, tt.spec, tt.want)
			}
		}
	})
}

// Check with an outdated schema reported data in a new family as violations;
// closed by fresh (check.go).
func TestCheckAfterNewFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, _ := newRegression(t, txn.Config{TokenTTL: -1})
		if err := a.OpenTable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		env.InitTable(admin.TableSpec{Name: "a", Families: []string{"g"}})
		b := env.NewClient(txn.Config{TokenTTL: -1})
		tx := begin(t, b)
		tx.Table("a").Set("bob", "g", "q", []byte("1"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		for v, err := range admin.Check(t.Context(), a, "a", nil) {
			t.Errorf("violation: %v, %v", v, err)
		}
	})
}

// Check reported a request that failed as a violation; closed by telling the
// errors that are about the data from others (primaries, check.go).
func TestCheckThatCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		env.CreateTable("b", "f")
		tx := begin(t, env.Client)
		tx.Table("b").Set("bob", "f", "q", []byte("1")) // the primary
		set(tx, "1", "bob")
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := a.OpenTable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		faults.On("schema of b", step(txntest.StepSchema), txntest.DropRequest, 0)
		failed := 0
		for v, err := range admin.Check(t.Context(), a, "a", nil) {
			if err == nil {
				t.Errorf("violation: %v", v)
			}
			failed++
		}
		if failed != 1 {
			t.Errorf("%d errors, want the failed request", failed)
		}
	})
}

// DeleteRow let a serializable transaction overlook cells that others add;
// closed by refusing it, as ReadRow is. An empty row key was not refused.
func TestSerializableDeleteRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newRegression(t, txn.Config{TokenTTL: -1})
		tx := begin(t, a, txn.Serializable())
		defer tx.Rollback()
		if err := tx.Table("a").DeleteRow(t.Context(), "cart"); !errors.Is(err, txn.ErrSerializableScan) {
			t.Errorf("serializable: %v, want ErrSerializableScan", err)
		}
		plain := begin(t, a)
		defer plain.Rollback()
		if err := plain.Table("a").DeleteRow(t.Context(), ""); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("empty row key: %v, want ErrInvalid", err)
		}
		if n := faults.Count()[txntest.StepRead]; n != 0 {
			t.Errorf("%d reads were sent", n)
		}
	})
}

// A snapshot from before the clock of the cells that a table was adopted with
// did not show them, and At(0) showed the present; closed by dataUpTo
// (filter.go) and by refusing At(0) (snapshot.go).
func TestAtBeforeAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, _ := newRegression(t, txn.Config{TokenTTL: -1})
		m := bigtable.NewMutation()
		m.Set("f", "q", bigtable.Now(), []byte("old"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", m); err != nil {
			t.Fatal(err)
		}
		mustSet(t, a, "new", "bob")
		for _, ts := range []tso.Timestamp{1, 5e11, 1e14} {
			wantValue(t, takeSnapshot(t, a, txn.At(ts)), "bob", "old")
		}
		for _, ts := range []tso.Timestamp{0, -1} {
			if _, err := a.Snapshot(t.Context(), txn.At(ts)); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("snapshot at %d: %v, want ErrInvalid", ts, err)
			}
		}
	})
}

// A lock of a cell must not replace the put or delete of it that the
// transaction has buffered, in either order (add, buffer.go).
func TestLockKeepsTheWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := newRegression(t, txn.Config{TokenTTL: -1})
		mustSet(t, a, "0", "deleted")
		_, err := a.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			a := tx.Table("a")
			a.Set("set", "f", "q", []byte("1"))
			a.Lock("set", "f", "q")
			a.Lock("locked", "f", "q")
			a.Set("locked", "f", "q", []byte("2"))
			a.Delete("deleted", "f", "q")
			_, _, err := a.GetForUpdate(ctx, "deleted", "f", "q")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		s := takeSnapshot(t, a)
		wantValue(t, s, "set", "1")
		wantValue(t, s, "locked", "2")
		wantValue(t, s, "deleted", "")
	})
}
