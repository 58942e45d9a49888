package tso_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

func TestTimestampConversions(t *testing.T) {
	at := time.Date(2026, 11, 20, 5, 30, 0, 123_456_789, time.FixedZone("CET", 3600))
	ts := tso.FromTime(at)
	if want := tso.Timestamp(1_795_149_000_123_456); ts != want {
		t.Fatalf("FromTime(%s) = %d, want %d", at, ts, want)
	}
	if got, want := ts.Time(), at.Truncate(time.Microsecond).UTC(); got != want {
		t.Errorf("Time() = %v, want %v", got, want)
	}
	if got := ts.String(); got != "1795149000123456" {
		t.Errorf("String() = %q", got)
	}
	if got := ts.Cell(); got != 1_795_149_000_123_456_000 {
		t.Errorf("Cell() = %d", got)
	}
	for _, ts := range []tso.Timestamp{0, 1, ts, tso.Max} {
		if got := tso.FromCell(ts.Cell()); got != ts {
			t.Errorf("FromCell(%d.Cell()) = %d", ts, got)
		}
		if got := tso.FromTime(ts.Time()); got != ts {
			t.Errorf("FromTime(%d.Time()) = %d", ts, got)
		}
		// The client must not cut it to another number.
		if c := ts.Cell(); c.TruncateToMilliseconds() != c {
			t.Errorf("cell timestamp %d is not in whole milliseconds", c)
		}
	}
	if end := (tso.Max + 1).Cell(); end <= tso.Max.Cell() || end > math.MaxInt64-807 {
		t.Errorf("the range of the last cell ends at %d", end)
	}
}

func TestFromTimeOutOfRange(t *testing.T) {
	for _, tc := range []struct {
		at   time.Time
		want tso.Timestamp
	}{
		{time.Time{}, 0},
		{time.Unix(-1, 0), 0},
		{time.Unix(0, 0), 0},
		{tso.Max.Time().Add(time.Microsecond), tso.Max},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), tso.Max},
		{time.Date(400_000, 1, 1, 0, 0, 0, 0, time.UTC), tso.Max},
	} {
		if got := tso.FromTime(tc.at); got != tc.want {
			t.Errorf("FromTime(%v) = %d, want %d", tc.at, got, tc.want)
		}
	}
}

func TestParseTimestamp(t *testing.T) {
	for in, want := range map[string]tso.Timestamp{
		"0":                           0,
		"1795149000123456":            1_795_149_000_123_456,
		tso.Max.String():              tso.Max,
		"1970-01-01T00:00:00Z":        0,
		"2026-11-20T04:30:00Z":        1_795_149_000_000_000,
		"2026-11-20T05:30:00+01:00":   1_795_149_000_000_000,
		"2026-11-20T04:30:00.123456Z": 1_795_149_000_123_456,
	} {
		got, err := tso.ParseTimestamp(in)
		if err != nil || got != want {
			t.Errorf("ParseTimestamp(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for in, why := range map[string]string{
		"":                     "not valid",
		"now":                  "not valid",
		"2026-11-20":           "not valid",
		"1795149000.5":         "not valid",
		"99999999999999999999": "not valid",
		"-1":                   "negative",
		(tso.Max + 1).String(): "above the largest",
		"1795149000123456000":  "cell timestamp it would be 1795149000123456",
		"100000000000000000":   "cell timestamp it would be 100000000000000",
		"99999999999999999":    "above the largest one, 9223372036854774: ",
		"9999-01-01T00:00:00Z": "out of range",
		"1969-12-31T23:59:59Z": "out of range",
	} {
		got, err := tso.ParseTimestamp(in)
		if err == nil {
			t.Errorf("ParseTimestamp(%q) = %d, want an error", in, got)
			continue
		}
		for _, part := range []string{`"` + in + `"`, why, "decimal integer", "RFC 3339"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseTimestamp(%q): error %q does not say %q", in, err, part)
			}
		}
	}
}
