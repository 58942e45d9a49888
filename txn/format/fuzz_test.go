package format

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Stored data may be damaged, or another program may have written it. A decoder returns
// a value that encodes and decodes to the same value, or an error of the right kind. It
// never panics.

func checkErrorKind(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormatVersion) {
		t.Errorf("error %v is neither ErrCorrupt nor ErrFormatVersion", err)
	}
	if strings.Contains(err.Error(), "\x1b") {
		t.Errorf("error %q carries a terminal escape", err)
	}
}

func FuzzLock(f *testing.F) {
	f.Add(EncodeLock(&Lock{Cell: testSecondary, Primary: testPrimary, Kind: KindPut, TTL: 1e9, Owner: "o", Observed: true, TraceParent: "t", Hops: 3}))
	f.Add(EncodeLock(&Lock{Cell: testSecondary, Primary: testSecondary, Kind: KindPut, TTL: 1e9, Passable: true, MinCommitTS: 9, Sealed: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := DecodeLock(testSecondary, 7, b)
		if err != nil {
			checkErrorKind(t, err)
			return
		}
		// A string that is not UTF-8 does not parse, so what parses can be written.
		again, err := DecodeLock(testSecondary, 7, EncodeLock(l))
		if err == nil {
			l.Record, again.Record = "", "" // the input need not be canonical
		}
		if err != nil || !reflect.DeepEqual(l, again) {
			t.Errorf("%+v, written and read again: %+v, %v", l, again, err)
		}
		l.ExpiresTS()
	})
}

func FuzzWrite(f *testing.F) {
	_, put := EncodeCommit(testSecondary, testPrimary, KindPut, 7)
	f.Add(put)
	f.Add(append(slices.Clone(put), 5<<3, 1)) // settled
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := DecodeWrite(testSecondary, 9, b)
		if err != nil {
			checkErrorKind(t, err)
			return
		}
		w.SettledBy = 0 // only the primary's record stores it
		_, again := w.Encode(testSecondary)
		if x, err := DecodeWrite(testSecondary, 9, again); err != nil || x != w || w.StartTS >= w.CommitTS {
			t.Errorf("%+v, written and read again: %+v, %v", w, x, err)
		}
	})
}

func FuzzMark(f *testing.F) {
	_, lock := EncodeCommit(testSecondary, testPrimary, KindLock, 7)
	f.Add(lock)
	f.Add(EncodeRollback(9))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMark(testSecondary, 9, b)
		if err != nil {
			checkErrorKind(t, err)
			return
		}
		if m.Kind == KindRollback {
			if m.StartTS != 9 {
				t.Errorf("a rollback marker of %d at 9", m.StartTS)
			}
			return
		}
		_, again := EncodeCommit(testSecondary, m.Primary, m.Kind, m.StartTS)
		if x, err := DecodeMark(testSecondary, 9, again); err != nil || x != m {
			t.Errorf("%+v, written and read again: %+v, %v", m, x, err)
		}
	})
}

// FuzzRecords decodes the records that have no encoder in this package, and notify cells.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("\x08\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := DecodeFailure(testPrimary, b); err != nil {
			checkErrorKind(t, err)
		}
		if _, err := DecodeAck(testPrimary, b, 7); err != nil {
			checkErrorKind(t, err)
		}
		n := DecodeNotifyCell(5, b)
		if n.Hops < 0 || n.Replayed < 0 || n.Replayed > n.TS {
			t.Errorf("%d hops, replay of %d", n.Hops, n.Replayed)
		}
		if again := DecodeNotifyCell(5, EncodeReplay(n.TraceParent, n.Replayed)); again.Hops != 0 || again.Replayed != n.Replayed || again.TraceParent != n.TraceParent {
			t.Errorf("%+v, written as a replay and read again: %+v", n, again)
		}
		if again := DecodeNotifyCell(5, EncodeNotifyCell(n.TraceParent, n.Hops)); again.Hops != n.Hops || again.TraceParent != n.TraceParent {
			t.Errorf("%+v, written and read again: %+v", n, again)
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
		for _, r := range EscapeRow(c.Row) + escape(c.Qualifier, true) {
			if r < ' ' || r == 0x7f {
				t.Errorf("%q is shown with the control character %q", s, r)
			}
		}
	})
}

// FuzzQualifiers splits the qualifiers of metadata columns and joins them again.
func FuzzQualifiers(f *testing.F) {
	f.Add(":observer:family:qualifier")
	f.Add("family:qualifier/observer")
	f.Fuzz(func(t *testing.T, s string) {
		if observer, key, ok := SplitFailure(s); ok {
			if c, ok := SplitColumn(key); ok && FailureQualifier(observer, c) != s {
				t.Errorf("%q is the failure of %q in %+v", s, observer, c)
			}
		}
		if c, observer, ok := ObserverOf(Column{AckFamily, s}); ok && AckColumn(c, observer).Qualifier != s {
			t.Errorf("%q is the acknowledgment of %q in %+v", s, observer, c)
		}
	})
}
