package tso

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
)

// TestShouldMove: when a process moves the row to the clock rather than adds to it. The clock, when the
// answer is there, is compared with the row.
func TestShouldMove(t *testing.T) {
	const (
		now     = Timestamp(1_800_000_000_000_000)
		maxStep = Timestamp(60e6)
		took    = Timestamp(1000)
		never   = 0
		always  = 1000
	)
	for _, tt := range []struct {
		name          string
		shared, known bool
		lag           Timestamp
		adds, left    int
		least, most   int // of 1000 times
	}{
		{"alone", false, true, 0, 0, 0, always, always},
		{"alone, and the row is not known", false, false, maxStep, 0, 0, never, never},
		{"alone, after a loss", false, true, 0, 5, 5, always, always},
		{"at the clock", true, true, 0, 0, 0, never, never},
		{"ahead of the clock", true, true, -1, 0, 0, never, never},
		{"lags", true, true, lagSome, 0, 0, never, never},
		{"lags some", true, true, lagSome + 1, 0, 0, 150, 350},
		{"lags almost too much", true, false, lagAll, 0, 0, 150, 350},
		{"lags too much", true, false, lagAll + 1, 0, 0, always, always},
		{"after a pause", true, true, maxStep, 0, 0, always, always},
		{"after a long pause", true, true, maxStep + 1, 0, 0, never, never},
		{"after a loss", true, true, lagAll + 3*took - 1, 1, 0, never, never},
		{"after a loss, and lags too much", true, true, lagAll + 3*took, 1, 1, always, always},
		{"long after a loss", true, true, lagAll + 3*took - 1, 0, 0, always, always},
	} {
		moves, left := 0, 0
		for range 1000 {
			r := &reserver{
				clock: func() time.Time { return (now - took).Time() }, maxStep: maxStep, took: took,
				shared: tt.shared, known: tt.known, value: now - tt.lag, adds: tt.adds,
			}
			if r.shouldMove() {
				moves++
			}
			left = r.adds
		}
		if moves < tt.least || moves > tt.most || left != tt.left {
			t.Errorf("%s: moves %d of 1000 times, want %d to %d; %d adds are left, want %d", tt.name, moves, tt.least, tt.most, left, tt.left)
		}
	}
}

// TestMeasureLag: how far timestamps are behind the clock, and when the log says so.
func TestMeasureLag(t *testing.T) {
	var log bytes.Buffer
	now := time.UnixMicro(1_800_000_000_000_000)
	r := &reserver{clock: func() time.Time { return now }, log: slog.New(slog.NewTextHandler(&log, nil)), row: row.Open(nil, "", "", 0)}
	for i, tt := range []struct {
		later, lag time.Duration
		said       int
	}{
		{0, -time.Second, 0},
		{0, lagLimit + time.Microsecond, 0},
		{lagLasts, time.Hour, 0},
		{time.Microsecond, time.Hour, 1}, // since more than lagLasts
		{lagSaid, time.Hour, 1},
		{time.Microsecond, time.Hour, 2},
		{2 * lagSaid, lagLimit, 2}, // not behind any more
		{0, time.Hour, 2},
		{lagLasts, time.Hour, 2},
		{time.Microsecond, lagLimit + time.Microsecond, 3},
	} {
		now = now.Add(tt.later)
		lag := r.measure(t.Context(), FromTime(now.Add(-tt.lag)))
		if lag != max(tt.lag, 0) {
			t.Errorf("%d: a lag of %v, want %v", i, lag, tt.lag)
		}
		if said := strings.Count(log.String(), "behind the clock"); said != tt.said {
			t.Errorf("%d: said %d times, want %d", i, said, tt.said)
		}
	}
}
