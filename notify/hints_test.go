package notify_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A change that another process commits is run without waiting for the scan,
// which this worker begins an hour later.
func TestHintsFromOtherProcesses(t *testing.T) {
	oracle := txntest.NewHintingOracle()
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
	for oracle.Subscribers() == 0 || scanner.Stats().Pieces == 0 { // neither gives a signal
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

// TestHintsOfPatterns: a cell that another process commits is hinted once for its column and once for
// each pattern that it is in, so that it reaches a worker of each. Cells of other families cost
// nothing.
func TestHintsOfPatterns(t *testing.T) {
	oracle := txntest.NewHintingOracle()
	env := txntest.New(t, txntest.WithConfig(txn.Config{Oracle: oracle}))
	env.CreateTable("docs", "d", "other")
	ran := make(chan string, 100)
	var workers []*notify.Worker
	watched := []column{patternOf(""), patternOf("tag/"), columnOf("docs", "d", "tag/a")}
	for i, of := range watched { // before the workers, so that all know all
		register(t, env.Client, of, fmt.Sprint("o", i), false)
	}
	for i, of := range watched {
		scanner := &notify.Scanner{MinInterval: time.Hour, MaxInterval: time.Hour}
		w, err := notify.NewWorker(env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1}), notify.Config{Finder: scanner, OnEvent: func(e notify.Event) {
			if e.Outcome == notify.Committed {
				ran <- e.Observer + " " + e.Cell.Row + "/" + e.Cell.Qualifier
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		handle(t, w, fmt.Sprint("o", i), of, func(context.Context, *txn.Txn, txn.Cell) error { return nil })
		start(t, w)
		for oracle.Subscribers() <= i || i == 0 && scanner.Stats().Pieces == 0 { // neither gives a signal; the first worker scans for all
			runtime.Gosched()
		}
		workers = append(workers, w)
	}
	writer := env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1})
	for _, test := range []struct {
		qualifier string
		runs      []string
	}{
		{"tag/a", []string{"o0 r\x00/tag/a", "o1 r\x00/tag/a", "o2 r\x00/tag/a"}},
		{"tag/\x00\xff", []string{"o0 r\x00/tag/\x00\xff", "o1 r\x00/tag/\x00\xff"}},
		{"", []string{"o0 r\x00/"}},
	} {
		before := oracle.Received()
		put(t, writer, columnOf("docs", "d", test.qualifier), "r\x00", "v")
		var runs []string
		for range test.runs {
			runs = append(runs, <-ran)
		}
		slices.Sort(runs)
		if !slices.Equal(runs, test.runs) {
			t.Errorf("runs %q, want %q", runs, test.runs)
		}
		if n := oracle.Received() - before; n != len(test.runs) {
			t.Errorf("%d hints of %q, want %d", n, test.qualifier, len(test.runs))
		}
	}
	before := oracle.Received()
	put(t, writer, columnOf("docs", "other", "tag/a"), "r", "v")
	if n := oracle.Received() - before; n != 0 {
		t.Errorf("%d hints of a cell that nobody watches", n)
	}
	for i, w := range workers {
		if s := w.Stats(); s.Hinted != int64(3-i) || s.Found != 0 {
			t.Errorf("worker %d: %+v", i, s)
		}
	}
}
