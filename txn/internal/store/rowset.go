package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// RowSet is a bigtable.RowSet in a form that a scan can cut: either a list of
// keys or a list of half-open ranges, both ascending and without overlaps.
type RowSet struct {
	Keys   []string
	Ranges []KeyRange
}

// KeyRange is [start, end); an empty end is unbounded.
type KeyRange struct {
	Start, End string
}

func (r KeyRange) contains(key string) bool { return key >= r.Start && (r.End == "" || key < r.End) }

func (r KeyRange) empty() bool { return r.End != "" && r.Start >= r.End }

func NewRowSet(rs bigtable.RowSet) (RowSet, error) {
	switch rs := rs.(type) {
	case nil:
		return RowSet{Ranges: []KeyRange{{}}}, nil
	case bigtable.RowList:
		keys := slices.Clone(rs)
		for _, k := range keys {
			if err := format.CheckRowKey(k); err != nil {
				return RowSet{}, err
			}
		}
		slices.Sort(keys)
		// Never nil: nil keys mean ranges.
		return RowSet{Keys: append([]string{}, slices.Compact(keys)...)}, nil
	case bigtable.RowRange:
		return newRangeSet(bigtable.RowRangeList{rs})
	case bigtable.RowRangeList:
		return newRangeSet(rs)
	}
	return RowSet{}, format.Invalidf("row set of type %T; use bigtable.RowList, RowRange or RowRangeList", rs)
}

func newRangeSet(list bigtable.RowRangeList) (RowSet, error) {
	var s RowSet
	for _, rr := range list {
		r, err := newKeyRange(rr)
		if err != nil {
			return s, err
		}
		if !r.empty() {
			s.Ranges = append(s.Ranges, r)
		}
	}
	slices.SortFunc(s.Ranges, func(a, b KeyRange) int { return strings.Compare(a.Start, b.Start) })
	merged := s.Ranges[:0]
	for _, r := range s.Ranges {
		if n := len(merged); n > 0 && (merged[n-1].End == "" || r.Start <= merged[n-1].End) {
			if merged[n-1].End != "" && (r.End == "" || r.End > merged[n-1].End) {
				merged[n-1].End = r.End
			}
			continue
		}
		merged = append(merged, r)
	}
	s.Ranges = merged
	return s, nil
}

// newKeyRange reads the bounds of a RowRange from its String, the one place
// where it shows them, and proves that it read them right by making the same
// RowRange again.
func newKeyRange(rr bigtable.RowRange) (KeyRange, error) {
	fail := func() (KeyRange, error) {
		return KeyRange{}, fmt.Errorf("txn: the bounds of the row range %v cannot be read; this version of cloud.google.com/go/bigtable prints ranges differently", rr)
	}
	text := rr.String()
	if strings.HasPrefix(text, "(∞") {
		text = text[len("(∞"):]
		end, closed, ok := readEnd(text)
		if !ok {
			return fail()
		}
		again := bigtable.NewOpenRange("", end)
		if closed {
			again = bigtable.InfiniteReverseRange(end)
		}
		return KeyRange{"", after(end, closed)}, sameRange(rr, again)
	}
	if text == "" {
		return fail()
	}
	open := text[0] == '('
	quoted, err := strconv.QuotedPrefix(text[1:])
	if err != nil {
		return fail()
	}
	start, err := strconv.Unquote(quoted)
	if err != nil {
		return fail()
	}
	end, closed, ok := readEnd(text[1+len(quoted):])
	if !ok {
		return fail()
	}
	var again bigtable.RowRange
	switch {
	case open && closed:
		again = bigtable.NewOpenClosedRange(start, end)
	case open:
		again = bigtable.NewOpenRange(start, end)
	case closed:
		again = bigtable.NewClosedRange(start, end)
	default:
		again = bigtable.NewClosedOpenRange(start, end)
	}
	return KeyRange{after(start, open), after(end, closed)}, sameRange(rr, again)
}

// readEnd reads `,"end")`, `,"end"]` or `,∞)`.
func readEnd(text string) (end string, closed, ok bool) {
	if text == ",∞)" {
		return "", false, true
	}
	if !strings.HasPrefix(text, ",") {
		return "", false, false
	}
	quoted, err := strconv.QuotedPrefix(text[1:])
	if err != nil {
		return "", false, false
	}
	if end, err = strconv.Unquote(quoted); err != nil {
		return "", false, false
	}
	switch text[1+len(quoted):] {
	case ")":
		return end, false, true
	case "]":
		return end, true, true
	}
	return "", false, false
}

func sameRange(a, b bigtable.RowRange) error {
	if a != b {
		return fmt.Errorf("txn: the bounds of the row range %v were read as %v", a, b)
	}
	return nil
}

// after returns the first key behind key if it is excluded, else key itself.
func after(key string, excluded bool) string {
	if excluded && key != "" {
		return key + "\x00"
	}
	return key
}

func (s RowSet) Empty() bool { return len(s.Keys) == 0 && len(s.Ranges) == 0 }

func (s RowSet) Contains(key string) bool {
	if s.Keys != nil {
		_, ok := slices.BinarySearch(s.Keys, key)
		return ok
	}
	return slices.ContainsFunc(s.Ranges, func(r KeyRange) bool { return r.contains(key) })
}

// Request is what the next request of a scan asks for: as many of the keys or
// ranges that are left as one request may name.
func (s RowSet) Request(reverse bool) bigtable.RowSet {
	// Sixteen bytes for what surrounds a key or a range.
	n, bytes := 0, 0
	if s.Keys == nil {
		var list bigtable.RowRangeList
		for n < len(s.Ranges) && bytes < format.MaxRowListBytes {
			r := s.rangeAt(n, reverse)
			bytes += len(r.Start) + len(r.End) + 16
			list = append(list, bigtable.NewRange(r.Start, r.End))
			n++
		}
		return list
	}
	for n < len(s.Keys) && bytes < format.MaxRowListBytes && n < MaxPageRows {
		bytes += len(s.keyAt(n, reverse)) + 16
		n++
	}
	if reverse {
		return bigtable.RowList(s.Keys[len(s.Keys)-n:])
	}
	return bigtable.RowList(s.Keys[:n])
}

func (s RowSet) rangeAt(i int, reverse bool) KeyRange {
	if reverse {
		return s.Ranges[len(s.Ranges)-1-i]
	}
	return s.Ranges[i]
}

// AfterRequest returns what is left when a request of this set was answered to its
// end.
func (s RowSet) AfterRequest(request bigtable.RowSet, reverse bool) RowSet {
	switch list := request.(type) {
	case bigtable.RowList:
		if reverse {
			return RowSet{Keys: s.Keys[:len(s.Keys)-len(list)]}
		}
		return RowSet{Keys: s.Keys[len(list):]}
	case bigtable.RowRangeList:
		if reverse {
			return RowSet{Ranges: s.Ranges[:len(s.Ranges)-len(list)]}
		}
		return RowSet{Ranges: s.Ranges[len(list):]}
	}
	return RowSet{}
}

func (s RowSet) keyAt(i int, reverse bool) string {
	if reverse {
		return s.Keys[len(s.Keys)-1-i]
	}
	return s.Keys[i]
}

// AfterKey returns what is left behind key in the direction of the scan.
func (s RowSet) AfterKey(key string, reverse bool) RowSet {
	if s.Keys != nil {
		i, found := slices.BinarySearch(s.Keys, key)
		if reverse {
			return RowSet{Keys: s.Keys[:i]}
		}
		if found {
			i++
		}
		return RowSet{Keys: s.Keys[i:]}
	}
	var rest []KeyRange
	for _, r := range s.Ranges {
		switch {
		case reverse && r.Start < key:
			if r.End == "" || r.End > key {
				r.End = key
			}
			rest = append(rest, r)
		case !reverse && (r.End == "" || r.End > key+"\x00"):
			r.Start = max(r.Start, key+"\x00")
			rest = append(rest, r)
		}
	}
	return RowSet{Ranges: rest}
}
