package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A scene is everything that can be seen of the library at least once: what it
// produces is compared with the documentation, the dashboard and the alerts.
type scene struct {
	t        *testing.T
	env      *txntest.Env
	cfg      txn.Config
	recorder *tracetest.SpanRecorder
	reader   *sdkmetric.ManualReader
	seen     []metricdata.ResourceMetrics // at any time
	exposed  map[string]map[string]bool   // labels by name of series, at any time
	registry *prometheus.Registry
	tracers  *sdktrace.TracerProvider
	meters   *sdkmetric.MeterProvider
	// collected: garbage was collected once.
	collected bool
}

func newScene(t *testing.T) *scene {
	txntest.ShortenGC(60) // for this process: the fence is two seconds
	s := &scene{t: t, recorder: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader(), registry: prometheus.NewRegistry(), exposed: map[string]map[string]bool{}}
	exporter, err := otelprom.New(otelprom.WithRegisterer(s.registry))
	s.must(err)
	s.tracers = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.recorder))
	s.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader), sdkmetric.WithReader(exporter))
	s.cfg = txn.Config{TracerProvider: s.tracers, MeterProvider: s.meters, LockTTL: 50 * time.Millisecond, TokenTTL: -1, LatchWait: 20 * time.Millisecond, TraceRowKeys: true}
	s.env = txntest.New(t, txntest.WithConfig(s.cfg))
	s.env.InitTable(admin.TableSpec{Name: "accounts", Families: []string{"bal"}})
	s.env.InitTable(admin.TableSpec{Name: "docs", Families: []string{"d"}})
	s.past()
	s.collect() // before anything happens
	return s
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// play plays every part once.
func (s *scene) play() {
	s.garbage() // before others meet its locks
	s.commits()
	s.reads()
	s.conflicts()
	s.crashes()
	s.observers()
	s.servers()
	s.collect()
}

// collect keeps what the meters say now.
func (s *scene) collect() {
	var rm metricdata.ResourceMetrics
	s.must(s.reader.Collect(s.t.Context(), &rm))
	s.seen = append(s.seen, rm)
	families, err := s.registry.Gather()
	s.must(err)
	for _, f := range families {
		suffixes := []string{""}
		if f.GetType().String() == "HISTOGRAM" {
			suffixes = []string{"_bucket", "_sum", "_count"}
		}
		for _, suffix := range suffixes {
			labels := s.exposed[f.GetName()+suffix]
			if labels == nil {
				labels = map[string]bool{}
				s.exposed[f.GetName()+suffix] = labels
			}
			for _, m := range f.Metric {
				for _, l := range m.Label {
					labels[l.GetName()] = true
				}
			}
			if suffix == "_bucket" {
				labels["le"] = true
			}
		}
	}
}

func set(tx *txn.Txn, rows ...string) {
	for _, r := range rows {
		tx.Table("accounts").Set(r, "bal", "usd", []byte("1"))
	}
}

func (s *scene) update(c *txn.Client, rows ...string) {
	s.t.Helper()
	_, err := c.Update(s.t.Context(), func(_ context.Context, tx *txn.Txn) error {
		set(tx, rows...)
		return nil
	}, txn.Named("transfer"))
	s.must(err)
}

func (s *scene) commits() {
	ctx, c := s.t.Context(), s.env.Client
	_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		set(tx, "bob", "joe")
		_, _, err := tx.Table("accounts").Get(ctx, "bob", "bal", "usd")
		return err
	}, txn.Named("transfer"))
	s.must(err)
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprint(i))
	}
	s.update(c, many...) // in bulk
	one := s.env.NewClient(s.cfg)
	txntest.BulkFrom(one, 100)
	s.update(one, many...) // one by one
	tx, err := c.Begin(ctx)
	s.must(err)
	tx.Rollback()
	snapshot, err := c.Snapshot(ctx)
	s.must(err)
	for _, err := range snapshot.Table("accounts").ReadRows(ctx, nil) {
		s.must(err)
	}
	// A request that fails, and an oracle that is not waited for.
	faults := txntest.NewFaults(s.t)
	faults.OnStep(txntest.StepCommit, txntest.DropResponse)
	s.update(s.env.NewClient(s.cfg, faults.DialOptions()...), "bob")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Timestamp(ended); !errors.Is(err, context.Canceled) {
		s.t.Errorf("a timestamp for an ended context: %v", err)
	}
}

func (s *scene) conflicts() {
	attempts := 0
	ctx, root := s.tracers.Tracer("application").Start(s.t.Context(), "request")
	defer root.End()
	_, err := s.env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		set(tx, "bob")
		// The second time the other one waits for the latch of this one.
		if attempts++; attempts <= 2 {
			s.update(s.env.Client, "bob")
		}
		return nil
	}, txn.Named("transfer"))
	s.must(err)
	// One that the client does not know before its prewrite.
	tx, err := s.env.Client.Begin(ctx)
	s.must(err)
	set(tx, "bob")
	s.update(s.env.NewClient(s.cfg), "bob")
	if _, err := tx.Commit(ctx); !errors.Is(err, txn.ErrConflict) {
		s.t.Errorf("%v, want a conflict", err)
	}
}

// leave leaves the locks of a client that dies before a step.
func (s *scene) leave(before txntest.Step, rows ...string) (*txn.Client, *txn.Txn, error) {
	return s.leaveWith(s.cfg, before, rows...)
}

func (s *scene) leaveWith(cfg txn.Config, before txntest.Step, rows ...string) (*txn.Client, *txn.Txn, error) {
	faults := txntest.NewFaults(s.t)
	died := faults.OnStep(before, txntest.Crash)
	dying := s.env.NewClient(cfg, faults.DialOptions()...)
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	tx, err := dying.Begin(ctx, txn.Named("transfer"))
	s.must(err)
	set(tx, rows...)
	committed := make(chan error, 1)
	go func() { _, err := tx.Commit(ctx); committed <- err }()
	<-died.Fired()
	if before == txntest.StepSecondaries {
		err = <-committed // the secondaries are not waited for
	}
	faults.Kill()
	cancel()
	if before != txntest.StepSecondaries {
		err = <-committed
	}
	return dying, tx, err
}

func (s *scene) crashes() {
	ctx, c := s.t.Context(), s.env.Client
	var undetermined *txn.UndeterminedError
	_, _, err := s.leave(txntest.StepCommit, "ann")
	if !errors.As(err, &undetermined) {
		s.t.Fatalf("a client that died before its commit point: %v", err)
	}
	read := func(row string) {
		snapshot, err := c.Snapshot(ctx)
		s.must(err)
		_, _, err = snapshot.Table("accounts").Get(ctx, row, "bal", "usd")
		s.must(err)
	}
	read("ann")
	_, err = c.Settle(ctx, undetermined)
	s.must(err)

	dead, _, err := s.leave(txntest.StepSecondaries, "eve", "kim")
	s.must(err)
	read("kim")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := dead.Close(ended); err == nil {
		s.t.Error("a dead client closed without having anything to give up")
	}

	_, _, _ = s.leave(txntest.StepCommit, "max")
	s.update(c, "max") // waits, and rolls back
	_, tx, _ := s.leave(txntest.StepCommit, "ned")
	var primary txn.Cell
	for l, err := range admin.Locks(ctx, c, "accounts", nil) {
		s.must(err)
		primary = l.Primary
	}
	for {
		status, locks, err := admin.ResolveTransaction(ctx, c, primary, tx.StartTS())
		s.must(err)
		if status.State == txn.StateRolledBack || locks == 0 {
			break
		}
	}
}

func (s *scene) observers() {
	ctx, c := s.t.Context(), s.env.Client
	in, weak := txn.Column{Family: "d", Qualifier: "in"}, txn.Column{Family: "d", Qualifier: "weak"}
	s.must(changes.RegisterObserver(ctx, c, "docs", in, "index", false))
	s.must(changes.RegisterObserver(ctx, c, "docs", in, "broken", false))
	s.must(changes.RegisterObserver(ctx, c, "docs", weak, "later", true))
	writer := s.env.NewClient(s.cfg) // it knows the columns from the beginning
	for range 3 {
		_, err := writer.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("docs").Set("row", "d", "in", []byte("x"))
			tx.Table("docs").Notify("row", "d", "weak")
			return nil
		}, txn.Named("import"))
		s.must(err)
	}
	ran := make(chan struct{}, 64)
	w, err := notify.NewWorker(s.env.NewClient(s.cfg), notify.Config{
		Finder:  &notify.Scanner{MinInterval: time.Millisecond, MaxInterval: 10 * time.Millisecond},
		OnEvent: func(e notify.Event) { ran <- struct{}{} },
	})
	s.must(err)
	nothing := notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { return nil })
	s.must(w.Handle("index", "docs", txn.Column{Family: "d", Qualifier: "in"}, nothing))
	s.must(w.Handle("broken", "docs", txn.Column{Family: "d", Qualifier: "in"}, notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error {
		return errors.New("broken")
	}), notify.MaxAttempts(1)))
	s.must(w.Handle("later", "docs", txn.Column{Family: "d", Qualifier: "weak"}, nothing, notify.Weak()))
	run, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- w.Run(run) }()
	for st := w.Stats(); st.Committed < 2 || st.Parked < 1; st = w.Stats() {
		<-ran
	}
	s.collect() // the backlog is there while the worker runs
	stop()
	s.must(<-done)
}

// servers lets one oracle server take over after another, and a client follow.
func (s *scene) servers() {
	ctx := s.t.Context()
	metadata := s.env.Bigtable.Open(format.DefaultMetadataTable)
	row := fmt.Sprintf("served%d", time.Now().UnixNano())
	_, err := tso.SetMode(ctx, metadata, tso.RowConfig{Row: row}, tso.ModeServed)
	s.must(err)
	var addresses []string
	var stops []func()
	for range 2 {
		srv, err := server.New(metadata, server.Config{Row: row, TracerProvider: s.tracers, MeterProvider: s.meters})
		s.must(err)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		s.must(err)
		run, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- srv.Serve(run, lis) }()
		stops = append(stops, func() { stop(); s.must(<-done) })
		addresses = append([]string{lis.Addr().String()}, addresses...)
		if len(addresses) == 1 {
			// Wait until it leads: with a client of its own.
			s.ask(addresses)
			s.collect() // before the failover
		}
	}
	s.ask(addresses) // the standby first
	s.crowd(addresses[0])
	s.collect()
	for _, stop := range stops {
		stop()
	}
}

// crowd opens streams on one connection until the server refuses one.
func (s *scene) crowd(address string) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer func() { s.must(conn.Close()) }()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error)
	for range 65 {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/percolator.tso.v1.Oracle/Timestamps")
		s.must(err)
		go func() {
			select {
			case ended <- stream.RecvMsg(new(emptypb.Empty)):
			case <-ctx.Done():
			}
		}()
	}
	if err := <-ended; status.Code(err) != grpccodes.ResourceExhausted {
		s.t.Errorf("a server with 65 streams of one client: %v", err)
	}
}

func (s *scene) ask(addresses []string) {
	client, err := tso.NewClient(tso.ClientConfig{Addresses: addresses, TracerProvider: s.tracers, MeterProvider: s.meters})
	s.must(err)
	ctx, root := s.tracers.Tracer("application").Start(s.t.Context(), "request")
	defer root.End()
	_, err = client.Timestamp(ctx)
	s.must(err)
	s.must(client.Close())
}
