package emulator_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Two transactions wrote a cell at the same time, and both committed. A check finds that, also while
// one or both of them still have their locks of a bulk prewrite in the cell.
func TestCheckFindsInterleavedBulkPrewrites(t *testing.T) {
	for _, tt := range []struct {
		name    string
		second  bool // the other transaction has written its primary
		locked  bool // its lock is still in the cell
		doubled bool // the record of the first one is there, too
		after   bool // it began after the commit of the first one
		want    admin.Rule
	}{
		{name: "a lock beside a record", second: true, want: admin.RuleInterleaved},
		{name: "two locks", second: true, locked: true, want: admin.RuleInterleaved},
		{name: "a lock of a transaction that did not commit", locked: true},
		{name: "a lock that was set again, below a newer record", second: true, doubled: true, after: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutCheck(), txntest.WithBulkFrom(2))
				env.CreateTable("a", "f")
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{}, faults.DialOptions()...)
				died := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
				first := beginSet(t, c, "1", "p1", "x", "y")
				second := begin(t, env.Client)
				commitTS, err := first.Commit(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				<-died.Fired()
				faults.Kill()
				startTS := second.StartTS()
				if tt.after {
					startTS = commitTS + 1
				}
				advance(time.Second)
				put := func(row string, record, lock bool, startTS, commitTS tso.Timestamp, primary string) {
					cell, at := txn.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"}, txn.Cell{Table: "a", Row: primary, Family: "f", Qualifier: "q"}
					m := bigtable.NewMutation()
					m.Set("f", "q", startTS.Cell(), []byte("2"))
					if record {
						family, value := format.WriteRecord{StartTS: startTS, Kind: format.KindPut, Primary: at}.Encode(cell)
						m.Set(family, cell.Column().Key(), commitTS.Cell(), value)
					}
					if lock {
						m.Set(format.LockFamily, cell.Column().Key(), startTS.Cell(), format.EncodeLock(&format.Lock{Cell: cell, StartTS: startTS, Kind: format.KindPut, Primary: at, TTL: time.Hour}))
					}
					if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
						t.Fatal(err)
					}
				}
				if tt.second {
					put("p2", true, false, startTS, commitTS+10, "p2")
				}
				put("x", !tt.locked, tt.locked, startTS, commitTS+10, "p2")
				if tt.doubled {
					put("x", true, false, first.StartTS(), commitTS, "p1")
				}
				var found []string
				for v, err := range admin.Check(t.Context(), env.Client, "a", nil) {
					if err != nil {
						t.Fatal(err)
					}
					found = append(found, fmt.Sprint(v.Cell.Row, " ", v.Rule))
				}
				want := []string{}
				if tt.want != "" {
					want = append(want, "x "+string(tt.want))
				}
				if fmt.Sprint(found) != fmt.Sprint(want) {
					t.Errorf("found %v, want %v", found, want)
				}
			})
		})
	}
}
