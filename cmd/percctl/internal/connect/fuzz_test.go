package connect

import (
	"errors"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// FuzzCbtrc reads what ~/.cbtrc may contain. An error names the line, with
// nothing in it that steers a terminal.
func FuzzCbtrc(f *testing.F) {
	f.Add("project = p\ninstance=i\n# comment\n\ncreds = /a=b\n")
	f.Add("no equals\x1b[2J")
	f.Fuzz(func(t *testing.T, text string) {
		rc, err := parseCbtrc(".cbtrc", strings.NewReader(text))
		var coded *cli.Error
		switch {
		case errors.As(err, &coded):
			if coded.Code != cli.ExitUsage || strings.ContainsAny(err.Error(), "\x1b\n\r") {
				t.Errorf("%q: %q", text, err)
			}
		case err == nil:
			for k, v := range rc {
				if k != strings.TrimSpace(k) || v != strings.TrimSpace(v) || strings.Contains(k, "=") || strings.HasPrefix(k, "#") {
					t.Errorf("%q: %q = %q", text, k, v)
				}
			}
		}
	})
}
