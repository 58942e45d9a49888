package emulator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// BenchmarkSecondaries commits transactions of four rows from many goroutines,
// with one millisecond a request, and counts the requests that commit their
// secondaries: shared by transactions, and in requests of their own.
func BenchmarkSecondaries(b *testing.B) {
	for _, workers := range []int{1, 16, 64} {
		for _, mode := range []struct {
			name string
			cfg  txn.Config
		}{{"shared", txn.Config{}}, {"separate", txn.Config{SeparateSecondaries: true}}} {
			b.Run(fmt.Sprintf("workers=%d/%s", workers, mode.name), func(b *testing.B) {
				env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck())
				env.CreateTable("a", "f")
				c := env.NewClient(mode.cfg, slow(time.Millisecond)...)
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

// spread does f for 0 to n-1 from several goroutines.
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
