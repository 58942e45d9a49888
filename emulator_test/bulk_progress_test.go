package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Four clients write one hot row and two rows of their own each, however they retry. They commit about
// as often with bulk prewrites as without. Before the fix, those of Begin committed nothing: each found
// the lock of an older transaction, which aborted because of the one before.
func TestBulkProgress(t *testing.T) {
	long.Test(t, "it compares how many commits there are, and clients pause by chance")
	const clients, took = 4, 5 * time.Second
	for _, how := range []string{"Begin", "Update"} {
		t.Run(how, func(t *testing.T) {
			commits := map[bool]int64{}
			for _, bulk := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					env := txntest.New(t, txntest.WithoutTransport(), txntest.WithBulkFrom(map[bool]int{false: 1000, true: 2}[bulk]))
					env.CreateTable("a", "f")
					ctx, cancel := context.WithTimeout(t.Context(), took)
					defer cancel()
					var n atomic.Int64
					var wg sync.WaitGroup
					for i := range clients {
						c := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, slow(5*time.Millisecond)...)
						rows := []string{fmt.Sprint("first ", i), "hot", fmt.Sprint("last ", i)}
						wg.Go(func() {
							for ctx.Err() == nil {
								err := errors.ErrUnsupported
								if how == "Update" {
									err = tryUpdate(ctx, c, "v", rows...)
								} else if tx, beginErr := c.Begin(ctx); beginErr == nil {
									set(tx, "v", rows...)
									_, err = tx.Commit(ctx)
								}
								if err == nil {
									n.Add(1)
								} else if !errors.Is(err, txn.ErrConflict) && ctx.Err() == nil {
									t.Error(err)
								}
							}
						})
					}
					wg.Wait()
					commits[bulk] = n.Load()
				})
			}
			if t.Logf("%d commits, and %d with bulk prewrites", commits[false], commits[true]); commits[true] < commits[false]*2/3 {
				t.Errorf("bulk prewrites hold up the commits")
			}
		})
	}
}
