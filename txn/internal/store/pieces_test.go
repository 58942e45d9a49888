package store

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
)

// hexRows returns which part of rows that are spread evenly over "user:0…" to "user:f…" is
// below a key.
func hexRows(key string) float64 {
	digits, ok := strings.CutPrefix(key, "user:")
	if !ok && key > "user:" {
		return 1
	}
	sum, unit := 0.0, 1.0
	for _, d := range []byte(digits) {
		unit /= 16
		i := strings.IndexFunc("0123456789abcdef", func(r rune) bool { return rune(d) <= r })
		if i < 0 {
			return sum + 16*unit
		}
		sum += float64(i) * unit
		if "0123456789abcdef"[i] != d {
			break
		}
	}
	return sum
}

// binaryRows is hexRows for rows that are spread evenly over all keys.
func binaryRows(key string) float64 { return float64(number(key)) / (1 << 64) }

// A scan of an hour's worth of rows, none of which arrives, asks for all of them, one piece
// after the other. Hardly any request is without success if a tablet takes less than a request may, or
// if keys are spread evenly. Otherwise Bigtable works two and a half times as long.
func TestPieces(t *testing.T) {
	hexKey := func(part float64) string { return fmt.Sprintf("user:%08x", uint32(part*(1<<32))) }
	binaryKey := func(part float64) string {
		return string(binary.BigEndian.AppendUint64(nil, uint64(part*(1<<63))<<1))
	}
	for _, tt := range []struct {
		name  string
		below func(string) float64
		key   func(float64) string
	}{
		{"numbers", binaryRows, binaryKey},
		{"hexadecimal digits", hexRows, hexKey},
	} {
		for _, n := range []int{1, 10, 100, 200, 10000} {
			for _, reverse := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d tablets, reverse %v", tt.name, n, reverse), func(t *testing.T) {
					p, table := &Pieces{on: true}, &tablets{}
					for i := 1; i < n; i++ {
						table.bounds = append(table.bounds, tt.key(float64(i)/float64(n)))
					}
					gap := KeyRange{tt.key(0.5), tt.key(0.5) + "\x00"}
					rest := RowSet{Ranges: []KeyRange{{"", gap.Start}, {gap.End, ""}}}
					most := 70 * time.Minute
					if n == 1 || n <= 100 && tt.name != "numbers" {
						most = 150 * time.Minute
					}
					const timeout = 20 * time.Second
					took, requests, edge := time.Duration(0), 0, ""
					for !rest.Empty() {
						piece, later := p.next(table, rest, reverse)
						r := piece.Ranges[0]
						from, to := r.Start, r.End
						if reverse {
							from, to = to, from
						}
						if edge == gap.Start && from == gap.End || edge == gap.End && from == gap.Start {
							edge = from
						}
						if len(piece.Ranges) != 1 || r.empty() || from != edge {
							t.Fatalf("after %q comes %q", edge, piece.Ranges)
						}
						above := 1.0
						if r.End != "" {
							above = tt.below(r.End)
						}
						d := 5*time.Millisecond + time.Duration((above-tt.below(r.Start))*float64(time.Hour))
						requests++
						if d > timeout {
							took += timeout
							if !p.tooSlow(table, rest, piece, reverse) {
								t.Fatalf("%q takes %v and is not divided", r, d)
							}
							continue
						}
						took += d
						p.answered(table, d, timeout)
						rest, edge = later, to
					}
					if edge != "" || took < time.Hour || took > most || requests > 30000 {
						t.Errorf("took %v, want at most %v; %d requests", took, most, requests)
					}
				})
			}
		}
	}
}

// A piece that is not divisible stays whole, and so do the pieces of later scans.
func TestIndivisiblePiece(t *testing.T) {
	p, table := &Pieces{}, &tablets{}
	for _, whole := range []RowSet{{Ranges: []KeyRange{{"row", "row\x00"}}}, {Keys: []string{"a", "b"}}} {
		for range 3 {
			piece, later := p.next(table, whole, false)
			if !later.Empty() || p.tooSlow(table, whole, piece, false) || p.on || table.slow {
				t.Errorf("%v became %v and %v", whole, piece, later)
			}
		}
	}
}

// Short scans, and scans of ranges without data, run beside one that needs small pieces. They do
// not change its pieces: otherwise, each of its requests would be too slow.
func TestPiecesOfOneScan(t *testing.T) {
	const timeout = 20 * time.Second
	table := &tablets{}
	for i := range 100 {
		table.bounds = append(table.bounds, fmt.Sprintf("b%02d", i))
	}
	rest := RowSet{Ranges: []KeyRange{{"", ""}}}
	p := &Pieces{}
	for range 4 {
		piece, _ := p.next(table, rest, false)
		if !p.tooSlow(table, rest, piece, false) {
			t.Fatalf("%v is not divided", piece)
		}
	}
	want, _ := p.next(table, rest, false)
	p.answered(table, timeout/2, timeout)
	for range 100 {
		short, fast := &Pieces{}, RowSet{Ranges: []KeyRange{{"a", "c"}}}
		for !fast.Empty() {
			_, fast = short.next(table, fast, false)
			short.answered(table, time.Millisecond, timeout)
		}
	}
	if got, _ := p.next(table, rest, false); got.Ranges[0] != want.Ranges[0] {
		t.Errorf("other scans changed the piece %q to %q", want.Ranges, got.Ranges)
	}
	first := &Pieces{}
	if got, _ := first.next(table, RowSet{Ranges: []KeyRange{{"a1", "a2"}, {"a3", ""}}}, false); len(got.Ranges) != 2 {
		t.Errorf("a scan that begins with a short range asks first for %q", got.Ranges)
	}
}

// Listed keys are not cut, also where scans of ranges were slow.
func TestKeysAreNotCut(t *testing.T) {
	p, keys := &Pieces{}, RowSet{Keys: []string{"a", "b"}}
	if piece, later := p.next(&tablets{slow: true, startLevel: 3}, keys, false); len(piece.Keys) != 2 || !later.Empty() || *p != (Pieces{}) {
		t.Errorf("%v, then %v; %+v", piece, later, *p)
	}
}

// TestMiddle: the key in the middle is between both, if there is one.
func TestMiddle(t *testing.T) {
	half := "\x7f\xff\xff\xff\xff\xff\xff\xff"
	for _, tt := range []struct {
		low, high string
		text      bool
		want      string // empty: there is none
	}{
		{"", "", true, "\x80"},
		{"a", "", true, "b"},
		{"abcd", "", true, "ac"},
		{"abcde", "", true, "abd"},
		{"a\xffcd", "", true, "b"},
		{"a", "", false, "\xb0" + half[:7]},
		{"\xff\xff", "", true, "\xff\xff" + half},
		{"\xff\xffa", "", false, "\xff\xff\xb0" + half[:7]},
		{"", "user:1234", true, "user"},
		{"", "\x02", true, "\x01"},
		{"", "\x00\x00\x00\x00\x00\x00\x00\x04", true, "\x00\x00\x00\x00\x00\x00\x00\x02"},
		{"a", "c", false, "b"},
		{"row1", "row3", true, "row2"},
		{"row1", "row1\x02", true, "row1\x01"},
		{"a", "a\x00\x00\x00\x00\x00\x00\x00\x02", false, "a\x00\x00\x00\x00\x00\x00\x00\x01"},
		{"a", "a\x00\x00\x00\x00\x00\x00\x00\x01", false, ""},
		{"a", "a\x00", false, ""},
	} {
		got, ok := middle(tt.low, tt.high, tt.text)
		if got != tt.want || ok != (tt.want != "") || ok && (got <= tt.low || tt.high != "" && got >= tt.high) {
			t.Errorf("between %q and %q, text %t: %q, %t; want %q", tt.low, tt.high, tt.text, got, ok, tt.want)
		}
	}
}

// TestPieceSizes: a piece doubles after nine fast answers in a row, and not in gaps. A scan whose
// pieces became large enough is not divided any more.
func TestPieceSizes(t *testing.T) {
	const timeout = 20 * time.Second
	p, table := &Pieces{on: true, level: 2, worked: 2}, &tablets{}
	fast := func(n int) {
		for range n {
			p.answered(table, timeout/4, timeout)
		}
	}
	level := func(want int) {
		t.Helper()
		if p.level != want {
			t.Errorf("level %d, want %d", p.level, want)
		}
	}
	fast(8)
	level(2)
	fast(1)
	level(1)
	fast(1) // it stays fast, so the next is larger at once
	level(0)
	p.answered(table, timeout/4+1, timeout)
	if level(0); !table.slow || table.startLevel != 0 {
		t.Errorf("later scans begin with level %d, %t", table.startLevel, table.slow)
	}
	fast(8)
	level(0)
	fast(1)
	level(-1)
	fast(-minPieceLevel - 1)
	level(minPieceLevel)
	if !p.on || !table.slow {
		t.Error("not divided any more")
	}
	fast(1)
	if p.on || table.slow || *p != (Pieces{}) {
		t.Errorf("%+v, and the table is slow: %t", p, table.slow)
	}
	fast(1)
	p.answered(table, timeout, timeout)
	if *p != (Pieces{}) || table.slow {
		t.Errorf("a scan that is not divided became %+v", p)
	}
}

// TestScansShareOnlyTheStart: a scan keeps its own size of pieces, and one without pieces changes nothing
// that the table's next scans use.
func TestScansShareOnlyTheStart(t *testing.T) {
	table := &tablets{bounds: []string{"b", "d", "f", "h"}, slow: true, startLevel: -1}
	for level, want := range map[int]string{0: "b", -2: "h"} {
		p := Pieces{on: true, level: level}
		if piece, _ := p.next(table, RowSet{Ranges: []KeyRange{{"a", "z"}}}, false); piece.Ranges[0].End != want {
			t.Errorf("a piece of level %d ends at %q, want %q", level, piece.Ranges[0].End, want)
		}
	}
	for _, took := range []time.Duration{0, time.Second} {
		p := Pieces{}
		if p.answered(table, took, time.Second); !table.slow || table.startLevel != -1 || p != (Pieces{}) {
			t.Errorf("a scan without pieces that took %v: %+v, pieces from level %d, slow: %t", took, p, table.startLevel, table.slow)
		}
	}
}
