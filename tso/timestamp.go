package tso

import (
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/format"
)

// Timestamp is a point in the order of all transactions: microseconds since
// the Unix epoch, made strictly increasing by an [Oracle]. It reads as wall
// time, but it is an order first: under more than a million requests a second
// it runs ahead of the clock.
//
// An oracle's timestamps lie between [Min] and [Max]; the zero Timestamp means "none".
type Timestamp int64

// Max is the largest timestamp, in the year 2262. Bigtable keeps cell
// timestamps as int64 microseconds and cuts them to milliseconds, so a
// Timestamp takes the place of the milliseconds. Max is one less than what fits,
// because the half-open range of exactly one cell ends at (Max+1).Cell().
const Max = Timestamp(format.MaxTimestamp)

// Min is the smallest timestamp that an oracle hands out, in March 1973.
const Min = Timestamp(format.MinTimestamp)

// cellScale is the number of Bigtable timestamp units per Timestamp.
const cellScale = 1000

// Cell returns the Bigtable cell timestamp at which t is stored: t × 1000,
// about 1.8e18 today, where a plain cell written by wall clock has 1.8e15.
// Meaningful for timestamps from 0 to [Max]+1.
func (t Timestamp) Cell() bigtable.Timestamp { return bigtable.Timestamp(t) * cellScale }

// FromCell returns the Timestamp stored at a cell timestamp; it is the inverse
// of [Timestamp.Cell].
func FromCell(c bigtable.Timestamp) Timestamp { return Timestamp(c / cellScale) }

// FromTime returns the Timestamp of a wall-clock time, cut to microseconds.
// Times outside of what a Timestamp can hold (before 1970, after 2262) become
// 0 and [Max].
func FromTime(t time.Time) Timestamp {
	// Compared in seconds first: UnixMicro overflows for remote years.
	switch s := t.Unix(); {
	case s < 0:
		return 0
	case s > int64(Max)/1e6:
		return Max
	}
	return min(Timestamp(t.UnixMicro()), Max)
}

// Time returns t as wall-clock time, in UTC.
func (t Timestamp) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Add returns t+d, cut to microseconds. It does not check for [Min] and [Max].
func (t Timestamp) Add(d time.Duration) Timestamp { return t + Timestamp(d.Microseconds()) }

// Sub returns t-u. Timestamps that are more than 292 years apart have no such duration.
func (t Timestamp) Sub(u Timestamp) time.Duration { return time.Duration(t-u) * time.Microsecond }

// String returns t as a decimal integer, the form which every command of
// percctl takes and [ParseTimestamp] reads.
func (t Timestamp) String() string { return strconv.FormatInt(int64(t), 10) }

// ParseTimestamp reads a timestamp written as a decimal integer (microseconds
// since the Unix epoch, as [Timestamp.String] prints it) or as an RFC 3339
// time such as 2026-11-20T05:30:00.25Z.
//
// It fails for anything else, and for values below 0 or above [Max]; the error
// names the input and what is accepted.
func ParseTimestamp(s string) (Timestamp, error) {
	const accepted = "want microseconds since 1970 as a decimal integer (1795152600000000) or an RFC 3339 time (2026-11-20T05:30:00Z)"
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		t := Timestamp(v)
		switch {
		case t < 0:
			return 0, fmt.Errorf("tso: timestamp %q is negative: %s", s, accepted)
		case FromCell(bigtable.Timestamp(v)) >= Min:
			return 0, fmt.Errorf("tso: timestamp %q is above the largest one, %d (as a Bigtable cell timestamp it would be %d): %s",
				s, Max, FromCell(bigtable.Timestamp(v)), accepted)
		case t > Max:
			return 0, fmt.Errorf("tso: timestamp %q is above the largest one, %d: %s", s, Max, accepted)
		}
		return t, nil
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, fmt.Errorf("tso: timestamp %q is not valid: %s", s, accepted)
	}
	if v.Before(time.Unix(0, 0)) || v.After(Max.Time()) {
		return 0, fmt.Errorf("tso: timestamp %q is out of range, from %s to %s: %s", s,
			Timestamp(0).Time().Format(time.RFC3339), Max.Time().Format(time.RFC3339), accepted)
	}
	return FromTime(v), nil
}
