package readcmd

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestAt: --at takes what people write, history the cells that other commands print.
func TestAt(t *testing.T) {
	now := time.Date(2026, 11, 23, 1, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"10m ago": "2026-11-23T00:50:00Z", "2d ago": "2026-11-21T01:00:00Z", "1 min 30 s ago": "2026-11-23T00:58:30Z", "2026-11-20": "2026-11-20T00:00:00Z",
		"2026-11-20 05:30": "2026-11-20T05:30:00Z", "2026-11-20T05:30:00+01:00": "2026-11-20T04:30:00Z", "1795152600000000": "2026-11-20T05:30:00Z",
		"yesterday": "", "-1h ago": "", "ago": "", "2026-13-01": "",
	} {
		ts, err := parseAt(text, now)
		got := ""
		if err == nil {
			got = ts.Time().UTC().Format(time.RFC3339)
		}
		if got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, args := range [][]string{{"accounts", "user%00/7"}, {"accounts/user%00%2F7/bal:usd"}} {
		o := &historyOptions{}
		if err := o.args(&cobra.Command{}, args); err != nil || o.table != "accounts" || o.row != "user\x00/7" {
			t.Errorf("%q: table %q, row %q, %v", args, o.table, o.row, err)
		}
	}
}
