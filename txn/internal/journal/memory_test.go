package journal

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestExamined: the pause before an entry is examined again doubles up to an hour, and begins anew
// for another entry of the cell.
func TestExamined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x Examined
		cell := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
		e, newer := Entry{Cell: cell, StartTS: 10}, Entry{Cell: cell, StartTS: 11}
		check := func(e Entry, due bool, since time.Duration) {
			t.Helper()
			if d, s := x.Due(e), x.Since(e); d != due || s != since {
				t.Errorf("entry at %d: due %v, examined %v ago; want %v, %v", e.StartTS, d, s, due, since)
			}
		}
		check(e, true, 0)
		var age time.Duration
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			x.Kept(e)
			check(e, false, age)
			<-time.After(pause*time.Minute - 1)
			check(e, false, age+pause*time.Minute-1)
			<-time.After(1)
			age += pause * time.Minute
			check(e, true, age)
			check(newer, true, 0)
		}
		x.Kept(newer)
		check(newer, false, 0)
		check(e, true, 0)
		<-time.After(time.Minute)
		check(newer, true, time.Minute)
	})
}

// TestExaminedIsBounded: beyond its limit, the memory begins anew.
func TestExaminedIsBounded(t *testing.T) {
	var x Examined
	at := func(i int) Entry { return Entry{Cell: format.Cell{Row: fmt.Sprint(i)}, StartTS: 1} }
	for i := range maxExamined {
		x.Kept(at(i))
	}
	if x.Due(at(0)) || len(x.cells) != maxExamined {
		t.Fatalf("%d entries are remembered, want %d", len(x.cells), maxExamined)
	}
	x.Kept(at(maxExamined))
	if x.Due(at(maxExamined)) || !x.Due(at(0)) || len(x.cells) != 1 {
		t.Errorf("%d entries are remembered after the limit, want the last one", len(x.cells))
	}
}

// TestWritten: an entry replaces an older one of the client, and a withdrawal brings that back.
func TestWritten(t *testing.T) {
	var w written
	for i, s := range []struct {
		row          string
		ts, replaced tso.Timestamp
	}{{"a", 10, 0}, {"a", 12, 10}, {"b", 11, 0}, {"a", 12, 0}, {"a", 11, 0}, {"a", 13, 12}} {
		if older := w.next(s.row, s.ts); older != s.replaced {
			t.Errorf("%d: the entry of row %s at %d replaces %d, want %d", i, s.row, s.ts, older, s.replaced)
		}
	}
	w.back("a", 12, 10) // 13 has come since
	if older := w.next("a", 14); older != 13 {
		t.Errorf("after an older withdrawal, an entry replaces %d, want 13", older)
	}
	w.back("a", 14, 13)
	if older := w.next("a", 15); older != 13 {
		t.Errorf("after a withdrawal, an entry replaces %d, want 13", older)
	}
	for i := range maxWritten - 2 {
		w.next(fmt.Sprint(i), 1)
	}
	if len(w.newest) != maxWritten || w.next("a", 16) != 15 || len(w.newest) != 1 {
		t.Errorf("%d rows are remembered after the limit, want the last one", len(w.newest))
	}
}

// TestPartsOfAJournal: the parts of a table's journal are next to each other, of one size, and contain
// the rows of all its cells and none of another table.
func TestPartsOfAJournal(t *testing.T) {
	for _, of := range []int{1, 2, 3, 7, 256} {
		prefix := tablePrefix("t")
		end := prefix + "00000000"
		for n := range of {
			r := rangeOf("t", n, of)
			if start, ok := bound(r, end); !ok {
				t.Errorf("part %d of %d is %v, which does not begin at %q", n, of, r, start)
			}
			end = prefix + fmt.Sprintf("%08x", uint64(n+1)<<32/uint64(of))
			if n == of-1 {
				end = strings.TrimSuffix(prefix, "/") + "0"
			}
			if !r.Contains(end[:len(end)-1]+string(end[len(end)-1]-1)+"~") || r.Contains(end) {
				t.Errorf("part %d of %d is %v, which does not end at %q", n, of, r, end)
			}
		}
		for i := range 100 {
			key, in := RowKey(format.Cell{Table: "t", Row: fmt.Sprint(i), Family: "f", Qualifier: "q"}), 0
			for n := range of {
				if rangeOf("t", n, of).Contains(key) {
					in++
				}
				if rangeOf("u", n, of).Contains(key) {
					t.Errorf("row %q of table t is in part %d of %d of table u", key, n, of)
				}
			}
			if in != 1 {
				t.Errorf("row %q is in %d of %d parts", key, in, of)
			}
		}
	}
}

// bound reports whether a range begins at key.
func bound(r bigtable.RowRange, key string) (string, bool) {
	return key, r.Contains(key) && !r.Contains(key[:len(key)-1])
}

// TestRowKeys: cells that differ in anything have different rows.
func TestRowKeys(t *testing.T) {
	seen := map[string]format.Cell{}
	for _, s := range [][4]string{{"t", "r", "f", "q"}, {"u", "r", "f", "q"}, {"t", "s", "f", "q"}, {"t", "r", "g", "q"}, {"t", "r", "f", "p"}, {"t", "r f", "", "q"}, {"t", "1 r", "f", "q"}, {"t", "", "f", "q"}} {
		c := format.Cell{Table: s[0], Row: s[1], Family: s[2], Qualifier: s[3]}
		key := RowKey(c)
		if other, ok := seen[key]; ok {
			t.Errorf("cells %v and %v have the row %q", c, other, key)
		}
		seen[key] = c
		if !strings.HasPrefix(key, RowPrefix) || len(key) != len(RowPrefix)+9+32 {
			t.Errorf("cell %v has the row %q", c, key)
		}
	}
}

// TestNewest: the newest of all three.
func TestNewest(t *testing.T) {
	for _, e := range []Entry{{StartTS: 9, NotifyTS: 2, FailureTS: 3}, {StartTS: 1, NotifyTS: 9, FailureTS: 3}, {StartTS: 1, NotifyTS: 2, FailureTS: 9}} {
		if e.Newest() != 9 {
			t.Errorf("the newest of %+v is %d", e, e.Newest())
		}
	}
}

// TestSizesOfEntries: the background counts what an entry holds, and each request counts its changes.
func TestSizesOfEntries(t *testing.T) {
	c := format.Cell{Table: "table", Row: "row", Family: "f", Qualifier: "q"}
	if m := set(txnQualifier, c, 10, 0); m.Row != RowKey(c) || m.Ops != 1 || m.NameBytes != 9 {
		t.Errorf("an entry has %d changes and %d bytes of names in row %q", m.Ops, m.NameBytes, m.Row)
	}
	if m := set(txnQualifier, c, 10, 9); m.Ops != 2 {
		t.Errorf("an entry that replaces another has %d changes", m.Ops)
	}
	for ops, r := range []Removal{{Cell: c, From: 5}, {Cell: c, StartTS: 1}, {Cell: c, NotifyTS: 1, FailureTS: 1}, {Cell: c, StartTS: 1, NotifyTS: 1, FailureTS: 1}} {
		if m, ok := r.mutation(); m.Row != RowKey(c) || m.Ops != ops || ok != (ops > 0) {
			t.Errorf("the removal %+v has %d changes in row %q, and says %v", r, m.Ops, m.Row, ok)
		}
	}
}
