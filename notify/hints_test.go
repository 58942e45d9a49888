package notify_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// hintingOracle is an oracle that carries hints, as a served one does.
type hintingOracle struct {
	tso.Oracle
	*tso.MemoryHints
}

// A change that another process commits is run without waiting for the scan,
// which this worker begins an hour later.
func TestHintsFromOtherProcesses(t *testing.T) {
	oracle := hintingOracle{tso.NewLocal(tso.LocalConfig{}), tso.NewMemoryHints()}
	env := txntest.New(t, txntest.WithConfig(txn.Config{Oracle: oracle}))
	env.CreateTable("docs", "d")
	ran := make(chan txn.Cell, 1)
	scanner := &notify.Scanner{MinInterval: time.Hour, MaxInterval: time.Hour}
	w, err := notify.NewWorker(env.Client, notify.Config{
		Finder: scanner,
		OnEvent: func(e notify.Event) {
			if e.Outcome == notify.Committed {
				ran <- e.Cell
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Handle("first", input.table, input.Column, copyTo(middle, "a")); err != nil {
		t.Fatal(err)
	}
	start(t, w)
	for oracle.Stats().Subscribers == 0 || scanner.Stats().Pieces == 0 { // neither gives a signal
		runtime.Gosched()
	}
	writer := env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1})
	put(t, writer, input, "row", "v")
	if cell := <-ran; cell.Row != "row" {
		t.Errorf("ran for %v", cell)
	}
	if s := w.Stats(); s.Hinted != 1 {
		t.Errorf("%+v, want one hint", s)
	}
}
