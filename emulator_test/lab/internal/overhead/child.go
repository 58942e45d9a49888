package overhead

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A usage is what a process has used in its turn.
type usage struct {
	CPU         time.Duration
	Allocations uint64
	requests    int64 // that the stub received
}

type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                             { return nil }

// runTurns reads numbers, line by line, runs that many transactions, and prints their
// usage.
func runTurns(ctx context.Context, m mode, stub string, orders io.Reader, out io.Writer) error {
	cfg := txn.Config{SyncSecondaries: true, TokenTTL: -1}
	switch m {
	case sampledNo:
		off := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
		defer func() { _ = off.Shutdown(ctx) }()
		cfg.TracerProvider = off
	case recorded:
		on := sdktrace.NewTracerProvider(sdktrace.WithBatcher(discard{}))
		defer func() { _ = on.Shutdown(ctx) }()
		cfg.TracerProvider, cfg.TraceRowKeys = on, true
		cfg.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	}
	conn, err := txntest.Dial(stub)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bt, adminClient, err := txntest.Open(ctx, conn, project, instance)
	if err != nil {
		return err
	}
	defer func() { _, _ = bt.Close(), adminClient.Close() }()
	client, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		var n int
		if _, err := fmt.Sscan(lines.Text(), &n); err != nil {
			return err
		}
		allocations := mallocs()
		before := cputime.Used()
		for range n {
			if err := transfer(ctx, client); err != nil {
				return err
			}
		}
		u := usage{CPU: cputime.Used() - before, Allocations: mallocs() - allocations}
		if err := json.NewEncoder(out).Encode(u); err != nil {
			return err
		}
	}
	return errors.Join(client.Close(ctx), ctx.Err())
}

// transfer reads two rows and writes them.
func transfer(ctx context.Context, c *txn.Client) error {
	_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		accounts := tx.Table(table)
		for _, row := range []string{"bob", "joe"} {
			if _, _, err := accounts.Get(ctx, row, column.Family, column.Qualifier); err != nil {
				return err
			}
			accounts.Set(row, column.Family, column.Qualifier, []byte("1"))
		}
		return nil
	}, txn.Named("transfer"))
	return err
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
