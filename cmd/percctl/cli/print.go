package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print prints one thing: as JSON or YAML, or for people by text.
func Print(out io.Writer, f Format, v any, text func(io.Writer) error) error {
	switch f {
	case JSON:
		b, err := marshalJSON(v)
		if err != nil {
			return err
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, b, "", "  "); err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, indented.String())
		return err
	case YAML:
		b, err := marshalYAML(v)
		if err != nil {
			return err
		}
		_, err = out.Write(b)
		return err
	}
	var b bytes.Buffer
	if err := text(&b); err != nil {
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}

// Textf is a text for Print.
func Textf(format string, args ...any) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintf(w, format, args...)
		return err
	}
}

// tableBatch is how many rows of a table are aligned together. A list may be
// long, and its first rows should not wait for its last.
const tableBatch = 200

// A List prints a list, one item after the other, in little memory. Set its
// fields, call Add for each item, and End, also after an error: what was
// printed is then well-formed.
type List[T any] struct {
	Out    io.Writer
	Format Format
	// Header and Rows make the lines of CSV, and those of a table without Text.
	Header []string
	Rows   func(T) [][]string
	// TableRows, where a table shows less than CSV. Defaults to Rows.
	TableHeader []string
	TableRows   func(T) [][]string
	// Text prints an item for people. Defaults to lines of a table.
	Text func(io.Writer, T) error

	n     int
	table *tabwriter.Writer
	lines int
	csv   *csv.Writer
}

// Add prints an item.
func (l *List[T]) Add(item T) error {
	l.n++
	switch l.Format {
	case JSON, JSONL:
		b, err := marshalJSON(item)
		if err != nil {
			return err
		}
		before, after := "", "\n"
		if l.Format == JSON {
			var indented bytes.Buffer
			if err := json.Indent(&indented, b, "  ", "  "); err != nil {
				return err
			}
			b, before, after = indented.Bytes(), "[\n  ", ""
			if l.n > 1 {
				before = ",\n  "
			}
		}
		_, err = fmt.Fprintf(l.Out, "%s%s%s", before, b, after)
		return err
	case YAML:
		b, err := marshalYAML([]T{item})
		if err != nil {
			return err
		}
		_, err = l.Out.Write(b)
		return err
	case CSV:
		l.startCSV()
		for _, row := range l.Rows(item) {
			if err := l.csv.Write(row); err != nil {
				return err
			}
		}
		l.csv.Flush()
		return l.csv.Error()
	}
	if l.Text != nil {
		if l.n > 1 {
			if _, err := fmt.Fprintln(l.Out); err != nil {
				return err
			}
		}
		var b bytes.Buffer
		if err := l.Text(&b, item); err != nil {
			return err
		}
		_, err := l.Out.Write(b.Bytes())
		return err
	}
	return l.addRows(item)
}

func (l *List[T]) startCSV() {
	if l.csv == nil {
		l.csv = csv.NewWriter(l.Out)
		_ = l.csv.Write(l.Header) // its error is kept
	}
}

func (l *List[T]) addRows(item T) error {
	header, rows := l.Header, l.Rows
	if l.TableRows != nil {
		header, rows = l.TableHeader, l.TableRows
	}
	if l.table == nil {
		l.table = NewTable(l.Out)
		WriteRow(l.table, header...)
	}
	for _, row := range rows(item) {
		WriteRow(l.table, row...)
		l.lines++
	}
	if l.lines >= tableBatch {
		l.lines = 0
		return l.table.Flush()
	}
	return nil
}

// All prints a whole list.
func (l *List[T]) All(items []T) error {
	for _, item := range items {
		if err := l.Add(item); err != nil {
			return err
		}
	}
	return l.End()
}

// End ends the list.
func (l *List[T]) End() error {
	switch {
	case l.Format == JSON && l.n == 0:
		_, err := fmt.Fprintln(l.Out, "[]")
		return err
	case l.Format == JSON:
		_, err := fmt.Fprintln(l.Out, "\n]")
		return err
	case l.Format == YAML && l.n == 0:
		_, err := fmt.Fprintln(l.Out, "[]")
		return err
	case l.Format == CSV:
		l.startCSV()
		l.csv.Flush()
		return l.csv.Error()
	case l.table != nil:
		return l.table.Flush()
	}
	return nil
}

// NewTable aligns columns that WriteRow writes.
func NewTable(out io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
}

// WriteRow writes a row of a table, without empty cells at its end. An error is kept by the writer and returned
// by its Flush.
func WriteRow(w io.Writer, cells ...string) {
	for len(cells) > 0 && cells[len(cells)-1] == "" {
		cells = cells[:len(cells)-1]
	}
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
}
