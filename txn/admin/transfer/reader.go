package transfer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Reader reads a file and checks it: order, counts and checksum.
type Reader struct {
	// Header is the first line of the file.
	Header Header
	// Rows and Cells count what was read.
	Rows, Cells int

	name   string
	in     *bufio.Reader
	sum    hash.Hash
	number int // of the line
	offset int64
	last   string // the last row's key

	longest int // bytes of a line
}

// ErrIncomplete means a file that ends before its trailer; what was read of it is whole.
var ErrIncomplete = errors.New("the file is incomplete: it has no trailer")

// NewReader reads the header. name is the file's, for errors.
func NewReader(name string, in io.Reader) (*Reader, error) {
	r := &Reader{name: name, in: bufio.NewReaderSize(in, 1<<16), sum: sha256.New(), longest: maxLine}
	line, err := r.line()
	if errors.Is(err, ErrIncomplete) {
		return nil, fmt.Errorf("%s: the header is missing: %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &r.Header); err != nil || r.Header.Version == 0 {
		return nil, fmt.Errorf("%s: it is not a file of percctl export: its first line is not a header", name)
	}
	if r.Header.Version > FormatVersion {
		return nil, fmt.Errorf("%s: it has format version %d, but this percctl reads versions up to %d: upgrade percctl", name, r.Header.Version, FormatVersion)
	}
	r.take(line)
	return r, nil
}

// line returns a whole line, and ErrIncomplete where none is left.
func (r *Reader) line() ([]byte, error) {
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
			return nil, ErrIncomplete
		default:
			return line, err
		}
	}
}

// take counts a line as read.
func (r *Reader) take(line []byte) {
	r.offset += int64(len(line))
	r.sum.Write(line)
}

// Next returns the next row, and io.EOF after the last one if the trailer fits. If the
// trailer is missing, it returns [ErrIncomplete].
func (r *Reader) Next() (admin.BulkRow, error) {
	fail := func(format string, args ...any) (admin.BulkRow, error) {
		return admin.BulkRow{}, fmt.Errorf("%s, line %d: %w", r.name, r.number, fmt.Errorf(format, args...))
	}
	line, err := r.line()
	if err != nil {
		return admin.BulkRow{}, fmt.Errorf("%s, after %d rows: %w", r.name, r.Rows, err)
	}
	var l RowLine
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return fail("%w", err)
	}
	if l.SHA256 != "" {
		if l.Rows == nil || l.Count == nil || *l.Rows != r.Rows || *l.Count != r.Cells {
			return fail("the trailer does not match the %d rows with %d cells of the file: the file is damaged", r.Rows, r.Cells)
		}
		if sum := hex.EncodeToString(r.sum.Sum(nil)); !strings.EqualFold(sum, l.SHA256) {
			return fail("the checksum does not match: the file is damaged")
		}
		if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
			return fail("there is data after the trailer: the file is damaged")
		}
		return admin.BulkRow{}, io.EOF
	}
	row, err := l.row()
	if err != nil {
		return fail("%w", err)
	}
	if row.Row <= r.last {
		return fail("row %s is not above the previous row: the file is damaged", format.EscapeRow(row.Row))
	}
	r.take(line)
	r.last = row.Row
	r.Rows++
	r.Cells += len(row.Cells)
	return row, nil
}

// All iterates over the rows that are left. An error ends it.
func (r *Reader) All() iter.Seq2[admin.BulkRow, error] {
	return func(yield func(admin.BulkRow, error) bool) {
		for {
			row, err := r.Next()
			if errors.Is(err, io.EOF) || !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// A Summary is what a file holds.
type Summary struct {
	Rows, Cells int
	First, Last string   // row keys
	Families    []string // families of the cells
}

// Summarize reads the file to its end, so that nothing is written of one that is
// incomplete or damaged. It calls progress, which may be nil, after each row.
func (r *Reader) Summarize(ctx context.Context, progress func(rows int)) (s Summary, err error) {
	for row, err := range r.All() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return s, err
		}
		if s.Rows == 0 {
			s.First = row.Row
		}
		s.Last, s.Rows, s.Cells = row.Row, r.Rows, r.Cells
		for _, c := range row.Cells {
			if !slices.Contains(s.Families, c.Family) {
				s.Families = append(s.Families, c.Family)
			}
		}
		if progress != nil {
			progress(r.Rows)
		}
	}
	return s, ctx.Err()
}
