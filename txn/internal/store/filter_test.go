package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// filterTable returns a table on an emulator, for requests without the library.
func filterTable(t *testing.T) *bigtable.Table {
	t.Helper()
	server, err := bttest.NewServer("localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	conn, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx := t.Context()
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	for _, family := range append([]string{"f", "g"}, format.MetadataFamilies...) {
		if err := admin.CreateColumnFamily(ctx, "t", family); err != nil {
			t.Fatal(err)
		}
	}
	bt, err := bigtable.NewClientWithConfig(ctx, "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}, DisableSession: true}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bt.Close() })
	return bt.Open("t")
}

// cells returns the cells of a row as family:qualifier@timestamp. Timestamps of the library
// are in microseconds since filterBase.
func cells(row bigtable.Row) (all []string) {
	for _, items := range row {
		for _, it := range items {
			ts := int64(it.Timestamp)
			if it.Timestamp >= format.PlainBefore {
				ts = int64(tso.FromCell(it.Timestamp) - filterBase)
			}
			all = append(all, fmt.Sprintf("%s@%d", it.Column, ts))
		}
	}
	slices.Sort(all)
	return all
}

const filterBase tso.Timestamp = 1_800_000_000_000_000

// TestReadFilters: each kind of read returns the newest cell at or below its timestamp for
// each selected column, whatever is above it, and nothing of other columns.
func TestReadFilters(t *testing.T) {
	table := filterTable(t)
	m := bigtable.NewMutation()
	at := func(ts tso.Timestamp) bigtable.Timestamp { return (filterBase + ts).Cell() }
	for _, c := range []format.Column{{Family: "f", Qualifier: "q"}, {Family: "f", Qualifier: "r"}, {Family: "g", Qualifier: "q"}} {
		for _, ts := range []tso.Timestamp{1, 3, 7} {
			m.Set(c.Family, c.Qualifier, at(ts), []byte("value"))
			m.Set(format.WriteFamily, c.Key(), at(ts+1), []byte("record"))
		}
	}
	m.Set(format.LockFamily, "f:q", at(5), nil)
	m.Set(format.LockFamily, "f:q", at(9), nil) // a second lock is impossible, and would hide nothing
	m.Set("f", "old", 1000, nil)
	m.Set(format.MarkFamily, "f:q", at(2), nil)
	m.Set(format.AckFamily, "f:q/o", at(1), nil)
	if err := table.Apply(t.Context(), "row", m); err != nil {
		t.Fatal(err)
	}
	q := []string{"_lock:f:q@5", "_write:f:q@4", "f:q@3"}
	r := []string{"_write:f:r@4", "f:r@3"}
	g := []string{"_write:g:q@4", "g:q@3"}
	for _, tt := range []struct {
		name     string
		sel      Selection
		families []string
		want     [][]string
	}{
		{"column", Selection{Columns: []format.Column{{Family: "f", Qualifier: "q"}}}, nil, [][]string{q}},
		{"columns", Selection{Columns: []format.Column{{Family: "f", Qualifier: "q"}, {Family: "f", Qualifier: "r"}}}, nil, [][]string{q, r}},
		{"old column", Selection{Columns: []format.Column{{Family: "f", Qualifier: "old"}}}, nil, [][]string{{"f:old@1000"}}},
		{"family", Selection{Ranges: []QualifierRange{{Family: "f"}}}, nil, [][]string{q, r, {"f:old@1000"}}},
		{"family and column", Selection{Ranges: []QualifierRange{{Family: "g"}}, Columns: []format.Column{{Family: "f", Qualifier: "r"}}}, nil, [][]string{g, r}},
		{"qualifiers", Selection{Ranges: []QualifierRange{{"f", "p", "r"}}}, nil, [][]string{q}},
		{"from a qualifier on", Selection{Ranges: []QualifierRange{{"f", "q\x00", ""}}}, nil, [][]string{r}},
		{"keys", Selection{KeysOnly: true}, []string{"f", "g"}, [][]string{q, r, g, {"f:old@1000"}}},
		{"keys of many columns", Selection{KeysOnly: true, Columns: append(manyColumns("f", 200), format.Column{Family: "f", Qualifier: "q"})}, nil, [][]string{q, r, {"f:old@1000"}, {"_write:g:q@4"}}},
		{"keys of a column", Selection{KeysOnly: true, Columns: []format.Column{{Family: "f", Qualifier: "q"}}}, nil, [][]string{q}},
		{"everything", Selection{}, nil, [][]string{q, r, g, {"f:old@1000", "_mark:f:q@2", "_ack:f:q/o@1"}}},
		{"everything by name", Selection{}, []string{"f", "g"}, [][]string{q, r, g, {"f:old@1000"}}},
		{"more than fits, of two families", Selection{Columns: slices.Concat(manyColumns("f", 100), manyColumns("g", 100), manyColumns("f", 1))}, nil, [][]string{q, r, g, {"f:old@1000"}}},
		{"more than fits", Selection{Columns: append(manyColumns("f", 200), format.Column{Family: "f", Qualifier: "q"})}, nil, [][]string{q, r, {"f:old@1000"}, {"_write:g:q@4"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			row, err := table.ReadRow(t.Context(), "row", bigtable.RowFilter(tt.sel.VisibleAt(filterBase+6, tt.families)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(slices.Concat(tt.want...))), cells(row)); diff != "" {
				t.Error(diff)
			}
			for _, it := range slices.Concat(row["f"], row["g"]) {
				if it.Timestamp >= format.PlainBefore && (len(it.Value) == 0) != tt.sel.KeysOnly {
					t.Errorf("%s has the value %q", it.Column, it.Value)
				}
			}
			for _, it := range row[format.WriteFamily] {
				if string(it.Value) != "record" {
					t.Errorf("%s has the record %q", it.Column, it.Value)
				}
			}
		})
	}
	row, err := table.ReadRow(t.Context(), "row", bigtable.RowFilter(Selection{Columns: []format.Column{{Family: "f", Qualifier: "old"}}}.VisibleAt(5, nil)))
	if err != nil || !slices.Equal(cells(row), []string{"f:old@1000"}) {
		t.Errorf("read of the time before the adoption: %v, %v", cells(row), err)
	}
}

func manyColumns(family string, n int) (cols []format.Column) {
	for i := range n {
		cols = append(cols, format.Column{Family: family, Qualifier: fmt.Sprintf("%s-%d", strings.Repeat("long", 8), i)})
	}
	return cols
}

// TestExactValue: a longer value that begins like the exact one is another record.
func TestExactValue(t *testing.T) {
	table := filterTable(t)
	for i, value := range []string{"a", "ab", "ab\x00", "abc", ""} {
		m := bigtable.NewMutation()
		m.Set("f", fmt.Sprint(i), 0, []byte(value))
		if err := table.Apply(t.Context(), "values", m); err != nil {
			t.Fatal(err)
		}
	}
	row, err := table.ReadRow(t.Context(), "values", bigtable.RowFilter(ExactValue([]byte("ab"))))
	if err != nil || len(row["f"]) != 1 || row["f"][0].Column != "f:1" {
		t.Errorf("%v, %v", row, err)
	}
}

// TestColumnFiltersAreBounded: an application may use qualifiers as data, so their number has
// no bound.
func TestColumnFiltersAreBounded(t *testing.T) {
	k := columnFilters{known: map[format.Column]*columnFilter{}}
	for i := range 3 * maxColumnFilters {
		c := format.Column{Family: "f", Qualifier: fmt.Sprint(i)}
		if got := k.of(c).key; got != c.Key() {
			t.Fatalf("filter of %v is that of %s", c, got)
		}
		if len(k.known) > maxColumnFilters {
			t.Fatalf("%d filters are kept", len(k.known))
		}
	}
	if made := k.of(format.Column{Family: "f", Qualifier: "0"}); k.of(format.Column{Family: "f", Qualifier: "0"}) != made {
		t.Error("a column's filter is made again")
	}
	if a, b := k.of(format.Column{Qualifier: "a"}), k.of(format.Column{Qualifier: "b"}); k.of(format.Column{Qualifier: "a"}) != a || k.of(format.Column{Qualifier: "b"}) != b {
		t.Error("one of two columns' filters is made again")
	}
	longest := format.Column{Family: "f", Qualifier: strings.Repeat("x", MaxKnownColumnName-len("f:"))}
	if made := k.of(longest); k.of(longest) != made {
		t.Error("the filter of the longest name is not kept")
	}
	one := Selection{Columns: []format.Column{{Family: "f", Qualifier: "0"}}}
	one.Newest(nil)
	if n := testing.AllocsPerRun(10, func() { one.Newest(nil); one.visible(nil) }); n != 0 {
		t.Errorf("the filters of one column take %v allocations", n)
	}
	before := len(k.known)
	if k.of(format.Column{Family: "f", Qualifier: strings.Repeat("x", MaxKnownColumnName)}); len(k.known) != before {
		t.Error("the filter of a long name is kept")
	}
}

// TestFilterOfFirstCells: Bigtable cuts the answer of a read of first cells. Two filters need no third.
func TestFilterOfFirstCells(t *testing.T) {
	text := Selection{Ranges: []QualifierRange{{Family: "f"}}, First: 3}.VisibleAt(filterBase, nil).String()
	if n := strings.Count(text, bigtable.CellsPerRowLimitFilter(3+columnsAhead).String()); n != 3 {
		t.Errorf("%d bounds of cells in %s", n, text)
	}
	if got, want := Interleave(Latest, wholeRow).String(), bigtable.InterleaveFilters(Latest, wholeRow).String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestWholeFamilies: a filter names each family as long as the names fit, and else matches everything.
func TestWholeFamilies(t *testing.T) {
	const n = 10
	for length, want := range map[int]int{FilterBudget/n - 40: n, FilterBudget/n - 39: 1} {
		families := slices.Repeat([]string{strings.Repeat("f", length)}, n)
		if got := WholeFamilies(families...); len(got) != want || (want == 1) != (got[0].String() == bigtable.PassAllFilter().String()) {
			t.Errorf("%d families with %d bytes: %d filters, the first is %.50s", n, length, len(got), got[0])
		}
	}
}
