package txn

import (
	"fmt"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/buffer"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// FuzzScanMerge applies a transaction's own writes to pages of rows, in both directions, and
// compares the result with a map.
func FuzzScanMerge(f *testing.F) {
	f.Add([]byte("ab"), []byte("bc"), false, byte(0))
	f.Add([]byte("\x00a\xff"), []byte("\x00\x01\xff"), true, byte(2))
	f.Fuzz(func(t *testing.T, stored, own []byte, reverse bool, limit byte) {
		rows := map[string]string{}
		var keys []string
		for _, b := range stored {
			if k := string(b); rows[k] == "" {
				rows[k] = "stored"
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		b := &buffer.Buffer{}
		for i, k := range own {
			cell := Cell{Table: "t", Row: string(k), Family: "f", Qualifier: "q"}
			switch i % 3 {
			case 0:
				b.Set(cell, format.KindPut, fmt.Appendf(nil, "own%d", i))
			case 1:
				b.Set(cell, format.KindDelete, nil)
			case 2:
				b.Set(cell, format.KindLock, nil)
			}
		}
		if b.Err() != nil {
			t.Fatal(b.Err())
		}
		o := b.Overlay("t", func(string) bool { return true }, store.Selection{})
		for cell, value := range b.Writes {
			if rows[cell.Row] = string(value); value == nil {
				delete(rows, cell.Row)
			}
		}
		var want, got []string
		for k, v := range rows {
			want = append(want, k+"="+v)
		}
		slices.Sort(want)
		if reverse {
			slices.Reverse(keys)
			slices.Reverse(want)
		}
		if limit > 0 && len(want) > int(limit) {
			want = want[:limit]
		}
		s := &scan{overlay: o, options: readOptions{reverse: reverse, limit: int(limit)}}
		s.yield = func(r bigtable.Row, _ error) bool {
			got = append(got, r.Key()+"="+string(r["f"][0].Value))
			return true
		}
		more := true
		for _, k := range keys {
			row := bigtable.Row{"f": {{Row: k, Column: "f:q", Value: []byte("stored")}}}
			if more = s.yieldOwnBefore(k) && s.yieldMerged(k, row); !more {
				break
			}
		}
		if more {
			s.yieldOwnBefore("")
		}
		if !slices.Equal(want, got) {
			t.Errorf("stored %q, own %q, reverse %v, limit %d: %q, want %q", stored, own, reverse, limit, got, want)
		}
	})
}
