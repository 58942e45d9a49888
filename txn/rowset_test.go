package txn

import (
	"errors"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
)

var compareSets = cmp.AllowUnexported(rowSet{}, keyRange{})

// TestRowRangeBounds covers every constructor of bigtable.RowRange: a version
// of the Bigtable client that prints ranges differently fails here.
func TestRowRangeBounds(t *testing.T) {
	odd := "a\"b\\c\x00\xff∞],)"
	for _, tt := range []struct {
		in   bigtable.RowRange
		want keyRange
	}{
		{bigtable.NewRange("a", "b"), keyRange{"a", "b"}},
		{bigtable.NewClosedOpenRange("a", "b"), keyRange{"a", "b"}},
		{bigtable.NewOpenClosedRange("a", "b"), keyRange{"a\x00", "b\x00"}},
		{bigtable.NewOpenRange("a", "b"), keyRange{"a\x00", "b"}},
		{bigtable.NewClosedRange("a", "b"), keyRange{"a", "b\x00"}},
		{bigtable.PrefixRange("a"), keyRange{"a", "b"}},
		{bigtable.PrefixRange("a\xff"), keyRange{"a\xff", "b"}},
		{bigtable.PrefixRange("\xff"), keyRange{"\xff", ""}},
		{bigtable.PrefixRange(""), keyRange{"", ""}},
		{bigtable.InfiniteRange("a"), keyRange{"a", ""}},
		{bigtable.InfiniteRange(""), keyRange{"", ""}},
		{bigtable.InfiniteReverseRange("b"), keyRange{"", "b\x00"}},
		{bigtable.NewOpenRange("", "b"), keyRange{"", "b"}},
		{bigtable.NewOpenRange("a", ""), keyRange{"a\x00", ""}},
		{bigtable.NewClosedRange(odd, odd), keyRange{odd, odd + "\x00"}},
		{bigtable.NewOpenRange(odd, odd+odd), keyRange{odd + "\x00", odd + odd}},
	} {
		got, err := newKeyRange(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("%v: %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	if got, err := newKeyRange(bigtable.RowRange{}); err != nil || got != (keyRange{}) {
		t.Errorf("zero range: %q, %v", got, err)
	}
}

func TestRowSet(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   bigtable.RowSet
		want rowSet
	}{
		{"nil is everything", nil, rowSet{ranges: []keyRange{{}}}},
		{"list is sorted and without duplicates", bigtable.RowList{"b", "a", "b"}, rowSet{keys: []string{"a", "b"}}},
		{"empty list is empty", bigtable.RowList{}, rowSet{keys: []string{}}},
		{"nil list is empty", bigtable.RowList(nil), rowSet{keys: []string{}}},
		{"single row", bigtable.SingleRow("a"), rowSet{keys: []string{"a"}}},
		{
			"ranges are sorted and merged",
			bigtable.RowRangeList{bigtable.NewRange("m", "p"), bigtable.NewRange("a", "c"), bigtable.NewRange("b", "d"), bigtable.NewRange("d", "e"), bigtable.NewRange("z", "y")},
			rowSet{ranges: []keyRange{{"a", "e"}, {"m", "p"}}},
		},
		{"an endless range swallows", bigtable.RowRangeList{bigtable.InfiniteRange("b"), bigtable.NewRange("c", "d"), bigtable.NewRange("a", "b")}, rowSet{ranges: []keyRange{{"a", ""}}}},
		{"a range inside another", bigtable.RowRangeList{bigtable.NewRange("a", "z"), bigtable.NewRange("b", "c")}, rowSet{ranges: []keyRange{{"a", "z"}}}},
	} {
		got, err := newRowSet(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(tt.want, got, compareSets); d != "" && (len(got.ranges) > 0 || len(tt.want.ranges) > 0 || d != "") {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	if _, err := newRowSet(bigtable.RowList{""}); !errors.Is(err, ErrInvalid) {
		t.Errorf("empty key: %v", err)
	}
}

func TestRowSetBeyond(t *testing.T) {
	ranges := rowSet{ranges: []keyRange{{"a", "e"}, {"m", ""}}}
	keys := rowSet{keys: []string{"a", "b", "c"}}
	for _, tt := range []struct {
		set     rowSet
		key     string
		reverse bool
		want    rowSet
	}{
		{ranges, "b", false, rowSet{ranges: []keyRange{{"b\x00", "e"}, {"m", ""}}}},
		{ranges, "f", false, rowSet{ranges: []keyRange{{"m", ""}}}},
		{rowSet{ranges: []keyRange{{"a", "b\x00"}}}, "b", false, rowSet{}},
		{ranges, "n", true, rowSet{ranges: []keyRange{{"a", "e"}, {"m", "n"}}}},
		{ranges, "m", true, rowSet{ranges: []keyRange{{"a", "e"}}}},
		{ranges, "a", true, rowSet{}},
		{keys, "b", false, rowSet{keys: []string{"c"}}},
		{keys, "b", true, rowSet{keys: []string{"a"}}},
		{keys, "c", false, rowSet{keys: []string{}}},
	} {
		got := tt.set.beyond(tt.key, tt.reverse)
		if d := cmp.Diff(tt.want, got, compareSets); d != "" {
			t.Errorf("beyond %q, reverse %v (-want +got):\n%s", tt.key, tt.reverse, d)
		}
		if got.contains(tt.key) {
			t.Errorf("beyond %q still contains it", tt.key)
		}
	}
}
