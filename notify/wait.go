package notify

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// WaitConfig configures [Wait]. The zero value is usable.
type WaitConfig struct {
	// Progress, when set, is called before each pause with what stands in the way.
	// Defaults to nil.
	Progress func(txn.Unfinished)

	// Backoff paces the looks.
	// Defaults to 10 ms growing to 1 second.
	Backoff txn.Backoff
}

// Wait returns once every change that was committed before the call, and all
// that observers have caused by it, is acknowledged: it returns a timestamp at
// which nothing was left to do in any table of the deployment. Changes that
// others commit meanwhile are not waited for. Notifications of failing observers
// are waited for until they are dead letters, which are not.
//
// It runs no observer itself; it settles locks of dead clients that hide what
// became of their cells. A look costs a scan of the metadata families of every
// table with observers, in vain only as far as the first thing found.
//
// How it can be sure is told at [txn.Client.Unfinished].
func Wait(ctx context.Context, client *txn.Client, cfg WaitConfig) (tso.Timestamp, error) {
	pause := cfg.Backoff
	if pause.Min <= 0 {
		pause.Min = 10 * time.Millisecond
	}
	if pause.Max <= 0 {
		pause.Max = time.Second
	}
	for d := pause.Min; ; d = min(2*d, max(pause.Min, pause.Max)) {
		asOf, left, err := finished(ctx, client)
		if err != nil || left == nil {
			return asOf, err
		}
		if cfg.Progress != nil {
			cfg.Progress(*left)
		}
		if err := sleep(ctx, jitter(d)); err != nil {
			return 0, err
		}
	}
}

// finished looks once; left is the first thing that is not finished.
func finished(ctx context.Context, client *txn.Client) (asOf tso.Timestamp, left *txn.Unfinished, err error) {
	if asOf, err = client.Timestamp(ctx); err != nil {
		return 0, nil, err
	}
	tables, err := client.Tables(ctx)
	if err != nil {
		return 0, nil, err
	}
	var observed []string
	weak := false
	for _, table := range tables {
		columns, err := client.Observed(ctx, table)
		if err != nil {
			return 0, nil, err
		}
		if len(columns) > 0 {
			observed = append(observed, table)
		}
		for _, c := range columns {
			weak = weak || c.Weak
		}
	}
	if weak {
		if left, err = firstUnfinished(ctx, client, tables, asOf, true); left != nil || err != nil {
			return 0, left, err
		}
	}
	left, err = firstUnfinished(ctx, client, observed, asOf, false)
	return asOf, left, err
}

func firstUnfinished(ctx context.Context, client *txn.Client, tables []string, asOf tso.Timestamp, allLocks bool) (*txn.Unfinished, error) {
	for _, table := range tables {
		for u, err := range client.Unfinished(ctx, table, nil, asOf, allLocks) {
			if err != nil {
				return nil, err
			}
			if u.Lock != nil {
				// Left alone while its owner lives.
				if _, err := client.Resolve(ctx, *u.Lock); err != nil {
					return nil, err
				}
			}
			return &u, nil
		}
	}
	return nil, nil
}
