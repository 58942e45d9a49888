package consolecmd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// TestRowAnswer: the page gets what snapshots read, moment by moment: a plain write after a commit
// is not read, an expired value ends, and below the safe point no snapshot is possible.
func TestRowAnswer(t *testing.T) {
	cell := func(q string) txn.Cell { return txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: q} }
	a := newRowAnswer(&readcmd.Row{Now: now + 100, Events: []readcmd.Event{
		{TS: now + 99, Kind: admin.VersionPlain, Column: "f:a", Words: "999, which no snapshot reads"},
		{TS: now + 10, StartTS: now + 5, CommitTS: now + 10, Kind: admin.VersionWrite, Write: "put", Column: "f:a"},
		{TS: now + 20, StartTS: now + 15, CommitTS: now + 20, Kind: admin.VersionWrite, Write: "put", Column: "f:a"},
		{TS: now + 30, StartTS: now + 30, Kind: admin.VersionLock, Column: "f:b"},
		{TS: now + 40, StartTS: now + 35, CommitTS: now + 40, Kind: admin.VersionWrite, Write: "delete", Column: "f:b"},
	}, RowHistory: &admin.RowHistory{SafePoint: now + 12, Readings: []admin.Reading{
		{Cell: cell("a"), From: now + 12, To: now + 20, Shown: admin.ShownValue, Value: []byte("100"), CommitTS: now + 10},
		{Cell: cell("a"), From: now + 20, To: now + 60, Shown: admin.ShownValue, Value: []byte("101"), CommitTS: now + 20},
		{Cell: cell("a"), From: now + 60, Shown: admin.ShownExpired},
		{Cell: cell("b"), From: now + 12, Shown: admin.ShownNothing},
	}}})
	var got strings.Builder
	for i, m := range a.Moments {
		fmt.Fprintf(&got, "%d", m.TS-tso.Timestamp(now))
		if m.Refused != "" {
			got.WriteString(" refused")
		}
		for _, l := range a.Lanes {
			for _, r := range l.Reads {
				if r.From <= i && i < r.To {
					fmt.Fprintf(&got, " %s=%s", l.Short, r.Text)
				}
			}
			for _, m := range l.Marks {
				if m.At == i {
					fmt.Fprintf(&got, " (%s %s)", l.Short, m.Kind)
				}
			}
		}
		got.WriteString("\n")
	}
	want := `4 refused (f:a data)
5 refused
10 refused (f:a record)
12 f:a=100 f:b=nothing
15 f:a=100 f:b=nothing
20 f:a=101 (f:a record) f:b=nothing
30 f:a=101 f:b=nothing (f:b lock)
35 f:a=101 f:b=nothing
40 f:a=101 f:b=nothing (f:b delete)
60 f:a=expired f:b=nothing
100 f:a=expired f:b=nothing
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
