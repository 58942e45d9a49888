package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// safePoint returns the stored record.
func (w *world) safePoint() *recordpb.SafePoint {
	w.Helper()
	m := &recordpb.SafePoint{}
	w.Must(proto.Unmarshal(w.get(GCRowKey), m))
	return m
}

// TestPublish: a safe point that is published rises and never falls. A collector whose answer is lost
// finds its own change, and one that another collector overtakes tries again.
func TestPublish(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.store(Config{}).SafePoint
		if record, raw, err := s.ReadRecord(w.Context()); err != nil || raw != nil || record.Ts != 0 {
			t.Errorf("no record: %v, %v, %v", record, raw, err)
		}
		w.Did()
		for _, step := range []struct {
			ts, now, note   tso.Timestamp
			retention       time.Duration
			want            tso.Timestamp
			stored, request string
		}{
			{10, 100, 0, 7 * time.Microsecond, 10, "10 100 7 0", "read meta/gc, change meta/gc, read meta/gc"},
			{10, 101, 0, 8 * time.Microsecond, 10, "10 100 7 0", "read meta/gc"},
			{9, 102, 50, 8 * time.Microsecond, 10, "10 100 7 50", "read meta/gc, change meta/gc, read meta/gc"},
			{9, 103, 49, 8 * time.Microsecond, 10, "10 100 7 50", "read meta/gc"},
			{11, 104, 49, 9 * time.Microsecond, 11, "11 104 9 50", "read meta/gc, change meta/gc, read meta/gc"},
			{12, 105, 60, 9 * time.Microsecond, 12, "12 105 9 60", "read meta/gc, change meta/gc, read meta/gc"},
		} {
			got, err := s.Publish(w.Context(), step.ts, step.now, step.retention, step.note)
			r := w.safePoint()
			if stored := fmt.Sprint(r.Ts, r.PublishedTs, r.RetentionMicros, r.NoteUntilTs); err != nil || got != step.want || stored != step.stored || r.FormatVersion != format.Version {
				t.Errorf("%+v: %d, %v, stored %s", step, got, err, stored)
			}
			if v := s.View.Load(); v.TS != step.want || int64(v.noteUntil) != r.NoteUntilTs || !v.asked.Equal(time.Now()) {
				t.Errorf("%+v: the client knows %+v", step, v)
			}
			w.Expect(fmt.Sprint(step), step.request)
		}
		w.Inject("change", errApplied)
		if got, err := s.Publish(w.Context(), 20, 200, 1, 0); got != 20 || err != nil {
			t.Errorf("with a lost answer: %d, %v", got, err)
		}
		w.Expect("lost answer", "read meta/gc, change meta/gc, read meta/gc")
		w.Inject("change", lost)
		w.Inject("read", lost)
		if got, err := s.Publish(w.Context(), 30, 200, 1, 0); got != 30 || err != nil {
			t.Errorf("with two faults: %d, %v", got, err)
		}
		w.Expect("two faults", "read meta/gc, read meta/gc, change meta/gc, read meta/gc, change meta/gc, read meta/gc")
		w.Inject("change", denied)
		if got, err := s.Publish(w.Context(), 40, 200, 1, 0); got != 0 || !Permanent(err) || s.View.Load().TS != 30 {
			t.Errorf("denied: %d, %v", got, err)
		}
		w.Did()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.Inject("read", lost, errNever)
		if got, err := s.Publish(ctx, 40, 200, 1, 0); got != 0 || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "storing the safe point") {
			t.Errorf("no answer: %d, %v", got, err)
		}
		w.Expect("no answer", "read meta/gc, read meta/gc")
		// Another collector is faster: its record is not replaced by what was read before.
		other := w.safePoint()
		other.Ts = 50
		first := true
		record, err := s.update(w.Context(), func(r *recordpb.SafePoint) bool {
			if first {
				first = false
				w.set(GCRowKey, safePointQualifier, format.Marshal(other))
			}
			changes := r.ResolvedTs != 5
			r.ResolvedTs = 5
			return changes
		})
		if err != nil || record.Ts != 50 || w.safePoint().Ts != 50 || w.safePoint().ResolvedTs != 5 {
			t.Errorf("with another collector: %v, %v, stored %v", record, err, w.safePoint())
		}
		w.Did()
		drained, err := s.LocksResolved(w.Context(), 60, 1000, 100*time.Microsecond)
		if r := w.safePoint(); drained != 0 || err != nil || r.ResolvedTs != 60 || r.DrainingTs != 60 || r.DrainingSinceTs != 1000 {
			t.Errorf("resolved: %d, %v, %v", drained, err, w.safePoint())
		}
		if drained, err = s.LocksResolved(w.Context(), 60, 1100, 100*time.Microsecond); drained != 60 || err != nil {
			t.Errorf("resolved, a retention later: %d, %v", drained, err)
		}
		w.Did()
		for value, want := range map[string]error{"\xff": format.ErrCorrupt, "\x08\x63": format.ErrFormatVersion} {
			w.set(GCRowKey, safePointQualifier, []byte(value))
			if _, _, err := s.ReadRecord(w.Context()); !errors.Is(err, want) {
				t.Errorf("%q: %v", value, err)
			}
			if _, err := s.Publish(w.Context(), 70, 200, 1, 0); !errors.Is(err, want) {
				t.Errorf("published over %q: %v", value, err)
			}
			w.Expect(value, "read meta/gc, read meta/gc")
			if st, err := New(w.Context(), w, Config{}); st != nil || !errors.Is(err, want) {
				t.Errorf("a client over %q: %v", value, err)
			}
			w.Did()
		}
	})
}

// TestIsLate: a lock that appears below the safe point after its locks were resolved is late.
func TestIsLate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(GCRowKey, safePointQualifier, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, Ts: 100, ResolvedTs: 50}))
		s := w.store(Config{}).SafePoint
		for _, tt := range []struct {
			ts   tso.Timestamp
			want bool
			did  string
		}{{101, false, ""}, {100, false, "read meta/gc"}, {51, false, "read meta/gc"}, {50, true, "read meta/gc"}, {49, true, "read meta/gc"}} {
			if late, err := s.IsLate(w.Context(), tt.ts); late != tt.want || err != nil {
				t.Errorf("%d is late: %t, %v", tt.ts, late, err)
			}
			w.Expect(fmt.Sprint(tt.ts), tt.did)
		}
		w.Inject("read", lost)
		if late, err := s.IsLate(w.Context(), 50); !late || err != nil {
			t.Errorf("after a fault: %t, %v", late, err)
		}
		w.Inject("read", denied)
		if late, err := s.IsLate(w.Context(), 50); late || !Permanent(err) {
			t.Errorf("denied: %t, %v", late, err)
		}
		w.After(gctime.SafePointMaxAge() + 1)
		w.Inject("read", denied)
		if late, err := s.IsLate(w.Context(), 50); late || !Permanent(err) {
			t.Errorf("without a safe point: %t, %v", late, err)
		}
	})
}

// TestCurrent: a client reads the safe point again once it is too old, one call for all, and waits until
// it is answered.
func TestCurrent(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.store(Config{}).SafePoint
		current := func(want tso.Timestamp, did string) {
			w.Helper()
			if got, err := s.Current(w.Context()); got != want || err != nil {
				t.Errorf("safe point %d, %v, want %d", got, err, want)
			}
			w.Expect("current", did)
		}
		w.set(GCRowKey, safePointQualifier, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, Ts: 100}))
		w.After(gctime.SafePointMaxAge())
		current(0, "")
		w.After(1)
		current(100, "read meta/gc")
		current(100, "")
		w.After(gctime.SafePointMaxAge() + 1)
		w.Inject("read", lost, lost)
		current(100, "read meta/gc, read meta/gc, read meta/gc")
		w.After(gctime.SafePointMaxAge() + 1)
		errs := make(chan error)
		for range 5 {
			go func() { _, err := s.Current(w.Context()); errs <- err }()
		}
		for range 5 {
			w.Must(<-errs)
		}
		w.Expect("five calls", "read meta/gc")

		w.After(gctime.SafePointMaxAge() + 1)
		w.Inject("read", denied)
		if _, err := s.Current(w.Context()); !Permanent(err) {
			t.Errorf("denied: %v", err)
		}
		for what, check := range map[string]func() error{
			"read":       func() error { return s.CheckRead(w.Context(), 1000) },
			"write":      func() error { return s.CheckWrite(w.Context(), 1000) },
			"forgotten":  func() error { _, err := s.Forgotten(w.Context(), 1000); return err },
			"split":      func() error { _, _, err := s.splitTooOld(w.Context(), []RowMutation{{StartTS: 1000}}); return err },
			"after read": func() error { return s.AfterRead(w.Context(), 1000, nil) },
		} {
			w.Inject("read", denied)
			if err := check(); !Permanent(err) || errors.Is(err, format.ErrTooOld) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if forgotten, _ := s.Forgotten(canceled(w.Context()), 1000); !forgotten {
			t.Error("not forgotten, without a safe point")
		}
		w.Did()
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		w.Inject("read", lost, errNever, errNever, errNever, errNever)
		if _, err := s.Current(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "reading the safe point from row") {
			t.Errorf("never answered: %v", err)
		}
		w.Expect("never answered", "read meta/gc, read meta/gc, read meta/gc, read meta/gc")
		w.Inject("read")
		// Another call reads it: a caller that waits for that ends with its context.
		s.reading <- struct{}{}
		if err := s.readNewer(canceled(w.Context()), s.View.Load()); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting for another call: %v", err)
		}
		<-s.reading
		if !s.used.Load() {
			t.Error("KeepFresh would take the client for idle")
		}
		for value, want := range map[string]error{"\xff": format.ErrCorrupt, "\x08\x63": format.ErrFormatVersion} {
			w.set(GCRowKey, safePointQualifier, []byte(value))
			w.Did()
			if _, err := s.Current(w.Context()); !errors.Is(err, want) {
				t.Errorf("%q: %v", value, err)
			}
			w.Expect("it cannot be read", "read meta/gc")
		}
	})
}

func canceled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// TestTooOldErrors: the error of a mutation of a transaction below the safe point.
func TestTooOldErrors(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(GCRowKey, safePointQualifier, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, Ts: 100, NoteUntilTs: int64(filterBase) + 10}))
		st := w.store(Config{})
		s := st.SafePoint
		keep, tooOld, err := s.splitTooOld(w.Context(), []RowMutation{{Row: "a", StartTS: 99}, {Row: "b"}, {Row: "c", StartTS: 101}, {Row: "d", StartTS: 100}})
		if err != nil || len(keep) != 2 || keep[0].Row != "b" || keep[1].Row != "c" || len(tooOld) != 2 {
			t.Errorf("keeps %v, too old %v, %v", keep, tooOld, err)
		}
		for _, m := range tooOld {
			var e *format.TooOldError
			if !errors.As(m.Err, &e) || *e != (format.TooOldError{TS: m.StartTS, SafePoint: 100, Write: true}) {
				t.Errorf("%s: %v", m.Row, m.Err)
			}
		}
		if e := new(format.TooOldError); !errors.As(s.CheckWrite(w.Context(), 100), &e) || *e != (format.TooOldError{TS: 100, SafePoint: 100, Write: true}) {
			t.Errorf("write: %+v", e)
		}
		if e := new(format.TooOldError); !errors.As(s.CheckRead(w.Context(), 99), &e) || *e != (format.TooOldError{TS: 99, SafePoint: 100}) {
			t.Errorf("read: %+v", e)
		}
		for range 9 {
			if _, err := st.Clock.Timestamp(w.Context()); err != nil || !s.NotesChanges() {
				t.Fatalf("changes are not noted: %v", err)
			}
		}
		w.After(time.Microsecond)
		if s.NotesChanges() {
			t.Error("changes are noted for longer")
		}
		s.View.Store(&SafePointView{})
		if s.NotesChanges() {
			t.Error("changes are noted, without a collector")
		}
		if age := st.safePointAge(); age != 0 {
			t.Errorf("age %v without a safe point", age)
		}
		s.View.Store(newSafePointView(filterBase, time.Now()))
		if age := st.safePointAge(); age != 10*time.Microsecond {
			t.Errorf("age %v", age)
		}
	})
}

// TestKeepFresh: when a client reads the safe point in the background. An idle client does not, until it
// needs it.
func TestKeepFresh(t *testing.T) {
	inWorld(t, func(w *world) {
		interval := gctime.SafePointMaxAge() / 3
		s := w.store(Config{}).SafePoint
		busy, also := false, 0
		var mu sync.Mutex
		s.KeepFresh(func() bool { mu.Lock(); defer mu.Unlock(); return busy }, func(ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			also++
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != interval && ctx.Err() == nil {
				t.Errorf("also may take %v", time.Until(d))
			}
		})
		set := func(b bool) { mu.Lock(); defer mu.Unlock(); busy = b }
		s.Need() // it is not resting
		w.After(interval - 1)
		w.Expect("soon", "")
		w.After(1)
		w.Expect("idle", "")
		set(true)
		w.After(interval)
		w.Expect("busy", "read meta/gc")
		set(false)
		if _, err := s.Current(w.Context()); err != nil {
			t.Error(err)
		}
		w.After(interval)
		w.Expect("used", "read meta/gc")
		w.After(interval)
		w.Expect("idle again", "")
		s.Need()
		s.Need()
		synctest.Wait()
		w.Expect("needed", "read meta/gc")
		s.Need()
		synctest.Wait()
		w.Expect("needed again, soon", "")
		set(true)
		w.Inject("read", errNever)
		w.After(interval)
		w.Expect("busy, not answered", "read meta/gc")
		w.After(interval)
		w.Expect("again", "read meta/gc")
		mu.Lock()
		if also != 7 {
			t.Errorf("also ran %d times", also)
		}
		mu.Unlock()
		s.Close()
		w.After(time.Minute)
		w.Expect("closed", "")
	})
}

// TestClosesAfterItsWork: Close waits for what KeepFresh does. A record that cannot be changed is an error.
func TestClosesAfterItsWork(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.store(Config{}).SafePoint
		var ended atomic.Bool
		s.KeepFresh(func() bool { return true }, func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(time.Second)
			ended.Store(true)
		})
		w.After(gctime.SafePointMaxAge() / 3)
		if s.Close(); !ended.Load() {
			t.Error("Close did not wait")
		}
		w.Inject("read", denied)
		if ts, err := s.LocksResolved(w.Context(), 1, 2, time.Hour); ts != 0 || !errors.Is(err, denied) {
			t.Errorf("%d, %v", ts, err)
		}
	})
}
