package emulator_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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
	long.NotUnderRace(t, "one request after the other, and what it costs")
	t.Parallel()
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
		if long.Reduced() && !tt.late {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
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

// An hourOfRows gives table a an hour's worth of rows, evenly spread over the
// keys "user:0…" to "user:f…": a request takes the time to pass all rows of its range, also
// those that its filter drops.
type hourOfRows struct {
	tablets int           // that SampleRowKeys returns
	passed  atomic.Int64  // time that Bigtable worked
	reads   atomic.Int64  // requests
	full    time.Duration // what all rows take
}

// at returns which part of the rows is below a key.
func (h *hourOfRows) at(key string) float64 {
	digits, ok := strings.CutPrefix(key, "user:")
	if !ok && key > "user:" {
		return 1
	}
	sum, unit := 0.0, 1.0
	for _, d := range []byte(digits) {
		unit /= 16
		i := strings.IndexFunc("0123456789abcdef", func(r rune) bool { return rune(d) <= r })
		if i < 0 {
			return sum + 16*unit
		}
		sum += float64(i) * unit
		if "0123456789abcdef"[i] != d {
			break
		}
	}
	return sum
}

func (h *hourOfRows) of(r *btpb.ReadRowsRequest) time.Duration {
	part := 0.0
	for _, rr := range r.GetRows().GetRowRanges() {
		start := string(rr.GetStartKeyClosed()) + string(rr.GetStartKeyOpen())
		end := string(rr.GetEndKeyOpen()) + string(rr.GetEndKeyClosed())
		below := 1.0
		if end != "" {
			below = h.at(end)
		}
		part += max(0, below-h.at(start))
	}
	if r.GetRows() == nil {
		part = 1
	}
	return time.Duration(part * float64(h.full))
}

func (h *hourOfRows) dialOption() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &hourStream{ClientStream: s, ctx: ctx, hour: h}, err
	})
}

type hourStream struct {
	grpc.ClientStream
	ctx   context.Context
	hour  *hourOfRows
	takes time.Duration
	keys  []string // the answer to SampleRowKeys
}

func (s *hourStream) SendMsg(m any) error {
	switch r := m.(type) {
	case *btpb.ReadRowsRequest:
		if strings.HasSuffix(r.TableName, "/a") {
			s.hour.reads.Add(1)
			s.takes = s.hour.of(r)
		}
	case *btpb.SampleRowKeysRequest:
		s.keys = []string{}
		for i := 1; i < s.hour.tablets; i++ {
			s.keys = append(s.keys, fmt.Sprintf("user:%08x", int64(i)*(1<<32/int64(s.hour.tablets))))
		}
	}
	return s.ClientStream.SendMsg(m)
}

func (s *hourStream) RecvMsg(m any) error {
	if r, ok := m.(*btpb.SampleRowKeysResponse); ok && s.keys != nil {
		if len(s.keys) == 0 {
			return io.EOF
		}
		r.RowKey, s.keys = []byte(s.keys[0]), s.keys[1:]
		return nil
	}
	began := time.Now()
	select {
	case <-time.After(s.takes):
		s.hour.passed.Add(int64(s.takes))
		s.takes = 0
	case <-s.ctx.Done():
		s.hour.passed.Add(int64(time.Since(began)))
		return status.FromContextError(s.ctx.Err()).Err()
	}
	return s.ClientStream.RecvMsg(m)
}

// Every scan gets through a range whose rows its filter drops for an hour, and passes little
// more than these rows if Bigtable says where tablets end. Before the fix, a request that reached its deadline without a row
// started over, so none of these scans ended.
func TestScansThatFindNothing(t *testing.T) {
	long.Test(t, "scans of many tablets")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	t.Parallel()
	rare := txn.Columns(txn.Column{Family: "f", Qualifier: "rare"})
	users := bigtable.PrefixRange("user:")
	scan := func(ctx context.Context, c *txn.Client, rs bigtable.RowSet, opts ...txn.ReadOption) error {
		s, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		n := 0
		for _, err := range s.Table("a").ReadRows(ctx, rs, append(opts, rare)...) {
			if err != nil {
				return err
			}
			n++
		}
		if n != 1 {
			return fmt.Errorf("%d rows, want the last one", n)
		}
		return nil
	}
	passes := map[string]int{"a collection": 2} // locks, then garbage
	for name, do := range map[string]func(context.Context, *txn.Client) error{
		"a user's scan":             func(ctx context.Context, c *txn.Client) error { return scan(ctx, c, nil) },
		"a user's scan of a prefix": func(ctx context.Context, c *txn.Client) error { return scan(ctx, c, users) },
		"a user's scan in reverse":  func(ctx context.Context, c *txn.Client) error { return scan(ctx, c, nil, txn.Reverse()) },
		"a prefix in reverse":       func(ctx context.Context, c *txn.Client) error { return scan(ctx, c, users, txn.Reverse()) },
		"a collection":              func(ctx context.Context, c *txn.Client) error { _, err := gc.Run(ctx, c, gc.Config{}); return err },
		"a repair plan": func(ctx context.Context, c *txn.Client) error {
			_, err := admin.PlanRepairs(ctx, c, "a", nil, admin.RepairConfig{})
			return err
		},
		"a list of locks": func(ctx context.Context, c *txn.Client) error {
			for _, err := range admin.Locks(ctx, c, "a", nil) {
				return err
			}
			return nil
		},
		"the proof of a bulk load": func(ctx context.Context, c *txn.Client) error {
			rows := func(func(admin.BulkRow, error) bool) {}
			_, err := admin.BulkLoad(ctx, c, "a", rows, admin.BulkConfig{Rows: bigtable.NewRange("user:0", "user:ff")})
			return err
		},
		"a wait for observers": func(ctx context.Context, c *txn.Client) error {
			_, err := notify.Wait(ctx, c, notify.WaitConfig{})
			return err
		},
		"a backfill": func(ctx context.Context, c *txn.Client) error {
			n, err := notify.Backfill(ctx, c, notify.BackfillConfig{Table: "a", Column: txn.Column{Family: "f", Qualifier: "rare"}})
			if n != 1 {
				return fmt.Errorf("%d cells: %w", n, err)
			}
			return err
		},
	} {
		// Hexadecimal digits in one tablet are far from even, and cost requests without success.
		for tablets, most := range map[int]time.Duration{1: 4 * time.Hour, 200: 66 * time.Minute, 1000: 66 * time.Minute} {
			t.Run(fmt.Sprintf("%s, %d tablets", name, tablets), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
					env.CreateTable("a", "f")
					_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
						tx.Table("a").Set("user:ffffffff", "f", "rare", []byte("v"))
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "rare"}, "o", false); err != nil {
						t.Fatal(err)
					}
					hour := &hourOfRows{tablets: tablets, full: time.Hour}
					c := env.NewClient(txn.Config{TokenTTL: -1}, hour.dialOption())
					ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
					defer cancel()
					if err := do(ctx, c); err != nil {
						t.Fatal(err)
					}
					passed, n := time.Duration(hour.passed.Load()), max(passes[name], 1)
					t.Logf("passed %v of rows in %d requests", passed, hour.reads.Load())
					if passed < time.Duration(n)*58*time.Minute || passed > time.Duration(n)*most {
						t.Errorf("passed %v of rows in %d passes, want at most %v each", passed, n, most)
					}
				})
			})
		}
	}
}
