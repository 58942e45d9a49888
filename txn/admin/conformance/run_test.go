package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A server is an emulator and clients of it.
type server struct {
	bt    *bigtable.Client
	admin *bigtable.AdminClient
	dial  conformance.Connect
}

// start starts an emulator.
func start(t *testing.T, opts ...grpc.ServerOption) server {
	t.Helper()
	e, err := txntest.StartEmulator("", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return open(t, e.Dial)
}

// open connects to a server.
func open(t *testing.T, dial func(...grpc.DialOption) (*grpc.ClientConn, error)) server {
	t.Helper()
	s := server{dial: func(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
		conn, err := dial(opts...)
		if err != nil {
			return nil, nil, nil, err
		}
		bt, admin, err := txntest.Open(ctx, conn, "project", "instance")
		return bt, admin, func() {
			_ = bt.Close()
			_ = admin.Close()
			_ = conn.Close()
		}, err
	}}
	var end func()
	var err error
	if s.bt, s.admin, end, err = s.dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return s
}

// denied opens clients of an account that accounts gives no permission.
func (s server) denied(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
	return s.dial(ctx, append(opts, grpc.WithPerRPCCredentials(token("denied")))...)
}

// accounts refuses requests of accounts other than the test's own.
var accounts = strict.Access(func(token, _ string) ([]string, error) {
	if token != "" {
		return nil, nil
	}
	return []string{"readRows", "mutateRows", "sampleRowKeys", "get", "create", "update", "delete", "list"}, nil
})

type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (token) RequireTransportSecurity() bool { return false }

// connect starts an emulator and returns clients of it.
func connect(t *testing.T, opts ...grpc.ServerOption) (*bigtable.Client, *bigtable.AdminClient) {
	t.Helper()
	s := start(t, opts...)
	return s.bt, s.admin
}

// everything is a quick run of all tests, for a server with accounts.
func (s server) everything() conformance.Config {
	cfg := quick
	cfg.Dial, cfg.Denied = s.dial, s.denied
	return cfg
}

// quick is a run of about two seconds.
var quick = conformance.Config{Duration: 200 * time.Millisecond, Requests: 500}

// timeless are the assumptions whose verdict does not depend on how fast a service is, but for some.
func timeless(without ...string) (ids []string) {
	for _, a := range conformance.All() {
		if a.ID != "removed-cells" && !slices.Contains(without, a.ID) {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// emulatorLimits are what Bigtable's emulator does not keep. It may also tear plain reads.
var emulatorLimits = []string{
	"failed-mutation-whole", "unknown-family-code", "empty-condition-refused", "many-changes-refused",
	"large-filter-refused", "long-row-key-refused", "long-qualifier-refused",
}

// noTables fails the test if a table is left.
func noTables(t *testing.T, admin *bigtable.AdminClient) {
	t.Helper()
	all, err := admin.Tables(context.WithoutCancel(t.Context()))
	if err != nil || len(all) > 0 {
		t.Errorf("tables are left: %v, %v", all, err)
	}
}

// TestEstimate: a run takes at most what was announced.
func TestEstimate(t *testing.T) {
	long.RacedAtNight(t)
	s := start(t, front.Options(accounts)...)
	cfg := s.everything()
	r, err := conformance.Run(t.Context(), s.bt, s.admin, cfg)
	if err != nil {
		t.Fatal(err)
	}
	e, err := conformance.EstimateFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests > e.Requests || r.Bytes > e.Bytes || e.Assumptions != len(r.Results) {
		t.Errorf("it took %d requests and %d bytes for %d assumptions; the estimate was %+v", r.Requests, r.Bytes, len(r.Results), e)
	}
	if len(r.Latencies) < 8 {
		t.Errorf("latencies: %v", r.Latencies)
	}
	noTables(t, s.admin)
}

// TestOnly: a test brings those that it needs.
func TestOnly(t *testing.T) {
	bt, admin := connect(t)
	r, err := conformance.Run(t.Context(), bt, admin, conformance.Config{Only: []string{"predicate-chain"}})
	if err != nil || !slices.Equal(r.Kept, []string{conformance.SingleRow, "predicate-chain"}) || r.Verdict != conformance.Safe {
		t.Errorf("%+v, %v", r, err)
	}
	for only, want := range map[string]string{"nothing": `no assumption "nothing"`, "permission-code": "needs Config.Denied", "scan-resumed": "needs Config.Dial"} {
		if _, err := conformance.Run(t.Context(), bt, admin, conformance.Config{Only: []string{only}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
	noTables(t, admin)
}

// TestInterrupted: the tables are removed at whatever test the context ends.
func TestInterrupted(t *testing.T) {
	for _, at := range []string{conformance.SingleRow, "linearizable", "bulk-100000", "policy-reported"} {
		t.Run(at, func(t *testing.T) {
			bt, admin := connect(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := quick
			var reached atomic.Bool
			cfg.Only = []string{at}
			cfg.Progress = func(_, _ int, id string) {
				if id == at {
					reached.Store(true)
					cancel()
				}
			}
			r, err := conformance.Run(ctx, bt, admin, cfg)
			if r != nil || !errors.Is(err, context.Canceled) || !reached.Load() {
				t.Errorf("%v, %v", r, err)
			}
			noTables(t, admin)
		})
	}
}

// TestForeignTables: tables that no conformance test made stay as they are.
func TestForeignTables(t *testing.T) {
	bt, admin := connect(t)
	ctx := t.Context()
	name := conformance.TablePrefix + "mine"
	if err := admin.CreateTable(ctx, name); err != nil {
		t.Fatal(err)
	}
	if _, err := conformance.Run(ctx, bt, admin, conformance.Config{Table: name}); !errors.Is(err, conformance.ErrForeign) {
		t.Errorf("running in it: %v", err)
	}
	if err := conformance.Remove(ctx, bt, admin, name); !errors.Is(err, conformance.ErrForeign) {
		t.Errorf("removing it: %v", err)
	}
	if all, err := conformance.Remains(ctx, bt, admin); err != nil || len(all) > 0 {
		t.Errorf("remains: %v, %v", all, err)
	}
	if all, err := admin.Tables(ctx); err != nil || !slices.Equal(all, []string{name}) {
		t.Errorf("tables: %v, %v", all, err)
	}
}

// TestRemains: what a killed test leaves is found and removed.
func TestRemains(t *testing.T) {
	bt, admin := connect(t)
	ctx := t.Context()
	cfg := quick
	cfg.Only = []string{"rows-in-order"}
	var during []string
	cfg.Progress = func(int, int, string) {
		var err error
		if during, err = conformance.Remains(ctx, bt, admin); err != nil {
			t.Error(err)
		}
		// As if an operator cleaned up.
		for _, name := range during {
			if err := conformance.Remove(ctx, bt, admin, name); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := conformance.Run(ctx, bt, admin, cfg); err == nil || len(during) != 1 {
		t.Errorf("%v, %v", during, err)
	}
	noTables(t, admin)
}

func TestJUnit(t *testing.T) {
	bt, admin := connect(t)
	r, err := conformance.Run(t.Context(), bt, admin, conformance.Config{Only: []string{"mutation-order", "empty-condition-refused"}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := r.JUnit(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`<testsuite name="conformance" tests="3" failures="0" errors="0" skipped="1"`,
		`<testcase classname="Cells" name="mutation-order"`,
		`<skipped message="a conditional mutation without any change is accepted">`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in\n%s", want, out.String())
		}
	}
}

// TestThrottled: a service that has too much to do, and says when to try again, is as it should
// be.
func TestThrottled(t *testing.T) {
	var n atomic.Int64
	busy := onMutate(func(r *btpb.MutateRowRequest) error {
		if !bytes.HasPrefix(r.RowKey, []byte("throttling/")) || n.Add(1)%20 > 0 {
			return nil
		}
		s, err := status.New(codes.ResourceExhausted, "too much to do").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
		if err != nil {
			return err
		}
		return s.Err()
	})
	s := start(t, front.Options(busy)...)
	cfg := s.everything()
	cfg.Only, cfg.Duration = []string{"throttling"}, 30*time.Second // Requests ends it
	r, err := conformance.Run(t.Context(), s.bt, s.admin, cfg)
	if err != nil || r.Verdict != conformance.Safe || n.Load() < 20 {
		t.Errorf("%+v, %v after %d requests", r, err, n.Load())
	}
}
