package txn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"
)

// rowSet is a bigtable.RowSet in a form that a scan can cut: either a list of
// keys or a list of half-open ranges, both ascending and without overlaps.
type rowSet struct {
	keys   []string
	ranges []keyRange
}

// keyRange is [start, end); an empty end is unbounded.
type keyRange struct {
	start, end string
}

func (r keyRange) contains(key string) bool { return key >= r.start && (r.end == "" || key < r.end) }

func (r keyRange) empty() bool { return r.end != "" && r.start >= r.end }

func newRowSet(rs bigtable.RowSet) (rowSet, error) {
	switch rs := rs.(type) {
	case nil:
		return rowSet{ranges: []keyRange{{}}}, nil
	case bigtable.RowList:
		keys := slices.Clone(rs)
		for _, k := range keys {
			if err := checkRowKey(k); err != nil {
				return rowSet{}, err
			}
		}
		slices.Sort(keys)
		// Never nil: nil keys mean ranges.
		return rowSet{keys: append([]string{}, slices.Compact(keys)...)}, nil
	case bigtable.RowRange:
		return newRangeSet(bigtable.RowRangeList{rs})
	case bigtable.RowRangeList:
		return newRangeSet(rs)
	}
	return rowSet{}, invalid("row set of type %T; use bigtable.RowList, RowRange or RowRangeList", rs)
}

func newRangeSet(list bigtable.RowRangeList) (rowSet, error) {
	var s rowSet
	for _, rr := range list {
		r, err := newKeyRange(rr)
		if err != nil {
			return s, err
		}
		if !r.empty() {
			s.ranges = append(s.ranges, r)
		}
	}
	slices.SortFunc(s.ranges, func(a, b keyRange) int { return strings.Compare(a.start, b.start) })
	merged := s.ranges[:0]
	for _, r := range s.ranges {
		if n := len(merged); n > 0 && (merged[n-1].end == "" || r.start <= merged[n-1].end) {
			if merged[n-1].end != "" && (r.end == "" || r.end > merged[n-1].end) {
				merged[n-1].end = r.end
			}
			continue
		}
		merged = append(merged, r)
	}
	s.ranges = merged
	return s, nil
}

// newKeyRange reads the bounds of a RowRange from its String, the one place
// where it shows them, and proves that it read them right by making the same
// RowRange again.
func newKeyRange(rr bigtable.RowRange) (keyRange, error) {
	fail := func() (keyRange, error) {
		return keyRange{}, fmt.Errorf("txn: the bounds of the row range %v cannot be read; this version of cloud.google.com/go/bigtable prints ranges differently", rr)
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
		return keyRange{"", after(end, closed)}, sameRange(rr, again)
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
	return keyRange{after(start, open), after(end, closed)}, sameRange(rr, again)
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

func (s rowSet) empty() bool { return len(s.keys) == 0 && len(s.ranges) == 0 }

func (s rowSet) contains(key string) bool {
	if s.keys != nil {
		_, ok := slices.BinarySearch(s.keys, key)
		return ok
	}
	return slices.ContainsFunc(s.ranges, func(r keyRange) bool { return r.contains(key) })
}

// request is what the next request of a scan asks for: as many of the keys or
// ranges that are left as one request may name.
func (s rowSet) request(reverse bool) bigtable.RowSet {
	// Sixteen bytes for what surrounds a key or a range.
	n, bytes := 0, 0
	if s.keys == nil {
		var list bigtable.RowRangeList
		for n < len(s.ranges) && bytes < maxRowListBytes {
			r := s.rangeAt(n, reverse)
			bytes += len(r.start) + len(r.end) + 16
			list = append(list, bigtable.NewRange(r.start, r.end))
			n++
		}
		return list
	}
	for n < len(s.keys) && bytes < maxRowListBytes && n < maxPageRows {
		bytes += len(s.at(n, reverse)) + 16
		n++
	}
	if reverse {
		return bigtable.RowList(s.keys[len(s.keys)-n:])
	}
	return bigtable.RowList(s.keys[:n])
}

func (s rowSet) rangeAt(i int, reverse bool) keyRange {
	if reverse {
		return s.ranges[len(s.ranges)-1-i]
	}
	return s.ranges[i]
}

// answered returns what is left when a request of this set was answered to its
// end.
func (s rowSet) answered(request bigtable.RowSet, reverse bool) rowSet {
	switch list := request.(type) {
	case bigtable.RowList:
		if reverse {
			return rowSet{keys: s.keys[:len(s.keys)-len(list)]}
		}
		return rowSet{keys: s.keys[len(list):]}
	case bigtable.RowRangeList:
		if reverse {
			return rowSet{ranges: s.ranges[:len(s.ranges)-len(list)]}
		}
		return rowSet{ranges: s.ranges[len(list):]}
	}
	return rowSet{}
}

func (s rowSet) at(i int, reverse bool) string {
	if reverse {
		return s.keys[len(s.keys)-1-i]
	}
	return s.keys[i]
}

// beyond returns what is left behind key in the direction of the scan.
func (s rowSet) beyond(key string, reverse bool) rowSet {
	if s.keys != nil {
		i, found := slices.BinarySearch(s.keys, key)
		if reverse {
			return rowSet{keys: s.keys[:i]}
		}
		if found {
			i++
		}
		return rowSet{keys: s.keys[i:]}
	}
	var rest []keyRange
	for _, r := range s.ranges {
		switch {
		case reverse && r.start < key:
			if r.end == "" || r.end > key {
				r.end = key
			}
			rest = append(rest, r)
		case !reverse && (r.end == "" || r.end > key+"\x00"):
			r.start = max(r.start, key+"\x00")
			rest = append(rest, r)
		}
	}
	return rowSet{ranges: rest}
}
