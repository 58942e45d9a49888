package notify

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso/defaults"
	"github.com/percolator-bigtable/percolator/txn"
)

// LoadConfig configures [Load]. The zero value is usable.
type LoadConfig struct {
	// Concurrency bounds how many transactions are under way at the same time.
	// Defaults to 16.
	Concurrency int

	// TxnOptions are for the loader transactions, for example txn.MaxAttempts.
	// Defaults to none.
	TxnOptions []txn.TxnOption

	// Progress, if set, is called after each document with the number of documents
	// loaded so far. Calls do not overlap.
	// Defaults to nil.
	Progress func(loaded int)
}

// A LoadError names the document that could not be loaded.
type LoadError[D any] struct {
	Document D
	Err      error
}

func (e *LoadError[D]) Error() string {
	return fmt.Sprintf("notify: loading document %v: %v", e.Document, e.Err)
}

// Unwrap returns Err.
func (e *LoadError[D]) Unwrap() error { return e.Err }

// Load loads documents with one loader transaction each, several at the same time. This is
// how work enters a chain of observers (paper §2.4). After a conflict it calls load again,
// which must therefore be repeatable. It returns how many documents are loaded.
//
// After the first error it begins no other transaction, and waits for those under way. It
// returns an error of documents as it is, an error of a transaction as a *LoadError, and
// several errors joined. Which documents are loaded is then not known: run it again with
// all of them.
func Load[D any](ctx context.Context, client *txn.Client, documents iter.Seq2[D, error], load func(ctx context.Context, tx *txn.Txn, document D) error, cfg LoadConfig) (loaded int, err error) {
	if err := defaults.Positive("LoadConfig.Concurrency", &cfg.Concurrency, 16); err != nil {
		return 0, fmt.Errorf("notify: %w: %w", txn.ErrInvalid, err)
	}
	var g errgroup.Group
	g.SetLimit(cfg.Concurrency)
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
		g.Go(func() error { // waits until fewer than Concurrency are under way
			if failed.Load() {
				return nil
			}
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
