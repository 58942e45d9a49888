package emulator_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/emulator_test/history"
	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	simulations    = flag.Int("simulations", 12, "how many histories TestSimulation makes")
	simulationSeed = flag.Uint64("simulation-seed", 0, "seed of the first of them; 0: by chance")
)

// delays are the ways in which virtual time passes for the requests of one
// client: before a request reaches Bigtable, and before its answer is back. In
// virtual time they decide the order in which requests are applied.
type delays struct {
	mu     sync.Mutex
	rnd    *rand.Rand
	longer int // one request in so many takes longer than a ttl
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

// simulate makes one short history of several clients in virtual time: the seed
// decides what they do, how long each request takes, which requests fail, and
// who dies when. A history takes some tens of milliseconds, however long its
// clients wait for each other's locks.
func simulate(t *testing.T, load *workload.Workload, seed uint64) (committed int) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 100))
		env := txntest.New(t, txntest.Embedded())
		for _, table := range load.Tables {
			env.InitTable(table)
		}
		cfg := txn.Config{LockTTL: crashTTL, TokenTTL: time.Duration(rnd.IntN(2)*1500-500) * time.Millisecond, SyncSecondaries: rnd.IntN(2) == 0}
		if cfg.TokenTTL <= 0 {
			cfg.TokenTTL = -1
		}
		rec := newRecorder()
		own := &workload.Worker{Client: env.NewClient(cfg), Rand: rnd, Record: rec.record, Stride: 1000}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := load.Setup(ctx, own); err != nil {
			t.Fatal(err)
		}
		var working sync.WaitGroup
		var all []*workload.Chaos
		for i := range 4 {
			chaos := workload.NewChaos(seed+uint64(i), 0.03, 2*crashTTL)
			all = append(all, chaos)
			d := &delays{rnd: rand.New(rand.NewPCG(seed, uint64(200+i))), longer: 100}
			faults := txntest.NewFaults(t)
			opts := append(faults.DialOptions(), append(chaos.DialOptions(), d.dialOptions()...)...)
			client := env.NewClient(cfg, opts...)
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
				for range 12 {
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
		<-time.After(time.Minute) // virtual: every ttl and every background deadline is over
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
		committed = rec.total(history.OK)
	})
	return committed
}

// TestSimulation makes short histories in virtual time, each from a seed of its
// own: go test ./emulator_test -run TestSimulation -simulations 5000. A seed
// decides everything but the jitter of the library's own backoff.
func TestSimulation(t *testing.T) {
	first := *simulationSeed
	if first == 0 {
		first = rand.Uint64N(1_000_000_000) + 1
	}
	loads := tested()
	began, committed := time.Now(), 0
	for i := range uint64(*simulations) {
		seed := first + i
		load := loads[seed%uint64(len(loads))]
		if !t.Run(fmt.Sprintf("%s/%d", load.Name, seed), func(t *testing.T) { committed += simulate(t, load, seed) }) {
			t.Fatalf("again: go test ./emulator_test -run TestSimulation -simulations 1 -simulation-seed %d", seed)
		}
	}
	t.Logf("%d histories from seed %d, %d commits, %.0f histories a minute", *simulations, first, committed, float64(*simulations)/time.Since(began).Minutes())
}
