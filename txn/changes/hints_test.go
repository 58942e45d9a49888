package changes_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// What a process commits and does not handle itself is hinted to another process.
// What it does handle is not.
func TestHintsBetweenProcesses(t *testing.T) {
	oracle := txntest.NewHintingOracle()
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
	for oracle.Subscribers() == 0 { // subscribing gives no signal
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

// refusedHints are hints that cannot be subscribed to.
type refusedHints struct{ *txntest.HintingOracle }

var errHints = errors.New("on purpose")

func (refusedHints) SubscribeHints(context.Context, []string, func(tso.Hint)) error { return errHints }

// TestHintsRefused: a worker learns that it gets no hints.
func TestHintsRefused(t *testing.T) {
	oracle := refusedHints{txntest.NewHintingOracle()}
	env := txntest.New(t, txntest.WithConfig(txn.Config{Oracle: oracle}))
	if err := changes.SubscribeHints(t.Context(), env.Client, []changes.ObservedColumn{{Table: "t", Column: observedCell.Column()}}, func(txn.Cell) {}); !errors.Is(err, errHints) {
		t.Error(err)
	}
}

// A client that rolls another client's lock forward hints the cell, if it is observed.
func TestHintOfResolvedLock(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("accounts", "bal")
	observed, other := txn.Column{Family: "bal", Qualifier: "usd"}, txn.Column{Family: "bal", Qualifier: "eur"}
	if err := changes.RegisterObserver(t.Context(), env.Client, "accounts", observed, "audit", false); err != nil {
		t.Fatal(err)
	}
	faults := txntest.NewFaults(t)
	victim := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	died := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
	tx, err := victim.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"ann", "bob"} { // one is the primary
		for _, c := range []txn.Column{other, observed} {
			tx.Table("accounts").Set(row, c.Family, c.Qualifier, nil)
		}
	}
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-died.Fired()

	var hinted []txn.Cell
	stop := changes.WatchNotifications(env.Client, func(c txn.Cell) bool { hinted = append(hinted, c); return true })
	defer stop()
	s, err := env.Client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"ann", "bob"} {
		if _, err := s.Table("accounts").ReadRow(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	if n := env.Client.Stats().RolledForward; n != 2 {
		t.Fatalf("%d locks rolled forward, want 2", n)
	}
	if len(hinted) != 1 || hinted[0].Column() != observed {
		t.Errorf("hinted %v, want one cell, of the observed column", hinted)
	}
}
