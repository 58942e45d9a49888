package tsocmd

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table aligns columns.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer) table { return table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)} }

func (t table) row(cells ...string) {
	// An error is kept by the writer and returned by flush.
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

func (t table) flush() error { return t.w.Flush() }
