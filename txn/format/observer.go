package format

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckObserver bounds ids to what can stand in a qualifier, a flag and a
// metric.
func CheckObserver(id string) error {
	bad := func(r rune) bool {
		return r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}
	switch {
	case id == "":
		return Invalidf("empty observer id")
	case len(id) > 100:
		return Invalidf("observer id of %d bytes; 100 are allowed", len(id))
	case !utf8.ValidString(id) || strings.ContainsFunc(id, bad):
		return Invalidf("observer id %q; it may not hold spaces, slashes, colons, percent signs or what cannot be printed", id)
	}
	return nil
}
