package format

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestLimits: each limit allows exactly what its comment says.
func TestLimits(t *testing.T) {
	x := strings.Repeat
	cell := Cell{"t", "r", "f", "q"}
	with := func(change func(*Cell)) Cell {
		c := cell
		change(&c)
		return c
	}
	for name, tt := range map[string]struct {
		err, want error
	}{
		"cell":                     {CheckCell(cell), nil},
		"no table":                 {CheckCell(with(func(c *Cell) { c.Table = "" })), ErrInvalid},
		"no row":                   {CheckCell(with(func(c *Cell) { c.Row = "" })), ErrInvalid},
		"longest row":              {CheckRowKey(x("r", 4096)), nil},
		"longer row":               {CheckCell(with(func(c *Cell) { c.Row = x("r", 4097) })), ErrLimit},
		"no family":                {CheckCell(with(func(c *Cell) { c.Family = "" })), ErrInvalid},
		"family that is not UTF-8": {CheckCell(with(func(c *Cell) { c.Family = "\xff" })), ErrInvalid},
		"family of locks":          {CheckStoredCell(with(func(c *Cell) { c.Family = LockFamily })), ErrInvalid},
		"stored acknowledgment":    {CheckStoredCell(with(func(c *Cell) { c.Family = AckFamily })), nil},
		"own acknowledgment":       {CheckCell(with(func(c *Cell) { c.Family = AckFamily })), ErrInvalid},
		"no qualifier":             {CheckColumn(Column{"f", ""}), nil},
		"longest column":           {CheckColumn(Column{"fam", x("q", MaxColumnKey-4)}), nil},
		"longer column":            {CheckColumn(Column{"fam", x("q", MaxColumnKey-3)}), ErrLimit},
		"longest value":            {CheckValue(cell, make([]byte, 100<<20)), nil},
		"longer value":             {CheckValue(cell, make([]byte, 100<<20+1)), ErrLimit},
		"observer":                 {CheckObserver("é-1"), nil},
		"longest observer":         {CheckObserver(x("o", 100)), nil},
		"longer observer":          {CheckObserver(x("o", 101)), ErrInvalid},
		"no observer":              {CheckObserver(""), ErrInvalid},
		"slash in an observer":     {CheckObserver("a/b"), ErrInvalid},
		"colon in an observer":     {CheckObserver("a:b"), ErrInvalid},
		"percent in an observer":   {CheckObserver("a%b"), ErrInvalid},
		"space in an observer":     {CheckObserver("a b"), ErrInvalid},
		"control in an observer":   {CheckObserver("a\x01b"), ErrInvalid},
		"observer not UTF-8":       {CheckObserver("\xff"), ErrInvalid},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", name, tt.err, tt.want)
		}
	}
}

// TestErrorTexts: failures and dead letters keep at most 2,000 bytes of an error.
func TestErrorTexts(t *testing.T) {
	x := strings.Repeat
	for in, want := range map[string]string{
		x("a", 2000):       x("a", 2000),
		x("a", 2001):       x("a", 2000) + "…",
		x("a", 1999) + "é": x("a", 1999) + "…", // not half a character
		"a\xffb":           "a\uFFFDb",
	} {
		if got := ClipErrorText(in); got != want {
			t.Errorf("%d bytes became %d: …%q", len(in), len(got), got[len(got)-4:])
		}
	}
}

// TestLockExpires: a lock lives for its ttl, to the microsecond. One with a ttl that no client
// writes counts as expired, if the time is known.
func TestLockExpires(t *testing.T) {
	const start = 1_800_000_000_000_000
	l := Lock{StartTS: start, TTL: 10 * time.Second}
	for now, want := range map[tso.Timestamp]bool{start + 10e6 - 1: false, start + 10e6: true, start + 10e6 + 1: true} {
		if l.Expired(now) != want {
			t.Errorf("%d µs after its start, the lock has expired: %t", now-start, !want)
		}
	}
	l.TTL = 2*MaxLockTTL + time.Hour
	end := l.ExpiresTS()
	two := tso.Timestamp(2 * 24 * time.Hour / time.Microsecond)
	for now, want := range map[tso.Timestamp]bool{0: false, 1: true, end - two - 1: true, end - two: false} {
		if l.Endless(now) != want || now > 0 && l.Expired(now) != want {
			t.Errorf("%d µs before its end, the lock is endless: %t, expired: %t", end-now, l.Endless(now), l.Expired(now))
		}
	}
	for n, want := range map[int64]time.Duration{-1: 0, 0: 0, 1: time.Microsecond, 1 << 62: 9223372036854775 * time.Microsecond} {
		if got := Micros(n); got != want {
			t.Errorf("%d µs are %d ns", n, got)
		}
	}
}
