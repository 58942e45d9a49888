package admin_test

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestCheckOfAcknowledgments damages acknowledgments; the consistency check says
// of each what is wrong.
func TestCheckOfAcknowledgments(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, env *txntest.Env, first, second *txn.Txn)
		says   string
	}{
		{"none", func(*testing.T, *txntest.Env, *txn.Txn, *txn.Txn) {}, ""},
		{"above its own start", func(t *testing.T, env *txntest.Env, _, second *txn.Txn) {
			setAck(t, env, second.StartTS(), binary.BigEndian.AppendUint64(nil, uint64(second.StartTS()+1)))
		}, "by a transaction that started at"},
		{"goes back", func(t *testing.T, env *txntest.Env, first, second *txn.Txn) {
			setAck(t, env, second.StartTS(), binary.BigEndian.AppendUint64(nil, uint64(first.StartTS()-1)))
		}, "after the one at"},
		{"the same twice", func(t *testing.T, env *txntest.Env, first, second *txn.Txn) {
			setAck(t, env, second.StartTS(), binary.BigEndian.AppendUint64(nil, uint64(first.StartTS())))
		}, "after the one at"},
		{"of another length", func(t *testing.T, env *txntest.Env, first, _ *txn.Txn) {
			setAck(t, env, first.StartTS(), []byte("x"))
		}, "1 bytes instead of 8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := txntest.New(t, txntest.WithoutCheck())
			env.CreateTable("t", "f")
			cell := txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
			if err := changes.RegisterObserver(t.Context(), env.Client, "t", cell.Column(), "o", false); err != nil {
				t.Fatal(err)
			}
			var runs []*txn.Txn
			for range 2 {
				if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
					t.Fatal(err)
				}
				tx, err := env.Client.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				seen, err := changes.Observe(t.Context(), tx, cell)
				if err != nil {
					t.Fatal(err)
				}
				changes.Acknowledge(tx, seen, "o")
				if _, err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				runs = append(runs, tx)
			}
			tt.damage(t, env, runs[0], runs[1])
			n := 0
			for v, err := range admin.Check(t.Context(), env.Client, "t", nil) {
				if err != nil {
					t.Fatal(err)
				}
				n++
				if v.Rule != admin.RuleAck || !strings.Contains(v.Detail, tt.says) {
					t.Errorf("found %v, want %q", v, tt.says)
				}
			}
			if (n > 0) != (tt.says != "") {
				t.Errorf("%d violations", n)
			}
		})
	}
}

func setAck(t *testing.T, env *txntest.Env, startTS tso.Timestamp, value []byte) {
	t.Helper()
	m := bigtable.NewMutation()
	m.Set(format.AckFamily, "f:q/o", startTS.Cell(), value)
	if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
}

func set(table, row string) func(context.Context, *txn.Txn) error {
	return func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte("v"))
		return nil
	}
}
