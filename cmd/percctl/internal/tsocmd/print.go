package tsocmd

import (
	"fmt"
	"io"
	"os"
	"runtime/pprof"
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

// startProfile writes a CPU profile until stop is called; no file, no profile.
func startProfile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}
