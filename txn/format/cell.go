package format

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Cell names one Percolator column of one row: what a transaction reads,
// locks and writes. The row key and the qualifier may hold any bytes.
type Cell struct {
	Table     string
	Row       string
	Family    string
	Qualifier string
}

// A Column names a column of a table.
type Column struct {
	Family    string
	Qualifier string
}

// Column returns the column of the cell.
func (c Cell) Column() Column { return Column{c.Family, c.Qualifier} }

// String returns family:qualifier with the qualifier escaped as in
// [Cell.String].
func (c Column) String() string { return c.Family + ":" + Escape(c.Qualifier, true) }

// Key is the column as Bigtable's ReadItem.Column writes it, and the qualifier
// of the column's cells in the metadata families (design §3).
func (c Column) Key() string { return c.Family + ":" + c.Qualifier }

// SplitColumn undoes Column.key. A family name cannot contain a colon, so the
// first one ends it.
func SplitColumn(key string) (Column, bool) {
	family, qualifier, ok := strings.Cut(key, ":")
	return Column{family, qualifier}, ok && family != ""
}

// String returns the cell as table/row/family:qualifier, for example
// accounts/bob/bal:usd. Bytes that are not printable, spaces and percent signs
// are written %XX, and so is a slash in the qualifier; a slash in the row key
// stands for itself. [ParseCell] is the inverse.
func (c Cell) String() string {
	return c.Table + "/" + Escape(c.Row, false) + "/" + c.Family + ":" + Escape(c.Qualifier, true)
}

// ParseCell reads what [Cell.String] writes. The error says which part is
// missing or wrong.
func ParseCell(s string) (Cell, error) {
	fail := func(format string, args ...any) (Cell, error) {
		return Cell{}, fmt.Errorf("txn: cell %q: %s; the form is table/row/family:qualifier, with %%XX for bytes that are not printable", s, fmt.Sprintf(format, args...))
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
	return Cell{table, row, col.Family, col.Qualifier}, nil
}

// ParseColumn reads family:qualifier, escaped as [Column.String] does.
func ParseColumn(s string) (Column, error) {
	family, escaped, ok := strings.Cut(s, ":")
	if !ok || family == "" {
		return Column{}, fmt.Errorf("column %q is not of the form family:qualifier", s)
	}
	qualifier, err := unescape(escaped)
	if err != nil {
		return Column{}, fmt.Errorf("qualifier: %w", err)
	}
	return Column{family, qualifier}, nil
}

func Escape(s string, slash bool) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		b := s[i]
		clean = b > ' ' && b < 0x7f && b != '%' && (b != '/' || !slash)
	}
	if clean {
		return s
	}
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if (r == utf8.RuneError && n <= 1) || r == '%' || r == ' ' || (slash && r == '/') || !unicode.IsPrint(r) {
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
	if strings.IndexByte(s, '%') < 0 {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("%q ends inside an escape", s)
		}
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("%q is not an escape of the form %%XX", s[i:i+3])
		}
		out = append(out, byte(hi<<4|lo))
		i += 2
	}
	return string(out), nil
}

func unhex(b byte) int {
	switch {
	case '0' <= b && b <= '9':
		return int(b - '0')
	case 'a' <= b && b <= 'f':
		return int(b-'a') + 10
	case 'A' <= b && b <= 'F':
		return int(b-'A') + 10
	}
	return -1
}
