package txn

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkObserver bounds ids to what can stand in a qualifier, a flag and a
// metric.
func checkObserver(id string) error {
	bad := func(r rune) bool {
		return r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}
	switch {
	case id == "":
		return invalid("empty observer id")
	case len(id) > 100:
		return invalid("observer id of %d bytes; 100 are allowed", len(id))
	case !utf8.ValidString(id) || strings.ContainsFunc(id, bad):
		return invalid("observer id %q; it may not hold spaces, slashes, colons, percent signs or what cannot be printed", id)
	}
	return nil
}
