package emulator_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// name generates allowed names of tables and families.
func name() *rapid.Generator[string] { return rapid.StringMatching(`[-_.a-zA-Z0-9]{1,20}`) }

// awkward generates strings of any bytes, and often those with a meaning in the syntax
// of cells.
func awkward(least int) *rapid.Generator[string] {
	any := rapid.Map(rapid.SliceOfN(rapid.Byte(), least, 20), func(b []byte) string { return string(b) })
	special := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"/", ":", "%", "%2F", "%zz", " ", "\n", "\x00", "\xff", "é", "\u00a0", "\u2028", "a"}), least, 8), func(s []string) string { return strings.Join(s, "") })
	return rapid.OneOf(any, special, rapid.StringN(least, 20, -1))
}

// Every cell can be written as text and parsed again, and the text is safe to print on
// a terminal.
func TestCellText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := txn.Cell{Table: name().Draw(t, "table"), Row: awkward(1).Draw(t, "row"), Family: name().Draw(t, "family"), Qualifier: awkward(0).Draw(t, "qualifier")}
		s := c.String()
		if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
			t.Fatalf("%+v is written %q", c, s)
		}
		if got, err := format.ParseCell(s); err != nil || got != c {
			t.Fatalf("%+v is written %q and read as %+v, %v", c, s, got, err)
		}
		col := c.Column()
		if got, err := format.ParseColumn(col.String()); err != nil || got != col {
			t.Fatalf("%+v is written %q and read as %+v, %v", col, col, got, err)
		}
	})
}

// FuzzParseCell: every text that ParseCell accepts has one canonical form with the same
// meaning.
func FuzzParseCell(f *testing.F) {
	for _, s := range []string{"accounts/bob/bal:usd", "t/a/b/f:q", "t//f:", "t/%00/f:%2F", "t/r/f:%", "t/r/f:%G0", "/r/f:q", "t/r", "t/r/:q", "t/%25/f:é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := format.ParseCell(s)
		if err != nil {
			return
		}
		if c.Table == "" || c.Row == "" || c.Family == "" {
			t.Errorf("%q is read as %+v", s, c)
		}
		again, err := format.ParseCell(c.String())
		if err != nil || again != c {
			t.Errorf("%q is %+v, written %q, which is %+v, %v", s, c, c, again, err)
		}
	})
}
