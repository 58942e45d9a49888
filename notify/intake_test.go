package notify_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestSlowColumnDelaysNoOther: many cells wait for an observer that does not return. What a
// scanner finds for another column runs in the same sweep.
func TestSlowColumnDelaysNoOther(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "slow", false)
		register(t, env.Client, middle, "quick", false)
		const rows = 200
		for i := range rows {
			put(t, env.Client, input, fmt.Sprintf("r%03d", i), "")
		}
		put(t, env.Client, middle, fmt.Sprintf("r%03d", rows/2), "")
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true, Concurrency: 4, Finder: &notify.Scanner{Threads: 1, MinInterval: 24 * time.Hour, MaxInterval: 24 * time.Hour}, DrainTimeout: time.Second})
		var slow, quick atomic.Int32
		handle(t, w, "slow", input, func(ctx context.Context, _ *txn.Txn, _ txn.Cell) error {
			slow.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}, notify.Concurrency(2), notify.Timeout(time.Hour))
		handle(t, w, "quick", middle, func(context.Context, *txn.Txn, txn.Cell) error {
			quick.Add(1)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		pass(30 * time.Second)
		if slow.Load() != 2 || quick.Load() != 1 {
			t.Errorf("%d runs of the slow observer, want 2; %d of the quick one, want 1", slow.Load(), quick.Load())
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("the slow runs were not cancelled")
		}
	})
}

// oneOffer is a Finder that offers one notification.
type oneOffer struct {
	n         changes.Notification
	contended chan struct{}
}

func (f *oneOffer) Find(ctx context.Context, s notify.Search) error {
	s.Offer(ctx, f.n, func() { close(f.contended) })
	<-ctx.Done()
	return ctx.Err()
}

// TestContended: a worker calls contended if another worker has acknowledged the change.
func TestContended(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		stale := changes.Notification{}
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "r", "1")
		for n, err := range changes.Notifications(t.Context(), env.Client, "docs", nil) {
			if err != nil {
				t.Fatal(err)
			}
			stale = n
		}
		first := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, first, "o", input, observeEffect)
		stop := start(t, first)
		wait(t, env.Client)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		f := &oneOffer{stale, make(chan struct{})}
		late := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{Finder: f})
		handle(t, late, "o", input, observeEffect)
		start(t, late)
		pass(time.Second)
		select {
		case <-f.contended:
		default:
			t.Errorf("contended was not called; %+v", late.Stats())
		}
	})
}
