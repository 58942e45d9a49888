package model

import (
	"context"
	"path"
	"strings"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A front takes the requests of one client.
type front struct {
	cluster *Cluster
	client  string
}

// key says what a request counts as.
func (f *front) key(method string, req proto.Message) Key {
	call := txntest.Classify(method, req)
	k := Key{Client: f.client, Kind: string(call.Step), Method: call.Method, Table: call.Table}
	switch r := req.(type) {
	case *btpb.ReadRowsRequest:
		if call.Step == txntest.StepRead && (len(r.GetRows().GetRowRanges()) > 0 || len(r.GetRows().GetRowKeys()) == 0) {
			k.Kind = "scan"
		}
	case *btpb.SampleRowKeysRequest:
		k.Table = path.Base(r.TableName)
	}
	if k.Kind == string(txntest.StepOther) {
		k.Kind = call.Method
	}
	return k
}

// wait waits until a time. It counts a request that ends before.
func (f *front) wait(ctx context.Context, k Key, until time.Time) error {
	return f.waitOr(ctx, k, until, nil)
}

// waitOr is wait, and ends when cut is closed.
func (f *front) waitOr(ctx context.Context, k Key, until time.Time, cut <-chan struct{}) error {
	if ctx.Err() == nil {
		d := time.Until(until)
		if d <= 0 {
			return nil
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-cut:
			return nil
		case <-ctx.Done():
		}
	}
	f.cluster.count(k, func(n *Count) { n.Expired++ })
	return status.FromContextError(ctx.Err()).Err()
}

// refuse waits for the time of an answer and returns an error.
func (f *front) refuse(ctx context.Context, k Key, trip time.Duration, err error) error {
	f.cluster.count(k, func(n *Count) { n.Refused++ })
	if expired := f.wait(ctx, k, time.Now().Add(trip)); expired != nil {
		return expired
	}
	return err
}

func unavailable(table string) error {
	return status.Errorf(codes.Unavailable, "model: a tablet of table %s is unavailable", table)
}

func exhausted(retry time.Duration) error {
	s, err := status.New(codes.ResourceExhausted, "model: the cluster is overloaded").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	if err != nil {
		return err
	}
	return s.Err()
}

// A piece of work is what a request asks of one row.
type work struct {
	row    string
	points time.Duration   // of a node
	mutate bool            // it also takes its turn at the row
	reads  bool            // it passes removed cells of the columns that filter names
	filter *btpb.RowFilter // nil: all columns
}

// present waits while the tablet of a row is away.
func (f *front) present(ctx context.Context, k Key, row string) error {
	for {
		until := f.cluster.away(k.Table, row)
		if until.IsZero() {
			return nil
		}
		if err := f.wait(ctx, k, until); err != nil {
			return err
		}
	}
}

func (f *front) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m, ok := req.(proto.Message)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	c, k := f.cluster, f.key(method, m)
	trip, before, after := c.trip()
	c.count(k, func(n *Count) { n.Requests++ })
	if err := f.wait(ctx, k, time.Now().Add(before)); err != nil {
		return err
	}
	done := time.Now().Add(trip / 2)
	if w, ok := c.workOf(m); ok {
		if err := f.present(ctx, k, w.row); err != nil {
			return err
		}
		done = time.Now().Add(trip / 2)
		end, refused := c.admit(k.Table, done, []work{w})
		if refused[0] != nil {
			return f.refuse(ctx, k, trip, refused[0])
		}
		done = end
	}
	if err := f.wait(ctx, k, done); err != nil {
		return err
	}
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	switch r := req.(type) {
	case *btpb.MutateRowRequest:
		c.applied(k.Table, string(r.RowKey), r.Mutations)
	case *btpb.CheckAndMutateRowRequest:
		mutations := r.FalseMutations
		if reply.(*btpb.CheckAndMutateRowResponse).PredicateMatched {
			mutations = r.TrueMutations
		}
		c.applied(k.Table, string(r.RowKey), mutations)
	}
	return f.wait(ctx, k, time.Now().Add(trip/2+after))
}

func (f *front) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if !strings.HasPrefix(method, "/google.bigtable.v2.Bigtable/") {
		return streamer(ctx, desc, cc, method, opts...)
	}
	return &stream{front: f, ctx: ctx, method: method, open: func() (grpc.ClientStream, error) {
		return streamer(ctx, desc, cc, method, opts...)
	}}, nil
}
