package gc

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// first is the smallest timestamp whose cell is no plain data.
const first = tso.Timestamp(format.PlainBefore) / 1000

// A drop is a range of cells that a mutation deletes.
type drop struct {
	family, qualifier string
	start, end        bigtable.Timestamp
}

func removing(drops ...drop) *bigtable.Mutation {
	m := bigtable.NewMutation()
	for _, d := range drops {
		m.DeleteTimestampRange(d.family, d.qualifier, d.start, d.end)
	}
	return m
}

// between is a drop from first+start to first+end; from 0 if start is negative.
func between(family, qualifier string, start, end tso.Timestamp) drop {
	from := bigtable.Timestamp(0)
	if start >= 0 {
		from = (first + start).Cell()
	}
	return drop{family, qualifier, from, (first + end).Cell()}
}

var inside = cmp.Options{
	protocmp.Transform(),
	cmp.Exporter(func(reflect.Type) bool { return true }),
	cmp.Comparer(func(a, b bigtable.Filter) bool { return fmt.Sprint(a) == fmt.Sprint(b) }),
}

// TestGarbageOfARow: what a row of the safe point first+100 loses, exactly, with newest deletes and
// rollback markers up to first+50.
func TestGarbageOfARow(t *testing.T) {
	item := func(family, qualifier string, ts tso.Timestamp, value string) bigtable.ReadItem {
		return bigtable.ReadItem{Row: "r", Column: family + ":" + qualifier, Timestamp: (first + ts).Cell(), Value: []byte(value)}
	}
	plain := func(ts bigtable.Timestamp, value string) bigtable.ReadItem {
		return bigtable.ReadItem{Row: "r", Column: "f:q", Timestamp: ts, Value: []byte(value)}
	}
	at := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	var recordBytes int64
	record := func(kind format.Kind, start, commit tso.Timestamp) bigtable.ReadItem {
		family, value := format.EncodeCommit(at, at, kind, first+start)
		recordBytes = int64(len("f:q") + len(value)) // all are equally long
		return item(family, "f:q", commit, string(value))
	}
	put := func(start, commit tso.Timestamp) bigtable.ReadItem {
		return record(format.KindPut, start, commit)
	}
	lock := func(start tso.Timestamp) bigtable.ReadItem {
		return item(format.LockFamily, "f:q", start, string(format.EncodeLock(&format.Lock{Cell: at, Primary: at, Kind: format.KindPut, StartTS: first + start})))
	}
	rollback := func(start tso.Timestamp) bigtable.ReadItem {
		return item(format.MarkFamily, "f:q", start, string(format.EncodeRollback(first+start)))
	}
	deleted := []bigtable.ReadItem{put(10, 20), record(format.KindDelete, 40, 50), item("f", "q", 10, "old")}
	dropsDelete := removing(between(format.WriteFamily, "f:q", -1, 51), between("f", "q", 0, 50))
	noNotification := store.ExactColumn(format.NotifyFamily, "f:q")
	noPlain := store.Chain(store.ExactColumn("f", "q"), bigtable.TimestampRangeFilterMicros(0, format.PlainBefore))
	type outcome struct {
		counts  Counts
		locks   []tso.Timestamp
		removes []store.RowMutation
		unless  []conditionalRemoval
		why     SkipReason
	}
	one := func(ops int, m *bigtable.Mutation) []store.RowMutation {
		return []store.RowMutation{{Row: "r", Mut: m, Ops: ops}}
	}
	for _, tt := range []struct {
		name  string
		rules rules
		cells []bigtable.ReadItem
		want  outcome
	}{
		{"versions", rules{}, []bigtable.ReadItem{put(0, 20), put(60, 70), put(30, 40), item("f", "q", 60, "new"), item("f", "q", 30, "older"), item("f", "q", 0, "oldest")}, outcome{
			counts:  Counts{RowsChanged: 1, Versions: 2, Data: 2, Cells: 4, Bytes: 2*recordBytes + int64(len("q")+len("older")+len("q")+len("oldest"))},
			removes: one(2, removing(between(format.WriteFamily, "f:q", -1, 70), between("f", "q", 0, 60))),
		}},
		{"one version", rules{}, []bigtable.ReadItem{put(10, 20), item("f", "q", 10, "v")}, outcome{}},
		{"a value that nothing names", rules{}, []bigtable.ReadItem{put(0, 5), put(10, 20), item("f", "q", 10, "v"), item("f", "q", 100, "lost"), rollback(10)}, outcome{why: SkippedUnnamed}},
		{"values that nothing names, old and young", rules{}, []bigtable.ReadItem{put(10, 20), item("f", "q", 10, "v"), item("f", "q", 9, "old"), item("f", "q", 101, "young")}, outcome{
			counts:  Counts{RowsChanged: 1, Data: 1, Cells: 1, Bytes: 4},
			removes: one(1, removing(between("f", "q", 0, 10))),
		}},
		{"values that locks name", rules{}, []bigtable.ReadItem{put(10, 20), item("f", "q", 100, "v"), lock(100), lock(101), lock(30), item("f", "q", 30, "v")}, outcome{locks: []tso.Timestamp{first + 30, first + 100}}},
		{"marks", rules{}, []bigtable.ReadItem{record(format.KindLock, 20, 30), rollback(50), rollback(51), item(format.MarkFamily, "f:q", 80, "damaged"), rollback(52), record(format.KindLock, 60, 100)}, outcome{
			counts:  Counts{RowsChanged: 1, Marks: 3, Cells: 3, Bytes: 2*recordBytes + int64(len("f:q")+len(format.EncodeRollback(first+50)))},
			removes: one(2, removing(between(format.MarkFamily, "f:q", -1, 51), between(format.MarkFamily, "f:q", 81, 101))),
		}},
		{"rollback markers that stay", rules{}, []bigtable.ReadItem{rollback(60)}, outcome{}},
		{"a delete", rules{}, deleted, outcome{
			counts: Counts{RowsChanged: 1, Versions: 2, Deletes: 1, Data: 1, Cells: 3, Bytes: 2*recordBytes + 4},
			unless: []conditionalRemoval{{store.Interleave(noNotification, noPlain), dropsDelete}},
		}},
		{"a delete, and plain data goes", rules{plain: true}, append(slices.Clone(deleted), plain(0, "p"), plain(format.PlainBefore-1, "p")), outcome{
			counts: Counts{RowsChanged: 1, Versions: 2, Deletes: 1, Data: 1, Plain: 2, Cells: 5, Bytes: 2*recordBytes + 8},
			unless: []conditionalRemoval{{store.Interleave(noNotification), removing(between(format.WriteFamily, "f:q", -1, 51), between("f", "q", 0, 50), drop{"f", "q", 0, format.PlainBefore})}},
		}},
		{"a delete over plain data", rules{}, append(slices.Clone(deleted), plain(1, "p")), outcome{
			counts:  Counts{RowsChanged: 1, Versions: 1, Data: 1, Cells: 2, Bytes: recordBytes + 4},
			removes: one(2, removing(between(format.WriteFamily, "f:q", -1, 50), between("f", "q", 0, 50))),
		}},
		{"a delete with a notify cell", rules{}, append(slices.Clone(deleted), item(format.NotifyFamily, "f:q", 50, "")), outcome{
			counts:  Counts{RowsChanged: 1, Versions: 1, Data: 1, Cells: 2, Bytes: recordBytes + 4},
			removes: one(2, removing(between(format.WriteFamily, "f:q", -1, 50), between("f", "q", 0, 50))),
		}},
		{"a delete with a failure alone", rules{}, append(slices.Clone(deleted), item(format.NotifyFamily, format.FailureQualifier("o", at.Column()), 50, "")), outcome{
			counts: Counts{RowsChanged: 1, Versions: 2, Deletes: 1, Data: 1, Cells: 3, Bytes: 2*recordBytes + 4},
			unless: []conditionalRemoval{{store.Interleave(noNotification, noPlain), dropsDelete}},
		}},
		{"a delete that an observer has not seen", rules{}, append(slices.Clone(deleted), func() bigtable.ReadItem {
			ack := format.AckColumn(at.Column(), "o")
			_, value := format.EncodeCommit(format.Cell{Table: "t", Row: "r", Family: ack.Family, Qualifier: ack.Qualifier}, at, format.KindPut, first+30)
			return item(format.WriteFamily, ack.Key(), 31, string(value))
		}()), outcome{
			counts:  Counts{RowsChanged: 1, Versions: 1, Data: 1, Cells: 2, Bytes: recordBytes + 4},
			removes: one(2, removing(between(format.WriteFamily, "f:q", -1, 50), between("f", "q", 0, 50))),
		}},
		{"locks are not resolved", rules{settled: func(c format.Cell, w format.WriteRecord) bool {
			return c == at && w.CommitTS != first+41 && w.CommitTS != first+20 && w.CommitTS != first+42
		}}, []bigtable.ReadItem{put(60, 70), put(10, 20), put(40, 42), put(39, 41), put(30, 35), put(3, 5), rollback(20)}, outcome{
			counts:  Counts{RowsChanged: 1, Versions: 2, Cells: 2, Bytes: 2 * recordBytes},
			removes: one(3, removing(between(format.WriteFamily, "f:q", -1, 20), between(format.WriteFamily, "f:q", 21, 41), between(format.WriteFamily, "f:q", 43, 70))),
		}},
		{"locks are not resolved, and nothing is settled", rules{settled: func(format.Cell, format.WriteRecord) bool { return false }}, []bigtable.ReadItem{put(60, 70), put(10, 20), put(40, 42), item("f", "q", 20, "old")}, outcome{
			counts:  Counts{RowsChanged: 1, Data: 1, Cells: 1, Bytes: 4},
			removes: one(1, removing(between("f", "q", 0, 60))),
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.rules
			r.safePoint, r.drained = first+100, first+50
			raw := bigtable.Row{}
			for _, c := range tt.cells {
				family, _, _ := strings.Cut(c.Column, ":")
				raw[family] = append(raw[family], c)
			}
			g := r.row(&store.Table{Name: "t"}, raw)
			if (g.err != nil) != (tt.want.why != "") {
				t.Fatal(g.err)
			}
			got := outcome{why: g.why, counts: g.counts, removes: g.mutations("r"), unless: g.conditional()}
			for _, l := range g.locks {
				got.locks = append(got.locks, l.StartTS)
			}
			slices.Sort(got.locks)
			if d := cmp.Diff(tt.want, got, inside); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestRemovalsAroundWhatStays: a removal has a change for each gap in what stays, and no mutation has
// more than maxMutationOps.
func TestRemovalsAroundWhatStays(t *testing.T) {
	const n = 3 * maxMutationOps
	h := &columnCells{column: format.Column{Family: "f", Qualifier: "q"}}
	add := func(ts tso.Timestamp, unsettled bool) {
		h.writes = append(h.writes, columnWrite{format.WriteRecord{CommitTS: ts + 1, StartTS: ts, Kind: format.KindPut}, 1, unsettled})
	}
	r := rules{safePoint: first + 1<<40, settled: func(format.Cell, format.WriteRecord) bool { return false }}
	sizes := func() (ops []int) {
		g, _ := r.column(h, 0)
		for _, m := range (&rowGarbage{rules: r, columns: []columnGarbage{g}}).mutations("r") {
			ops = append(ops, m.Ops)
		}
		return ops
	}
	add(first, false)
	for i := range tso.Timestamp(n) {
		add(first+10+2*i, true) // no proof, and nothing in between goes
	}
	newest := tso.Timestamp(first + 10 + 4*n)
	add(newest, false)
	if got := sizes(); !slices.Equal(got, []int{2}) {
		t.Errorf("around one span: mutations of %v changes", got)
	}
	for i := range tso.Timestamp(n) {
		h.writes[i+1].unsettled = i%2 == 0
	}
	if got, want := sizes(), []int{maxMutationOps, n/2 + 1 - maxMutationOps}; !slices.Equal(got, want) {
		t.Errorf("around each second record: mutations of %v changes, want %v", got, want)
	}
	// A newest delete goes by one mutation with a condition, and the rest before it.
	h = &columnCells{column: h.column}
	for i := range tso.Timestamp(n) {
		h.marks = append(h.marks, storedCell{first + 2*i, 1})
		h.markers = append(h.markers, first+2*i+1)
	}
	h.markers = h.markers[1:]
	h.writes = []columnWrite{{format.WriteRecord{CommitTS: first + 50, StartTS: first + 40, Kind: format.KindDelete}, 1, false}}
	r = rules{safePoint: r.safePoint, drained: r.safePoint}
	c, _ := r.column(h, 0)
	g := &rowGarbage{rules: r}
	g.add(c)
	var ops []int
	for _, m := range g.removals("r", g.before) {
		ops = append(ops, m.Ops)
	}
	if want := []int{maxMutationOps, maxMutationOps, maxMutationOps}; !slices.Equal(ops, want) || len(g.columns) > 0 || len(g.conditional()) != 1 || len(g.deletes[0].markers) > 0 {
		t.Errorf("below a newest delete: mutations of %v changes, want %v; %d conditional", ops, want, len(g.conditional()))
	}
}

// TestRemovalsAreDivided: a mutation has maxMutationOps changes at most, and the filter of a conditional
// one fits into store.FilterBudget.
func TestRemovalsAreDivided(t *testing.T) {
	long.RacedAtNight(t)
	column := func(i, length int) columnGarbage {
		q := fmt.Sprintf("%05d", i)
		return columnGarbage{column: format.Column{Family: "f", Qualifier: q + strings.Repeat("x", max(0, length-len("f:")-len(q)))}, writesBelow: 10, dataBelow: 5, newest: 10}
	}
	columns := func(n, length int) (all []columnGarbage) {
		for i := range n {
			all = append(all, column(i, length))
		}
		return all
	}
	g := &rowGarbage{columns: columns(maxMutationOps/2+maxMutationOps/2+1, 0)} // each has two changes
	var ops []int
	for _, m := range g.mutations("r") {
		ops = append(ops, m.Ops)
	}
	if want := []int{maxMutationOps, maxMutationOps, 2}; !slices.Equal(ops, want) {
		t.Errorf("mutations have %v changes, want %v", ops, want)
	}
	// 32 columns of this length need all of the budget.
	const n = 32
	length := (store.FilterBudget/n - store.FilterOverhead - 2*store.FilterCost("")) / 4
	for _, tt := range []struct {
		columns, length int
		want            []int
	}{{0, length, nil}, {1, length, []int{1}}, {n, length, []int{n}}, {n, length + 1, []int{n - 1, 1}}, {2*n + 1, length, []int{n, n, 1}}} {
		all := columns(tt.columns, tt.length)
		var want []conditionalRemoval
		for _, size := range tt.want {
			var filters []bigtable.Filter
			var drops []drop
			for _, c := range all[:size] {
				filters = append(filters, store.ExactColumn(format.NotifyFamily, c.column.Key()),
					store.Chain(store.ExactColumn("f", c.column.Qualifier), bigtable.TimestampRangeFilterMicros(0, format.PlainBefore)))
				drops = append(drops, drop{format.WriteFamily, c.column.Key(), 0, tso.Timestamp(11).Cell()}, drop{"f", c.column.Qualifier, format.PlainBefore, tso.Timestamp(5).Cell()})
			}
			all = all[size:]
			want = append(want, conditionalRemoval{store.Interleave(filters...), removing(drops...)})
		}
		got := (&rowGarbage{deletes: columns(tt.columns, tt.length)}).conditional()
		if d := cmp.Diff(want, got, inside); d != "" {
			t.Errorf("%d columns of %d bytes (-want +got):\n%s", tt.columns, tt.length, d[:min(len(d), 2000)])
		}
	}
}

// TestFilterOfRules: a run reads all records, and of marks and values what may go.
func TestFilterOfRules(t *testing.T) {
	want := store.Interleave(
		store.WholeFamily(format.LockFamily), store.WholeFamily(format.WriteFamily),
		store.Chain(store.WholeFamily(format.MarkFamily), bigtable.TimestampRangeFilterMicros(0, (first+101).Cell())),
		store.Chain(store.WholeFamily(format.NotifyFamily), bigtable.StripValueFilter()),
		store.Chain(store.WholeFamily("f"), bigtable.TimestampRangeFilterMicros(0, (first+101).Cell())),
		store.Chain(store.WholeFamily("g"), bigtable.TimestampRangeFilterMicros(0, (first+101).Cell())))
	if got := (rules{safePoint: first + 100}).filter([]string{"f", "g"}, nil); got.String() != want.String() {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestCountsAreAdded: each count of a page counts in the sum.
func TestCountsAreAdded(t *testing.T) {
	one := Counts{Rows: 1, RowsChanged: 2, RowsSkipped: 3, Versions: 4, Deletes: 5, Marks: 6, Data: 7, Plain: 8, Cells: 9, Bytes: 10}
	sum := one
	sum.add(one)
	if want := (Counts{Rows: 2, RowsChanged: 4, RowsSkipped: 6, Versions: 8, Deletes: 10, Marks: 12, Data: 14, Plain: 16, Cells: 18, Bytes: 20}); sum != want {
		t.Errorf("%+v, want %+v", sum, want)
	}
}
