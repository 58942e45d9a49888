package cli

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/percolator-bigtable/percolator/tso"
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

// Time is a timestamp as RFC 3339, to the microsecond; empty for none.
func Time(ts tso.Timestamp) string {
	if ts == 0 {
		return ""
	}
	return ts.Time().Format("2006-01-02T15:04:05.000000Z07:00")
}

// Stamp is a timestamp for people: the integer that commands take, and the
// time.
func Stamp(ts tso.Timestamp) string { return fmt.Sprintf("%d (%s)", ts, Time(ts)) }

// Duration is a duration for people, as exact as they need it.
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

// Count is a number of things: 1 lock, 2 locks.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Fixed is a number with so many decimals.
func Fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
