package worldtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Repeated joins requests, and counts those that repeat.
func Repeated(requests []string) string {
	var all []string
	for i, n := 0, 0; i < len(requests); i += n {
		for n = 1; i+n < len(requests) && requests[i+n] == requests[i]; n++ {
		}
		all = append(all, requests[i])
		if n > 1 {
			all[len(all)-1] += fmt.Sprintf(" ×%d", n)
		}
	}
	return strings.Join(all, ", ")
}

// ErrorName says of what kind an error is. Timestamps count from base, and known has the names of
// other errors.
func ErrorName(err error, base tso.Timestamp, known map[error]string) string {
	var conflict *format.ConflictError
	var undetermined *format.UndeterminedError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &undetermined):
		u := *undetermined
		return fmt.Sprintf("undetermined %s@%d-%d: %s", u.Primary.Row, u.StartTS-base, u.CommitTS-base, ErrorName(u.Err, base, known))
	case errors.As(err, &conflict):
		return fmt.Sprintf("conflict %s %d with %d: %v", conflict.Cell.Row, conflict.StartTS-base, max(conflict.ConflictTS-base, 0), conflict.Reason)
	case errors.Is(err, format.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, format.ErrTooOld):
		return "too old"
	case errors.Is(err, format.ErrInvalid):
		return "invalid"
	case errors.Is(err, format.ErrClosed):
		return "closed"
	}
	for e, name := range known {
		if errors.Is(err, e) {
			return name
		}
	}
	if errors.Is(err, context.Canceled) {
		return "canceled"
	}
	if code := status.Code(err); code != codes.Unknown {
		return code.String()
	}
	return err.Error()
}

// A Golden is a file in testdata: after "# name" it has the lines of a subtest.
type Golden struct {
	file     string
	update   bool
	sections map[string][]string
}

// NewGolden reads a file, or writes it at the end of t if update is set.
func NewGolden(t *testing.T, name string, update bool) *Golden {
	t.Helper()
	g := &Golden{filepath.Join("testdata", name), update, map[string][]string{}}
	if update {
		t.Cleanup(func() {
			var text strings.Builder
			for _, name := range slices.Sorted(maps.Keys(g.sections)) {
				fmt.Fprintf(&text, "# %s\n%s\n", name, strings.Join(g.sections[name], "\n"))
			}
			if err := os.WriteFile(g.file, []byte(text.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		})
		return g
	}
	text, err := os.ReadFile(g.file)
	if err != nil {
		t.Fatal(err)
	}
	name = ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if next, ok := strings.CutPrefix(line, "# "); ok {
			name = next
			continue
		}
		g.sections[name] = append(g.sections[name], line)
	}
	return g
}

// Compare compares the lines of a subtest with the file.
func (g *Golden) Compare(t *testing.T, name string, lines []string) {
	t.Helper()
	if g.update {
		g.sections[name] = lines
		return
	}
	if d := gocmp.Diff(g.sections[name], lines); d != "" {
		t.Errorf("%s, %s (-want +got; -update writes it):\n%s", g.file, name, d)
	}
}
