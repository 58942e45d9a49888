package emulator_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// slowRows makes the rows of table a arrive slowly, as they do if a filter selects few
// rows of a large range. A deadline that passes meanwhile ends the stream, as it does
// with Bigtable.
func slowRows(each func(message int) time.Duration, late *atomic.Int64) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &slowStream{ClientStream: s, ctx: ctx, each: each, late: late}, err
	})
}

type slowStream struct {
	grpc.ClientStream
	ctx  context.Context
	each func(message int) time.Duration
	late *atomic.Int64 // streams that reached their deadline
	slow bool
	n    int // messages requested
}

func (s *slowStream) SendMsg(m any) error {
	if r, ok := m.(*btpb.ReadRowsRequest); ok {
		call := txntest.Classify("/google.bigtable.v2.Bigtable/ReadRows", r)
		s.slow = call.Table == "a"
	}
	return s.ClientStream.SendMsg(m)
}

func (s *slowStream) RecvMsg(m any) error {
	if s.slow {
		select {
		case <-time.After(s.each(s.n)):
			s.n++
		case <-s.ctx.Done():
			if s.ctx.Err() == context.DeadlineExceeded {
				s.late.Add(1)
			}
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
	return s.ClientStream.RecvMsg(m)
}

// A scan also ends a page after some time. Before the fix, a scan whose rows were so
// slow that a page was not full by the request's deadline lost what it had read, and
// failed, at every try.
func TestSlowScan(t *testing.T) {
	const rows, pageRows = 300, 256
	always := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	for name, tt := range map[string]struct {
		each func(message int) time.Duration
		late bool
	}{
		"many rows in half of the timeout":     {always(500 * time.Millisecond), false},
		"one row in half of it":                {always(8 * time.Second), false},
		"one row in the timeout":               {always(13 * time.Second), false},
		"one row, and then the deadline comes": {func(m int) time.Duration { return time.Duration(8+7*min(m, 1)) * time.Second }, true},
		"a page, and then the deadline comes": {func(m int) time.Duration {
			return map[int]time.Duration{0: 9 * time.Second, pageRows: 13 * time.Second}[m]
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
				env.CreateTable("a", "f")
				var keys []string
				for i := range rows {
					keys = append(keys, fmt.Sprintf("row%03d", i))
				}
				mustSet(t, env.Client, "3", keys...)
				synctest.Wait()
				var late atomic.Int64
				c := env.NewClient(txn.Config{TokenTTL: -1}, slowRows(tt.each, &late))
				n := 0
				for row, err := range takeSnapshot(t, c).Table("a").ReadRows(t.Context(), bigtable.PrefixRange("")) {
					if err != nil {
						t.Fatalf("after %d rows: %v", n, err)
					}
					if row.Key() != keys[n] {
						t.Fatalf("row %q, want %q", row.Key(), keys[n])
					}
					n++
				}
				if n != rows || (late.Load() > 0) != tt.late {
					t.Errorf("%d rows, want %d; %d requests reached their deadline", n, rows, late.Load())
				}
			})
		})
	}
}

// The same for Locks, which reads the stored cells of a table.
func TestSlowLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, dead, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		var keys []string
		for i := range 60 {
			keys = append(keys, fmt.Sprintf("row%02d", i))
		}
		dies := faults.OnStep(txntest.StepCommit, txntest.Crash)
		ctx, cancel := context.WithCancel(t.Context())
		done := commitInBackground(ctx, beginSet(t, dead, "3", keys...))
		<-dies.Fired()
		faults.Kill()
		cancel()
		<-done
		var late atomic.Int64
		c := env.NewClient(txn.Config{TokenTTL: -1}, slowRows(func(int) time.Duration { return time.Second }, &late))
		n := 0
		for l, err := range admin.Locks(t.Context(), c, "a", nil) {
			if err != nil {
				t.Fatalf("after %d locks: %v", n, err)
			}
			if l.Cell.Row != keys[n] {
				t.Fatalf("lock on %s, want row %q", l.Cell, keys[n])
			}
			n++
		}
		if n != len(keys) {
			t.Errorf("%d locks, want %d", n, len(keys))
		}
	})
}
