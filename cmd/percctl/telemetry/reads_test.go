package telemetry_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// reads are what saves round trips: cells that are read ahead and asked for,
// snapshots and transactions that do not wait for the oracle, reads that share a
// request.
func (s *scene) reads() {
	ctx, c := s.t.Context(), s.env.Client
	for i := range 5 {
		_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			for _, q := range []string{"usd", "eur"} {
				if _, _, err := tx.Table("accounts").Get(ctx, fmt.Sprint(i), "bal", q); err != nil {
					return err
				}
			}
			return nil
		}, txn.Named("page"))
		s.must(err)
	}
	_, err := c.Snapshot(ctx, txn.MaxStaleness(time.Hour))
	s.must(err)

	cfg := s.cfg
	cfg.BatchReads = 1
	faults := txntest.NewFaults(s.t)
	batching := s.env.NewClient(cfg, faults.DialOptions()...)
	s.must(batching.CheckTable(ctx, "accounts"))
	snapshot, err := batching.Snapshot(ctx)
	s.must(err)
	hold := faults.OnStep(txntest.StepRead, txntest.Hold)
	var wg sync.WaitGroup
	get := func(ctx context.Context, row string) {
		wg.Go(func() {
			if _, _, err := snapshot.Table("accounts").Get(ctx, row, "bal", "usd"); err != nil {
				s.t.Error(err)
			}
		})
	}
	get(ctx, "bob")
	<-hold.Fired()
	for _, row := range []string{"joe", "ann"} {
		w := &waitedFor{Context: ctx, waits: make(chan struct{})}
		get(w, row)
		<-w.waits
	}
	hold.Release()
	wg.Wait()
}

// A waitedFor is a context that reports when a caller waits for its end: here, a read
// that is to share a request.
type waitedFor struct {
	context.Context
	once  sync.Once
	waits chan struct{}
}

func (w *waitedFor) Done() <-chan struct{} {
	w.once.Do(func() { close(w.waits) })
	return w.Context.Done()
}
