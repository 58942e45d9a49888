package format

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckObserver returns an error that matches [ErrInvalid] if id is not fit to be an
// observer's id. The id is a part of qualifiers, flags and metrics, so it has 1 to 100
// bytes of printable UTF-8 without spaces, slashes, colons and percent signs.
func CheckObserver(id string) error {
	forbidden := func(r rune) bool {
		return r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}
	switch {
	case id == "":
		return Invalidf("empty observer id")
	case len(id) > maxObserverID:
		return Invalidf("observer id of %d bytes; %d are allowed", len(id), maxObserverID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, forbidden):
		return Invalidf("observer id %q; it may not hold spaces, slashes, colons, percent signs or unprintable characters", id)
	}
	return nil
}
