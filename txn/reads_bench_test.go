//go:build unix

package txn_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// The benchmarks of this file do the same work without and with an option, in turn. They
// report the exact number of requests of each, and the CPU time with the option divided by
// the time without it: below 1 is better. The emulator runs in this process, so its time
// counts too.

// A side is the work with one configuration.
type side struct {
	name   string
	client *txn.Client
	faults *txntest.Faults // counts
	do     func(context.Context, *txn.Client) error
	cpu    time.Duration
}

// benchRows is how many rows table t has, each with the columns f:c0 to f:c7.
const benchRows = 64

func newSides(b *testing.B, sides ...*side) {
	env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck(), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("t", "f")
	env.CreateTable("out", "f")
	_, err := env.Client.Update(b.Context(), func(_ context.Context, tx *txn.Txn) error {
		for r := range benchRows {
			for c := range 8 {
				tx.Table("t").Set(fmt.Sprintf("row%d", r), "f", fmt.Sprintf("c%d", c), []byte("value"))
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range sides {
		s.faults = txntest.NewFaults(b)
		cfg := txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour, SyncSecondaries: true}
		if o, ok := options[s.name]; ok {
			o(&cfg)
		}
		s.client = env.NewClient(cfg, s.faults.DialOptions()...)
		for range 5 {
			if err := s.do(b.Context(), s.client); err != nil {
				b.Fatal(err)
			}
		}
		s.faults.Reset()
	}
}

// options are the configurations of sides, by name.
var options = map[string]func(*txn.Config){
	"no-prefetch": func(c *txn.Config) { c.PrefetchBytes = -1 },
	"batch-1":     func(c *txn.Config) { c.BatchReads = 1 },
	"batch-2":     func(c *txn.Config) { c.BatchReads = 2 },
	"batch-4":     func(c *txn.Config) { c.BatchReads = 4 },
}

// compare runs the sides in turn and compares each with the first. each is how many
// operations one call of do makes.
func compare(b *testing.B, each int, sides ...*side) {
	newSides(b, sides...)
	calls := 0
	for n := 0; b.Loop(); n++ {
		for i := range sides {
			s := sides[(i+n)%len(sides)]
			used := cpuUsed(b)
			for range perTurn {
				if err := s.do(b.Context(), s.client); err != nil {
					b.Fatal(err)
				}
			}
			s.cpu += cpuUsed(b) - used
		}
		calls += perTurn
	}
	b.ReportMetric(0, "ns/op")
	for i, s := range sides {
		count := s.faults.Count()
		for step, unit := range map[txntest.Step]string{txntest.StepRead: "reads", txntest.StepOracle: "oracle"} {
			if count[step] > 0 {
				b.ReportMetric(float64(count[step])/float64(calls*each), s.name+"-"+unit+"/op")
			}
		}
		if i > 0 {
			b.ReportMetric(float64(s.cpu)/float64(sides[0].cpu), s.name+"/"+sides[0].name+"-cpu")
		}
	}
}

// BenchmarkPrefetch measures a transaction that reads eight columns of a row one by one.
func BenchmarkPrefetch(b *testing.B) {
	do := func(ctx context.Context, c *txn.Client) error {
		_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			t := tx.Table("t")
			for i := range 8 {
				if _, _, err := t.Get(ctx, "row1", "f", fmt.Sprintf("c%d", i)); err != nil {
					return err
				}
			}
			return nil
		}, txn.Named("page"))
		return err
	}
	compare(b, 1, &side{name: "no-prefetch", do: do}, &side{name: "prefetch", do: do})
}

// BenchmarkPrefetchNothing measures the cost of learning in a transaction that has nothing to
// prefetch.
func BenchmarkPrefetchNothing(b *testing.B) {
	do := func(ctx context.Context, c *txn.Client) error {
		_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			_, _, err := tx.Table("t").Get(ctx, "row1", "f", "c1")
			return err
		}, txn.Named("page"))
		return err
	}
	compare(b, 1, &side{name: "no-prefetch", do: do}, &side{name: "prefetch", do: do})
}

// BenchmarkReadBatch measures a snapshot in which goroutines read one row each at the same
// time.
func BenchmarkReadBatch(b *testing.B) {
	for _, callers := range []int{16, 32} {
		do := func(ctx context.Context, c *txn.Client) error {
			s, err := c.Snapshot(ctx, txn.MaxStaleness(time.Hour))
			if err != nil {
				return err
			}
			errs := make(chan error, callers)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					_, _, err := s.Table("t").Get(ctx, fmt.Sprintf("row%d", i), "f", "c1")
					errs <- err
				})
			}
			wg.Wait()
			for range callers {
				if err := <-errs; err != nil {
					return err
				}
			}
			return nil
		}
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			compare(b, callers, &side{name: "single", do: do}, &side{name: "batch-1", do: do}, &side{name: "batch-2", do: do}, &side{name: "batch-4", do: do})
		})
	}
}

// BenchmarkStaleness measures a new snapshot that reads one cell.
func BenchmarkStaleness(b *testing.B) {
	do := func(opts ...txn.SnapshotOption) func(context.Context, *txn.Client) error {
		return func(ctx context.Context, c *txn.Client) error {
			s, err := c.Snapshot(ctx, opts...)
			if err != nil {
				return err
			}
			_, _, err = s.Table("t").Get(ctx, "row1", "f", "c1")
			return err
		}
	}
	compare(b, 1, &side{name: "fresh", do: do()}, &side{name: "stale", do: do(txn.MaxStaleness(time.Hour))})
}

// perTurn is how many times compare calls one side before the next.
const perTurn = 20

// cpuUsed returns the CPU time of this process. Unlike the wall clock, it hardly depends on
// other processes.
func cpuUsed(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
