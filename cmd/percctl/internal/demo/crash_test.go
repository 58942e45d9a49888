package demo

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
)

// TestCrash kills a client at each crash point, as far as Bigtable can tell,
// and has the others settle and count what it left.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		point         crashPoint
		forward, back int
		committed     bool
	}{
		{beforeCommit, 0, 8, false}, // every cell of the transaction
		{afterCommit, 6, 0, true},   // all but those of the primary's row
	} {
		t.Run(string(test.point), func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			strands := newStrands()
			stopped := make(chan time.Time, 1)
			crash := &crasher{stopped: func(p crashPoint, at time.Time) {
				if p != test.point {
					t.Errorf("stopped %s", p)
				}
				stopped <- at
			}}
			victim := env.NewClient(clientConfig(nil), crash.dialOptions()...)
			crash.arm(test.point)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				// Committed or not, its caller never learns of it in time.
				_, _ = updateDocument(ctx, victim, "dir/file", []byte("contents"))
			})
			at := <-stopped

			own := env.NewClient(clientConfig(strands.resolved))
			strands.died(victim.Owner(), at)
			if err := strands.find(t.Context(), own, victim.Owner()); err != nil {
				t.Fatal(err)
			}
			if n := len(strands.found[victim.Owner()]); n != test.forward+test.back {
				t.Errorf("%d locks were left, want %d", n, test.forward+test.back)
			}
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
			// Settled by a client that did not live to report it.
			clear(strands.settled)
			count()
			// Settled while the owner was alive: not stranded.
			clear(strands.found)
			for id, state := range map[lockID]txn.State{{txn.Cell{Row: "x"}, 1}: txn.StateCommitted} {
				strands.settle(victim.Owner(), id, settlement{state, at.Add(-time.Second)})
			}
			if forward, back, err := strands.count(t.Context(), own); forward+back != 0 || err != nil {
				t.Errorf("a live client's lock counts as stranded: %d, %d, %v", forward, back, err)
			}

			got, _, err := readState(t.Context(), own)
			if err != nil {
				t.Fatal(err)
			}
			var docs []document
			if test.committed {
				docs = []document{{"dir/file", digest([]byte("contents")), len("contents")}}
			}
			want, _ := compute(docs)
			for _, m := range compare(got, want) {
				t.Error(m)
			}
			cancel()
			running.Wait()
		})
	}
}

func TestKillPlan(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		p := newKillPlan(6, 1000, seed)
		last := 0
		for i, k := range p.kills {
			if k.after < last || k.after > 900 {
				t.Errorf("seed %d: kill %d after %d documents, the one before after %d", seed, i, k.after, last)
			}
			last = k.after
			if i > 0 && k.point == p.kills[i-1].point {
				t.Errorf("seed %d: kills %d and %d at the same point", seed, i-1, i)
			}
		}
	}

	p := newKillPlan(2, 10, 1)
	p.kills[0].after = 5
	victim, other := &client{}, &client{}
	if _, due := p.due(4, 6); due {
		t.Error("a kill before its time")
	}
	if _, due := p.due(5, 5); !due {
		t.Error("no kill at its time")
	}
	if _, due := p.due(0, 2); !due {
		t.Error("no kill when there are just documents enough")
	}
	p.victim = victim
	if _, due := p.due(9, 2); due {
		t.Error("two victims at a time")
	}
	if p.mayTake(other, 2) || !p.mayTake(victim, 2) {
		t.Error("the last documents are not kept for the victim")
	}
	victim.working = map[int]bool{1: true}
	if p.mayTake(victim, 2) {
		t.Error("the victim takes two of the last documents")
	}
}
