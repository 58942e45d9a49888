package txn

import (
	"errors"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// Everything that is stored may have been damaged, or written by somebody else: a
// decoder returns what it can write again, or an error of the right kind, and
// never panics.

func typedError(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormatVersion) {
		t.Errorf("error %v is neither ErrCorrupt nor ErrFormatVersion", err)
	}
	if strings.Contains(err.Error(), "\x1b") {
		t.Errorf("error %q carries a terminal escape", err)
	}
}

// FuzzEvaluate applies the read rule to rows as nobody ever wrote them.
var bob = Cell{Table: "accounts", Row: "bob", Family: "bal", Qualifier: "usd"}

func FuzzEvaluate(f *testing.F) {
	_, put := encodeCommit(bob, bob, KindPut, 7)
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
			typedError(t, err)
			return
		}
		for family, items := range e.row {
			if isMetadataFamily(family) || len(items) == 0 {
				t.Errorf("family %s is shown with %d cells", family, len(items))
			}
		}
	})
}

// FuzzSchemaAndToken reads the records of the metadata table that have no encoder of
// their own.
func FuzzSchemaAndToken(f *testing.F) {
	f.Add([]byte("\x08\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decodeSchema("table", b); err != nil {
			typedError(t, err)
		}
		decodeToken(bigtable.Row{deployFamily: {{Value: b}}})
	})
}
