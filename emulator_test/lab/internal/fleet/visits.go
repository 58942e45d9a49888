package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// visitsTable has one row that all visitors write.
var visitsTable = admin.TableSpec{Name: "visits", Families: []string{"n"}}

const (
	visitors    = 2
	totalRow    = "total"
	visitsEvery = 100 * time.Millisecond
)

// visits count themselves in one cell, so that transactions conflict and wait
// for each other's locks. Some visitors are lost.
type visits struct {
	client             *txn.Client
	committed, unknown atomic.Int64
	lost               int
}

// visit counts one visit, again and again until ctx ends. The
// end of ctx does not interrupt a visit, so that its outcome is known.
func (v *visits) visit(ctx context.Context, visitor int) error {
	tick := time.NewTicker(visitsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		_, err := v.client.Update(one, func(ctx context.Context, tx *txn.Txn) error {
			t := tx.Table(visitsTable.Name)
			for _, row := range []string{totalRow, visitorRow(visitor)} {
				n, err := number(ctx, &t.View, row)
				if err != nil {
					return err
				}
				// Another cell of the row, which the client soon prefetches.
				if _, _, err := t.Get(ctx, row, "n", "last"); err != nil {
					return err
				}
				t.Set(row, "n", "visits", binary.BigEndian.AppendUint64(nil, n+1))
				t.Set(row, "n", "last", fmt.Append(nil, visitor))
			}
			return nil
		}, txn.Named("visit"))
		cancel()
		switch {
		case errors.Is(err, txn.ErrUndetermined):
			v.unknown.Add(1)
		case err != nil:
			return err
		default:
			v.committed.Add(1)
		}
		if err := v.readCounts(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("reading the visits: %w", err)
		}
	}
}

// readCounts reads all counts, and the last visitor, like a page that may be a second old.
func (v *visits) readCounts(ctx context.Context) error {
	snapshot, err := v.client.Snapshot(ctx, txn.MaxStaleness(time.Second), txn.Named("page"))
	if err != nil {
		return err
	}
	t := snapshot.Table(visitsTable.Name)
	g, ctx := errgroup.WithContext(ctx)
	for i := range visitors + 1 {
		row := totalRow
		if i < visitors {
			row = visitorRow(i)
		}
		g.Go(func() error {
			if _, err := number(ctx, t, row); err != nil {
				return err
			}
			_, _, err := t.Get(ctx, row, "n", "last")
			return err
		})
	}
	return g.Wait()
}

func visitorRow(visitor int) string { return fmt.Sprintf("visitor/%d", visitor) }

func number(ctx context.Context, t *txn.View, row string) (uint64, error) {
	value, ok, err := t.Get(ctx, row, "n", "visits")
	if err != nil || !ok {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("row %s of %s has %d bytes instead of 8", row, visitsTable.Name, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

// lose has a visitor's client die at a request, in rows that no other client reads:
// garbage collection has to resolve their locks.
func (v *visits) lose(ctx context.Context, at place, cfg txn.Config, step txntest.Step) error {
	stopped := make(chan struct{})
	dead := &victim{at: step, die: func() { close(stopped) }}
	bt, _, closeAll, err := at.open(ctx, dead.dialOptions()...)
	if err != nil {
		return err
	}
	defer closeAll()
	client, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); _ = client.Close(ctx) }() // a dead client cannot do anything more
	tx, err := client.Begin(ctx, txn.Named("visit"))
	if err != nil {
		return err
	}
	v.lost++
	for _, part := range []string{"in", "out"} {
		tx.Table(visitsTable.Name).Set(fmt.Sprintf("lost/%d/%s", v.lost, part), "n", "visits", nil)
	}
	ended := make(chan error, 1)
	go func() { _, err := tx.Commit(ctx); ended <- err }()
	select {
	case <-stopped:
	case <-ctx.Done():
	}
	cancel()
	if err = <-ended; errors.Is(err, txn.ErrUndetermined) || errors.Is(err, context.Canceled) {
		return nil // as it should be
	}
	return err
}

// check returns how far the count is from the visits that were committed.
func (v *visits) check(ctx context.Context) (off int, err error) {
	snapshot, err := v.client.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	n, err := number(ctx, snapshot.Table(visitsTable.Name), totalRow)
	if least := v.committed.Load(); int64(n) < least || int64(n) > least+v.unknown.Load() {
		off = 1
	}
	return off, err
}

// losses drops the answer of every 50th conditional mutation, as a network may: the
// mutation is applied, and its sender has to find that out.
type losses struct{ n atomic.Int64 }

const lostAnswer = 50

func (l *losses) dialOption() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil && method == "/google.bigtable.v2.Bigtable/CheckAndMutateRow" && l.n.Add(1)%lostAnswer == 0 {
			return status.Error(codes.Unavailable, "lab fleet lost the answer")
		}
		return err
	})
}
