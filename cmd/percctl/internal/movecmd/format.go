// Package movecmd is percctl export and import: committed data to and from
// files of JSON lines.
package movecmd

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"unicode/utf8"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// The format is lines of JSON: a header, a line for each row in ascending order
// of keys, and a trailer. Bytes that are valid UTF-8 stand as strings, others in
// base64 under a name that says so, as do those that escapes would make longer.

// maxLine bounds a line. A row has at most 256 MiB in Bigtable, base64 makes it a
// third longer, and the rest is for the names of its columns.
const maxLine = 400 << 20

// formatVersion is in the header; a file of a later one is refused.
const formatVersion = 1

// A header is the first line of an export.
type header struct {
	Version int           `json:"percctl_export" unit:"-"` // version of the format
	Table   string        `json:"table"`                   // table that was exported
	TS      tso.Timestamp `json:"ts"`                      // timestamp that the data is read at
	Time    string        `json:"time"`                    // the timestamp as a time
	Start   string        `json:"start,omitempty"`         // first row key of the range, as commands take it
	End     string        `json:"end,omitempty"`           // row key that ends the range, which does not have it
}

// A rowLine is a row of an export, or its last line: the trailer with the counts.
type rowLine struct {
	Row       *string    `json:"row,omitempty"`        // row key, if it is valid UTF-8
	RowBase64 []byte     `json:"row_base64,omitempty"` // row key, if it is not
	Cells     []cellLine `json:"cells,omitempty"`      // cells of the row

	Rows   *int   `json:"rows,omitempty"`       // trailer: number of rows
	Count  *int   `json:"cell_count,omitempty"` // trailer: number of cells
	SHA256 string `json:"sha256,omitempty"`     // trailer: SHA-256 checksum of all bytes before this line, in hexadecimal
}

// A cellLine is a cell of a row. Of the fields with and without _base64 it has one
// each.
type cellLine struct {
	Family          string        `json:"family"`                     // family
	Qualifier       *string       `json:"qualifier,omitempty"`        // qualifier, if it is valid UTF-8
	QualifierBase64 []byte        `json:"qualifier_base64,omitempty"` // qualifier, if it is not
	Value           *string       `json:"value,omitempty"`            // value, if it is valid UTF-8
	ValueBase64     []byte        `json:"value_base64,omitempty"`     // value, if it is not
	CommitTS        tso.Timestamp `json:"commit_ts"`                  // commit timestamp of the value; import does not keep it
}

func encode(b []byte) (text *string, base64 []byte) {
	if utf8.Valid(b) && (len(b) < 1<<10 || 5*controls(b) < len(b)/3) {
		s := string(b)
		return &s, nil
	}
	return nil, b
}

// controls counts the characters that JSON escapes in up to six bytes.
func controls(b []byte) (n int) {
	for _, c := range b {
		if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			n++
		}
	}
	return n + bytes.Count(b, []byte("\u2028")) + bytes.Count(b, []byte("\u2029"))
}

func decode(text *string, base64 []byte) ([]byte, bool) {
	if text != nil {
		return []byte(*text), base64 == nil
	}
	return base64, base64 != nil
}

func newRowLine(r bigtable.Row) rowLine {
	var line rowLine
	line.Row, line.RowBase64 = encode([]byte(r.Key()))
	for _, family := range session.Families(r) {
		for _, item := range r[family] {
			c := cellLine{Family: family, CommitTS: tso.Timestamp(item.Timestamp)}
			c.Qualifier, c.QualifierBase64 = encode([]byte(item.Column[len(family)+1:]))
			c.Value, c.ValueBase64 = encode(item.Value)
			line.Cells = append(line.Cells, c)
		}
	}
	return line
}

func (l *rowLine) row() (admin.BulkRow, error) {
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

// A writer writes a file, or continues one.
type writer struct {
	out         *bufio.Writer
	sum         hash.Hash
	rows, cells int
}

func newWriter(out io.Writer) *writer {
	return &writer{out: bufio.NewWriterSize(out, 1<<16), sum: sha256.New()}
}

func (w *writer) line(v any, summed bool) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	if summed {
		w.sum.Write(b.Bytes())
	}
	_, err := w.out.Write(b.Bytes())
	return err
}

func (w *writer) add(r bigtable.Row) error {
	line := newRowLine(r)
	w.rows++
	w.cells += len(line.Cells)
	return w.line(line, true)
}

func (w *writer) end() error {
	if err := w.line(rowLine{Rows: &w.rows, Count: &w.cells, SHA256: hex.EncodeToString(w.sum.Sum(nil))}, false); err != nil {
		return err
	}
	return w.out.Flush()
}

// A reader reads a file and checks it: order, counts and checksum.
type reader struct {
	name        string
	in          *bufio.Reader
	sum         hash.Hash
	header      header
	number      int // of the line
	offset      int64
	last        string // the last row's key
	rows, cells int
	complete    bool // the trailer was read, and fits
	longest     int  // bytes of a line
}

// errCut is a file that ends before its trailer; what was read of it is whole.
var errCut = errors.New("the file is incomplete: it has no trailer")

func newReader(name string, in io.Reader) (*reader, error) {
	r := &reader{name: name, in: bufio.NewReaderSize(in, 1<<16), sum: sha256.New(), longest: maxLine}
	line, err := r.next()
	if errors.Is(err, errCut) {
		return nil, fmt.Errorf("%s: the header is missing: %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &r.header); err != nil || r.header.Version == 0 {
		return nil, fmt.Errorf("%s: it is not a file of percctl export: its first line is not a header", name)
	}
	if r.header.Version > formatVersion {
		return nil, fmt.Errorf("%s: it has format version %d, but this percctl reads versions up to %d: upgrade percctl", name, r.header.Version, formatVersion)
	}
	r.take(line)
	return r, nil
}

// next returns a whole line, and errCut where none is left.
func (r *reader) next() ([]byte, error) {
	r.number++
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		if len(line)+len(part) > r.longest {
			return nil, fmt.Errorf("line %d is longer than %d bytes, and import keeps a line in memory: an export of this release has no such line, so the file is damaged, or of an older release: export the table again", r.number, r.longest)
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			r.number--
			return nil, errCut
		default:
			return line, err
		}
	}
}

// take counts a line as read.
func (r *reader) take(line []byte) {
	r.offset += int64(len(line))
	r.sum.Write(line)
}

// row returns the next row; io.EOF behind the last, when the trailer fits.
func (r *reader) row() (admin.BulkRow, error) {
	fail := func(format string, args ...any) (admin.BulkRow, error) {
		return admin.BulkRow{}, fmt.Errorf("%s, line %d: %w", r.name, r.number, fmt.Errorf(format, args...))
	}
	line, err := r.next()
	if err != nil {
		return admin.BulkRow{}, fmt.Errorf("%s, after %d rows: %w", r.name, r.rows, err)
	}
	var l rowLine
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return fail("%w", err)
	}
	if l.SHA256 != "" {
		if l.Rows == nil || l.Count == nil || *l.Rows != r.rows || *l.Count != r.cells {
			return fail("the trailer does not match the %d rows with %d cells of the file: the file is damaged", r.rows, r.cells)
		}
		if sum := hex.EncodeToString(r.sum.Sum(nil)); !strings.EqualFold(sum, l.SHA256) {
			return fail("the checksum does not match: the file is damaged")
		}
		if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
			return fail("there is data after the trailer: the file is damaged")
		}
		r.complete = true
		return admin.BulkRow{}, io.EOF
	}
	row, err := l.row()
	if err != nil {
		return fail("%w", err)
	}
	if row.Row <= r.last {
		return fail("row %s is not above the previous row: the file is damaged", session.Row(row.Row))
	}
	r.take(line)
	r.last = row.Row
	r.rows++
	r.cells += len(row.Cells)
	return row, nil
}
