package changes_test

import (
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

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
