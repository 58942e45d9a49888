// Package readcmd is percctl get, scan and history: what is in tables, as
// transactions see it, and as it is stored.
package readcmd

import (
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// readsResolve says what get and scan may do beside reading.
const readsResolve = `
The command reads as transactions do: it waits for locks of live transactions, and
resolves locks of dead clients as the primaries decide. To see what is stored
without changing it, use percctl history or percctl lock list.`

// A value is one cell and its committed value.
type value struct {
	Cell     string        `json:"cell"`           // table, row and column
	Row      string        `json:"row"`            // row key, as commands take it
	Column   string        `json:"column"`         // family and qualifier
	CommitTS tso.Timestamp `json:"commit_ts"`      // commit timestamp of the value; of data from before the table was adopted, the timestamp of the cell
	Commit   string        `json:"commit_time"`    // commit_ts as a time
	Size     int           `json:"size_bytes"`     // length of the value
	Value    []byte        `json:"value"`          // the value
	Text     *string       `json:"text,omitempty"` // the value again, if it is printable text
}

func newValue(table, row string, item bigtable.ReadItem) value {
	family, qualifier, _ := strings.Cut(item.Column, ":")
	cell := txn.Cell{Table: table, Row: row, Family: family, Qualifier: qualifier}
	ts := tso.Timestamp(item.Timestamp)
	return value{
		Cell: cell.String(), Row: session.Row(row), Column: cell.Column().String(),
		CommitTS: ts, Commit: cli.Time(ts), Size: len(item.Value), Value: append([]byte{}, item.Value...), Text: plainText(item.Value),
	}
}

// plainText is the value where it needs no quotes on a terminal.
func plainText(v []byte) *string {
	if text := cli.Text(v); len(v) == 0 || text == string(v) {
		text = string(v)
		return &text
	}
	return nil
}

// An atFlag is --at.
type atFlag struct {
	value   string
	options []txn.SnapshotOption
}

func (f *atFlag) add(cmd *cobra.Command, o *session.Options) {
	cmd.Flags().StringVar(&f.value, "at", "", "read at this time: a timestamp, an RFC 3339 time, a date (2026-11-20, 2026-11-20 05:30; UTC), or \"10m ago\" (default: now)")
	o.Require(f.check)
}

// parseAt reads a time as people write it. now is by this machine's clock.
func parseAt(text string, now time.Time) (tso.Timestamp, error) {
	if ago, ok := strings.CutSuffix(text, " ago"); ok {
		d, err := cli.ParseDuration(ago)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q is no duration, like 90s, 10m or 2d", ago)
		}
		return tso.FromTime(now.Add(-d)), nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02 15:04", "2006-01-02 15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			text = t.Format(time.RFC3339)
		}
	}
	return tso.ParseTimestamp(text)
}

func (f *atFlag) check() error {
	if f.value == "" {
		return nil
	}
	ts, err := parseAt(f.value, time.Now())
	if err != nil {
		return cli.Usagef("--at: %w; or a date (2026-11-20 05:30, UTC), or \"10m ago\"", err)
	}
	if ts == 0 {
		return cli.Usagef("--at %s: it is not a timestamp", f.value)
	}
	f.options = []txn.SnapshotOption{txn.At(ts)}
	return nil
}
