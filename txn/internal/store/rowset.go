package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// A RowSet is a bigtable.RowSet that a scan can cut: either a list of keys, or a list of
// half-open ranges. Both are ascending and do not overlap.
type RowSet struct {
	Keys   []string // nil: Ranges count
	Ranges []KeyRange
}

// A KeyRange is [Start, End). An empty End means no bound.
type KeyRange struct {
	Start, End string
}

func (r KeyRange) contains(key string) bool { return key >= r.Start && (r.End == "" || key < r.End) }

func (r KeyRange) empty() bool { return r.End != "" && r.Start >= r.End }

// Without returns the parts of ranges that are not in done.
func Without(ranges, done []KeyRange) []KeyRange {
	for _, d := range done {
		var rest []KeyRange
		for _, r := range ranges {
			if d.End != "" && d.End <= r.Start || r.End != "" && r.End <= d.Start {
				rest = append(rest, r)
				continue
			}
			if r.Start < d.Start {
				rest = append(rest, KeyRange{Start: r.Start, End: d.Start})
			}
			if d.End != "" && (r.End == "" || d.End < r.End) {
				rest = append(rest, KeyRange{Start: d.End, End: r.End})
			}
		}
		ranges = rest
	}
	return ranges
}

// NewRowSet returns the set of rows that rs names; nil names all rows. It fails with
// format.ErrInvalid or format.ErrLimit if rs has another type than bigtable's lists and
// ranges, or if Bigtable does not allow one of the keys.
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
		// An empty list of keys is not nil: nil means ranges.
		return RowSet{Keys: append([]string{}, slices.Compact(keys)...)}, nil
	case bigtable.RowRange:
		return newRangeSet(bigtable.RowRangeList{rs})
	case bigtable.RowRangeList:
		return newRangeSet(rs)
	}
	return RowSet{}, format.Invalidf("row set of type %T; use bigtable.RowList, bigtable.RowRange or bigtable.RowRangeList", rs)
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

// newKeyRange reads the bounds of a RowRange from its String method; no other method shows
// them. It makes the same RowRange again to prove that it read the bounds right.
func newKeyRange(rr bigtable.RowRange) (KeyRange, error) {
	text := rr.String() // for example ["a","b"), ("a",∞) or (∞,"b"]
	open, closed := strings.HasPrefix(text, "("), strings.HasSuffix(text, "]")
	start, rest := unquote(strings.TrimLeft(text, "[("))
	_, rest, _ = strings.Cut(rest, ",")
	end, _ := unquote(rest)
	var same bigtable.RowRange
	switch {
	case open && closed:
		same = bigtable.NewOpenClosedRange(start, end)
	case open:
		same = bigtable.NewOpenRange(start, end)
	case closed:
		same = bigtable.NewClosedRange(start, end)
	default:
		same = bigtable.NewClosedOpenRange(start, end)
	}
	if rr != same {
		return KeyRange{}, fmt.Errorf("percolator: the bounds of the row range %v were read as %v; this version of cloud.google.com/go/bigtable prints ranges differently", rr, same)
	}
	return KeyRange{after(start, open), after(end, closed)}, nil
}

// unquote reads the quoted text at the beginning of text; it is empty if there is none.
func unquote(text string) (value, rest string) {
	quoted, _ := strconv.QuotedPrefix(text)
	value, _ = strconv.Unquote(quoted)
	return value, text[len(quoted):]
}

// after returns the next key after key if key itself is excluded, and otherwise key.
func after(key string, excluded bool) string {
	if excluded && key != "" {
		return key + "\x00"
	}
	return key
}

// AllAfter returns all rows after key; an empty key is before all rows.
func AllAfter(key string) RowSet {
	return RowSet{Ranges: []KeyRange{{Start: after(key, true)}}}
}

// Before returns a key below the first row of the set's ranges, close to it; it is empty if there
// is none.
func (s RowSet) Before() string {
	if len(s.Ranges) == 0 {
		return ""
	}
	key := s.Ranges[0].Start
	switch n := len(key) - 1; {
	case n < 0:
		return ""
	case key[n] == 0:
		return key[:n]
	default:
		return key[:n] + string([]byte{key[n] - 1, 0xff, 0xff, 0xff, 0xff})
	}
}

// Empty reports whether the set has no rows.
func (s RowSet) Empty() bool { return len(s.Keys) == 0 && len(s.Ranges) == 0 }

// Contains reports whether the set contains the row.
func (s RowSet) Contains(key string) bool {
	if s.Keys != nil {
		_, ok := slices.BinarySearch(s.Keys, key)
		return ok
	}
	return slices.ContainsFunc(s.Ranges, func(r KeyRange) bool { return r.contains(key) })
}

// Request returns the rows that the next request of a scan asks for: as many of the keys or
// ranges as one request may name. Keys in reverse are ranges of one row. If a reverse read of a
// bigtable.RowList fails before its first row, Bigtable's client drops all keys from the list when it
// tries again, and reports success.
func (s RowSet) Request(reverse bool) bigtable.RowSet {
	// A key or a range has sixteen bytes around it in the request.
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
	if reverse {
		var list bigtable.RowRangeList
		for n < len(s.Keys) && bytes < format.MaxRowListBytes && n < MaxPageRows {
			n++
			key := s.Keys[len(s.Keys)-n]
			bytes += 2*len(key) + 32
			list = append(list, bigtable.NewRange(key, key+"\x00"))
		}
		return list
	}
	for n < len(s.Keys) && bytes < format.MaxRowListBytes && n < MaxPageRows {
		bytes += len(s.Keys[n]) + 16
		n++
	}
	return bigtable.RowList(s.Keys[:n])
}

func (s RowSet) rangeAt(i int, reverse bool) KeyRange {
	if reverse {
		return s.Ranges[len(s.Ranges)-1-i]
	}
	return s.Ranges[i]
}

// AfterRequest returns the rows that are left when a request of this set was answered
// completely.
func (s RowSet) AfterRequest(request bigtable.RowSet, reverse bool) RowSet {
	switch list := request.(type) {
	case bigtable.RowList:
		return RowSet{Keys: s.Keys[len(list):]}
	case bigtable.RowRangeList:
		if s.Keys != nil {
			return RowSet{Keys: s.Keys[:len(s.Keys)-len(list)]}
		}
		if reverse {
			return RowSet{Ranges: s.Ranges[:len(s.Ranges)-len(list)]}
		}
		return RowSet{Ranges: s.Ranges[len(list):]}
	}
	return RowSet{}
}

// AfterKey returns the rows that are left after key, in the direction of the scan.
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

// join returns the rows of s and of later, which come after them in the direction of the scan.
func (s RowSet) join(later RowSet, reverse bool) RowSet {
	switch {
	case len(later.Ranges) == 0:
		return s
	case reverse:
		return RowSet{Ranges: slices.Concat(later.Ranges, s.Ranges)}
	}
	return RowSet{Ranges: slices.Concat(s.Ranges, later.Ranges)}
}

// less reports whether s, which begins with the same row as the range set other, has fewer
// rows.
func (s RowSet) less(other RowSet, reverse bool) bool {
	a, b := s.rangeAt(len(s.Ranges)-1, reverse), other.rangeAt(len(other.Ranges)-1, reverse)
	if reverse {
		return a.Start > b.Start
	}
	return a.End != "" && (b.End == "" || a.End < b.End)
}
