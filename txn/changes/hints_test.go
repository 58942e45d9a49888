package changes_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// hintingOracle is an oracle that carries hints, as a served one does.
type hintingOracle struct {
	tso.Oracle
	*tso.MemoryHints
}

// What a process commits and does not handle itself is hinted to another process.
// What it does handle is not.
func TestHintsBetweenProcesses(t *testing.T) {
	oracle := hintingOracle{tso.NewLocal(tso.LocalConfig{}), tso.NewMemoryHints()}
	env := txntest.New(t, txntest.WithConfig(txn.Config{Oracle: oracle}))
	observed := txn.Column{Family: "bal", Qualifier: "us\x00d"}
	env.CreateTable("accounts", "bal")
	if err := changes.RegisterObserver(t.Context(), env.Client, "accounts", observed, "audit", false); err != nil {
		t.Fatal(err)
	}
	writer := env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1})
	worker := env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1})

	hinted := make(chan txn.Cell, 8)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- changes.SubscribeHints(ctx, worker, []changes.ObservedColumn{{Table: "accounts", Column: observed}}, func(c txn.Cell) { hinted <- c })
	}()
	write := func(row string) {
		t.Helper()
		if _, err := writer.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("accounts").Set(row, observed.Family, observed.Qualifier, nil)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for oracle.Stats().Subscribers == 0 { // subscribing gives no signal
		runtime.Gosched()
	}
	write("r\x00w")
	if got, want := <-hinted, (txn.Cell{Table: "accounts", Row: "r\x00w", Family: "bal", Qualifier: "us\x00d"}); got != want {
		t.Errorf("hinted %v, want %v", got, want)
	}
	stop := changes.WatchNotifications(writer, func(c txn.Cell) bool { return c.Row == "mine" })
	write("mine")
	write("theirs")
	stop()
	if got := <-hinted; got.Row != "theirs" {
		t.Errorf("hinted %v, want that of row theirs alone", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
