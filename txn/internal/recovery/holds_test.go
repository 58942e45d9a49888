package recovery

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestHolds: the oldest hold counts, and since when a hold has been there, until a day later. A
// transaction that is open for long is reported once, and a hold that was asked for is not.
func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolds()
		began := time.Now()
		var long int
		want := func(ts tso.Timestamp, since time.Time) {
			t.Helper()
			if gotTS, got := h.oldest(); gotTS != ts || !got.Equal(since) || h.Any() != (ts != 0) {
				t.Errorf("the oldest is %d since %v, any: %t; want %d since %v", gotTS, got, h.Any(), ts, since)
			}
		}
		wantLong := func(n int) {
			t.Helper()
			all := h.takeLongOpen()
			if long += len(all); len(all) != n {
				t.Errorf("%d transactions are open for long, want %d", len(all), n)
			}
		}
		want(0, time.Time{})
		old := h.Add(50, true)
		want(50, began)
		<-time.After(time.Second)
		older := h.Add(40, false) // began later, at an earlier timestamp
		young := h.Add(60, true)
		for range 20 { // in any order
			want(40, began)
		}
		h.Remove(older)
		want(50, began)
		<-time.After(longOpen - time.Second - 1)
		wantLong(0)
		<-time.After(1)
		wantLong(1)
		wantLong(0)
		asked := h.Add(30, false)
		<-time.After(longOpen)
		wantLong(1)
		wantLong(0)
		h.Remove(old)
		h.Remove(young)
		want(30, began.Add(longOpen))
		<-time.After(maxHold - longOpen)
		want(30, began.Add(longOpen))
		<-time.After(1)
		want(0, time.Time{})
		h.Remove(asked)
		if len(h.open) != 0 {
			t.Errorf("%d holds are left", len(h.open))
		}
	})
}
