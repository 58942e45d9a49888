package emulator_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var observed = admin.TableSpec{Name: "a", Families: []string{"f"}, Observed: []txn.Column{{Family: "f", Qualifier: "q"}}}

// A commit by a client whose schema is older than SchemaMaxAge reads it again, so that
// it writes the notify cell of a newly observed column. Before the fix it did not,
// however old the schema was.
func TestNewlyObservedColumn(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		mustSet(t, a, "1", "bob")
		env.InitTable(observed)
		advance(24 * time.Hour)
		mustSet(t, a, "2", "bob")
		if n := len(stored(t, env, "bob")[format.NotifyFamily]); n != 1 {
			t.Errorf("%d notify cells after the first commit since the column became observed, want 1", n)
		}
	})
}

// A commit that takes longer than clients rely on a schema sets the notify cell of a column that
// became observed meanwhile.
func TestColumnObservedDuringCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Hour})
		txntest.Patient(a)
		slow := faults.On("prewrite of joe", stepOn(txntest.StepPrewrite, "joe"), txntest.Hold, 1)
		done := inBackground(func() error { return tryUpdate(t.Context(), a, "1", "bob", "joe") })
		<-slow.Fired()
		env.InitTable(observed)
		advance(time.Minute + time.Second)
		slow.Release()
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		if n := len(stored(t, env, "bob")[format.NotifyFamily]); n != 1 {
			t.Errorf("%d notify cells, want 1", n)
		}
	})
}

// InitTable with a new family keeps the observed columns of the table. Before the fix
// it removed them. An empty list that is not nil removes them.
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
