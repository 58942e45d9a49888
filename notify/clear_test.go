package notify

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestClear: a check removes what every result has read, and nothing while an observer, here or in
// another worker, has something left to do.
func TestClear(t *testing.T) {
	cell := txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	type failures = map[string]format.Failure
	// seen is what a run at start has seen, with notifications at these timestamps, of which the last
	// one is the newest change.
	seen := func(start tso.Timestamp, failed failures, observers []string, triggers ...tso.Timestamp) *changes.Observation {
		o := &changes.Observation{Cell: cell, StartTS: start, Observers: observers, Acks: map[string]tso.Timestamp{"acked": start}, Failures: failed}
		for _, ts := range triggers {
			o.Triggers = append(o.Triggers, format.NotifyCell{TS: ts})
			o.ChangeTS = ts
		}
		return o
	}
	a, b, others := []string{"a"}, []string{"a", "b"}, []string{"a", "other"}
	done := func(observer string, o *changes.Observation) result {
		return result{observer: observer, seen: o, upToDate: true}
	}
	failed := func(observer string, o *changes.Observation) result {
		return result{observer: observer, seen: o, upToDate: true, failed: true}
	}
	for _, tt := range []struct {
		name      string
		results   []result
		want      *changes.Cleared // nil: nothing is removed
		elsewhere tso.Timestamp
	}{
		{"nothing was read", nil, nil, 0},
		{"up to date", []result{done("a", seen(10, nil, a, 5, 7))}, &changes.Cleared{UpTo: 7, ChangeTS: 7}, 0},
		{"the smallest timestamp", []result{done("a", seen(10, nil, a, 1))}, &changes.Cleared{UpTo: 1, ChangeTS: 1}, 0},
		{"something left", []result{{observer: "a", seen: seen(10, nil, a, 7)}}, nil, 0},
		{"something left for one", []result{done("a", seen(10, nil, b, 7)), {observer: "b", seen: seen(11, nil, b, 7)}}, nil, 0},
		{"a later result has read more", []result{done("a", seen(10, nil, b, 7)), done("b", seen(20, nil, b, 7, 9))}, &changes.Cleared{UpTo: 7, ChangeTS: 7}, 0},
		{"an earlier result has read more", []result{done("a", seen(20, nil, b, 7, 9)), done("b", seen(10, nil, b, 7))}, &changes.Cleared{UpTo: 7, ChangeTS: 7}, 0},
		{"pending elsewhere", []result{done("a", seen(10, nil, others, 7))}, nil, 7},
		{"pending elsewhere by now", []result{done("a", seen(20, nil, others, 5, 7)), done("b", seen(10, nil, b, 5))}, nil, 5},
		{"not pending any more", []result{done("a", seen(10, nil, others, 7)), done("b", seen(20, nil, b, 7))}, &changes.Cleared{UpTo: 7, ChangeTS: 7}, 0},
		{"acknowledged elsewhere", []result{done("a", seen(10, nil, []string{"a", "acked"}, 7))}, &changes.Cleared{UpTo: 7, ChangeTS: 7}, 0},
		{"a dead letter elsewhere", []result{done("a", seen(10, failures{"other": {ChangeTS: 7, LastTS: 8, NotBefore: never}}, others, 7))},
			&changes.Cleared{UpTo: 7, ChangeTS: 7, Failures: []string{"other"}, FailedTS: 8}, 0},
		{"an older dead letter elsewhere", []result{done("a", seen(10, failures{"other": {ChangeTS: 6, LastTS: 8, NotBefore: never}}, others, 7))}, nil, 7},
		{"a failure elsewhere", []result{done("a", seen(10, failures{"other": {ChangeTS: 7, LastTS: 8, NotBefore: 99}}, others, 7))}, nil, 7},
		{"nothing to remove", []result{done("a", seen(10, nil, a))}, nil, 0},
		{"a failure without a notification", []result{done("a", seen(10, failures{"gone": {LastTS: 8}}, a))}, &changes.Cleared{Failures: []string{"gone"}, FailedTS: 8}, 0},
		{"this run became a dead letter", []result{failed("a", seen(10, nil, a, 7))}, &changes.Cleared{UpTo: 7, ChangeTS: 7, Failures: []string{"a"}, FailedTS: 10}, 0},
		{"this run is the last failure", []result{failed("a", seen(10, failures{"z": {LastTS: 8}, "a": {LastTS: 7}}, a, 7))}, &changes.Cleared{UpTo: 7, ChangeTS: 7, Failures: []string{"a", "z"}, FailedTS: 10}, 0},
		{"another run is the last failure", []result{failed("a", seen(10, nil, b, 7)), failed("b", seen(9, nil, b, 7)), done("c", seen(20, failures{"z": {LastTS: 12}, "y": {LastTS: 11}}, b, 7))},
			&changes.Cleared{UpTo: 7, ChangeTS: 7, Failures: []string{"a", "b", "y", "z"}, FailedTS: 12}, 0},
	} {
		w := &Worker{cleaner: newCleaner(nil, nil, nil)} // not started
		if got := (&check{worker: w, task: task{cell: cell}}).clear(tt.results); got != tt.elsewhere {
			t.Errorf("%s: up to %d nothing is left here; want %d", tt.name, got, tt.elsewhere)
		}
		var want []changes.Cleared
		if tt.want != nil {
			tt.want.Cell = cell
			want = append(want, *tt.want)
		}
		if d := cmp.Diff(want, w.cleaner.waiting); d != "" {
			t.Errorf("%s: removed (-want +got):\n%s", tt.name, d)
		}
	}
}

// TestSharedSlots: half of a worker's slots belong to single observers, if it has several and a slot for
// each. Together the slots are as many as before.
func TestSharedSlots(t *testing.T) {
	for _, tt := range []struct{ slots, observers, shared, own int }{
		{1, 1, 1, 0}, {16, 1, 16, 0}, {16, 2, 8, 4}, {16, 3, 10, 2}, {16, 8, 8, 1}, {16, 9, 7, 1}, {16, 15, 1, 1}, {16, 16, 16, 0}, {16, 17, 16, 0}, {2, 2, 2, 0}, {3, 2, 1, 1},
	} {
		hs := make([]*handler, tt.observers)
		for i := range hs {
			hs[i] = &handler{}
		}
		shared := share(tt.slots, hs)
		if cap(shared) != tt.shared || cap(hs[0].own) != tt.own || cap(hs[tt.observers-1].own) != tt.own {
			t.Errorf("%d slots and %d observers: %d shared, %d of each observer; want %d and %d", tt.slots, tt.observers, cap(shared), cap(hs[0].own), tt.shared, tt.own)
		}
	}
}

// TestAcquireSlots: a run takes a slot of its observer or a shared one. Without both, or once its context has ended,
// it takes none, also not of its observer.
func TestAcquireSlots(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name          string
		ctx           context.Context
		own, shared   int // slots that are free
		limiter       *rate.Limiter
		ownN, sharedN int // slots that it may take
	}{
		{"own", t.Context(), 1, 0, nil, 1, 0},
		{"shared", t.Context(), 0, 1, nil, 0, 1},
		{"limited", t.Context(), 0, 1, rate.NewLimiter(rate.Inf, 0), 0, 1},
		{"none free, ended", ended, 0, 0, nil, 0, 0},
		{"own free, ended", ended, 1, 0, nil, 0, 0},
		{"shared free, ended", ended, 0, 1, nil, 0, 0},
		{"limited, ended", ended, 1, 1, rate.NewLimiter(1, 1), 0, 0},
	} {
		for range 50 { // of several cases that are ready, Go chooses one
			h := &handler{slots: make(chan struct{}, 1), own: make(chan struct{}, tt.own), limiter: tt.limiter}
			shared := make(chan struct{}, tt.shared)
			from := h.acquire(tt.ctx, shared)
			if len(h.own) != tt.ownN || len(shared) != tt.sharedN || (from != nil) != (tt.ownN+tt.sharedN > 0) || len(h.slots) != tt.ownN+tt.sharedN {
				t.Fatalf("%s: %d own, %d shared, %d of the observer", tt.name, len(h.own), len(shared), len(h.slots))
			}
			if from == nil {
				continue
			}
			if h.release(from); len(h.own)+len(shared)+len(h.slots) != 0 {
				t.Fatalf("%s: after the release %d own, %d shared, %d of the observer", tt.name, len(h.own), len(shared), len(h.slots))
			}
		}
	}
}

// TestHandlerBounds: the smallest values of options are valid, and zero stands for none only in
// RateLimit.
func TestHandlerBounds(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	observe := ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { return nil })
	to := target{"docs", txn.Column{Family: "d", Qualifier: "in"}}
	for _, tt := range []struct {
		opt                                      HandleOption
		ok                                       bool
		concurrency, slots, maxAttempts, timeout int64
		limited                                  bool
	}{
		{Weak(), true, 16, 16, 10, 300e9, false},
		{Concurrency(1), true, 1, 1, 10, 300e9, false},
		{MaxAttempts(1), true, 16, 16, 1, 300e9, false},
		{Timeout(1), true, 16, 16, 10, 1, false},
		{Timeout(0), false, 0, 0, 0, 0, false},
		{RateLimit(0, 0), true, 16, 16, 10, 300e9, false},
		{RateLimit(0.5, 1), true, 16, 16, 10, 300e9, true},
		{RateLimit(0.5, 0), false, 0, 0, 0, 0, false},
	} {
		h, err := newHandler("o", to, observe, cfg, []HandleOption{tt.opt})
		if (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
		if err != nil {
			continue
		}
		if int64(h.concurrency) != tt.concurrency || int64(cap(h.slots)) != tt.slots || int64(h.maxAttempts) != tt.maxAttempts || h.timeout.Nanoseconds() != tt.timeout || (h.limiter != nil) != tt.limited {
			t.Errorf("%+v: %+v", tt, h)
		}
	}
}
