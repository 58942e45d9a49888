package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode"
	"unicode/utf8"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// maxLine bounds a line. A row has at most 256 MiB in Bigtable, base64 makes it a
// third longer, and the rest is for the names of its columns.
const maxLine = 400 << 20

// FormatVersion is in the header; a file of a later one is refused.
const FormatVersion = 1

// A Header is the first line of an export.
type Header struct {
	Version int           `json:"percctl_export" unit:"-"` // version of the format
	Table   string        `json:"table"`                   // table that was exported
	TS      tso.Timestamp `json:"ts"`                      // timestamp that the data is read at
	Time    string        `json:"time"`                    // the timestamp as a time
	Start   string        `json:"start,omitempty"`         // first row key of the range, as commands take it
	End     string        `json:"end,omitempty"`           // row key that ends the range, which does not have it
}

// NewHeader returns the header for rows of a table from start to before end, at a
// timestamp. An empty end is the end of the table.
func NewHeader(table string, ts tso.Timestamp, start, end string) Header {
	return Header{Version: FormatVersion, Table: table, TS: ts, Time: words.Time(ts), Start: format.EscapeRow(start), End: format.EscapeRow(end)}
}

// rows are the keys of the range.
func (h Header) rows() (start, end string, err error) {
	for _, key := range []struct {
		text string
		to   *string
	}{{h.Start, &start}, {h.End, &end}} {
		if key.text == "" {
			continue
		}
		if *key.to, err = format.ParseRow(key.text); err != nil {
			return "", "", fmt.Errorf("transfer: the header: %w", err)
		}
	}
	return start, end, nil
}

// A RowLine is a row of an export, or its last line: the trailer with the counts.
type RowLine struct {
	Row       *string    `json:"row,omitempty"`        // row key, if it is text
	RowBase64 []byte     `json:"row_base64,omitempty"` // row key, if it is not
	Cells     []CellLine `json:"cells,omitempty"`      // cells of the row

	Rows   *int   `json:"rows,omitempty"`       // trailer: number of rows
	Count  *int   `json:"cell_count,omitempty"` // trailer: number of cells
	SHA256 string `json:"sha256,omitempty"`     // trailer: SHA-256 checksum of all bytes before this line, in hexadecimal
}

// A CellLine is a cell of a row. Of the fields with and without _base64 it has one
// each.
type CellLine struct {
	Family          string        `json:"family"`                     // family
	Qualifier       *string       `json:"qualifier,omitempty"`        // qualifier, if it is text
	QualifierBase64 []byte        `json:"qualifier_base64,omitempty"` // qualifier, if it is not
	Value           *string       `json:"value,omitempty"`            // value, if it is text
	ValueBase64     []byte        `json:"value_base64,omitempty"`     // value, if it is not
	CommitTS        tso.Timestamp `json:"commit_ts"`                  // commit timestamp of the value; import does not keep it
}

func encode(b []byte) (text *string, base64 []byte) {
	// JSON does not escape what is not printable beyond ASCII. As text it would steer the
	// terminal that shows an export, and to escape it there would break the checksum.
	unsafe := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if utf8.Valid(b) && !bytes.ContainsFunc(b, unsafe) && (len(b) < 1<<10 || 5*controls(b) < len(b)/3) {
		s := string(b)
		return &s, nil
	}
	return nil, b
}

// controls counts the characters that JSON escapes in up to six bytes.
func controls(b []byte) (n int) {
	for _, c := range b {
		if c < ' ' || c == '"' || c == '\\' {
			n++
		}
	}
	return n
}

func decode(text *string, base64 []byte) ([]byte, bool) {
	if text != nil {
		return []byte(*text), base64 == nil
	}
	return base64, base64 != nil
}

func newLine(r bigtable.Row) RowLine {
	var line RowLine
	line.Row, line.RowBase64 = encode([]byte(r.Key()))
	for _, family := range slices.Sorted(maps.Keys(r)) {
		for _, item := range r[family] {
			c := CellLine{Family: family, CommitTS: tso.Timestamp(item.Timestamp)}
			c.Qualifier, c.QualifierBase64 = encode([]byte(item.Column[len(family)+1:]))
			c.Value, c.ValueBase64 = encode(item.Value)
			line.Cells = append(line.Cells, c)
		}
	}
	return line
}

func (l *RowLine) row() (admin.BulkRow, error) {
	key, ok := decode(l.Row, l.RowBase64)
	if !ok || len(key) == 0 || len(l.Cells) == 0 {
		return admin.BulkRow{}, errors.New("the line has no row key or no cells")
	}
	r := admin.BulkRow{Row: string(key)}
	for _, c := range l.Cells {
		q, ok := decode(c.Qualifier, c.QualifierBase64)
		v, ok2 := decode(c.Value, c.ValueBase64)
		if !ok || !ok2 || c.Family == "" {
			return admin.BulkRow{}, errors.New("a cell has no family, qualifier or value")
		}
		r.Cells = append(r.Cells, admin.BulkCell{Family: c.Family, Qualifier: string(q), Value: v})
	}
	return r, nil
}
