package soak_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance/soak"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// connect starts a strict server behind a front.
func connect(t *testing.T, fault front.Front) conformance.Connect {
	t.Helper()
	e, err := txntest.StartEmulator("", append(front.Options(fault), txntest.Strict()...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return func(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
		conn, err := e.Dial(opts...)
		if err != nil {
			return nil, nil, nil, err
		}
		bt, admin, err := txntest.Open(ctx, conn, "p", "i")
		return bt, admin, func() {
			_ = bt.Close()
			_ = admin.Close()
			_ = conn.Close()
		}, err
	}
}

func noTables(t *testing.T, c conformance.Connect) {
	t.Helper()
	_, admin, end, err := c(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if all, err := admin.Tables(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("tables are left: %v, %v", all, err)
	}
}

// TestSafe: nothing impossible happens on a service that keeps what we rely on, although
// clients die and requests are lost.
func TestSafe(t *testing.T) {
	long.RacedAtNight(t)
	long.Test(t, "a soak: what it demands happens only if there is time for it")
	c := connect(t, front.Front{})
	cfg := soak.Config{Duration: 4 * time.Second}
	r, err := soak.Run(t.Context(), c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Safe || len(r.Anomalies) > 0 {
		t.Errorf("anomalies: %s", strings.Join(r.Anomalies, "\n"))
	}
	if r.Transactions < 10 || r.Committed < 5 || r.Observed == 0 {
		t.Errorf("too little happened: %+v", r)
	}
	if r.Faults["kill"] == 0 || r.Faults["pause"] == 0 || len(r.Faults) < 6 {
		t.Errorf("too few faults: %v", r.Faults)
	}
	if e := soak.EstimateFor(cfg); r.Requests > e.Requests || r.Bytes > e.Bytes || r.Bytes == 0 {
		t.Errorf("%d requests and %d bytes, %d and %d were announced", r.Requests, r.Bytes, e.Requests, e.Bytes)
	}
	for _, x := range r.Ratios {
		if x.Count < 10 || x.Ratio <= 0 || x.Slowdown <= 0 || x.P99 < x.P50 {
			t.Errorf("%+v", x)
		}
	}
	if len(r.Ratios) != 5 {
		t.Errorf("%d ratios", len(r.Ratios))
	}
	noTables(t, c)
}

// TestUnsafe: on a service that ignores the predicates of conditional mutations, the
// soak finds what transactions then see, also if it cannot read the tables a last time.
func TestUnsafe(t *testing.T) {
	long.RacedAtNight(t)
	long.Test(t, "a soak: what it demands happens only if there is time for it")
	for _, readable := range []bool{true, false} {
		t.Run(fmt.Sprintf("readable=%t", readable), func(t *testing.T) {
			var settling, refused atomic.Bool
			c := connect(t, front.Front{Unary: func(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
				r, ok := c.Request.(*btpb.CheckAndMutateRowRequest)
				if !ok || len(r.FalseMutations) == 0 || !strings.Contains(r.TableName, "-lists") && !strings.Contains(r.TableName, "-docs") {
					return next(ctx)
				}
				// The prewrite's condition is that nothing conflicts.
				r.PredicateFilter = &btpb.RowFilter{Filter: &btpb.RowFilter_BlockAllFilter{BlockAllFilter: true}}
				return next(ctx)
			}, Request: func(_ context.Context, c *front.Call) error {
				r, scan := c.Request.(*btpb.ReadRowsRequest)
				if scan = scan && len(r.GetRows().GetRowKeys()) == 0; !scan || readable || !settling.Load() {
					return nil
				}
				refused.Store(true)
				return status.Error(codes.PermissionDenied, "injected")
			}})
			r, err := soak.Run(t.Context(), c, soak.Config{Duration: 4 * time.Second, Progress: func(now string) {
				settling.Store(now == "checking the history")
			}})
			if err != nil {
				t.Fatal(err)
			}
			if r.Safe || len(r.Anomalies) == 0 || refused.Load() == readable {
				t.Errorf("nothing was found, or nothing refused: %+v", r)
			}
			noTables(t, c)
		})
	}
}

// TestOracleGoesBack: an oracle's row that goes back proves that the service is broken, also if only
// background work of a client reads the old value. After each write but the first, the row is a minute
// behind.
func TestOracleGoesBack(t *testing.T) {
	var writes atomic.Int64
	old := tso.FromTime(time.Now().Add(-time.Minute))
	c := connect(t, front.Front{Unary: func(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
		answer, err := next(ctx)
		var table string
		switch r := c.Request.(type) {
		case *btpb.CheckAndMutateRowRequest:
			if string(r.RowKey) == "oracle" {
				table = r.TableName
			}
		case *btpb.ReadModifyWriteRowRequest:
			table = r.TableName
		}
		if err != nil || table == "" || writes.Add(1) == 1 {
			return answer, err
		}
		_, err = c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: table, RowKey: []byte("oracle"), Mutations: []*btpb.Mutation{{
			Mutation: &btpb.Mutation_SetCell_{SetCell: &btpb.Mutation_SetCell{
				FamilyName: "tso", ColumnQualifier: []byte(format.ColumnDirect), TimestampMicros: int64(format.CellDirect), Value: format.EncodeTimestamp(int64(old)),
			}},
		}}})
		return answer, err
	}})
	r, err := soak.Run(t.Context(), c, soak.Config{Duration: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if r.Safe || r.Result().State != conformance.Broken || !slices.ContainsFunc(r.Anomalies, func(s string) bool { return strings.Contains(s, "handed out already") }) {
		t.Errorf("%d writes of the oracle's row: %+v", writes.Load(), r)
	}
	noTables(t, c)
}

// TestInterrupted: no table is left, whenever the context ends.
func TestInterrupted(t *testing.T) {
	for _, part := range []string{"transactions under faults", "checking the history", "measuring"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			c := connect(t, front.Front{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			reached := false
			_, err := soak.Run(ctx, c, soak.Config{Duration: 200 * time.Millisecond, Progress: func(now string) {
				if now == part {
					reached = true
					cancel()
				}
			}})
			if !errors.Is(err, context.Canceled) || !reached {
				t.Errorf("%v", err)
			}
			noTables(t, c)
		})
	}
}
