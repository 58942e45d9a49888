package cli

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

// Text returns a stored value as it may be shown on a terminal: printable text
// as it is, anything else, and what looks like a quoted value, quoted
// as in Go.
func Text(value []byte) string {
	if len(value) == 0 || !utf8.Valid(value) || value[0] == '"' || value[0] == ' ' || value[len(value)-1] == ' ' || bytes.ContainsFunc(value, unprintable) {
		return strconv.Quote(string(value))
	}
	return string(value)
}

// Line returns a message with what is not printable in it escaped, so that
// nothing stored can steer a terminal.
func Line(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if (r == utf8.RuneError && n <= 1) || unprintable(r) {
			b.WriteString(strings.Trim(strconv.Quote(s[:n]), `"`))
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Shorten cuts a text for people; machines get all of it.
func Shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// How percctl writes timestamps and durations: see package words.
var (
	Time     = words.Time
	Stamp    = words.Stamp
	Between  = words.Between
	Duration = words.Duration
	Seconds  = words.Seconds
)

// Count is a number of things: 1 lock, 2 locks.
func Count[N int | int64](n N, thing string) string { return words.Count(n, thing) }

// Number is a timestamp for CSV; empty for none.
func Number(ts tso.Timestamp) string {
	if ts == 0 {
		return ""
	}
	return ts.String()
}

// Fixed is a number with so many decimals.
func Fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
