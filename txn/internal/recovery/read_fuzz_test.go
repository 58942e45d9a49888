package recovery

import (
	"errors"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Stored data may be damaged, or another program may have written it. A decoder returns an
// error of the right kind and never panics.

func checkErrorKind(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, format.ErrCorrupt) && !errors.Is(err, format.ErrFormatVersion) {
		t.Errorf("error %v is neither ErrCorrupt nor ErrFormatVersion", err)
	}
	if strings.Contains(err.Error(), "\x1b") {
		t.Errorf("error %q carries a terminal escape", err)
	}
}

var bob = format.Cell{Table: "accounts", Row: "bob", Family: "bal", Qualifier: "usd"}

// FuzzEvaluate applies the read rule to rows that no client ever wrote.
func FuzzEvaluate(f *testing.F) {
	_, put := format.EncodeCommit(bob, bob, format.KindPut, 7)
	f.Add(append([]byte{1, 9}, put...), byte(9))
	f.Fuzz(func(t *testing.T, b []byte, at byte) {
		raw := bigtable.Row{}
		families := []string{format.LockFamily, format.WriteFamily, "bal", format.AckFamily}
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
		e, err := Evaluate(t.Context(), &store.Table{Name: "accounts"}, raw, store.Selection{}, tso.Timestamp(at), nil)
		if err != nil {
			checkErrorKind(t, err)
			return
		}
		for family, items := range e.Row {
			if format.IsMetadataFamily(family) || len(items) == 0 {
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
		if _, err := store.DecodeSchema("table", b); err != nil {
			checkErrorKind(t, err)
		}
		DecodeToken(bigtable.Row{store.DeployFamily: {{Value: b}}})
	})
}
