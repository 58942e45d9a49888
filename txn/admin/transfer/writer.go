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
	"os"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Writer writes a file, or continues one.
type Writer struct {
	// Header is the first line of the file.
	Header Header
	// Rows and Cells count what the file has so far.
	Rows, Cells int
	// Complete is whether the trailer is written.
	Complete bool

	out  *bufio.Writer
	sum  hash.Hash
	from string // the first key that is missing
}

// NewWriter begins a file with its header.
func NewWriter(out io.Writer, h Header) (*Writer, error) {
	w := &Writer{Header: h, out: bufio.NewWriterSize(out, 1<<16), sum: sha256.New()}
	return w, w.line(h, true)
}

// An OtherError says that a file is another export than the one to continue.
type OtherError struct {
	Header Header // of the file
}

// Error names the export in the file.
func (e *OtherError) Error() string {
	h := e.Header
	return fmt.Sprintf("transfer: it is an export of table %s at %d, rows %q to %q", h.Table, h.TS, h.Start, h.End)
}

// Resume continues a file that an earlier run left incomplete: it reads what is there,
// cuts off an incomplete row, and writes the next one there. A want without a timestamp
// fits any. If the file has another header, Resume fails with an [OtherError]. If the
// file is complete, nothing is left to write.
func Resume(name string, file *os.File, want Header) (*Writer, error) {
	r, err := NewReader(name, file)
	if err != nil {
		return nil, err
	}
	if want.TS == 0 {
		want.TS = r.Header.TS
	}
	want.Time = r.Header.Time
	if want != r.Header {
		return nil, &OtherError{r.Header}
	}
	for err == nil {
		_, err = r.Next()
	}
	w := &Writer{Header: r.Header, Rows: r.Rows, Cells: r.Cells, Complete: errors.Is(err, io.EOF), out: bufio.NewWriterSize(file, 1<<16), sum: r.sum}
	if w.Complete {
		return w, nil
	}
	if !errors.Is(err, ErrIncomplete) {
		return nil, err
	}
	if r.Rows > 0 {
		w.from = r.last + "\x00"
	}
	if err := file.Truncate(r.offset); err != nil {
		return nil, err
	}
	_, err = file.Seek(r.offset, io.SeekStart)
	return w, err
}

// Export reads the rows that the header describes, as transactions do, and writes them
// and the trailer. It calls progress, which may be nil, after each row, with the rows so
// far and the row's key. Call Flush after an error, to continue the file later.
func (w *Writer) Export(ctx context.Context, client *txn.Client, progress func(rows int, last string)) error {
	start, end, err := w.Header.rows()
	if err != nil || w.Complete {
		return err
	}
	snapshot, err := client.Snapshot(ctx, txn.At(w.Header.TS))
	if err != nil {
		return err
	}
	for row, err := range snapshot.Table(w.Header.Table).ReadRows(ctx, bigtable.NewRange(max(w.from, start), end)) {
		if err != nil {
			return err
		}
		if err := w.add(row); err != nil {
			return err
		}
		if progress != nil {
			progress(w.Rows, row.Key())
		}
	}
	return w.end()
}

// Flush writes what is still in memory.
func (w *Writer) Flush() error { return w.out.Flush() }

func (w *Writer) line(v any, summed bool) error {
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

func (w *Writer) add(r bigtable.Row) error {
	line := newLine(r)
	w.Rows++
	w.Cells += len(line.Cells)
	return w.line(line, true)
}

func (w *Writer) end() error {
	if err := w.line(RowLine{Rows: &w.Rows, Count: &w.Cells, SHA256: hex.EncodeToString(w.sum.Sum(nil))}, false); err != nil {
		return err
	}
	w.Complete = true
	return w.out.Flush()
}
