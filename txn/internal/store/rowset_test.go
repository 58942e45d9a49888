package store

import (
	"errors"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn/format"
)

var compareSets = cmp.AllowUnexported(RowSet{}, KeyRange{})

// TestRowRangeBounds covers every constructor of bigtable.RowRange. It fails if a version of
// the Bigtable client prints ranges differently.
func TestRowRangeBounds(t *testing.T) {
	odd := "a\"b\\c\x00\xff∞],)"
	for _, tt := range []struct {
		in   bigtable.RowRange
		want KeyRange
	}{
		{bigtable.NewRange("a", "b"), KeyRange{"a", "b"}},
		{bigtable.NewClosedOpenRange("a", "b"), KeyRange{"a", "b"}},
		{bigtable.NewOpenClosedRange("a", "b"), KeyRange{"a\x00", "b\x00"}},
		{bigtable.NewOpenRange("a", "b"), KeyRange{"a\x00", "b"}},
		{bigtable.NewClosedRange("a", "b"), KeyRange{"a", "b\x00"}},
		{bigtable.PrefixRange("a"), KeyRange{"a", "b"}},
		{bigtable.PrefixRange("a\xff"), KeyRange{"a\xff", "b"}},
		{bigtable.PrefixRange("\xff"), KeyRange{"\xff", ""}},
		{bigtable.PrefixRange(""), KeyRange{"", ""}},
		{bigtable.InfiniteRange("a"), KeyRange{"a", ""}},
		{bigtable.InfiniteRange(""), KeyRange{"", ""}},
		{bigtable.InfiniteReverseRange("b"), KeyRange{"", "b\x00"}},
		{bigtable.NewOpenRange("", "b"), KeyRange{"", "b"}},
		{bigtable.NewOpenRange("a", ""), KeyRange{"a\x00", ""}},
		{bigtable.NewClosedRange(odd, odd), KeyRange{odd, odd + "\x00"}},
		{bigtable.NewOpenRange(odd, odd+odd), KeyRange{odd + "\x00", odd + odd}},
	} {
		got, err := newKeyRange(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("%v: %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	if got, err := newKeyRange(bigtable.RowRange{}); err != nil || got != (KeyRange{}) {
		t.Errorf("zero range: %q, %v", got, err)
	}
}

func TestRowSet(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   bigtable.RowSet
		want RowSet
	}{
		{"nil is everything", nil, RowSet{Ranges: []KeyRange{{}}}},
		{"list is sorted and without duplicates", bigtable.RowList{"b", "a", "b"}, RowSet{Keys: []string{"a", "b"}}},
		{"empty list is empty", bigtable.RowList{}, RowSet{Keys: []string{}}},
		{"nil list is empty", bigtable.RowList(nil), RowSet{Keys: []string{}}},
		{"single row", bigtable.SingleRow("a"), RowSet{Keys: []string{"a"}}},
		{
			"ranges are sorted and merged",
			bigtable.RowRangeList{bigtable.NewRange("m", "p"), bigtable.NewRange("a", "c"), bigtable.NewRange("b", "d"), bigtable.NewRange("d", "e"), bigtable.NewRange("z", "y"), bigtable.NewRange("z", "z")},
			RowSet{Ranges: []KeyRange{{"a", "e"}, {"m", "p"}}},
		},
		{"an endless range swallows", bigtable.RowRangeList{bigtable.InfiniteRange("b"), bigtable.NewRange("c", "d"), bigtable.NewRange("a", "b")}, RowSet{Ranges: []KeyRange{{"a", ""}}}},
		{"a range inside another", bigtable.RowRangeList{bigtable.NewRange("a", "z"), bigtable.NewRange("b", "c")}, RowSet{Ranges: []KeyRange{{"a", "z"}}}},
	} {
		got, err := NewRowSet(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(tt.want, got, compareSets); d != "" && (len(got.Ranges) > 0 || len(tt.want.Ranges) > 0 || d != "") {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	if _, err := NewRowSet(bigtable.RowList{""}); !errors.Is(err, format.ErrInvalid) {
		t.Errorf("empty key: %v", err)
	}
}

func TestRowSetBeyond(t *testing.T) {
	ranges := RowSet{Ranges: []KeyRange{{"a", "e"}, {"m", ""}}}
	keys := RowSet{Keys: []string{"a", "b", "c"}}
	for _, tt := range []struct {
		set     RowSet
		key     string
		reverse bool
		want    RowSet
	}{
		{ranges, "b", false, RowSet{Ranges: []KeyRange{{"b\x00", "e"}, {"m", ""}}}},
		{ranges, "f", false, RowSet{Ranges: []KeyRange{{"m", ""}}}},
		{RowSet{Ranges: []KeyRange{{"a", "b\x00"}}}, "b", false, RowSet{}},
		{ranges, "n", true, RowSet{Ranges: []KeyRange{{"a", "e"}, {"m", "n"}}}},
		{ranges, "m", true, RowSet{Ranges: []KeyRange{{"a", "e"}}}},
		{ranges, "a", true, RowSet{}},
		{keys, "b", false, RowSet{Keys: []string{"c"}}},
		{keys, "b", true, RowSet{Keys: []string{"a"}}},
		{keys, "c", false, RowSet{Keys: []string{}}},
	} {
		got := tt.set.AfterKey(tt.key, tt.reverse)
		if d := cmp.Diff(tt.want, got, compareSets); d != "" {
			t.Errorf("beyond %q, reverse %v (-want +got):\n%s", tt.key, tt.reverse, d)
		}
		if got.Contains(tt.key) {
			t.Errorf("beyond %q still contains it", tt.key)
		}
	}
}

// TestKeyBefore: a collection stores a key below the rows that are left as its position. No row
// of them may be at or below it.
func TestKeyBefore(t *testing.T) {
	for first, want := range map[string]string{"": "", "a": "`\xff\xff\xff\xff", "ab": "aa\xff\xff\xff\xff", "a\x00": "a", "\x00": ""} {
		got := AllAfter(first).Before()
		if first != "" {
			got = RowSet{Ranges: []KeyRange{{Start: first}}}.Before()
		}
		if got != want || (first != "" && got >= first) {
			t.Errorf("before %q is %q, want %q", first, got, want)
		}
		if rest := AllAfter(got); !rest.Contains(max(first, "\x00")) {
			t.Errorf("%q is not after %q", first, got)
		}
	}
}
