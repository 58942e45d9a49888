package emulator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// update runs one transaction on a table and returns its commit_ts.
func update(t *testing.T, env *txntest.Env, table string, f func(*txn.Table)) tso.Timestamp {
	t.Helper()
	ts, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		f(tx.Table(table))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func snapshot(t *testing.T, env *txntest.Env, table string, opts ...txn.SnapshotOption) *txn.View {
	t.Helper()
	s, err := env.Client.Snapshot(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s.Table(table)
}

// rowsText reads rows, and returns each as "key column=value …".
func rowsText(t *testing.T, v *txn.View, rs bigtable.RowSet, opts ...txn.ReadOption) []string {
	t.Helper()
	var out []string
	for row, err := range v.ReadRows(t.Context(), rs, opts...) {
		if err != nil {
			t.Fatal(err)
		}
		s := row.Key()
		for _, f := range []string{"f", "g"} {
			for _, item := range row[f] {
				s += fmt.Sprintf(" %s=%s", item.Column, item.Value)
			}
		}
		out = append(out, s)
	}
	return out
}

func wantRows(t *testing.T, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rows (-want +got):\n%s", d)
	}
}

// An absent value and an empty one differ, for every way to read, in a transaction and
// after it.
func TestAbsentAndEmpty(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("t", "f")
	check := func(v *txn.View, state string) {
		t.Helper()
		for _, q := range []string{"empty", "nil", "gone", "never"} {
			value, ok, err := v.Get(t.Context(), "r", "f", q)
			if err != nil {
				t.Fatal(err)
			}
			present := q == "empty" || q == "nil"
			if ok != present || (value != nil) != present || len(value) != 0 {
				t.Errorf("%s: %s is %v, present %v", state, q, value, ok)
			}
		}
		wantRows(t, rowsText(t, v, nil), "r f:empty= f:nil=")
	}
	update(t, env, "t", func(tbl *txn.Table) {
		tbl.Set("r", "f", "gone", nil)
		tbl.Set("r", "f", "never", []byte("x"))
		tbl.Delete("r", "f", "never")
	})
	tx, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tbl := tx.Table("t")
	tbl.Set("r", "f", "empty", []byte{})
	tbl.Set("r", "f", "nil", nil)
	tbl.Delete("r", "f", "gone")
	check(&tbl.View, "in the transaction")
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(snapshot(t, env, "t"), "after it")
}

// Row keys, qualifiers and values may contain any bytes.
func TestAnyBytes(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	env := txntest.New(t)
	env.CreateTable("t", "f")
	ctx := t.Context()
	anyBytes := func(least int) *rapid.Generator[string] {
		return rapid.Map(rapid.SliceOfN(rapid.Byte(), least, 40), func(b []byte) string { return string(b) })
	}
	rapid.Check(t, func(t *rapid.T) {
		row, qualifier, value := anyBytes(1).Draw(t, "row"), anyBytes(0).Draw(t, "qualifier"), []byte(anyBytes(0).Draw(t, "value"))
		commit := func(f func(*txn.Table)) {
			_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				f(tx.Table("t"))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		commit(func(tbl *txn.Table) { tbl.Set(row, "f", qualifier, value) })
		s, err := env.Client.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		view := s.Table("t")
		got, ok, err := view.Get(ctx, row, "f", qualifier)
		if err != nil || !ok || !bytes.Equal(got, value) {
			t.Fatalf("get: %q, %v, %v", got, ok, err)
		}
		for _, opts := range [][]txn.ReadOption{nil, {txn.Columns(txn.Column{Family: "f", Qualifier: qualifier})}} {
			n := 0
			for r, err := range view.ReadRows(ctx, bigtable.RowList{row}, opts...) {
				if err != nil {
					t.Fatal(err)
				}
				for _, item := range r["f"] {
					if r.Key() == row && item.Column == "f:"+qualifier && bytes.Equal(item.Value, value) {
						n++
					}
				}
			}
			if n != 1 {
				t.Fatalf("the cell was in %d rows", n)
			}
		}
		cell := txn.Cell{Table: "t", Row: row, Family: "f", Qualifier: qualifier}
		for v, err := range admin.Check(ctx, env.Client, "t", bigtable.RowList{row}) {
			t.Fatalf("%v: %v, %v", cell, v, err)
		}
		commit(func(tbl *txn.Table) { tbl.Delete(row, "f", qualifier) })
		s, err = env.Client.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok, err := s.Table("t").Get(ctx, row, "f", qualifier); ok || err != nil {
			t.Fatalf("deleted: %q, %v, %v", got, ok, err)
		}
	})
}

// DeleteRow deletes what its transaction sees. This includes the transaction's own
// writes, but not what concurrent transactions add.
func TestDeleteRow(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("t", "f", "g")
	before := update(t, env, "t", func(tbl *txn.Table) {
		tbl.Set("r", "f", "a", []byte("1"))
		tbl.Set("r", "g", "b", []byte("2"))
		tbl.Set("other", "f", "a", []byte("3"))
	})
	tx, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tbl := tx.Table("t")
	tbl.Set("r", "f", "own", []byte("4"))
	update(t, env, "t", func(tbl *txn.Table) { tbl.Set("r", "f", "meanwhile", []byte("5")) })
	if err := tbl.DeleteRow(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	tbl.Set("r", "f", "after", []byte("6"))
	wantRows(t, rowsText(t, &tbl.View, nil), "other f:a=3", "r f:after=6")
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), "other f:a=3", "r f:after=6 f:meanwhile=5")
	wantRows(t, rowsText(t, snapshot(t, env, "t", txn.At(before)), nil), "other f:a=3", "r f:a=1 g:b=2")

	// A row that does not exist, and one that cannot exist.
	update(t, env, "t", func(tbl *txn.Table) {
		if err := tbl.DeleteRow(t.Context(), "no such row"); err != nil {
			t.Error(err)
		}
		if err := tbl.DeleteRow(t.Context(), ""); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("empty row key: %v, want ErrInvalid", err)
		}
	})
}

// Data that was in a table before its adoption counts as committed before all
// transactions, until it is overwritten or deleted. Of several versions the latest
// counts.
func TestDataFromBeforeAdoption(t *testing.T) {
	env := txntest.New(t)
	ctx := t.Context()
	for _, err := range []error{
		env.Admin.CreateTable(ctx, "t"),
		env.Admin.CreateColumnFamily(ctx, "t", "f"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := bigtable.NewMutation()
	m.Set("f", "old", 1000, []byte("older"))
	m.Set("f", "old", bigtable.Now().TruncateToMilliseconds(), []byte("plain"))
	m.Set("f", "zero", 0, []byte("at 0"))
	m.Set("f", "kept", bigtable.Now().TruncateToMilliseconds(), []byte("kept"))
	if err := env.Bigtable.OpenTable("t").Apply(ctx, "r", m); err != nil {
		t.Fatal(err)
	}
	env.CreateTable("t", "f")
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), "r f:kept=kept f:old=plain f:zero=at 0")
	first := update(t, env, "t", func(tbl *txn.Table) {
		tbl.Set("r", "f", "old", []byte("new"))
		tbl.Delete("r", "f", "zero")
	})
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), "r f:kept=kept f:old=new")
	wantRows(t, rowsText(t, snapshot(t, env, "t", txn.At(first-1)), nil), "r f:kept=kept f:old=plain f:zero=at 0")
	update(t, env, "t", func(tbl *txn.Table) { tbl.Delete("r", "f", "old") })
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), "r f:kept=kept")
}

// A plain write of a column that a transaction has written stays invisible, with and
// without a timestamp of its own: it is below every version.
func TestPlainWritesStayInvisible(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("t", "f")
	update(t, env, "t", func(tbl *txn.Table) {
		tbl.Set("r", "f", "put", []byte("committed"))
		tbl.Set("r", "f", "deleted", nil)
	})
	update(t, env, "t", func(tbl *txn.Table) { tbl.Delete("r", "f", "deleted") })
	m := bigtable.NewMutation()
	for _, q := range []string{"put", "deleted"} {
		m.Set("f", q, bigtable.ServerTime, []byte("plain"))
		m.Set("f", q, bigtable.Now().TruncateToMilliseconds(), []byte("plain"))
	}
	if err := env.Bigtable.OpenTable("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), "r f:put=committed")
	update(t, env, "t", func(tbl *txn.Table) { tbl.Set("r", "f", "deleted", []byte("again")) })
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), "r f:deleted=again f:put=committed")
}

// A plain write of a column that no transaction has written looks like data from before
// the adoption. It is visible at once, in every snapshot, until a transaction writes
// the column. The guarantees say so.
func TestPlainWriteOfUnwrittenColumn(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("t", "f")
	v := snapshot(t, env, "t")
	wantRows(t, rowsText(t, v, nil))
	m := bigtable.NewMutation()
	m.Set("f", "q", bigtable.ServerTime, []byte("plain"))
	if err := env.Bigtable.OpenTable("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
	wantRows(t, rowsText(t, v, nil), "r f:q=plain")
	update(t, env, "t", func(tbl *txn.Table) { tbl.Delete("r", "f", "q") })
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil))
}

// Every combination of read options selects the right rows and columns, and bad options
// are refused.
func TestReadOptions(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("t", "f", "g")
	update(t, env, "t", func(tbl *txn.Table) {
		for _, row := range []string{"a", "b", "c", "d"} {
			tbl.Set(row, "f", "q", []byte(row))
		}
		tbl.Set("b", "g", "1", []byte("x"))
		tbl.Set("d", "g", "1", []byte("x"))
		tbl.Set("d", "g", "2", []byte("y"))
	})
	v := snapshot(t, env, "t")
	g1 := txn.Columns(txn.Column{Family: "g", Qualifier: "1"})
	for _, tc := range []struct {
		name string
		rows bigtable.RowSet
		opts []txn.ReadOption
		want string
	}{
		{"limit", nil, []txn.ReadOption{txn.Limit(2)}, "a f:q=a,b f:q=b g:1=x"},
		{"no limit", bigtable.PrefixRange("a"), []txn.ReadOption{txn.Limit(0)}, "a f:q=a"},
		{"reverse", nil, []txn.ReadOption{txn.Reverse(), txn.Limit(2)}, "d f:q=d g:1=x g:2=y,c f:q=c"},
		{"reverse list", bigtable.RowList{"a", "c"}, []txn.ReadOption{txn.Reverse()}, "c f:q=c,a f:q=a"},
		{"column", nil, []txn.ReadOption{g1}, "b g:1=x,d g:1=x"},
		{"limit counts rows that have the column", nil, []txn.ReadOption{g1, txn.Limit(1), txn.Reverse()}, "d g:1=x"},
		{"family", nil, []txn.ReadOption{txn.Families("g")}, "b g:1=x,d g:1=x g:2=y"},
		{"family and one of its columns", nil, []txn.ReadOption{txn.Families("g"), g1, g1}, "b g:1=x,d g:1=x g:2=y"},
		{"family and another's column", bigtable.RowList{"d"}, []txn.ReadOption{txn.Families("f"), g1}, "d f:q=d g:1=x"},
		{"qualifiers", nil, []txn.ReadOption{txn.Qualifiers("g", "2", "")}, "d g:2=y"},
		{"qualifiers with a prefix", nil, []txn.ReadOption{txn.Qualifiers("g", "1", txn.PrefixEnd("1"))}, "b g:1=x,d g:1=x"},
		{"all qualifiers", nil, []txn.ReadOption{txn.Qualifiers("g", "", "")}, "b g:1=x,d g:1=x g:2=y"},
		{"overlapping qualifiers", nil, []txn.ReadOption{txn.Qualifiers("g", "1", "2"), txn.Qualifiers("g", "0", "11"), txn.Qualifiers("g", "10", "3"), g1}, "b g:1=x,d g:1=x g:2=y"},
		{"qualifiers and a column", bigtable.RowList{"d"}, []txn.ReadOption{txn.Qualifiers("g", "2", "3"), g1}, "d g:1=x g:2=y"},
		{"keys only", nil, []txn.ReadOption{txn.KeysOnly(), txn.Limit(2)}, "a f:q=,b f:q= g:1="},
		{"keys of a column", bigtable.RowList{"d"}, []txn.ReadOption{txn.KeysOnly(), g1}, "d g:1="},
		{"first cell", nil, []txn.ReadOption{txn.CellsPerRow(1), txn.Reverse()}, "d f:q=d,c f:q=c,b f:q=b,a f:q=a"},
		{"first cells", nil, []txn.ReadOption{txn.CellsPerRow(2), txn.Reverse()}, "d f:q=d g:1=x,c f:q=c,b f:q=b g:1=x,a f:q=a"},
		{"first cell of a family", nil, []txn.ReadOption{txn.CellsPerRow(1), txn.Families("g")}, "b g:1=x,d g:1=x"},
		{"first cells, no bound", nil, []txn.ReadOption{txn.CellsPerRow(math.MaxInt), txn.Families("g")}, "b g:1=x,d g:1=x g:2=y"},
		{"list with repetitions and absent rows", bigtable.RowList{"c", "zz", "a", "c"}, nil, "a f:q=a,c f:q=c"},
		{"empty list", bigtable.RowList{}, nil, ""},
		{"empty range", bigtable.NewRange("b", "b"), nil, ""},
		{"no ranges", bigtable.RowRangeList{}, nil, ""},
		{"overlapping ranges", bigtable.RowRangeList{bigtable.NewRange("b", "d"), bigtable.NewClosedRange("a", "c")}, nil, "a f:q=a,b f:q=b g:1=x,c f:q=c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := strings.Join(rowsText(t, v, tc.rows, tc.opts...), ","); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
	if err := rowsError(t, &txn.Table{View: *v}, nil, txn.Qualifiers("f", strings.Repeat("x", 3000), "")); !errors.Is(err, txn.ErrLimit) {
		t.Errorf("a qualifier of 3,000 bytes: error %v, want ErrLimit", err)
	}
	for name, opt := range map[string]txn.ReadOption{
		"negative limit":             txn.Limit(-1),
		"metadata family":            txn.Families(format.LockFamily),
		"no family":                  txn.Columns(txn.Column{Qualifier: "q"}),
		"no columns":                 txn.Columns(), // it read whole rows
		"no families":                txn.Families(),
		"empty range":                txn.Qualifiers("f", "b", "b"),
		"reverse range":              txn.Qualifiers("f", "b", "a"),
		"range without a family":     txn.Qualifiers("", "a", "b"),
		"range of a metadata family": txn.Qualifiers(format.WriteFamily, "f:a", "f:b"),
		"negative number of cells":   txn.CellsPerRow(-1),
	} {
		if err := rowsError(t, &txn.Table{View: *v}, nil, opt); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}

// A loop over a scan may end early: then the scan stops reading. It can also be
// repeated.
func TestBreakOutOfScan(t *testing.T) {
	faults := txntest.NewFaults(t)
	// Locks would cause more reads, so there are none.
	env := txntest.New(t, txntest.WithDialOptions(faults.DialOptions()...), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("t", "f")
	update(t, env, "t", func(tbl *txn.Table) {
		for i := range 600 {
			tbl.Set(fmt.Sprintf("%04d", i), "f", "q", nil)
		}
	})
	faults.Reset()
	seq := snapshot(t, env, "t").ReadRows(t.Context(), nil)
	for range 2 {
		n := 0
		for _, err := range seq {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 3 {
				break
			}
		}
	}
	if n := faults.Count()[txntest.StepRead]; n != 2 {
		t.Errorf("%d reads for the first rows of two scans", n)
	}
	faults.Reset()
	n := 0
	for range seq {
		n++
	}
	if reads := faults.Count()[txntest.StepRead]; n != 600 || reads != 1 {
		t.Errorf("%d rows in %d requests", n, reads)
	}
}

// holdScans begins n scans of a table and stops each at its first row until the test
// ends.
func holdScans(t *testing.T, view *txn.View, n int) {
	t.Helper()
	for range n {
		next, stop := iter.Pull2(view.ReadRows(t.Context(), nil))
		t.Cleanup(stop)
		if _, err, ok := next(); err != nil || !ok {
			t.Fatalf("first row: %v, %v", ok, err)
		}
	}
}

// Scans of slow callers use only some of a connection's streams. More scans make a
// request for each page.
func TestScansBeyondTheirStreams(t *testing.T) {
	faults, seen := txntest.NewFaults(t), newSizes(t)
	env := txntest.New(t, txntest.WithDialOptions(append(faults.DialOptions(), seen.dialOptions()...)...), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("t", "f")
	update(t, env, "t", func(tbl *txn.Table) {
		for i := range 600 {
			tbl.Set(fmt.Sprintf("%04d", i), "f", "q", nil)
		}
	})
	view := snapshot(t, env, "t")
	holdScans(t, view, 15)
	for _, want := range []int{1, 3} {
		faults.Reset()
		n := 0
		for row, err := range view.ReadRows(t.Context(), nil) {
			if err != nil || row.Key() != fmt.Sprintf("%04d", n) {
				t.Fatalf("row %d is %v, %v", n, row, err)
			}
			n++
		}
		if reads := faults.Count()[txntest.StepRead]; n != 600 || reads != want {
			t.Errorf("%d rows in %d requests, want %d", n, reads, want)
		}
		holdScans(t, view, 1)
	}
	// A request asks for a page, or for fewer rows if the limit allows.
	for limit, want := range map[int]int64{20: 36, 500: 256} {
		seen.reset()
		for _, err := range view.ReadRows(t.Context(), nil, txn.Limit(limit)) {
			if err != nil {
				t.Fatal(err)
			}
		}
		seen.mu.Lock()
		if got := seen.reads[0].RowsLimit; got != want {
			t.Errorf("a scan of %d rows asks for %d, want %d", limit, got, want)
		}
		seen.mu.Unlock()
	}
}

// A caller may take its time with a row. A request that has been open for too long
// ends, and another one continues after the last row.
func TestScanOfSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		faults := txntest.NewFaults(t)
		env := txntest.New(t, txntest.Embedded(), txntest.WithDialOptions(faults.DialOptions()...), txntest.WithConfig(txn.Config{SyncSecondaries: true, RPCTimeout: timeout}))
		env.CreateTable("t", "f")
		update(t, env, "t", func(tbl *txn.Table) {
			for i := range 600 {
				tbl.Set(fmt.Sprintf("%04d", i), "f", "q", nil)
			}
		})
		faults.Reset()
		n := 0
		for row, err := range snapshot(t, env, "t").ReadRows(t.Context(), nil) {
			if err != nil || row.Key() != fmt.Sprintf("%04d", n) {
				t.Fatalf("row %d is %v, %v", n, row, err)
			}
			if n++; n == 10 || n == 300 {
				<-time.After(2 * timeout)
			}
		}
		if reads := faults.Count()[txntest.StepRead]; n != 600 || reads < 3 {
			t.Errorf("%d rows in %d requests", n, reads)
		}
	})
}

// Pages are bounded in bytes as well as in rows. The test can see this if each page has
// a request of its own.
func TestScanOfLargeRows(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	faults := txntest.NewFaults(t)
	env := txntest.New(t, txntest.WithDialOptions(faults.DialOptions()...), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("t", "f")
	const rows = 7
	update(t, env, "t", func(tbl *txn.Table) {
		for i := range rows {
			tbl.Set(fmt.Sprint(i), "f", "q", bytes.Repeat([]byte{byte(i)}, 3<<19))
		}
	})
	holdScans(t, snapshot(t, env, "t"), 16)
	for _, reverse := range []bool{false, true} {
		for name, rs := range map[string]bigtable.RowSet{"range": nil, "list": bigtable.RowList{"0", "1", "2", "3", "4", "5", "6"}} {
			faults.Reset()
			var opts []txn.ReadOption
			if reverse {
				opts = append(opts, txn.Reverse())
			}
			i := 0
			for row, err := range snapshot(t, env, "t").ReadRows(t.Context(), rs, opts...) {
				if err != nil {
					t.Fatal(err)
				}
				want := i
				if reverse {
					want = rows - 1 - i
				}
				if v := row["f"][0].Value; row.Key() != fmt.Sprint(want) || len(v) != 3<<19 || v[0] != byte(want) {
					t.Errorf("%s, reverse %v: row %s with %d bytes, want row %d", name, reverse, row.Key(), len(v), want)
				}
				i++
			}
			if n := faults.Count()[txntest.StepRead]; i != rows || n < 3 {
				t.Errorf("%s, reverse %v: %d rows in %d requests", name, reverse, i, n)
			}
		}
	}
}

// A snapshot from before a commit ignores the locks that the commit has not replaced
// yet, and reads the version before, wherever it is stored. A snapshot from after it
// rolls them forward. Neither waits for the locks' owner.
func TestReadsPastCommittedLocks(t *testing.T) {
	for name, at := range map[string]func(start, commit tso.Timestamp) tso.Timestamp{
		"at its start_ts":      func(start, _ tso.Timestamp) tso.Timestamp { return start },
		"before its commit_ts": func(_, commit tso.Timestamp) tso.Timestamp { return commit - 1 },
		"at its commit_ts":     func(_, commit tso.Timestamp) tso.Timestamp { return commit },
	} {
		t.Run(name, func(t *testing.T) { readPastCommittedLocks(t, at) })
	}
}

func readPastCommittedLocks(t *testing.T, at func(start, commit tso.Timestamp) tso.Timestamp) {
	env := txntest.New(t)
	ctx := t.Context()
	for _, err := range []error{
		env.Admin.CreateTable(ctx, "t"),
		env.Admin.CreateColumnFamily(ctx, "t", "f"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := bigtable.NewMutation()
	m.Set("f", "q", 1000, []byte("plain"))
	if err := env.Bigtable.OpenTable("t").Apply(ctx, "plain", m); err != nil {
		t.Fatal(err)
	}
	env.CreateTable("t", "f")
	update(t, env, "t", func(tbl *txn.Table) {
		tbl.Set("deleted", "f", "q", []byte("old"))
		tbl.Set("locked", "f", "q", []byte("old"))
		tbl.Set("updated", "f", "q", []byte("old"))
	})
	faults := txntest.NewFaults(t)
	held := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
	writer := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	start := tso.Timestamp(0)
	commit, err := writer.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		start = tx.StartTS()
		tbl := tx.Table("t")
		tbl.Set("primary", "f", "q", []byte("new"))
		tbl.Set("created", "f", "q", []byte("new"))
		tbl.Delete("deleted", "f", "q")
		tbl.Lock("locked", "f", "q")
		tbl.Set("plain", "f", "q", []byte("new"))
		tbl.Set("updated", "f", "q", []byte("new"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	waitFired[error](t, held, nil)
	before := []string{"deleted f:q=old", "locked f:q=old", "plain f:q=plain", "updated f:q=old"}
	after := []string{"created f:q=new", "locked f:q=old", "plain f:q=new", "primary f:q=new", "updated f:q=new"}
	// This read comes first, while all locks exist.
	want := before
	ts := at(start, commit)
	if ts >= commit {
		want = after
	}
	wantRows(t, rowsText(t, snapshot(t, env, "t", txn.At(ts)), nil), want...)
	wantRows(t, rowsText(t, snapshot(t, env, "t"), nil), after...)
	wantRows(t, rowsText(t, snapshot(t, env, "t", txn.At(commit-1)), nil), before...)
	for l, err := range admin.Locks(ctx, env.Client, "t", nil) {
		// No reader resolves a lock of a lock-only write.
		if err != nil || l.Kind != format.KindLock {
			t.Errorf("lock left: %+v, %v", l, err)
		}
	}
	held.Release()
}

// A read of a family that the table does not have fails, and says which families there are.
// Before the fix, a mistyped family read as absent. A family that was added since costs one
// read of the schema.
func TestReadOfUnknownFamily(t *testing.T) {
	env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
	s := takeSnapshot(t, a)
	wantValue(t, s, "bob", "")
	read := func() (errs []error) {
		_, _, err := s.Table("a").Get(t.Context(), "bob", "g", "q")
		_, err2 := s.Table("a").ReadRow(t.Context(), "bob", txn.Columns(txn.Column{Family: "f"}, txn.Column{Family: "g"}))
		_, err3 := s.Table("a").ReadRow(t.Context(), "bob", txn.Families("g"))
		var err4 error
		for _, err4 = range s.Table("a").ReadRows(t.Context(), nil, txn.Families("f", "g")) {
			break
		}
		return []error{err, err2, err3, err4}
	}
	for i, err := range read() {
		if !errors.Is(err, txn.ErrSchema) || !strings.Contains(err.Error(), `table "a" has no family "g", only f.`) {
			t.Errorf("read %d: %v", i, err)
		}
	}
	env.CreateTable("a", "f", "g")
	faults.Reset()
	for i, err := range read() {
		if err != nil {
			t.Errorf("read %d after the family was added: %v", i, err)
		}
	}
	if n := faults.Count()[txntest.StepSchema]; n != 1 {
		t.Errorf("%d reads of the schema, want 1", n)
	}
}

// A read of a family sees the lock of a column with any qualifier.
func TestFamilyReadSeesAnyLock(t *testing.T) {
	for _, q := range []string{"", "\x00", "q", ":", ";", "\x7f", "\x80", "\xff\xff"} {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		secondaries := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		tx := beginSet(t, a, "1", "primary")
		tx.Table("a").Set("bob", "f", q, []byte("1"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-secondaries.Fired()
		row, err := takeSnapshot(t, env.Client).Table("a").ReadRow(t.Context(), "bob", txn.Families("f"))
		if err != nil || len(row["f"]) != 1 {
			t.Errorf("qualifier %q: a read after the commit sees %v, %v", q, row, err)
		}
		secondaries.Release()
	}
}
