package txn

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// Everything that is stored may have been damaged, or written by somebody else: a
// decoder returns what it can write again, or an error of the right kind, and
// never panics.

func typed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormatVersion) {
		t.Errorf("error %v is neither ErrCorrupt nor ErrFormatVersion", err)
	}
	if strings.Contains(err.Error(), "\x1b") {
		t.Errorf("error %q carries a terminal escape", err)
	}
}

func FuzzLock(f *testing.F) {
	f.Add(encodeLock(&Lock{Cell: testSecondary, Primary: testPrimary, Kind: KindPut, TTL: 1e9, Owner: "o", Observed: true, TraceParent: "t", Hops: 3}))
	f.Add(encodeLock(&Lock{Cell: testSecondary, Primary: testSecondary, Kind: KindPut, TTL: 1e9, Passable: true, MinCommitTS: 9, Raises: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLock(testSecondary, 7, b)
		if err != nil {
			typed(t, err)
			return
		}
		// A string that is not UTF-8 does not parse, so what parses can be written.
		again, err := decodeLock(testSecondary, 7, encodeLock(l))
		if err == nil {
			l.record, again.record = "", "" // the input need not be canonical
		}
		if err != nil || !reflect.DeepEqual(l, again) {
			t.Errorf("%+v, written and read again: %+v, %v", l, again, err)
		}
		l.ExpiresTS()
	})
}

func FuzzWrite(f *testing.F) {
	_, put := encodeCommit(testSecondary, testPrimary, KindPut, 7)
	f.Add(put)
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := decodeWrite(testSecondary, 9, b)
		if err != nil {
			typed(t, err)
			return
		}
		_, again := encodeCommit(testSecondary, w.primary, w.kind, w.startTS)
		if x, err := decodeWrite(testSecondary, 9, again); err != nil || x != w || w.startTS >= w.commitTS {
			t.Errorf("%+v, written and read again: %+v, %v", w, x, err)
		}
	})
}

func FuzzMark(f *testing.F) {
	_, lock := encodeCommit(testSecondary, testPrimary, KindLock, 7)
	f.Add(lock)
	f.Add(encodeRollback(9))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMark(testSecondary, 9, b)
		if err != nil {
			typed(t, err)
			return
		}
		if m.kind == kindRollback {
			if m.startTS != 9 {
				t.Errorf("a rollback marker of %d at 9", m.startTS)
			}
			return
		}
		_, again := encodeCommit(testSecondary, m.primary, m.kind, m.startTS)
		if x, err := decodeMark(testSecondary, 9, again); err != nil || x != m {
			t.Errorf("%+v, written and read again: %+v, %v", m, x, err)
		}
	})
}

// FuzzRecords reads the records that have no encoder of their own.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("\x08\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decodeSchema("table", b); err != nil {
			typed(t, err)
		}
		if _, err := decodeFailure(testPrimary, b); err != nil {
			typed(t, err)
		}
		if _, err := decodeDeadLetter("percolator", "dead/x", b); err != nil {
			typed(t, err)
		}
		if _, err := decodeAck(testPrimary, "observer", b); err != nil {
			typed(t, err)
		}
		decodeToken(bigtable.Row{deployFamily: {{Value: b}}})
		tr := decodeTrigger(5, b)
		if tr.Hops < 0 {
			t.Errorf("%d hops", tr.Hops)
		}
		if again := decodeTrigger(5, encodeTrigger(tr.TraceParent, tr.Hops)); again.Hops != tr.Hops || again.TraceParent != tr.TraceParent {
			t.Errorf("%+v, written and read again: %+v", tr, again)
		}
	})
}

func FuzzCell(f *testing.F) {
	f.Add("accounts/bob/bal:usd")
	f.Add("t/a/b%2F%1B[0m/f:q%2Fr")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCell(s)
		if err != nil {
			return
		}
		again, err := ParseCell(c.String())
		if err != nil || again != c {
			t.Errorf("%q is %+v, which is written %q, which is %+v, %v", s, c, c.String(), again, err)
		}
		for _, r := range escape(c.Row, false) + escape(c.Qualifier, true) {
			if r < ' ' || r == 0x7f {
				t.Errorf("%q is shown with the control character %q", s, r)
			}
		}
	})
}

// FuzzQualifiers takes the qualifiers of metadata columns apart.
func FuzzQualifiers(f *testing.F) {
	f.Add(":observer:family:qualifier")
	f.Add("family:qualifier/observer")
	f.Fuzz(func(t *testing.T, s string) {
		if observer, key, ok := splitFailure(s); ok {
			if c, ok := splitColumn(key); ok && failureQualifier(observer, c) != s {
				t.Errorf("%q is the failure of %q in %+v", s, observer, c)
			}
		}
		if c, observer, ok := ObserverOf(Column{AckFamily, s}); ok && ackColumn(c, observer).Qualifier != s {
			t.Errorf("%q is the acknowledgment of %q in %+v", s, observer, c)
		}
	})
}

// FuzzEvaluate applies the read rule to rows as nobody ever wrote them.
func FuzzEvaluate(f *testing.F) {
	_, put := encodeCommit(testPrimary, testPrimary, KindPut, 7)
	f.Add(append([]byte{1, 9}, put...), byte(9))
	f.Fuzz(func(t *testing.T, b []byte, at byte) {
		raw := bigtable.Row{}
		families := []string{LockFamily, WriteFamily, "bal", AckFamily}
		for len(b) >= 2 {
			family, ts := families[b[0]%4], tso.Timestamp(b[1])
			value := b[2:min(len(b), 2+int(b[0]/4))]
			b = b[2+len(value):]
			column := family + ":bal:usd"
			if family == "bal" {
				column = "bal:usd"
			}
			if len(raw[family]) == 0 { // what is read has one cell a column
				raw[family] = []bigtable.ReadItem{{Row: "bob", Column: column, Timestamp: ts.Cell(), Value: value}}
			}
		}
		e, err := evaluate(&table{name: "accounts"}, raw, selection{}, tso.Timestamp(at), nil)
		if err != nil {
			typed(t, err)
			return
		}
		for family, items := range e.row {
			if isMetadataFamily(family) || len(items) == 0 {
				t.Errorf("family %s is shown with %d cells", family, len(items))
			}
		}
	})
}

// FuzzScanMerge lays a transaction's own writes over pages of rows, in both
// directions, and compares with a map.
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
		b := &buffer{}
		for i, k := range own {
			kind := []Kind{KindPut, KindDelete, KindLock}[i%3]
			b.set(Cell{"t", string(k), "f", "q"}, kind, fmt.Appendf(nil, "own%d", i))
		}
		if b.err != nil {
			t.Fatal(b.err)
		}
		o := b.overlay("t", func(string) bool { return true }, selection{})
		for key, writes := range o.rows {
			if rows[key] = string(writes[0].value); writes[0].kind == KindDelete {
				delete(rows, key)
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
		goOn := true
		for _, k := range keys {
			row := bigtable.Row{"f": {{Row: k, Column: "f:q", Value: []byte("stored")}}}
			if goOn = s.emitBefore(k) && s.emit(k, row); !goOn {
				break
			}
		}
		if goOn {
			s.emitBefore("")
		}
		if !slices.Equal(want, got) {
			t.Errorf("stored %q, own %q, reverse %v, limit %d: %q, want %q", stored, own, reverse, limit, got, want)
		}
	})
}
