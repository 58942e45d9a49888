package changes_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestInvalidNames: what names an invalid cell or observer is refused, without a request.
func TestInvalidNames(t *testing.T) {
	env := newObservedTable(t)
	faults := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	before := len(faults.Calls())
	for _, bad := range []changes.DeadLetter{{Cell: txn.Cell{Table: "t", Family: "f", Qualifier: "q"}, Observer: "o", ParkedTS: 1}, {Cell: observedCell, Observer: "a/b", ParkedTS: 1}} {
		calls := map[string]error{
			"Park":       changes.Park(t.Context(), c, bad),
			"Drop":       changes.Drop(t.Context(), c, bad),
			"Replay":     changes.Replay(t.Context(), c, bad),
			"SetFailure": changes.SetFailure(t.Context(), c, bad.Cell, bad.Observer, format.Failure{}),
		}
		if bad.Observer == "o" {
			calls["ClearNotifications"] = changes.ClearNotifications(t.Context(), c, changes.Cleared{Cell: bad.Cell, UpTo: 1})
			_, calls["Observe"] = changes.Observe(t.Context(), tx, bad.Cell)
		}
		calls["a weak pattern"] = changes.RegisterObserver(t.Context(), c, "t", txn.Pattern("f", "q"), "p", true)
		_, _, calls["Previous of a weak notification"] = changes.Previous(t.Context(), tx, &changes.Observation{Cell: observedCell, Weak: true}, "o")
		for name, err := range calls {
			if !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%s of %+v: %v", name, bad, err)
			}
		}
	}
	if v, ok, err := changes.Previous(t.Context(), tx, &changes.Observation{Cell: observedCell}, "o"); v != nil || ok || err != nil {
		t.Errorf("before the first run: %q, %t, %v", v, ok, err)
	}
	if calls := faults.Calls(); len(calls) != before {
		t.Errorf("sent %v", calls[before:])
	}
}

// TestHopsOfNotifications: a notification without a run has no hops, and those of a run have one more than what it ran for.
// A dead letter replaces the last one.
func TestHopsOfNotifications(t *testing.T) {
	env := newObservedTable(t)
	hops := func(row string, want int) {
		t.Helper()
		for n, err := range changes.Notifications(t.Context(), env.Client, "t", bigtable.SingleRow(row)) {
			if last := n.Triggers[len(n.Triggers)-1]; err != nil || last.Hops != want {
				t.Errorf("%+v, %v; want %d hops", n, err, want)
			}
		}
	}
	if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
		t.Fatal(err)
	}
	if err := changes.Notify(t.Context(), env.Client, observedCell); err != nil {
		t.Fatal(err)
	}
	hops("r", 0)
	cell := observedCell
	for i := range 3 {
		next := fmt.Sprint("r", i)
		if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			if _, err := changes.Observe(ctx, tx, cell); err != nil {
				return err
			}
			return set("t", next)(ctx, tx)
		}); err != nil {
			t.Fatal(err)
		}
		hops(next, i+1)
		cell.Row = next
	}
	for range 2 {
		if err := changes.Park(t.Context(), env.Client, changes.DeadLetter{Cell: cell, Observer: "o", Error: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	stored := 0
	if err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRows(t.Context(), bigtable.PrefixRange("dead/"), func(r bigtable.Row) bool {
		for _, items := range r {
			stored += len(items)
		}
		return true
	}); err != nil || stored != 1 {
		t.Errorf("%d dead letters, %v", stored, err)
	}
}

// TestRefusedNow: what a client does with a table whose schema is old, and whose schema record cannot be read or is gone.
func TestRefusedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newObservedTable(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithoutCheck())
		if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
			t.Fatal(err)
		}
		var refusing atomic.Bool
		c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if refusing.Load() && call.Row == store.SchemaRowPrefix+"t" {
				return status.Error(codes.PermissionDenied, "on purpose")
			}
			return nil
		})...)
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		observe(t, tx)
		<-time.After(time.Hour)
		refusing.Store(true)
		if o, err := changes.Observe(t.Context(), tx, observedCell); status.Code(err) != codes.PermissionDenied {
			t.Errorf("observed %+v, %v", o, err)
		}
		n := 0
		for o, err := range changes.Observations(t.Context(), c, "t", nil) {
			if n++; status.Code(err) != codes.PermissionDenied {
				t.Errorf("observed %+v, %v", o, err)
			}
		}
		if n != 1 {
			t.Errorf("%d observations", n)
		}
		refusing.Store(false)
		faults := txntest.NewFaults(t)
		faults.On("edit", func(c txntest.Call) bool {
			return c.Row == store.SchemaRowPrefix+"t" && c.Method == "CheckAndMutateRow"
		}, txntest.DropRequest, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err = changes.RegisterObserver(ctx, env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...), "t", observedCell.Column(), "p", false)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), `changes: editing the schema record of table "t": `) {
			t.Errorf("registered without an answer: %v", err)
		}
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), store.SchemaRowPrefix+"t", m); err != nil {
			t.Fatal(err)
		}
		if _, err := changes.UnregisterObserver(t.Context(), c, "t", "o"); !errors.Is(err, txn.ErrNotInitialized) {
			t.Errorf("unregistered without a record: %v", err)
		}
	})
}

// TestTriedAgain: Notifications tries a page again, and a sweep does not. It sends nothing for a lock that does not parse.
func TestTriedAgain(t *testing.T) {
	env := newObservedTable(t, txntest.WithoutCheck())
	if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
		t.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.Set(format.LockFamily, "nameless", tso.Timestamp(5e14).Cell(), format.EncodeLock(&format.Lock{Cell: observedCell, Primary: observedCell, Kind: format.KindPut, StartTS: 5e14, Observed: true}))
	if err := env.Bigtable.Open("t").Apply(t.Context(), "s", m); err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int64
	var failing atomic.Bool
	c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
		if call.Step != txntest.StepRead {
			return nil
		}
		if reads.Add(1); failing.Swap(false) {
			return status.Error(codes.Internal, "on purpose")
		}
		return nil
	})...)
	if err := c.CheckTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		fails bool
		all   iter.Seq2[changes.Notification, error]
		code  codes.Code
		reads int64
	}{
		{"notifications", true, changes.Notifications(t.Context(), c, "t", nil), codes.OK, 2},
		{"a sweep", true, changes.Sweep(t.Context(), c, "t", nil), codes.Internal, 1},
		{"a sweep of a damaged lock", false, changes.Sweep(t.Context(), c, "t", nil), codes.OK, 1},
	} {
		reads.Store(0)
		failing.Store(tt.fails)
		n := 0
		for _, err := range tt.all {
			if n++; status.Code(err) != tt.code {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if n != 1 || reads.Load() != tt.reads {
			t.Errorf("%s: %d results of %d reads, want %d", tt.name, n, reads.Load(), tt.reads)
		}
	}
}

// TestStoredLetters: a dead letter is in the row that other releases expect, Drop leaves one that was parked a microsecond
// later, and a damaged letter is an error.
func TestStoredLetters(t *testing.T) {
	env := newObservedTable(t)
	if err := changes.Park(t.Context(), env.Client, changes.DeadLetter{Cell: observedCell, Observer: "o"}); err != nil {
		t.Fatal(err)
	}
	const row = "dead/t/o/1d87a76f3dea7795dc9d0cde34f836b3"
	var letter changes.DeadLetter
	for d, err := range changes.DeadLetters(t.Context(), env.Client) {
		if letter = d; err != nil {
			t.Fatal(err)
		}
	}
	metadata := env.Bigtable.Open(format.DefaultMetadataTable)
	raw, err := metadata.ReadRow(t.Context(), row)
	if err != nil || len(raw) == 0 {
		t.Fatalf("%v, %v", raw, err)
	}
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, "letter", (letter.ParkedTS + 1).Cell(), append(format.Marshal(&recordpb.DeadLetter{FormatVersion: format.Version}), 0xff))
	if err := metadata.Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
	if err := changes.Drop(t.Context(), env.Client, letter); err != nil {
		t.Fatal(err)
	}
	n := 0
	for d, err := range changes.DeadLetters(t.Context(), env.Client) {
		if n++; !errors.Is(err, txn.ErrCorrupt) {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if n != 1 {
		t.Errorf("%d letters", n)
	}
	m = bigtable.NewMutation()
	m.DeleteRow()
	if err := metadata.Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
}

// TestPreviousBelowTheSafePoint: a collection that begins while the previous value is read may have removed that value, so
// the read does not count. If the safe point cannot be read, there is no value.
func TestPreviousBelowTheSafePoint(t *testing.T) {
	for version, want := range map[uint32]error{format.Version: txn.ErrTooOld, format.Version + 1: txn.ErrFormatVersion} {
		for _, early := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				env := newObservedTable(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithoutCheck())
				var ack tso.Timestamp
				for i := range 3 {
					if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
						t.Fatal(err)
					}
					if i == 0 {
						var err error
						if ack, err = env.Client.Timestamp(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
				now, err := env.Client.Timestamp(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				collect := func() {
					m := bigtable.NewMutation()
					m.DeleteTimestampRange(format.WriteFamily, "f:q", 0, ack.Cell())
					if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
						t.Error(err)
					}
					m = bigtable.NewMutation()
					m.Set(store.DeployFamily, "safe-point", 0, format.Marshal(&recordpb.SafePoint{FormatVersion: version, Ts: int64(now)}))
					if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), store.GCRowKey, m); err != nil {
						t.Error(err)
					}
					<-time.After(time.Minute) // until clients know it
				}
				var once sync.Once
				var reading atomic.Bool
				c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
					if reading.Load() && call.Step == txntest.StepRead {
						once.Do(collect)
					}
					return nil
				})...)
				tx, err := c.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				o := observe(t, tx)
				o.Acks["o"] = ack
				if early {
					collect()
				} else {
					reading.Store(true)
				}
				v, ok, err := changes.Previous(t.Context(), tx, o, "o")
				if !errors.Is(err, want) || ok {
					t.Errorf("version %d, early: %t: %q, %t, %v", version, early, v, ok, err)
				}
			})
		}
	}
}

// TestMoveSweepWithoutTime: a client that does not know the time moves no sweep.
func TestMoveSweepWithoutTime(t *testing.T) {
	env := newObservedTable(t)
	all, err := changes.SweepPositions(t.Context(), env.Client, nil, "t")
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
		if call.Row == "oracle" {
			return status.Error(codes.PermissionDenied, "on purpose")
		}
		return nil
	})...)
	if _, ok, err := changes.MoveSweep(t.Context(), c, all[0], "", false, 0); ok || status.Code(err) != codes.PermissionDenied {
		t.Errorf("moved: %t, %v", ok, err)
	}
}
