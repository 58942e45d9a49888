package notify

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// keys that are alike, short, long and binary.
func genKey() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 12, -1),
		rapid.Custom(func(t *rapid.T) string { return "com.example/" + rapid.StringN(0, 12, -1).Draw(t, "rest") }),
		rapid.Custom(func(t *rapid.T) string {
			return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x7f, 0x80, 0xff}), 1, 20).Draw(t, "bytes"))
		}),
	)
}

func (p piece) has(key string) bool { return key >= p.start && (p.end == "" || key < p.end) }

func holders(ps []piece, key string) int {
	n := 0
	for _, p := range ps {
		if p.has(key) {
			n++
		}
	}
	return n
}

// TestPiecesCoverTheTable: however a table is cut, and however its pieces are
// turned, each key is in exactly one of the ranges that are read.
func TestPiecesCoverTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sampled := rapid.SliceOfN(rapid.OneOf(genKey(), rapid.Just("")), 0, 30).Draw(t, "sampled")
		most := rapid.IntRange(1, 40).Draw(t, "most")
		cut := cutTable("t", slices.Clone(sampled), most)
		if len(cut) > most {
			t.Fatalf("%d pieces, at most %d were asked for", len(cut), most)
		}
		var read []piece
		for _, p := range cut {
			if p.end != "" && p.start >= p.end {
				t.Fatalf("piece %+v is empty", p)
			}
			read = append(read, p.turn()...)
		}
		keys := append(rapid.SliceOfN(genKey(), 1, 20).Draw(t, "keys"), "", "\x00", "\xff\xff\xff")
		for _, p := range read {
			keys = append(keys, p.start, p.end, p.start+"\x00")
		}
		for _, key := range append(keys, sampled...) {
			if n := holders(cut, key); n != 1 {
				t.Fatalf("key %q is in %d pieces of %+v", key, n, cut)
			}
			if n := holders(read, key); n != 1 {
				t.Fatalf("key %q is read %d times by %+v", key, n, read)
			}
		}
	})
}

// TestTurnStartsAnywhere: scans of a piece begin at different rows.
func TestTurnStartsAnywhere(t *testing.T) {
	for _, p := range []piece{{table: "t"}, {table: "t", start: "a"}, {table: "t", start: "user1", end: "user2"}, {table: "t", start: "a", end: "b"}} {
		starts := map[string]bool{}
		for range 50 {
			starts[p.turn()[0].start] = true
		}
		if len(starts) < 25 {
			t.Errorf("%+v begins at %d places in 50 turns", p, len(starts))
		}
	}
}
