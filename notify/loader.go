package notify

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
)

// LoadConfig configures [Load]. The zero value is usable.
type LoadConfig struct {
	// Concurrency bounds the transactions under way.
	// Defaults to 16.
	Concurrency int

	// TxnOptions are for the loader transactions; txn.MaxAttempts bounds their
	// retries.
	// Defaults to none.
	TxnOptions []txn.TxnOption

	// Progress, when set, is called after each document, with how many are loaded
	// so far. Calls do not overlap.
	// Defaults to nil.
	Progress func(loaded int)
}

// A LoadError says which document could not be loaded.
type LoadError[D any] struct {
	Document D
	Err      error
}

func (e *LoadError[D]) Error() string {
	return fmt.Sprintf("notify: loading document %v: %v", e.Document, e.Err)
}

// Unwrap returns Err.
func (e *LoadError[D]) Unwrap() error { return e.Err }

// Load feeds documents into a table by loader transactions, which is how work
// enters a chain of observers (paper §2.4): one transaction each, several at a
// time, run again after conflicts. It returns how many are loaded. The first
// error, a *LoadError or one from the documents themselves, lets those that are
// under way finish and begins no other.
func Load[D any](ctx context.Context, client *txn.Client, documents iter.Seq2[D, error], load func(ctx context.Context, tx *txn.Txn, document D) error, cfg LoadConfig) (loaded int, err error) {
	if cfg.Concurrency < 0 {
		return 0, fmt.Errorf("notify: %w: LoadConfig.Concurrency is %d; it has to be positive, or zero for its default", txn.ErrInvalid, cfg.Concurrency)
	}
	var g errgroup.Group
	if g.SetLimit(16); cfg.Concurrency > 0 {
		g.SetLimit(cfg.Concurrency)
	}
	var failed atomic.Bool
	var mu sync.Mutex
	var source error
	for d, err := range documents {
		if err == nil {
			err = ctx.Err()
		}
		if source = err; err != nil || failed.Load() {
			break
		}
		g.Go(func() error {
			_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error { return load(ctx, tx, d) }, cfg.TxnOptions...)
			if err != nil {
				failed.Store(true)
				return &LoadError[D]{d, err}
			}
			mu.Lock()
			defer mu.Unlock()
			loaded++
			if cfg.Progress != nil {
				cfg.Progress(loaded)
			}
			return nil
		})
	}
	err = g.Wait()
	return loaded, errors.Join(source, err)
}
