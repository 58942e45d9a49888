package connect

import (
	"errors"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// FuzzCbtrc reads what ~/.cbtrc may contain. An error has the number of the line,
// and nothing that stands there.
func FuzzCbtrc(f *testing.F) {
	f.Add("project = p\ninstance=i\n# comment\n\ncreds = /a=b\n")
	f.Add("no equals\x1b[2J")
	f.Add("auth-token: ya29.secret")
	f.Fuzz(func(t *testing.T, text string) {
		rc, err := parseCbtrc(".cbtrc", strings.NewReader(text))
		var coded *cli.Error
		switch {
		case errors.As(err, &coded):
			says, ok := strings.CutSuffix(err.Error(), ": the line is not of the form key = value")
			if coded.Code != cli.ExitUsage || !ok || strings.Trim(says, ".cbtr:0123456789") != "" {
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
