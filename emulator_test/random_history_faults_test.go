package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// historyLateness is how late a request may be applied: with the longest phase of a history, less than
// one retention.
const historyLateness = 5 * time.Minute

// A historyProcess is a client, and what is made with it. If it dies, a new one replaces it.
type historyProcess struct {
	*txn.Client
	keys *idempotency.Keys
	late *historyOracle
	net  *historyNetwork
	ctx  context.Context // ends some time after the process has died
}

// A historyNetwork disturbs the requests of a process during phases.
type historyNetwork struct {
	h      *randomHistory
	faults *txntest.Faults
	end    context.CancelFunc

	mu     sync.Mutex
	rnd    *rand.Rand
	left   int // requests until the process dies; 0: it lives on
	dead   bool
	giveUp context.CancelFunc // the session waits no longer for the answer to its commit
	// Until then each write is late by the same time. In mode 0 its answer is that of a copy that was in time,
	// in mode 1 only prewrites have one, and in mode 2 none.
	until time.Time
	late  time.Duration
	mode  int
}

func (n *historyNetwork) isDead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead
}

// dies lets the process die at one of its next requests.
func (n *historyNetwork) dies() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left = 1 + n.rnd.IntN(40)
}

// giveUpAt ends the wait for the commit's answer, if that gets lost.
func (n *historyNetwork) giveUpAt(cancel context.CancelFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.giveUp = cancel
}

// choose disturbs a request.
func (n *historyNetwork) choose(c txntest.Call) (txntest.Action, time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.dead:
		return txntest.Crash, 0, true
	case !n.h.disturbed.Load():
		return 0, 0, false
	case n.left > 0:
		if n.left--; n.left == 0 {
			n.dead = true
			n.h.act("deaths")
			n.h.counts.add("deaths", 1)
			time.AfterFunc(10*time.Second, n.end)
			return []txntest.Action{txntest.Crash, txntest.DropResponse}[n.rnd.IntN(2)], 0, true
		}
	}
	step := txntest.Classify(c.Method, c.Request).Step
	reads := strings.HasPrefix(c.Method, "Read") || strings.HasPrefix(c.Method, "Sample")
	if now := time.Now(); n.h.plan.On.Has("late requests") && !reads && !slices.Contains([]txntest.Step{txntest.StepSchema, txntest.StepToken, txntest.StepSafePoint, txntest.StepOther}, step) {
		if now.After(n.until) && n.chance("late requests", 40) {
			n.until = now.Add(time.Duration(n.rnd.Int64N(int64(8 * time.Second))))
			n.late = time.Duration(n.rnd.Int64N(int64([]time.Duration{20 * time.Second, historyLateness}[n.rnd.IntN(2)])))
			n.mode = n.rnd.IntN(3)
		}
		if !now.After(n.until) {
			n.h.counts.add("late: "+string(step), 1)
			n.h.lateUntil(now.Add(n.late))
			if n.mode == 0 || n.mode == 1 && step == txntest.StepPrewrite {
				return txntest.Echo, n.late, true
			}
			return txntest.Delay, n.late, true
		}
	}
	switch {
	case step == txntest.StepCommit && n.giveUp != nil && n.chance("lost answers", 6):
		n.giveUp()
		n.h.counts.add("commits given up", 1)
		return []txntest.Action{txntest.DropRequest, txntest.DropResponse}[n.rnd.IntN(2)], 0, true
	case n.chance("lost answers", 40):
		lost := []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Partial}
		if reads {
			lost = []txntest.Action{txntest.DropRequest, txntest.CutStream}
		}
		n.h.counts.add("lost", 1)
		return lost[n.rnd.IntN(len(lost))], 0, true
	case !reads && n.chance("doubled requests", 15):
		n.h.counts.add("doubled", 1)
		return txntest.Duplicate, 0, true
	}
	return 0, 0, false
}

// chance decides whether a feature happens to one of so many requests.
func (n *historyNetwork) chance(feature string, of int) bool {
	if !n.h.plan.On.Has(feature) || n.rnd.IntN(of) > 0 && (n.rnd.IntN(4) > 0 || n.h.hasActed(feature)) {
		return false
	}
	n.h.act(feature)
	return true
}

func (h *randomHistory) hasActed(feature string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acted.Has(feature)
}

func (h *randomHistory) lateUntil(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.After(h.lastLate) {
		h.lastLate = t
	}
}

// awaitLate waits until all late requests have been applied.
func (h *randomHistory) awaitLate() {
	h.mu.Lock()
	last := h.lastLate
	h.mu.Unlock()
	if left := time.Until(last); !last.IsZero() && left > -time.Minute {
		<-time.After(left + time.Minute)
	}
}

// newProcess starts a process.
func (h *randomHistory) newProcess(i int) *historyProcess {
	h.mu.Lock()
	h.processes++
	number := h.processes
	h.mu.Unlock()
	rnd := rand.New(rand.NewPCG(h.seed, 1000+number))
	d := workload.NewDelays(h.seed, number, 12, 3*time.Second)
	p := &historyProcess{late: &historyOracle{Oracle: d.Oracle(h.oracle)}, net: &historyNetwork{h: h, rnd: rnd}}
	p.ctx, p.net.end = context.WithCancel(h.ctx)
	p.net.faults = txntest.ChooseFaults(p.net.choose)
	cfg := txn.Config{Oracle: p.late, TokenTTL: -1, PassLocks: h.plan.On.Has("PassLocks"), SyncSecondaries: rnd.IntN(3) == 0, BatchReads: rnd.IntN(2)}
	if h.plan.On.Has("collection of changes") && i == 0 {
		cfg.TokenTTL = time.Minute
	}
	p.Client = h.env.NewClient(cfg, append(p.net.faults.DialOptions(), d.DialOptions()...)...)
	h.unique.Keep(p.Client)
	h.other.Keep(p.Client)
	var err error
	p.keys, err = idempotency.New(p.Client, "p", "id")
	h.must(err)
	return p
}

// process returns a process, which may be dead.
func (h *randomHistory) process(i int) *historyProcess {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients[i]
}

// alive returns a process that is alive, or was just now.
func (h *randomHistory) alive(i int) *historyProcess {
	p := h.process(i)
	if !p.net.isDead() {
		return p
	}
	p = h.newProcess(i)
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.clients[i]
	h.clients[i] = p
	h.kept = slices.DeleteFunc(h.kept, func(s keptSnapshot) bool { return s.by == old })
	return p
}

// unsettled notes a transaction whose outcome is not known, or if never is not "", must be that of a transaction
// that has not committed.
func (h *randomHistory) unsettled(x *historyTxn, never string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.never = never
	h.open = append(h.open, x)
}

// settle finds out the outcome of a commit whose answer was lost.
func (h *randomHistory) settle(p *historyProcess, x *historyTxn, unknown *txn.UndeterminedError) error {
	status, err := p.Settle(p.ctx, unknown)
	switch {
	case err != nil && p.net.isDead():
		h.unsettled(x, "")
		return nil
	case err != nil:
		return fmt.Errorf("settling %v: %w", unknown, err)
	case unknown.StartTS != x.start:
		return fmt.Errorf("%v is not about the transaction that began at %d", unknown, x.start)
	case status.State != txn.StateCommitted && status.State != txn.StateRolledBack:
		return fmt.Errorf("settled: %+v", status)
	case status.State == txn.StateCommitted:
		h.counts.add("settled as committed", 1)
		x.ended, x.settled = h.now(), status.CommitTS
		h.unsettled(x, "")
	default:
		h.counts.add("settled as rolled back", 1)
		h.unsettled(x, "it was settled as rolled back")
	}
	return nil
}

// recorded finds in the records of a transaction when it has committed. If it is open, locks are left.
func (h *randomHistory) recorded(x *historyTxn) (commit tso.Timestamp, open bool) {
	rows := map[string]bigtable.RowList{}
	for table, own := range x.own {
		for row := range own {
			rows[table] = append(rows[table], row)
		}
	}
	for _, c := range slices.AppendSeq(slices.Collect(maps.Keys(x.locks)), maps.Keys(x.acks)) {
		rows[c.Table] = append(rows[c.Table], c.Row)
	}
	if x.id != "" {
		rows["p"] = nil // all: its idempotency key may be all that it has written
	}
	for table, list := range rows {
		var set bigtable.RowSet
		if list != nil {
			set = list
		}
		for v, err := range admin.TransactionVersions(h.ctx, h.env.Client, table, set, x.start, 0) {
			h.must(err)
			if v.CommitTS > 0 && commit > 0 && v.CommitTS != commit {
				h.t.Errorf("%s began at %d and committed at %d and %d", x.name, x.start, commit, v.CommitTS)
			}
			commit, open = max(commit, v.CommitTS), open || v.Lock != nil
		}
	}
	return commit, open && commit == 0
}

// resolveAll resolves all locks, and returns how many. It waits until their owners count as dead.
func (h *randomHistory) resolveAll() (n int) {
	for range 1000 {
		left := 0
		for _, table := range historyTables {
			for l, err := range admin.Locks(h.ctx, h.env.Client, table, nil) {
				h.must(err)
				_, err := admin.Resolve(h.ctx, h.env.Client, l)
				h.must(err)
				left++
			}
		}
		if n += left; left == 0 {
			return n
		}
		<-time.After(time.Second)
	}
	h.t.Fatal("a lock blocks for ever")
	return n
}

// settleRecorded finds out which transactions of unknown outcomes have committed. If all is set, it first resolves
// the locks of dead processes; otherwise those that have locks stay unknown.
func (h *randomHistory) settleRecorded(all bool) {
	h.mu.Lock()
	unknown := h.open
	h.open = nil
	h.mu.Unlock()
	for _, x := range unknown {
		commit, open := h.recorded(x)
		if open && all {
			h.counts.add("resolved", h.resolveAll())
			commit, open = h.recorded(x)
		}
		switch {
		case open && !all:
			h.unsettled(x, x.never)
		case x.settled > 0 && commit != x.settled:
			h.t.Errorf("%s began at %d and was known to have committed at %d; its records say %d", x.name, x.start, x.settled, commit)
		case commit > 0 && x.never != "":
			h.t.Errorf("%s began at %d and has committed at %d, but %s", x.name, x.start, commit, x.never)
		case commit > 0:
			x.commit = commit
			if x.ended == 0 {
				x.ended = h.now()
			}
			if x.id != "" {
				h.outcome(x.id, idempotency.Outcome{CommitTS: commit, Result: []byte(x.name)})
			}
			h.commit(x)
			h.counts.add("unknown outcomes: committed", 1)
		case x.never == "":
			h.counts.add("unknown outcomes: not committed", 1)
		}
	}
}

// observe runs a worker until stop is closed, or until it dies.
func (h *randomHistory) observe(stop <-chan struct{}, dies bool) {
	p := h.newProcess(3)
	if dies {
		p.net.dies()
	}
	w, err := notify.NewWorker(p.Client, notify.Config{Concurrency: 3, MaxAttempts: 1000, DrainTimeout: 20 * time.Second, OnEvent: func(e notify.Event) {
		if e.Outcome == notify.Committed {
			h.counts.add("observed by a worker", 1)
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, x := range h.open {
				if x.start == e.StartTS {
					x.settled = e.CommitTS
				}
			}
		}
	}})
	h.must(err)
	h.must(w.Handle("observer", "a", observedColumn, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		s := &historySession{randomHistory: h, name: "the worker's run for " + cell.Row, p: p}
		s.begin(tx)
		if err := s.get(ctx, cell, false); err != nil {
			return err
		}
		v := s.value()
		s.x.put("b", cell.Row, historyColumns[0], modelVersion{value: []byte(v)})
		tx.Table("b").Set(cell.Row, historyColumns[0].Family, historyColumns[0].Qualifier, []byte(v))
		s.x.acks[cell] = true
		h.unsettled(s.x, "")
		return nil
	})))
	ctx, cancel := context.WithCancel(p.ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	select {
	case <-stop:
	case <-p.ctx.Done():
	}
	cancel()
	if err := <-ended; err != nil && !p.net.isDead() && !errors.Is(err, context.Canceled) {
		h.t.Errorf("worker: %v", err)
	}
	closing, cancel := context.WithTimeout(h.ctx, time.Minute)
	defer cancel()
	if err := p.Close(closing); err != nil && !p.net.isDead() {
		h.t.Errorf("closing a worker: %v", err)
	}
	h.act("worker")
}

// awaitWorker lets a worker run that no fault disturbs, until it has observed everything.
func (h *randomHistory) awaitWorker() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { defer close(stopped); h.observe(stop, false) }()
	pending := 1
	for i := 0; pending > 0 && i < 26*60; i++ {
		<-time.After(time.Minute)
		pending = 0
		tx, err := h.env.Client.Begin(h.ctx)
		h.must(err)
		for n, err := range changes.Notifications(h.ctx, h.env.Client, "a", nil) {
			h.must(err)
			// A late request may have left the notification of a change that was observed.
			o, err := changes.Observe(h.ctx, tx, n.Cell)
			h.must(err)
			if o.Pending("observer") {
				pending++
			}
		}
		tx.Rollback()
	}
	close(stop)
	<-stopped
	if pending > 0 {
		h.t.Errorf("%d changes are not observed", pending)
	}
	h.settleRecorded(true)
}
