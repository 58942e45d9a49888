package format

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Cell names one column of one row of a table: what a transaction reads, locks and
// writes. The row key and the qualifier may hold any bytes.
type Cell struct {
	Table     string
	Row       string
	Family    string
	Qualifier string
}

// A Column names a column of a table. The qualifier may hold any bytes.
type Column struct {
	Family    string
	Qualifier string
}

// Column returns the column of the cell.
func (c Cell) Column() Column { return Column{Family: c.Family, Qualifier: c.Qualifier} }

// String returns family:qualifier, with the qualifier escaped as in [Cell.String].
// [ParseColumn] is the inverse.
func (c Column) String() string { return c.Family + ":" + escape(c.Qualifier, true) }

// Key returns family:qualifier without escapes. Bigtable names the column like this
// (bigtable.ReadItem.Column), and so do the qualifiers of the metadata families (design
// §3). [SplitColumn] is the inverse.
func (c Column) Key() string { return c.Family + ":" + c.Qualifier }

// IsPattern reports whether c stands for several columns.
func (c Column) IsPattern() bool { return strings.HasSuffix(c.Family, "*") }

// RealFamily returns the family of a column or of a pattern.
func (c Column) RealFamily() string { return strings.TrimSuffix(c.Family, "*") }

// Matches reports whether c is the column other, or a pattern that other is in. A pattern is in
// another one if all its columns are.
func (c Column) Matches(other Column) bool {
	if !c.IsPattern() {
		return c == other
	}
	return c.RealFamily() == other.RealFamily() && strings.HasPrefix(other.Qualifier, c.Qualifier)
}

// SplitColumn returns the column with the given [Column.Key]. ok is false if key has no
// family. A family's name contains no colon, so the first one ends it.
func SplitColumn(key string) (c Column, ok bool) {
	family, qualifier, ok := strings.Cut(key, ":")
	return Column{Family: family, Qualifier: qualifier}, ok && family != ""
}

// String returns the cell as table/row/family:qualifier, for example
// accounts/bob/bal:usd. It writes spaces, percent signs and unprintable bytes as %XX, and
// so a slash in the qualifier. A slash in the row key stays as it is. [ParseCell] is the
// inverse.
func (c Cell) String() string {
	return c.Table + "/" + EscapeRow(c.Row) + "/" + c.Family + ":" + escape(c.Qualifier, true)
}

// ParseCell reads what [Cell.String] writes. The error says which part is missing or
// wrong.
func ParseCell(s string) (Cell, error) {
	fail := func(format string, args ...any) (Cell, error) {
		return Cell{}, fmt.Errorf("percolator: cell %q: %s; the form is table/row/family:qualifier, with %%XX for bytes that are not printable", s, fmt.Sprintf(format, args...))
	}
	table, rest, ok := strings.Cut(s, "/")
	if !ok || table == "" {
		return fail("no table before the first slash")
	}
	slash := strings.LastIndexByte(rest, '/')
	if slash < 0 {
		return fail("no column after the row key")
	}
	row, err := unescape(rest[:slash])
	if err != nil {
		return fail("row key: %v", err)
	}
	if row == "" {
		return fail("empty row key")
	}
	col, err := ParseColumn(rest[slash+1:])
	if err != nil {
		return fail("%v", err)
	}
	return Cell{Table: table, Row: row, Family: col.Family, Qualifier: col.Qualifier}, nil
}

// ParseColumn reads what [Column.String] writes. It fails if s has no family, or an
// escape that is not %XX.
func ParseColumn(s string) (Column, error) {
	family, escaped, ok := strings.Cut(s, ":")
	if !ok || family == "" {
		return Column{}, fmt.Errorf("column %q is not of the form family:qualifier", s)
	}
	qualifier, err := unescape(escaped)
	if err != nil {
		return Column{}, fmt.Errorf("qualifier: %w", err)
	}
	return Column{Family: family, Qualifier: qualifier}, nil
}

// EscapeRow returns a row key as [Cell.String] writes it.
func EscapeRow(row string) string { return escape(row, false) }

// ParseRow reads what [EscapeRow] returns. An empty key is an error.
func ParseRow(s string) (string, error) {
	if s == "" {
		return "", errors.New("empty row key")
	}
	row, err := unescape(s)
	if err != nil {
		return "", fmt.Errorf("row key %q has an escape that is not of the form %%XX", s)
	}
	return row, nil
}

// escape writes spaces, percent signs and unprintable bytes as %XX, and slashes if slash
// is set.
func escape(s string, slash bool) string {
	var out strings.Builder
	out.Grow(len(s))
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if (r == utf8.RuneError && n == 1) || r == '%' || r == ' ' || (slash && r == '/') || !unicode.IsPrint(r) {
			for _, b := range []byte(s[:n]) {
				fmt.Fprintf(&out, "%%%02X", b)
			}
		} else {
			out.WriteString(s[:n])
		}
		s = s[n:]
	}
	return out.String()
}

func unescape(s string) (string, error) {
	out := make([]byte, 0, len(s))
	for s != "" {
		if s[0] != '%' {
			out, s = append(out, s[0]), s[1:]
			continue
		}
		if len(s) < 3 {
			return "", fmt.Errorf("%q ends inside an escape", s)
		}
		b, err := strconv.ParseUint(s[1:3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("%q is not an escape of the form %%XX", s[:3])
		}
		out, s = append(out, byte(b)), s[3:]
	}
	return string(out), nil
}
