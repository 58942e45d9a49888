package emulator_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// simulated is how many histories TestSimulation makes, unless they are reduced.
const simulated = 100

var (
	simulations    = flag.Int("simulations", simulated, "how many histories TestSimulation makes")
	simulationSeed = flag.Uint64("simulation-seed", 0, "seed of the first of them; 0: by chance, or 1 if they are reduced")
)

const (
	// simulatedSteps is the number of transactions that each client of a history tries.
	simulatedSteps = 10
	// simulatedRotation is how long the clients of a long history use the same rows.
	simulatedRotation = time.Minute
)

// lateBound is how late a request may be applied: one retention after the client last checked
// the safe point (docs/guarantees.md), which was up to a minute before the request.
const lateBound = retention - time.Minute

// A straggler is a part of the network that keeps the writes of one client now and then: for
// some seconds, each is applied much later, in order. The client gets an error, or the
// answer to a copy that was in time.
type straggler struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	until time.Time // when it begins to pass requests again
	late  time.Duration
	mode  int // which writes it keeps, instead of sending a copy
	kept  map[txntest.Step]int
}

func (s *straggler) choose(c txntest.Call) (txntest.Action, time.Duration, bool) {
	c = txntest.Classify(c.Method, c.Request)
	switch c.Step {
	case txntest.StepRead, txntest.StepOracle, txntest.StepSchema, txntest.StepToken, txntest.StepSafePoint, txntest.StepOther:
		return 0, 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.until) {
		if s.rnd.IntN(20) > 0 {
			return 0, 0, false
		}
		s.until = time.Now().Add(time.Duration(s.rnd.Int64N(int64(8 * time.Second))))
		s.late = time.Duration(s.rnd.Int64N(int64(retention - 20*time.Second)))
		s.mode = s.rnd.IntN(3)
	}
	s.kept[c.Step]++
	late := min(s.late, lateBound)
	// In mode 1 a transaction has prewritten and cannot commit: another client rolls it back.
	if s.mode == 0 || s.mode == 1 && c.Step == txntest.StepPrewrite {
		return txntest.Echo, late, true
	}
	return txntest.Delay, late, true
}

// collectGarbage collects now and then until done is closed, also beside another collection
// that ended early. It returns how many versions and marks were removed.
func collectGarbage(ctx context.Context, t *testing.T, c *txn.Client, rnd *rand.Rand, done <-chan struct{}) (removed int64) {
	for {
		select {
		case <-done:
			return removed
		case <-time.After(time.Duration(rnd.Int64N(int64(4 * time.Minute)))):
		}
		gctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(rnd.Int64N(int64(time.Minute))))
		cfg := gc.Config{Retention: retention}
		if rnd.IntN(4) > 0 {
			cfg.FullEvery = time.Duration(1+rnd.IntN(60)) * time.Minute
		}
		r, err := gc.Run(gctx, c, cfg)
		cancel()
		if errors.Is(err, format.ErrCorrupt) || errors.Is(err, format.ErrInvalid) {
			t.Errorf("garbage collection: %v", err)
		}
		if r != nil {
			removed += r.Total.Versions + r.Total.Marks
		}
	}
}

// simulate makes one short history of several clients in virtual time. The seed decides
// what they do, how long each request takes, which requests fail, and which clients die
// when. A history takes some tens of milliseconds, however long clients wait for each
// other's locks.
//
// One of three histories takes longer than the retention: clients pause, garbage is
// collected, and requests arrive as late as docs/guarantees.md allows.
func simulate(t *testing.T, load *workload.Workload, seed uint64, counts *tally) (committed int64) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 100))
		var cfg txn.Config
		// Most histories do without the oracle on Bigtable, which takes a quarter of
		// a history's time and has simulations of its own.
		local := tso.NewLocal(tso.LocalConfig{})
		distant := rnd.IntN(4) > 0
		if distant {
			cfg.Oracle = local
		}
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{Oracle: cfg.Oracle, TokenTTL: -1}))
		for _, table := range load.Tables {
			env.InitTable(table)
		}
		cfg.LockTTL, cfg.SyncSecondaries, cfg.PassLocks = crashTTL, rnd.IntN(2) == 0, rnd.IntN(2) == 0
		cfg.TokenTTL = time.Duration(rnd.IntN(2)*1500-500) * time.Millisecond
		if cfg.TokenTTL <= 0 {
			cfg.TokenTTL = -1
		}
		long := rnd.IntN(3) == 0
		if long && cfg.TokenTTL > 0 {
			cfg.TokenTTL = time.Minute
		}
		rec := newRecorder()
		watching := cfg
		watching.TokenTTL = -1 // renewals would take most of the real time
		own := &workload.Worker{Client: env.NewClient(watching), Rand: rnd, Record: rec.record, Stride: 1000}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if err := load.Setup(ctx, own); err != nil {
			t.Fatal(err)
		}
		var acting, working sync.WaitGroup
		var all []*workload.Chaos
		var clients []*txn.Client
		var late []*txntest.Faults
		steps, done := simulatedSteps, make(chan struct{})
		// In a long history clients continue with new rows: a request that is late does harm
		// only where nothing was written since.
		rotations, began := func() int { return 0 }, time.Now()
		if long {
			steps = 4 * simulatedSteps
			rotations = func() int { return int(time.Since(began) / simulatedRotation) }
		}
		for i := range 5 {
			if i == 4 && !long {
				break
			}
			chaos := workload.NewChaos(seed+uint64(i), 0.03, 2*crashTTL)
			all = append(all, chaos)
			d := workload.NewDelays(seed, uint64(200+i), 100, 3*crashTTL)
			faults := txntest.NewFaults(t)
			opts := append(faults.DialOptions(), chaos.DialOptions()...)
			if long {
				s := &straggler{rnd: rand.New(rand.NewPCG(seed, uint64(400+i))), kept: map[txntest.Step]int{}}
				f := txntest.ChooseFaults(s.choose)
				late = append(late, f)
				opts = append(opts, f.DialOptions()...)
				defer func() {
					for step, n := range s.kept {
						counts.add("late: "+string(step), n)
					}
				}()
			}
			opts = append(opts, d.DialOptions()...)
			if distant {
				cfg.Oracle = d.Oracle(local)
			}
			client := env.NewClient(cfg, opts...)
			clients = append(clients, client)
			if i == 4 {
				collector := rand.New(rand.NewPCG(seed, 500))
				working.Go(func() { counts.add("collected", int(collectGarbage(ctx, t, client, collector, done))) })
				break
			}
			cctx, die := context.WithCancel(ctx)
			defer die()
			if i > 0 && rnd.IntN(2) == 0 {
				life := time.Duration(rnd.Int64N(int64(5 * time.Second)))
				if long {
					life *= 200
				}
				time.AfterFunc(life, func() {
					faults.Kill()
					die()
				})
			}
			w := &workload.Worker{Client: client, Rand: rand.New(rand.NewPCG(seed, uint64(300+i))), Record: rec.record, Process: 1 + i, Stride: 1000, Options: load.Options}
			if long {
				pauses := rand.New(rand.NewPCG(seed, uint64(600+i)))
				w.Pause = func() {
					longest := time.Second
					switch pauses.IntN(30) {
					case 0:
						longest = retention + retention/4
					case 1, 2:
						longest = time.Minute
					}
					advance(time.Duration(pauses.Int64N(int64(longest))))
				}
			}
			acting.Go(func() {
				for range steps {
					w.Space = fmt.Sprintf("%d/", rotations())
					if err := load.Step(cctx, w); err != nil && cctx.Err() == nil {
						t.Errorf("process %d: %v", w.Process, err)
					}
				}
			})
		}
		acting.Wait()
		close(done)
		working.Wait()
		for _, c := range all {
			c.Heal()
		}
		last := rotations()
		for _, f := range late {
			f.Wait()
		}
		for _, c := range clients {
			cctx, cancel := context.WithTimeout(ctx, time.Minute) // virtual time, longer than any background deadline
			_ = c.Close(cctx)                                     // fails for dead clients
			cancel()
		}
		synctest.Wait()
		for _, table := range load.Tables {
			if _, err := workload.ResolveAll(ctx, own.Client, table.Name); err != nil {
				t.Fatal(err)
			}
		}
		for n := range last + 1 {
			own.Space = fmt.Sprintf("%d/", n)
			if err := load.ReadAll(ctx, own); err != nil {
				t.Error(err)
			}
		}
		if n := rec.withoutCommit(); n >= 4*simulatedSteps {
			t.Errorf("%d transactions in a row failed: nobody makes progress", n)
		}
		rec.check(t, load.Level)
		committed = int64(rec.total(history.OK))
	})
	return committed
}

// withoutCommit returns how many transactions failed in a row, without a commit between
// them, at most.
func (r *recorder) withoutCommit() (most int) {
	n := 0
	for _, rec := range r.records {
		switch rec.Type {
		case history.Fail:
			n++
			most = max(most, n)
		case history.OK:
			n = 0
		}
	}
	return most
}

// TestSimulation makes short histories in virtual time, each from its own seed: go test
// ./emulator_test -run TestSimulation -simulations 5000. A seed decides everything but
// the jitter of the library's backoff.
func TestSimulation(t *testing.T) {
	long.Judged(t)
	first := *simulationSeed
	loads := tested()
	histories := int64(*simulations)
	if long.Reduced() && histories == simulated {
		histories, first = 6, max(first, 1)
		if testing.Short() {
			histories = 4
		}
	}
	if first == 0 {
		first = rand.Uint64N(1_000_000_000) + 1
	}
	began := time.Now()
	var next, committed atomic.Int64
	counts := &tally{n: map[string]int{}}
	var making sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		making.Go(func() {
			for i := next.Add(1) - 1; i < histories && !t.Failed(); i = next.Add(1) - 1 {
				seed := first + uint64(i)
				load := loads[seed%uint64(len(loads))]
				if !t.Run(fmt.Sprintf("%s/%d", load.Name, seed), func(t *testing.T) { committed.Add(simulate(t, load, seed, counts)) }) {
					t.Errorf("to repeat: go test ./emulator_test -run TestSimulation -simulations 1 -simulation-seed %d", seed)
				}
			}
		})
	}
	making.Wait()
	t.Log(counts.n)
	if histories >= 100 && !t.Failed() {
		for _, what := range []string{"collected", "late: prewrite", "late: commit", "late: secondaries", "late: heartbeat", "late: roll forward", "late: roll back", "late: roll back cell", "late: collect"} {
			if counts.n[what] == 0 {
				t.Errorf("no history had %s", what)
			}
		}
	}
	t.Logf("%d histories from seed %d, %d commits, %.0f histories a minute", histories, first, committed.Load(), float64(histories)/time.Since(began).Minutes())
}
