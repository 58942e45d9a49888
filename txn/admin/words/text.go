package words

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
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
