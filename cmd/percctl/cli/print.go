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

	printer printer
}

// Add prints an item.
func (l *List[T]) Add(item T) error {
	p := l.start()
	p.n++
	switch {
	case l.Format == CSV:
		return p.addCSV(l.Header, l.Rows(item))
	case l.Format != Table:
		return p.addValue(item)
	case l.Text != nil:
		return p.addText(func(w io.Writer) error { return l.Text(w, item) })
	case l.TableRows != nil:
		return p.addRows(l.TableHeader, l.TableRows(item))
	}
	return p.addRows(l.Header, l.Rows(item))
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
func (l *List[T]) End() error { return l.start().end(l.Header) }

func (l *List[T]) start() *printer {
	l.printer.out, l.printer.format = l.Out, l.Format
	return &l.printer
}

// A printer is the part of a List that does not depend on the type of its items, so
// that a program has it once.
type printer struct {
	out    io.Writer
	format Format
	n      int // items so far
	table  *tabwriter.Writer
	lines  int // of the table, since it was last aligned
	csv    *csv.Writer
}

// addValue prints an item as JSON or YAML.
func (p *printer) addValue(item any) error {
	if p.format == YAML {
		b, err := marshalYAML([]any{item})
		if err != nil {
			return err
		}
		_, err = p.out.Write(b)
		return err
	}
	b, err := marshalJSON(item)
	if err != nil {
		return err
	}
	before, after := "", "\n"
	if p.format == JSON {
		var indented bytes.Buffer
		if err := json.Indent(&indented, b, "  ", "  "); err != nil {
			return err
		}
		b, before, after = indented.Bytes(), "[\n  ", ""
		if p.n > 1 {
			before = ",\n  "
		}
	}
	_, err = fmt.Fprintf(p.out, "%s%s%s", before, b, after)
	return err
}

func (p *printer) addCSV(header []string, rows [][]string) error {
	p.startCSV(header)
	for _, row := range rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = Line(cell)
		}
		if err := p.csv.Write(safe); err != nil {
			return err
		}
	}
	p.csv.Flush()
	return p.csv.Error()
}

func (p *printer) startCSV(header []string) {
	if p.csv == nil {
		p.csv = csv.NewWriter(p.out)
		_ = p.csv.Write(header) // its error is kept
	}
}

func (p *printer) addText(text func(io.Writer) error) error {
	var b bytes.Buffer
	if p.n > 1 {
		b.WriteString("\n")
	}
	if err := text(&b); err != nil {
		return err
	}
	_, err := p.out.Write(b.Bytes())
	return err
}

func (p *printer) addRows(header []string, rows [][]string) error {
	if p.table == nil {
		p.table = NewTable(p.out)
		WriteRow(p.table, header...)
	}
	for _, row := range rows {
		WriteRow(p.table, row...)
		p.lines++
	}
	if p.lines >= tableBatch {
		p.lines = 0
		return p.table.Flush()
	}
	return nil
}

func (p *printer) end(header []string) error {
	text := ""
	switch {
	case p.format == CSV:
		return p.addCSV(header, nil)
	case p.table != nil:
		return p.table.Flush()
	case p.n == 0 && (p.format == JSON || p.format == YAML):
		text = "[]\n"
	case p.format == JSON:
		text = "\n]\n"
	}
	_, err := io.WriteString(p.out, text)
	return err
}

// NewTable aligns columns that WriteRow writes.
func NewTable(out io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
}

// inCell replaces what ends a cell or a line.
var inCell = strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`, "\v", `\v`, "\f", `\f`)

// WriteRow writes a row of a table, without empty cells at its end. An error is kept by the writer and returned
// by its Flush.
func WriteRow(w io.Writer, cells ...string) {
	for len(cells) > 0 && cells[len(cells)-1] == "" {
		cells = cells[:len(cells)-1]
	}
	for i, cell := range cells {
		if i > 0 {
			_, _ = io.WriteString(w, "\t")
		}
		_, _ = io.WriteString(w, inCell.Replace(cell))
	}
	_, _ = io.WriteString(w, "\n")
}
