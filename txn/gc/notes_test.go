package gc_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/changed"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// putRecord stores a record in the metadata table.
func putRecord(t *testing.T, env *txntest.Env, row, qualifier string, record proto.Message) {
	t.Helper()
	value, err := proto.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, qualifier, 0, value)
	if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
}

// noteReads matches reads of notes.
func noteReads(c txntest.Call) bool {
	r, ok := c.Request.(*btpb.ReadRowsRequest)
	return ok && strings.Contains(r.GetFilter().String(), `"rows"`)
}

// brokenOnce breaks the first matching read of rows after its first message, for lack of quota.
func brokenOnce(match func(txntest.Call) bool, broke *atomic.Bool) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &breaking{ClientStream: s, method: method, match: match, broke: broke}, err
	})
}

type breaking struct {
	grpc.ClientStream
	method   string
	match    func(txntest.Call) bool
	broke    *atomic.Bool
	matched  bool
	received int
}

func (s *breaking) SendMsg(m any) error {
	if msg, ok := m.(proto.Message); ok {
		s.matched = s.match(txntest.Classify(s.method, msg))
	}
	return s.ClientStream.SendMsg(m)
}

func (s *breaking) RecvMsg(m any) error {
	if s.received++; s.received == 2 && s.matched && !s.broke.Swap(true) {
		return status.Error(codes.ResourceExhausted, "on purpose")
	}
	return s.ClientStream.RecvMsg(m)
}

// TestBrokenReads: rows and notes that were read before a read broke count once, and none is lost.
func TestBrokenReads(t *testing.T) {
	long.RacedAtNight(t)
	const day = 24 * time.Hour
	for _, match := range []func(txntest.Call) bool{noteReads, func(c txntest.Call) bool {
		r, ok := c.Request.(*btpb.ReadRowsRequest)
		return ok && c.Table == "a" && strings.Contains(r.GetFilter().String(), format.MarkFamily)
	}} {
		for _, full := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				env := newTable(t)
				<-time.After(retention + time.Minute)
				if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, FullEvery: day}); err != nil {
					t.Fatal(err)
				}
				for i, row := range []string{"bob", "joe", "sue"} {
					set(t, env.Client, row, "1")
					set(t, env.Client, row, "2")
					ts, err := env.Client.Timestamp(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					putRecord(t, env, fmt.Sprintf("%s/%d", changed.KeyAt(ts), i), changed.Qualifier, &recordpb.ChangedRows{
						FormatVersion: format.Version, Tables: []*recordpb.ChangedRows_Table{{Name: "a", Rows: [][]byte{[]byte(row)}}}})
				}
				<-time.After(retention + time.Minute)
				var broke atomic.Bool
				c := env.NewClient(txn.Config{TokenTTL: -1}, brokenOnce(match, &broke))
				r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention, FullEvery: day, Restart: full, Rate: 1000})
				if err != nil || r.Changes == full || r.Total.Rows != 3 || r.Total.Versions != 3 || !broke.Load() {
					t.Errorf("full: %t: %+v, %v, broke: %t", full, r, err, broke.Load())
				}
				if err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRows(t.Context(), bigtable.PrefixRange(changed.RowPrefix), func(r bigtable.Row) bool {
					t.Errorf("note %q is left", r.Key())
					return true
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestDividedNotes: minNotes notes are divided by time, as far as the first one says its time. An answer that was cut
// off does not count.
func TestDividedNotes(t *testing.T) {
	const hour = tso.Timestamp(time.Hour / time.Microsecond)
	for _, tt := range []struct {
		first string
		notes int
		want  int
	}{{changed.KeyAt(hour) + "/0", 63, 1}, {changed.KeyAt(hour) + "/0", 64, 60}, {changed.KeyAt(1) + "/0", 64, 119}, {"changed/!", 64, 1}} {
		synctest.Test(t, func(t *testing.T) {
			env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
			for i := range tt.notes {
				row := tt.first
				if i > 0 {
					row = fmt.Sprintf("%s/%d", changed.KeyAt(hour+tso.Timestamp(i)), i)
				}
				putRecord(t, env, row, changed.Qualifier, &recordpb.ChangedRows{FormatVersion: format.Version})
			}
			var broke atomic.Bool
			c := env.NewClient(txn.Config{TokenTTL: -1}, brokenOnce(noteReads, &broke))
			rows, err := gc.NotesDivided(t.Context(), access.ResolverOf(c), 2*hour)
			if err != nil || len(rows) != tt.want || rows[0] != changed.RowPrefix || tt.want == 60 && rows[1] != changed.KeyAt(hour+hour/60) {
				t.Errorf("%d notes from %s: %d parts, %q, %v", tt.notes, tt.first, len(rows), rows[:min(len(rows), 2)], err)
			}
			if !broke.Load() {
				t.Error("no read broke")
			}
		})
	}
}

// TestCollectedNotes: a run that follows changes reads the notes once, without those in parts of the table, and the
// rows that they name, each once. It keeps newest deletes. A run of all rows does not read what the notes
// name. It removes the claims up to its safe point, as far as it can read them.
func TestCollectedNotes(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		const retention = 10 * time.Minute
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("a", "f")
		env.CreateTable("b", "f")
		write := func(row, qualifier, value string) {
			t.Helper()
			_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				if value == "" {
					tx.Table("a").Delete(row, "f", qualifier)
				} else {
					tx.Table("a").Set(row, "f", qualifier, []byte(value))
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		write("joe", "deleted", "1")
		write("joe", "deleted", "")
		<-time.After(retention + time.Minute)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		collect := func(cfg gc.Config) *gc.Report {
			t.Helper()
			faults.Reset()
			r, err := gc.Run(t.Context(), c, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		full := collect(gc.Config{Retention: retention, FullEvery: 24 * time.Hour})
		if full.Changes || full.Total.Versions != 1 || full.Total.Deletes != 0 {
			t.Fatalf("%+v", full)
		}
		for i, row := range []string{"joe", "bob", "gone", "joe"} {
			if row != "gone" {
				write(row, "q", "1")
			}
			ts, err := env.Client.Timestamp(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			putRecord(t, env, fmt.Sprintf("%s/%d", changed.KeyAt(ts), i), changed.Qualifier, &recordpb.ChangedRows{
				FormatVersion: format.Version, Tables: []*recordpb.ChangedRows_Table{{Name: "a", Rows: [][]byte{[]byte(row)}}}})
		}
		<-time.After(retention + time.Minute)
		var progress []string
		r := collect(gc.Config{Retention: retention, FullEvery: 24 * time.Hour, Rate: 1, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseChanges {
				progress = append(progress, fmt.Sprint(p.Table, " ", p.Row, " ", p.Total.Rows))
			}
		}})
		if want := []string{"a bob 1", "a joe 2"}; !r.Changes || r.Total.Rows != 2 || r.Total.Versions != 1 || r.Total.Deletes != 0 || !slices.Equal(progress, want) {
			t.Errorf("%+v, progress %q, want %q", r, progress, want)
		}
		reads := func(when string, want ...bool) {
			t.Helper()
			var got []bool // does it read the names of rows?
			for _, call := range faults.Calls() {
				if noteReads(call) {
					got = append(got, !strings.Contains(call.Request.(*btpb.ReadRowsRequest).GetFilter().String(), "strip_value"))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: reads of notes %v, want %v", when, got, want)
			}
		}
		reads("changes", false, true)

		for i, claim := range []*recordpb.Settled{
			{FormatVersion: format.Version, Ts: int64(r.SafePoint)}, {FormatVersion: format.Version, Ts: int64(r.SafePoint) + 1}, {FormatVersion: format.Version + 1, Ts: 1},
			{FormatVersion: format.Version, Ts: int64(r.SafePoint)},
		} {
			putRecord(t, env, fmt.Sprintf("%s%016x", recovery.SettledRowPrefix, i), recovery.SettledQualifier, claim)
		}
		refused := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Method == "CheckAndMutateRow" && strings.HasPrefix(call.Row, recovery.SettledRowPrefix) {
				return status.Error(codes.PermissionDenied, "on purpose")
			}
			return nil
		})...)
		if r, err := gc.Run(t.Context(), refused, gc.Config{Retention: 24 * time.Hour, Restart: true}); status.Code(err) != codes.PermissionDenied || r.Finished {
			t.Errorf("the claims stay: %+v, %v", r, err)
		}
		// A client stores a larger claim when the collector has read the one before it.
		larger := recovery.SettledRowPrefix + "0000000000000003"
		stored := false
		beside := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Method != "ReadRows" && call.Row == larger && !stored {
				stored = true
				putRecord(t, env, larger, recovery.SettledQualifier, &recordpb.Settled{FormatVersion: format.Version, Ts: int64(r.SafePoint) + 1})
			}
			return nil
		})...)
		if r, err := gc.Run(t.Context(), beside, gc.Config{Retention: 24 * time.Hour, Restart: true}); err != nil || !stored {
			t.Errorf("beside a client: %+v, %v, claim stored: %t", r, err, stored)
		}
		full = collect(gc.Config{Retention: 24 * time.Hour, Restart: true}) // with the same safe point
		if full.Changes || full.SafePoint != r.SafePoint || full.Total.Rows != 2 {
			t.Errorf("%+v", full)
		}
		reads("all rows", false)
		left := map[string]bool{}
		if err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRows(t.Context(), bigtable.PrefixRange(recovery.SettledRowPrefix), func(r bigtable.Row) bool {
			left[r.Key()] = true
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{recovery.SettledRowPrefix + "0000000000000001", recovery.SettledRowPrefix + "0000000000000002", larger}, slices.Sorted(maps.Keys(left))); d != "" {
			t.Errorf("claims (-want +got):\n%s", d)
		}
	})
}
