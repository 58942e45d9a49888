package demo

import (
	"context"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestCrash kills a worker at each crash point, as far as Bigtable can tell, in
// the clusterer's run for a document, and has another one settle and finish what
// it left.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		point         crashPoint
		forward, back int
		ranBefore     bool // the run counts
		notified      bool // the notification is still there
	}{
		{beforePrewrite, 0, 0, false, true},
		{beforeCommit, 0, 3, false, true}, // acknowledgment, hash, member
		{afterCommit, 1, 0, true, true},   // the member
		{beforeClear, 0, 0, true, true},
	} {
		t.Run(string(test.point), func(t *testing.T) {
			t.Parallel()
			env := txntest.New(t)
			for _, spec := range index.Tables {
				env.InitTable(spec)
			}
			if err := index.Register(t.Context(), env.Client); err != nil {
				t.Fatal(err)
			}
			// The parser's part is done by hand.
			const hash = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
			parsed := txn.Cell{Table: index.Documents, Row: "file", Family: "parsed", Qualifier: "hash"}
			if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table(parsed.Table).Set(parsed.Row, parsed.Family, parsed.Qualifier, []byte(hash))
				return nil
			}); err != nil {
				t.Fatal(err)
			}

			strands := newStrands()
			stopped := make(chan time.Time, 1)
			crash := &crasher{stopped: func(p crashPoint, at time.Time) {
				if p != test.point {
					t.Errorf("stopped %s", p)
				}
				stopped <- at
			}}
			config := clientConfig()
			config.SyncSecondaries = true // before the notification is removed
			victim := env.NewClient(config, crash.dialOptions()...)
			crash.arm(test.point)
			ctx, cancel := context.WithCancel(t.Context())
			runClusterer(t, ctx, victim, func(notify.Event) {})
			at := <-stopped

			// Its rows are read without the library, which would settle them.
			left := 0
			for _, err := range changes.Notifications(t.Context(), env.Client, index.Documents, nil) {
				if left++; err != nil {
					t.Fatal(err)
				}
			}
			if (left > 0) != test.notified {
				t.Errorf("%d notifications are left", left)
			}
			own := env.NewClient(clientConfig())
			admin.OnResolve(own, strands.onResolve)
			strands.died(admin.Owner(victim), at)
			if err := strands.find(t.Context(), own, admin.Owner(victim)); err != nil {
				t.Fatal(err)
			}
			if n := len(strands.found[admin.Owner(victim)]); n != test.forward+test.back {
				t.Errorf("%d locks were left, want %d", n, test.forward+test.back)
			}

			// Another worker finds what there is to do by itself.
			events := make(chan notify.Event, 100)
			ctx2, cancel2 := context.WithCancel(t.Context())
			done2 := runClusterer(t, ctx2, own, func(e notify.Event) { events <- e })
			for e := range events {
				if e.Outcome == notify.Committed || e.Outcome == notify.Acknowledged {
					if ran := e.Outcome == notify.Acknowledged; ran != test.ranBefore {
						t.Errorf("the other worker's run: %s", e.Outcome)
					}
					break
				}
			}
			cancel2()
			<-done2
			if err := recoverLocks(t.Context(), own); err != nil {
				t.Fatal(err)
			}
			count := func() {
				t.Helper()
				forward, back, err := strands.count(t.Context(), own)
				if err != nil || forward != test.forward || back != test.back {
					t.Errorf("rolled forward %d and back %d, %v; want %d and %d", forward, back, err, test.forward, test.back)
				}
			}
			count()
			// Settled by a worker that did not live to report it.
			clear(strands.resolved)
			count()
			// Settled while the owner was alive: not stranded.
			clear(strands.found)
			strands.add(admin.Owner(victim), lockID{txn.Cell{Row: "x"}, 1}, resolution{txn.StateCommitted, at.Add(-time.Second)})
			if forward, back, err := strands.count(t.Context(), own); forward+back != 0 || err != nil {
				t.Errorf("a live worker's lock counts as stranded: %d, %d, %v", forward, back, err)
			}

			snapshot, err := own.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, member, err := snapshot.Table(index.Dups).Get(t.Context(), hash, "member", "file"); !member || err != nil {
				t.Errorf("the document is in its cluster: %v, %v", member, err)
			}
			// Do not wait for the dead one: its requests hang until their timeout.
			cancel()
		})
	}
}

// runClusterer runs one of the observers until ctx ends.
func runClusterer(t *testing.T, ctx context.Context, client *txn.Client, onEvent func(notify.Event)) (done chan error) {
	t.Helper()
	cfg := workerConfig()
	cfg.OnEvent = onEvent
	w, err := notify.NewWorker(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range index.Observers() {
		if o.ID == "clusterer" {
			if err := w.Handle(o.ID, o.Table, o.Column, o.Observe); err != nil {
				t.Fatal(err)
			}
		}
	}
	done = make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return done
}

func TestKillPlan(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		p := newKillPlan(6, 1000, seed)
		last := int64(0)
		for i, k := range p.kills {
			if k.after < last || k.after > 1000*runsPerDocument {
				t.Errorf("seed %d: kill %d after %d runs, the one before after %d", seed, i, k.after, last)
			}
			last = k.after
			if i > 0 && k.point == p.kills[i-1].point {
				t.Errorf("seed %d: kills %d and %d at the same point", seed, i-1, i)
			}
		}
	}

	p := newKillPlan(2, 10, 1)
	p.kills[0].after = 5
	if _, due := p.due(4, false); due {
		t.Error("a kill before its time")
	}
	if _, due := p.due(5, false); !due {
		t.Error("no kill at its time")
	}
	if _, due := p.due(0, true); !due {
		t.Error("no kill when there is no time left")
	}
	p.victim = &process{}
	if _, due := p.due(9, true); due {
		t.Error("two victims at a time")
	}
	p.victim, p.next = nil, 2
	if _, due := p.due(100, true); due {
		t.Error("a kill too many")
	}
}
