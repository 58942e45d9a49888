// Package words writes timestamps, durations and counts for people, and lets nothing stored
// steer their terminals. The findings of
// txn/admin and percctl use it, so that an operator sees the same words everywhere. A
// program reads the values themselves.
package words

import (
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// Time is a timestamp as RFC 3339, to the microsecond; empty for none.
func Time(ts tso.Timestamp) string {
	if ts == 0 {
		return ""
	}
	return ts.Time().Format("2006-01-02T15:04:05.000000Z07:00")
}

// Stamp is a timestamp as an integer, which percctl takes, and as a time.
func Stamp(ts tso.Timestamp) string { return fmt.Sprintf("%d (%s)", ts, Time(ts)) }

// Between is the time from one timestamp to a later one.
func Between(from, to tso.Timestamp) string { return Duration(to.Sub(from)) }

// Duration is a duration as exact as people need it.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// Seconds is [Duration] of a number of seconds.
func Seconds(s float64) string { return Duration(time.Duration(s * float64(time.Second))) }

// Count is a number of things: 1 lock, 2 locks.
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
