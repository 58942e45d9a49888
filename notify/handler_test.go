package notify_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestHandleRefuses: Handle itself refuses what is invalid, and names the observer, the
// column and the reason. The worker stays usable.
func TestHandleRefuses(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("docs", "d")
	w := newWorker(t, env.Client, notify.Config{})
	valid := notify.ObserverFunc(observeEffect)
	column := txn.Column{Family: "d", Qualifier: "in"}
	long := txn.Column{Family: "d", Qualifier: strings.Repeat("q", 2390)}
	for _, tt := range []struct {
		name, id, table string
		column          txn.Column
		observer        notify.Observer
		opt             notify.HandleOption
		err             error
		says            string
	}{
		{name: "nil observer", id: "o", table: "docs", column: column, says: "the observer is nil"},
		{name: "nil function", id: "o", table: "docs", column: column, observer: notify.ObserverFunc(nil), says: "nil function"},
		{name: "nil function of another type", id: "o", table: "docs", column: column, observer: customFunc(nil), says: "nil function"},
		{name: "empty id", table: "docs", column: column, observer: valid, says: "empty observer id"},
		{name: "id with a slash", id: "a/b", table: "docs", column: column, observer: valid, says: `"a/b"`},
		{name: "id with a colon", id: "a:b", table: "docs", column: column, observer: valid, says: `"a:b"`},
		{name: "id with a space", id: "a b", table: "docs", column: column, observer: valid, says: `"a b"`},
		{name: "id with a percent sign", id: "a%b", table: "docs", column: column, observer: valid, says: `"a%b"`},
		{name: "id that is not UTF-8", id: "\xff", table: "docs", column: column, observer: valid, says: `"\xff"`},
		{name: "long id", id: strings.Repeat("i", 101), table: "docs", column: column, observer: valid, says: "101 bytes"},
		{name: "no table", id: "o", column: column, observer: valid, says: "empty table name"},
		{name: "no family", id: "o", table: "docs", column: txn.Column{Qualifier: "in"}, observer: valid, says: "empty column family"},
		{name: "metadata family", id: "o", table: "docs", column: txn.Column{Family: format.LockFamily, Qualifier: "in"}, observer: valid, says: format.LockFamily},
		{name: "long column", id: strings.Repeat("i", 100), table: "docs", column: long, observer: valid, err: txn.ErrLimit, says: "acknowledgment column"},
		{name: "Concurrency", id: "o", table: "docs", column: column, observer: valid, opt: notify.Concurrency(0), says: "Concurrency(0)"},
		{name: "MaxAttempts", id: "o", table: "docs", column: column, observer: valid, opt: notify.MaxAttempts(0), says: "MaxAttempts(0)"},
		{name: "Timeout", id: "o", table: "docs", column: column, observer: valid, opt: notify.Timeout(-1), says: "Timeout(-1ns)"},
		{name: "RateLimit without burst", id: "o", table: "docs", column: column, observer: valid, opt: notify.RateLimit(1, 0), says: "RateLimit(1, 0)"},
		{name: "negative RateLimit", id: "o", table: "docs", column: column, observer: valid, opt: notify.RateLimit(-1, 1), says: "RateLimit(-1, 1)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var opts []notify.HandleOption
			if tt.opt != nil {
				opts = append(opts, tt.opt)
			}
			want := tt.err
			if want == nil {
				want = txn.ErrInvalid
			}
			err := w.Handle(tt.id, tt.table, tt.column, tt.observer, opts...)
			if !errors.Is(err, want) || !strings.Contains(err.Error(), tt.says) || !strings.HasPrefix(err.Error(), "notify: observer ") {
				t.Errorf("Handle returned %v, want %v that says %q", err, want, tt.says)
			}
		})
	}
	if err := w.Run(t.Context()); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("Run returned %v, want that the worker has no observers", err)
	}

	// Bigtable allows empty qualifiers.
	handle(t, w, "whole-family", columnOf("docs", "d", ""), observeEffect)
	handle(t, w, "o", input, observeEffect)
	if err := w.Handle("o", "docs", middle.Column, valid); !errors.Is(err, changes.ErrRegistration) || !strings.Contains(err.Error(), "docs/d:in") {
		t.Errorf("the same id for another column: %v", err)
	}
	if err := w.Handle("p", "docs", input.Column, valid, notify.Weak()); !errors.Is(err, changes.ErrRegistration) || !strings.Contains(err.Error(), `"o"`) {
		t.Errorf("weak and strong notifications of one column: %v", err)
	}
	handle(t, w, "o", columnOf("effects", "e", "x"), observeEffect) // in another table
}

// TestHandleWhileRunning: a worker takes no observers while it runs.
func TestHandleWhileRunning(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(0)
		if err := w.Handle("p", "docs", middle.Column, notify.ObserverFunc(observeEffect)); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), "running") {
			t.Errorf("Handle returned %v, want that the worker is running", err)
		}
	})
}

// A customFunc is an Observer that is a function of another type than ObserverFunc.
type customFunc func(context.Context, *txn.Txn, txn.Cell) error

func (f customFunc) Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	return f(ctx, tx, cell)
}
