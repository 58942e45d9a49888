package tso

import (
	"testing"
)

// FuzzLock reads locks with bytes that no client wrote: none is held longer than
// its bytes say, and none stops the program.
func FuzzLock(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x08\x01\x10\x80\x80\xe9\xfe\xd7\xc1\x82\x03\x20\x80\x89\x7a"))
	f.Add([]byte("\x01\x00\x06\x0a\x24\x18\x1e\x40\x00owner"))
	f.Fuzz(func(t *testing.T, value []byte) {
		if k := decodeLock(value); k.value == nil || k.heldAt(k.expires) {
			t.Errorf("%x is %+v", value, k)
		}
	})
}

// FuzzTimestamp reads timestamps from text: what is accepted has one meaning.
func FuzzTimestamp(f *testing.F) {
	f.Add("1700000000000000")
	f.Add("2026-11-20T10:00:00Z")
	f.Fuzz(func(t *testing.T, s string) {
		ts, err := ParseTimestamp(s)
		if err != nil {
			return
		}
		again, err := ParseTimestamp(ts.String())
		if err != nil || again != ts {
			t.Errorf("%q is %d, which is %d, %v", s, ts, again, err)
		}
		if ts >= 0 && ts <= Max && FromCell(ts.Cell()) != ts {
			t.Errorf("%d as a cell's timestamp is %d", ts, FromCell(ts.Cell()))
		}
	})
}
