package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// These commands of the scripts do what people do who know nothing of
// transactions.

// plain TABLE ROWS makes a table with a family cf, as cbt createfamily does, and
// a family old with a garbage-collection policy, and fills it.
func plain(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value("fixture").(*fixture)
	ctx := context.Background()
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(f.admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: args[0], ColumnFamilies: map[string]bigtable.Family{
		"cf":  {GCPolicy: bigtable.NoGcPolicy()},
		"old": {GCPolicy: bigtable.MaxVersionsPolicy(3)},
	}}))
	at := bigtable.Time(time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC))
	var rows []string
	var muts []*bigtable.Mutation
	for i := range n {
		m := bigtable.NewMutation()
		m.Set("cf", "name", at, fmt.Appendf(nil, "user %d", i))
		m.Set("old", "\x00\xff", at, []byte{0, 1, 0xff})
		rows, muts = append(rows, fmt.Sprintf("user/%06d", i)), append(muts, m)
	}
	errs, err := f.bt.Open(args[0]).ApplyBulk(ctx, rows, muts)
	ts.Check(err)
	if len(errs) > 0 {
		ts.Fatalf("%v", errs)
	}
}

// write CELL VALUE WHEN writes a cell past the library: now, or at a number of
// microseconds.
func write(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value("fixture").(*fixture)
	cell, err := format.ParseCell(args[0])
	ts.Check(err)
	at := bigtable.Now()
	if args[2] != "now" {
		n, err := strconv.ParseInt(args[2], 10, 64)
		ts.Check(err)
		at = bigtable.Timestamp(n)
		f.damaged = f.damaged || n >= 1e17
	}
	m := bigtable.NewMutation()
	m.Set(cell.Family, cell.Qualifier, at, []byte(args[1]))
	ts.Check(f.bt.Open(cell.Table).Apply(context.Background(), cell.Row, m))
}

// served puts the oracle into served mode, with nobody who serves.
func served(ts *testscript.TestScript, _ bool, _ []string) {
	f := ts.Value("fixture").(*fixture)
	f.damaged = true // the check at the end has no oracle
	_, err := tso.SetMode(context.Background(), f.bt.OpenTable(format.DefaultMetadataTable), tso.RowConfig{}, tso.ModeServed)
	ts.Check(err)
}

// awaitundo TABLE returns once the schema record of a table is gone.
func awaitUndo(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value("fixture").(*fixture)
	for {
		row, err := f.bt.Open(format.DefaultMetadataTable).ReadRow(context.Background(), "schema/"+args[0])
		ts.Check(err)
		if row == nil {
			return
		}
	}
}
