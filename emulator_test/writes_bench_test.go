package emulator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// BenchmarkSecondaries commits transactions of four rows from many goroutines, with one
// millisecond a request. It counts the requests for secondaries, which transactions
// share.
func BenchmarkSecondaries(b *testing.B) {
	for _, workers := range []int{1, 16, 64} {
		{
			b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
				env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck())
				env.CreateTable("a", "f")
				c := env.NewClient(txn.Config{}, slow(time.Millisecond)...)
				b.ResetTimer()
				spread(b.N, workers, func(n int) {
					_, err := c.Update(b.Context(), func(_ context.Context, tx *txn.Txn) error {
						for r := range 4 {
							tx.Table("a").Set(fmt.Sprint(n, "/", r), "f", "q", []byte("v"))
						}
						return nil
					})
					if err != nil {
						b.Error(err)
					}
				})
				b.StopTimer()
				if err := c.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
				s := c.Stats()
				b.ReportMetric(float64(s.BackgroundRequests)/float64(s.Committed), "background-requests/txn")
				b.ReportMetric(float64(s.BackgroundDropped), "dropped")
			})
		}
	}
}

// spread calls f with 0 to n-1 from several goroutines.
func spread(n, workers int, f func(n int)) {
	work := make(chan int)
	var g sync.WaitGroup
	for range workers {
		g.Go(func() {
			for i := range work {
				f(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	g.Wait()
}

// BenchmarkCounter adds to one counter from 32 goroutines, with one millisecond a
// request, in one cell and in shards. It counts what each increment takes. Latches are
// off, as if each goroutine were another process.
func BenchmarkCounter(b *testing.B) {
	for _, shards := range []int{0, 1, 16, 64} {
		name := fmt.Sprintf("shards=%d", shards)
		if shards == 0 {
			name = "cell"
		}
		b.Run(name, func(b *testing.B) {
			env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck())
			env.CreateTable("docs", "d")
			c := env.NewClient(txn.Config{LatchWait: -1}, slow(time.Millisecond)...)
			counter := notify.Counter{Table: "docs", Family: "d", Qualifier: "n", Shards: shards}
			b.ResetTimer()
			spread(b.N, 32, func(int) {
				_, err := c.Update(b.Context(), func(ctx context.Context, tx *txn.Txn) error {
					if shards > 0 {
						return counter.Add(ctx, tx, "home", 1)
					}
					v, _, err := tx.Table("docs").Get(ctx, "home", "d", "n")
					tx.Table("docs").Set("home", "d", "n", append(v[:0:0], byte(len(v))))
					return err
				})
				if err != nil {
					b.Error(err)
				}
			})
			b.StopTimer()
			s := c.Stats()
			b.ReportMetric(float64(s.Begun)/float64(s.Committed), "attempts/add")
			if shards > 0 {
				snapshot, err := c.Snapshot(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if n, err := counter.Read(b.Context(), snapshot.Table("docs"), "home"); err != nil || n != int64(b.N) {
					b.Errorf("the counter is %d, %v; want %d", n, err, b.N)
				}
			}
		})
	}
}
