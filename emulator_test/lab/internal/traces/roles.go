package traces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const (
	project, instance = "traces", "traces"
	accounts, ledger  = "accounts", "ledger"
	observerID        = "audit"
	changes           = 2 // of the observed cell, before the observer's process starts
)

// Without a token the reader has to wait for the lock's ttl, which the picture shows.
var config = txn.Config{LockTTL: 400 * time.Millisecond, TokenTTL: -1}

var roles = map[string]func(context.Context, *txn.Client) error{
	"writer":   write,
	"observer": observe,
	"victim":   write,
	"reader":   read,
}

// runRole runs one process, with its own connection and exporters. A victim stops
// before it sends its commit point, and waits to be killed.
func runRole(ctx context.Context, role, emulator string, s *cli.Streams) error {
	do, ok := roles[role]
	if !ok {
		return cli.Usagef("no role %q", role)
	}
	var opts []grpc.DialOption
	if role == "victim" {
		opts = append(opts, grpc.WithChainUnaryInterceptor(stuck(s.Out)))
	}
	conn, err := txntest.Dial(emulator, opts...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bt, adminClient, err := txntest.Open(ctx, conn, project, instance)
	if err != nil {
		return err
	}
	defer func() { _, _ = bt.Close(), adminClient.Close() }()
	cfg := config
	cfg.Logger = slog.New(slog.NewTextHandler(s.Err, nil))
	client, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, client), client.Close(ctx))
}

// stuck stops a victim where it is to be killed, after it has printed a line.
func stuck(out io.Writer) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		msg, ok := req.(proto.Message)
		if !ok || txntest.Classify(method, msg).Step != txntest.StepCommit {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		if p, ok := otel.GetTracerProvider().(interface{ ForceFlush(context.Context) error }); ok {
			if err := p.ForceFlush(ctx); err != nil {
				return err
			}
		}
		fmt.Fprintln(out, "stuck")
		select {} // until SIGKILL
	}
}

// write commits transfers, which change the observed column.
func write(ctx context.Context, c *txn.Client) error {
	for _, t := range []string{accounts, ledger} {
		if err := c.CheckTable(ctx, t); err != nil {
			return err
		}
	}
	for n := range changes {
		if _, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			for _, row := range []string{"bob", "joe"} {
				if _, _, err := tx.Table(accounts).Get(ctx, row, "bal", "usd"); err != nil {
					return err
				}
				tx.Table(accounts).Set(row, "bal", "usd", fmt.Appendf(nil, "%d", n))
			}
			tx.Table(ledger).Set(fmt.Sprint(n), "entry", "text", []byte("bob to joe"))
			return nil
		}, txn.Named("transfer")); err != nil {
			return err
		}
	}
	return nil
}

// observe runs the observer until it has run for the changes of both accounts.
func observe(ctx context.Context, c *txn.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	committed := make(chan struct{}, 8)
	w, err := notify.NewWorker(c, notify.Config{
		Finder: &notify.Scanner{MinInterval: 5 * time.Millisecond, MaxInterval: 20 * time.Millisecond},
		OnEvent: func(e notify.Event) {
			if e.Outcome == notify.Committed {
				committed <- struct{}{}
			}
		},
	})
	if err != nil {
		return err
	}
	column := txn.Column{Family: "bal", Qualifier: "usd"}
	if err := w.Handle(observerID, accounts, column, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		v, _, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
		tx.Table(ledger).Set("last "+cell.Row, "entry", "text", v)
		return err
	})); err != nil {
		return err
	}
	go func() {
		defer cancel()
		for range 2 {
			select {
			case <-committed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return w.Run(ctx)
}

// read reads the cell that the victim has locked, as part of a request.
func read(ctx context.Context, c *txn.Client) error {
	ctx, span := otel.Tracer("github.com/percolator-bigtable/percolator/emulator_test/lab").Start(ctx, "GET /accounts/bob", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	s, err := c.Snapshot(ctx)
	if err != nil {
		return err
	}
	_, _, err = s.Table(accounts).Get(ctx, "bob", "bal", "usd")
	return err
}
