package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// ranges makes a set of ranges: "a-c e-" is [a,c) and [e,∞).
func ranges(text string) (s RowSet) {
	for _, r := range strings.Fields(text) {
		start, end, _ := strings.Cut(r, "-")
		s.Ranges = append(s.Ranges, KeyRange{start, end})
	}
	return s
}

// rangesText is the reverse of ranges, with keys for a set of keys.
func rangesText(s RowSet) string {
	var all []string
	for _, r := range s.Ranges {
		all = append(all, r.Start+"-"+r.End)
	}
	return strings.Join(append(all, s.Keys...), " ")
}

// TestPieceBounds: where the piece ends that a key is in, and where it starts, for tablets that end at b,
// d and f. At level 0 a piece is a tablet, at -1 two of them, at 1 half of one.
func TestPieceBounds(t *testing.T) {
	all := &tablets{bounds: []string{"b", "d", "f"}}
	tiny := &tablets{bounds: []string{"a", "a\x00"}}
	for _, tt := range []struct {
		t      *tablets
		level  int
		key    string
		end    string
		before string // the start of the piece before the key; the empty key is the end of the table
	}{
		{all, 0, "", "b", "f"}, {all, 0, "a", "b", ""}, {all, 0, "b", "d", ""}, {all, 0, "c", "d", "b"}, {all, 0, "d", "f", "b"}, {all, 0, "e", "f", "d"}, {all, 0, "f", "", "d"}, {all, 0, "g", "", "f"},
		{all, -1, "", "d", "d"}, {all, -1, "b", "f", ""}, {all, -1, "c", "f", ""}, {all, -1, "d", "", ""}, {all, -1, "f", "", "b"}, {all, -2, "", "", ""}, {all, -2, "g", "", ""},
		{all, 1, "", "1", "g"}, {all, 1, "b", "c", "1"}, {all, 1, "c", "d", "b"}, {all, 1, "d", "e", "c"}, {all, 1, "f", "g", "e"}, {all, 1, "g", "", "f"}, {all, 1, "h", "", "g"},
		{all, 2, "b", "b\x80", "I\x80"}, {all, 2, "c", "c\x80", "b\x80"}, {all, 2, "d", "d\x80", "c\x80"}, {all, 2, "f", "f\x80", "e\x80"},
		{tiny, 3, "a", "a\x00", "T\xe0"}, {tiny, 3, "a\x00", "a@", "a"},
	} {
		if got := tt.t.endAfter(tt.level, tt.key); got != tt.end {
			t.Errorf("level %d: the piece of %q ends at %q, want %q", tt.level, tt.key, got, tt.end)
		}
		if got := tt.t.startBefore(tt.level, tt.key); got != tt.before {
			t.Errorf("level %d: the piece before %q starts at %q, want %q", tt.level, tt.key, got, tt.before)
		}
	}
}

// TestCut: the first piece of what a scan has to read, and the rows after it.
func TestCut(t *testing.T) {
	table := &tablets{bounds: []string{"b", "d", "f"}}
	for _, tt := range []struct {
		rest    string
		reverse bool
		want    string
	}{
		{"a-e g-", false, "a-b, b-e g-"}, {"a-a5 b-", false, "a-a5, b-"}, {"b-d", false, "b-d, "}, {"f-z", false, "f-z, "}, {"f-", false, "f-, "}, {"-", false, "-b, b-"}, {"c-d g-", false, "c-d, g-"},
		{"a-e g-", true, "g-, a-e"}, {"a-e", true, "d-e, a-d"}, {"a-b", true, "a-b, "}, {"b-d", true, "b-d, "}, {"-", true, "f-, -f"}, {"a-b c-z", true, "f-z, a-b c-f"},
	} {
		piece, later := table.cut(0, ranges(tt.rest), tt.reverse)
		if got := rangesText(piece) + ", " + rangesText(later); got != tt.want {
			t.Errorf("%q, reverse %t: %q, want %q", tt.rest, tt.reverse, got, tt.want)
		}
	}
	// Where scans were slow, a scan begins with a piece, unless its first range is shorter.
	for _, tt := range []struct {
		slow  bool
		level int
		rest  string
		want  string
		p     Pieces
	}{
		{false, 1, "a-e", "a-e, ", Pieces{}}, {true, 0, "a-e", "a-b, b-e", Pieces{on: true}}, {true, 1, "b-e", "b-c, c-e", Pieces{on: true, level: 1, worked: 1}},
		{true, 1, "b-e g-", "b-c, c-e g-", Pieces{on: true, level: 1, worked: 1}}, {true, 0, "a-a5 c-", "a-a5 c-, ", Pieces{}}, {true, 0, "", ", ", Pieces{}},
	} {
		p := Pieces{}
		piece, later := p.next(&tablets{bounds: table.bounds, slow: tt.slow, startLevel: tt.level}, ranges(tt.rest), false)
		if got := rangesText(piece) + ", " + rangesText(later); got != tt.want || p != tt.p {
			t.Errorf("slow %t, level %d, %q: %q and %+v, want %q and %+v", tt.slow, tt.level, tt.rest, got, p, tt.want, tt.p)
		}
	}
}

// TestRequestsOfSets: what a request names of a set, and what is left after it, in both directions.
func TestRequestsOfSets(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, tt := range []struct {
		set           RowSet
		reverse       bool
		request, left string
	}{
		{ranges("a-b c-d e-"), false, `[["a","b") ["c","d") ["e",∞)]`, ""}, {ranges("a-b c-d e-"), true, `[["e",∞) ["c","d") ["a","b")]`, ""},
		{RowSet{Keys: []string{"a", "b"}}, false, `[a b]`, ""}, {RowSet{Keys: []string{"a", "b"}}, true, `[["b","b\x00") ["a","a\x00")]`, ""},
	} {
		request := tt.set.Request(tt.reverse)
		if got := fmt.Sprint(request); got != tt.request || rangesText(tt.set.AfterRequest(request, tt.reverse)) != tt.left {
			t.Errorf("%v, reverse %t: %s, want %s", tt.set, tt.reverse, got, tt.request)
		}
	}
	set := ranges("a-b c-d e-")
	if got := rangesText(set.AfterRequest(bigtable.RowRangeList{bigtable.NewRange("a", "b")}, false)); got != "c-d e-" {
		t.Errorf("after the first: %s", got)
	}
	if got := rangesText(set.AfterRequest(bigtable.RowRangeList{bigtable.NewRange("e", "")}, true)); got != "a-b c-d" {
		t.Errorf("after the last: %s", got)
	}
	keys := RowSet{Keys: []string{"a", "c", "e"}}
	if got := rangesText(keys.AfterRequest(bigtable.RowRangeList{bigtable.NewRange("e", "e\x00")}, true)); got != "a c" {
		t.Errorf("keys after the last: %s", got)
	}
	for key, want := range map[string]string{"a": "c e", "b": "c e", "d": "e", "e": "", "": "a c e"} {
		if got := rangesText(keys.AfterKey(key, false)); got != want {
			t.Errorf("keys after %q: %s", key, got)
		}
	}
	for _, tt := range []struct {
		reverse bool
		later   string
		want    string
	}{{false, "", "c-d"}, {true, "", "c-d"}, {false, "e-", "c-d e-"}, {true, "a-b", "a-b c-d"}} {
		if got := rangesText(ranges("c-d").join(ranges(tt.later), tt.reverse)); got != tt.want {
			t.Errorf("c-d and %q, reverse %t: %s", tt.later, tt.reverse, got)
		}
	}
	for _, tt := range []struct {
		s, other string
		reverse  bool
		want     bool
	}{
		{"a-b", "a-b c-d", false, true}, {"a-b c-d", "a-b", false, false}, {"a-b", "a-c", false, true}, {"a-c", "a-b", false, false}, {"a-b", "a-b", false, false},
		{"a-b", "a-", false, true}, {"a-", "a-b", false, false}, {"a-", "a-", false, false}, {"b-c", "a-c", true, true}, {"a-c", "b-c", true, false}, {"a-c", "a-c", true, false},
		{"a-b e-f", "a-b e-g", false, true}, {"a-c d-e", "b-c d-e", true, false}, {"b-c d-e", "a-c d-e", true, true},
	} {
		if got := ranges(tt.s).less(ranges(tt.other), tt.reverse); got != tt.want {
			t.Errorf("%s has fewer rows than %s, reverse %t: %t", tt.s, tt.other, tt.reverse, got)
		}
	}
	if got := (RowSet{}).Before(); got != "" {
		t.Errorf("before nothing: %q", got)
	}
	if got := AllAfter("a"); rangesText(got) != "a\x00-" {
		t.Errorf("after a: %v", got)
	}
	if _, err := NewRowSet(otherSet{}); !errors.Is(err, format.ErrInvalid) {
		t.Errorf("a set of another type: %v", err)
	}
}

type otherSet struct{ bigtable.RowSet }

// TestRequestBytes: a request has as many names as its limit allows, and one that exceeds it.
func TestRequestBytes(t *testing.T) {
	long := strings.Repeat("x", 4080)
	var keys, all RowSet
	for i := range 200 {
		keys.Keys = append(keys.Keys, fmt.Sprintf("%03d", i)+long[3:])
		all.Ranges = append(all.Ranges, KeyRange{keys.Keys[i][:4080-2032], keys.Keys[i][:2032-16] + "y"})
	}
	const most = format.MaxRowListBytes
	for what, tt := range map[string]struct {
		n, each int
	}{
		"keys":              {len(keys.Request(false).(bigtable.RowList)), 4080 + 16},
		"keys in reverse":   {len(keys.Request(true).(bigtable.RowRangeList)), 2*4080 + 32},
		"ranges":            {len(all.Request(false).(bigtable.RowRangeList)), len(all.Ranges[0].Start) + len(all.Ranges[0].End) + 16},
		"ranges in reverse": {len(all.Request(true).(bigtable.RowRangeList)), len(all.Ranges[0].Start) + len(all.Ranges[0].End) + 16},
	} {
		if want := (most + tt.each - 1) / tt.each; tt.n != want {
			t.Errorf("%d %s of %d bytes, want %d", tt.n, what, tt.each, want)
		}
	}
}

// TestTooSlow: after a piece that is too slow a scan asks for a smaller one, at least as small as the
// last that worked. Other scans begin like that, and fast ones do not change it.
func TestTooSlow(t *testing.T) {
	for _, tt := range []struct {
		p     Pieces
		piece string
		want  Pieces
	}{
		{Pieces{}, "b-e", Pieces{on: true}}, {Pieces{fastInARow: 5}, "b-e", Pieces{on: true}}, {Pieces{on: true}, "b-d", Pieces{on: true, level: 1}},
		{Pieces{on: true, level: 1, fastInARow: 3}, "b-c", Pieces{on: true, level: 2}}, {Pieces{on: true, worked: 3}, "b-d", Pieces{on: true, level: 3, worked: 3}},
	} {
		table := &tablets{bounds: []string{"b", "d", "f"}}
		p := tt.p
		if !p.tooSlow(table, ranges("b-e"), ranges(tt.piece), false) || p != tt.want || !table.slow || table.startLevel != tt.want.level {
			t.Errorf("%+v, %s: %+v, want %+v; later scans: %t, %d", tt.p, tt.piece, p, tt.want, table.slow, table.startLevel)
		}
	}
	table := &tablets{slow: true, startLevel: 7}
	for _, p := range []Pieces{{}, {on: true, level: 2}} {
		if p.answered(table, 1, 1000); !table.slow || table.startLevel != 7 {
			t.Errorf("%+v: later scans %t, %d", p, table.slow, table.startLevel)
		}
	}
	late := status.Error(codes.DeadlineExceeded, "")
	if !ownDeadline(t.Context(), WrapRPC(t.Context(), "read", "t", late)) || ownDeadline(canceled(t.Context()), late) || ownDeadline(t.Context(), lost) {
		t.Error("which errors are those of a request's own deadline")
	}
}
