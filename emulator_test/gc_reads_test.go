package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A read was sent before the safe point moved, and is answered after its row was
// collected. The client refuses it, because it checks the safe point after the read. A
// check before the read would let it return "absent".
func TestReadAnsweredAfterCollection(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	row := func(opts ...txn.ReadOption) func(context.Context, txn.Reader) (any, error) {
		return func(ctx context.Context, r txn.Reader) (any, error) { return r.ReadRow(ctx, "bob", opts...) }
	}
	rows := func(set bigtable.RowSet, opts ...txn.ReadOption) func(context.Context, txn.Reader) (any, error) {
		return func(ctx context.Context, r txn.Reader) (any, error) {
			for row, err := range r.ReadRows(ctx, set, opts...) {
				return row, err
			}
			return nil, nil
		}
	}
	reads := []struct {
		name string
		read func(context.Context, txn.Reader) (any, error)
	}{
		{"Get", func(ctx context.Context, r txn.Reader) (any, error) {
			v, _, err := r.Get(ctx, "bob", "f", "q")
			return v, err
		}},
		{"row", row()},
		{"column", row(txn.Columns(txn.Column{Family: "f", Qualifier: "q"}))},
		{"family", row(txn.Families("f"))},
		{"qualifiers", row(txn.Qualifiers("f", "p", "r"))},
		{"keys", row(txn.KeysOnly())},
		{"first cell", row(txn.CellsPerRow(1))},
		{"scan", rows(nil)},
		{"list of keys", rows(bigtable.RowList{"ann", "bob"})},
		{"list of keys, column", rows(bigtable.RowList{"ann", "bob"}, txn.Columns(txn.Column{Family: "f", Qualifier: "q"}))},
	}
	for _, in := range []string{"snapshot", "transaction"} {
		for _, tt := range reads {
			t.Run(in+"/"+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := newGCEnv(t)
					env.CreateTable("a", "f")
					mustSet(t, env.Client, "1", "bob")
					faults := txntest.NewFaults(t)
					c := env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: 24 * time.Hour}, faults.DialOptions()...)
					var reader txn.Reader
					if in == "snapshot" {
						reader = takeSnapshot(t, c).Table("a")
					} else {
						tx, err := c.Begin(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						defer tx.Rollback()
						reader = tx.Table("a")
					}
					if err := c.CheckTable(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					mustSet(t, env.Client, "2", "bob")
					held := faults.OnStep(txntest.StepRead, txntest.Hold)
					answer := inBackground(func() error {
						got, err := tt.read(t.Context(), reader)
						if err == nil {
							t.Errorf("read %v", got)
						}
						return err
					})
					<-held.Fired()
					advance(retention + time.Minute)
					runGC(t, env.Client, gc.Config{})
					held.Release()
					if o := <-answer; !errors.Is(o.err, txn.ErrTooOld) {
						t.Errorf("%v, want ErrTooOld", o.err)
					}
				})
			})
		}
	}
}
