package emulator_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/emulator_test/history"
	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	simulations    = flag.Int("simulations", 100, "how many histories TestSimulation makes")
	simulationSeed = flag.Uint64("simulation-seed", 0, "seed of the first of them; 0: by chance")
)

// simulatedSteps is the number of transactions that each client of a history tries.
const simulatedSteps = 10

// delays lets virtual time pass for the requests of one client: before a request
// reaches Bigtable, and before its answer returns. This decides the order in which
// requests are applied.
type delays struct {
	mu     sync.Mutex
	rnd    *rand.Rand
	longer int // one of this many requests takes longer than a ttl
}

func (d *delays) next() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rnd.IntN(d.longer) == 0 {
		return time.Duration(d.rnd.Int64N(int64(3 * crashTTL)))
	}
	return time.Duration(d.rnd.Int64N(int64(10 * time.Millisecond)))
}

func (d *delays) wait(ctx context.Context) error {
	t := time.NewTimer(d.next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *delays) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := d.wait(ctx); err != nil {
				return err
			}
			if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
				return err
			}
			return d.wait(ctx)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := d.wait(ctx); err != nil {
				return nil, err
			}
			return streamer(ctx, desc, cc, method, opts...)
		}),
	}
}

// A distantOracle is an oracle in memory that answers after a delay.
type distantOracle struct {
	tso.Oracle
	*delays
}

func (o distantOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := o.wait(ctx); err != nil {
		return 0, err
	}
	ts, err := o.Oracle.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	return ts, o.wait(ctx)
}

// simulate makes one short history of several clients in virtual time. The seed decides
// what they do, how long each request takes, which requests fail, and which clients die
// when. A history takes some tens of milliseconds, however long clients wait for each
// other's locks.
func simulate(t *testing.T, load *workload.Workload, seed uint64) (committed int64) {
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
		rec := newRecorder()
		watching := cfg
		watching.TokenTTL = -1 // renewals would take most of the real time
		own := &workload.Worker{Client: env.NewClient(watching), Rand: rnd, Record: rec.record, Stride: 1000}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := load.Setup(ctx, own); err != nil {
			t.Fatal(err)
		}
		var working sync.WaitGroup
		var all []*workload.Chaos
		var clients []*txn.Client
		for i := range 4 {
			chaos := workload.NewChaos(seed+uint64(i), 0.03, 2*crashTTL)
			all = append(all, chaos)
			d := &delays{rnd: rand.New(rand.NewPCG(seed, uint64(200+i))), longer: 100}
			faults := txntest.NewFaults(t)
			opts := append(faults.DialOptions(), append(chaos.DialOptions(), d.dialOptions()...)...)
			if distant {
				cfg.Oracle = distantOracle{local, d}
			}
			client := env.NewClient(cfg, opts...)
			clients = append(clients, client)
			cctx, die := context.WithCancel(ctx)
			defer die()
			if i > 0 && rnd.IntN(2) == 0 {
				life := time.Duration(rnd.Int64N(int64(5 * time.Second)))
				time.AfterFunc(life, func() {
					faults.Kill()
					die()
				})
			}
			w := &workload.Worker{Client: client, Rand: rand.New(rand.NewPCG(seed, uint64(300+i))), Record: rec.record, Process: 1 + i, Stride: 1000, Options: load.Options}
			working.Go(func() {
				for range simulatedSteps {
					if err := load.Step(cctx, w); err != nil && cctx.Err() == nil {
						t.Errorf("process %d: %v", w.Process, err)
					}
				}
			})
		}
		working.Wait()
		for _, c := range all {
			c.Heal()
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
		if err := load.ReadAll(ctx, own); err != nil {
			t.Error(err)
		}
		rec.check(t, load.Level)
		committed = int64(rec.total(history.OK))
	})
	return committed
}

// TestSimulation makes short histories in virtual time, each from its own seed: go test
// ./emulator_test -run TestSimulation -simulations 5000. A seed decides everything but
// the jitter of the library's backoff.
func TestSimulation(t *testing.T) {
	first := *simulationSeed
	if first == 0 {
		first = rand.Uint64N(1_000_000_000) + 1
	}
	loads := tested()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // otherwise Go's garbage collector takes a third of the time
	histories := int64(*simulations)
	if testing.Short() {
		histories = min(histories, 30)
	}
	began := time.Now()
	var next, committed atomic.Int64
	var making sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		making.Go(func() {
			for i := next.Add(1) - 1; i < histories && !t.Failed(); i = next.Add(1) - 1 {
				seed := first + uint64(i)
				load := loads[seed%uint64(len(loads))]
				if !t.Run(fmt.Sprintf("%s/%d", load.Name, seed), func(t *testing.T) { committed.Add(simulate(t, load, seed)) }) {
					t.Errorf("to repeat: go test ./emulator_test -run TestSimulation -simulations 1 -simulation-seed %d", seed)
				}
			}
		})
	}
	making.Wait()
	t.Logf("%d histories from seed %d, %d commits, %.0f histories a minute", histories, first, committed.Load(), float64(histories)/time.Since(began).Minutes())
}
