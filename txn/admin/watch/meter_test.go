package watch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestPatient: requests of a patient context wait for the limits that all requests share, and
// other requests wait for nothing.
func TestPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("t", "f")
		m := &Meter{}
		m.Limit(20, 1_000_000)
		bt, _ := env.Open(m.DialOptions()...)
		read := func(ctx context.Context) {
			if err := bt.Open("t").ReadRows(ctx, bigtable.InfiniteRange(""), func(bigtable.Row) bool { return true }); err != nil {
				t.Error(err)
			}
		}
		read(t.Context()) // connects
		used, began := m.Used(), time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					read(Patient(t.Context()))
				}
			})
		}
		for range 20 {
			read(t.Context())
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("requests without a limit took %v", took)
		}
		wg.Wait()
		n, took := m.Used().Minus(used).Requests, time.Since(began)
		if n != 100 || took < 4900*time.Millisecond || took > 6*time.Second {
			t.Errorf("%d requests in %v", n, took)
		}
		ctx, cancel := context.WithTimeout(Patient(t.Context()), time.Millisecond)
		defer cancel()
		for ctx.Err() == nil {
			_ = bt.Open("t").ReadRows(ctx, bigtable.InfiniteRange(""), func(bigtable.Row) bool { return true })
		}
		if n := m.Used().Minus(used).Requests; n > 102 {
			t.Errorf("%d requests, although the context ended", n)
		}
	})
}
