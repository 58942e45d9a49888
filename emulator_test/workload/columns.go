package workload

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const (
	columnRows = 8 // half of them in each table
	// A row has a number, and the columns that the bits of the number choose: so many of each
	// family. More than 16 of them may be deleted in a row (txn.CellsPerRow).
	columnsOfF, columnsOfG = 28, 4
)

var (
	columnTables   = []string{"columns", "more"}
	columnFamilies = []string{"f", "g", "x", "y", "z"}
	// columnExpiry is how long values of a family last. The other families have no expiry.
	columnExpiry = map[string]time.Duration{"x": time.Second, "y": 4 * time.Second}
)

// A columnRow is what the number of a row says about its other cells.
type columnRow struct {
	n  int64
	ts tso.Timestamp // its commit; 0: own writes, which do not expire
}

// cells returns the row's columns at a timestamp, sorted; each has the number as its value.
func (r columnRow) cells(at tso.Timestamp) (all []txn.Column) {
	if r.n == 0 {
		return nil
	}
	chosen := bits.RotateLeft64(uint64(r.n)*0x9e3779b97f4a7c15, 32)
	for i := range columnsOfF {
		if chosen>>i&1 == 1 {
			all = append(all, txn.Column{Family: "f", Qualifier: fmt.Sprintf("c%02d", i)})
		}
	}
	all = append(all, txn.Column{Family: "f", Qualifier: "n"})
	for i := range columnsOfG {
		if chosen>>(columnsOfF+i)&1 == 1 {
			all = append(all, txn.Column{Family: "g", Qualifier: fmt.Sprintf("c%02d", i)})
		}
	}
	for _, family := range []string{"x", "y", "z"} {
		expiry, expires := columnExpiry[family]
		if r.ts == 0 || !expires || r.ts.Add(expiry) > at {
			all = append(all, txn.Column{Family: family, Qualifier: "v"}, txn.Column{Family: family, Qualifier: "w"})
		}
	}
	return all
}

// A columnRead is a read of parts of rows.
type columnRead struct {
	options  []txn.ReadOption
	contains func(txn.Column) bool
	keysOnly bool
	first    int // cells of a row; 0: all
}

// drawRead draws a selection of columns, with or without values, of all or the first cells.
func (w *Worker) drawRead() (r columnRead) {
	qualifier := func() string { return fmt.Sprintf("c%02d", w.Rand.IntN(columnsOfF+1)) }
	last := txn.Column{Family: columnFamilies[2+w.Rand.IntN(3)], Qualifier: "w"}
	families := func(names ...string) {
		r.options = append(r.options, txn.Families(names...))
		r.contains = func(c txn.Column) bool { return slices.Contains(names, c.Family) }
	}
	switch w.Rand.IntN(6) {
	case 0:
		r.contains = func(txn.Column) bool { return true }
	case 1:
		families("f")
	case 2:
		chosen := slices.Clone(columnFamilies[1:])
		w.Rand.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		families(chosen[:1+w.Rand.IntN(len(chosen))]...)
	case 3, 4:
		start, end, also := qualifier(), qualifier(), w.Rand.IntN(2) == 0
		if start >= end {
			end = ""
		}
		r.options = append(r.options, txn.Qualifiers("f", start, end))
		switch {
		case also && w.Rand.IntN(2) == 0:
			r.options = append(r.options, txn.Qualifiers(last.Family, last.Qualifier, ""))
		case also:
			r.options = append(r.options, txn.Columns(last))
		}
		r.contains = func(c txn.Column) bool {
			return c.Family == "f" && c.Qualifier >= start && (end == "" || c.Qualifier < end) || also && c == last
		}
	default:
		some := []txn.Column{last, {Family: "f", Qualifier: qualifier()}, {Family: "g", Qualifier: "c01"}, {Family: "f", Qualifier: "n"}}[:1+w.Rand.IntN(4)]
		r.options = append(r.options, txn.Columns(some...))
		r.contains = func(c txn.Column) bool { return slices.Contains(some, c) }
	}
	if r.keysOnly = w.Rand.IntN(3) == 0; r.keysOnly {
		r.options = append(r.options, txn.KeysOnly())
	}
	if w.Rand.IntN(2) == 0 {
		r.first = 1 + w.Rand.IntN(6)
		r.options = append(r.options, txn.CellsPerRow(r.first))
	}
	return r
}

// want is what the read shows of a row.
func (r columnRead) want(row columnRow, at tso.Timestamp) (text []string) {
	for _, c := range row.cells(at) {
		if r.contains(c) && (r.first == 0 || len(text) < r.first) {
			value := ""
			if !r.keysOnly {
				value = strconv.FormatInt(row.n, 10)
			}
			text = append(text, c.String()+"="+value)
		}
	}
	return text
}

func columnText(row bigtable.Row) (text []string) {
	for _, family := range columnFamilies {
		for _, item := range row[family] {
			text = append(text, item.Column+"="+string(item.Value))
		}
	}
	return text
}

// Columns writes rows whose number says which other columns they have, and of which some expire. It
// reads parts of them in every way: families, ranges of qualifiers, columns, names alone, the first
// cells, page by page. In every snapshot, and after a transaction's own
// writes, all reads have to agree with the number.
func Columns() *Workload {
	at := func(w *Worker, i int) register {
		return register{columnTables[i%2], w.row("r" + strconv.Itoa(i/2)), "f", "n"}
	}
	// number reads the number of a row, with its commit.
	number := func(ctx context.Context, v view, r register) (row columnRow, op history.Op, err error) {
		op = history.Op{F: history.Read, Key: r.key()}
		cells, err := v.table(r.table).ReadRow(ctx, r.row, txn.Columns(txn.Column{Family: r.family, Qualifier: r.qualifier}))
		if err != nil || len(cells["f"]) == 0 {
			return row, op, err
		}
		item := cells["f"][0]
		if row.n, err = strconv.ParseInt(string(item.Value), 10, 64); err == nil {
			row.ts, op.State = tso.Timestamp(item.Timestamp), history.Number(row.n)
		}
		return row, op, err
	}
	// check reads rows in a way that it draws.
	check := func(ctx context.Context, w *Worker, v view, rows map[register]columnRow) error {
		read := w.drawRead()
		reverse := w.Rand.IntN(2) == 0
		for _, table := range columnTables {
			var keys bigtable.RowList
			var want, got []string
			for i := range columnRows {
				if row, ok := rows[at(w, i)]; ok && at(w, i).table == table {
					keys = append(keys, at(w, i).row)
					if text := read.want(row, v.ts); len(text) > 0 {
						want = append(want, at(w, i).row+": "+strings.Join(text, " "))
					}
				}
			}
			if len(keys) == 0 {
				continue
			}
			options := read.options
			if reverse {
				slices.Reverse(want)
				options = append(slices.Clone(options), txn.Reverse())
			}
			for row, err := range v.table(table).ReadRows(ctx, keys, options...) {
				if err != nil {
					return err
				}
				got = append(got, row.Key()+": "+strings.Join(columnText(row), " "))
			}
			if !slices.Equal(got, want) {
				return broken("a read of table %s at %d (names alone: %v, first cells: %d) returned\n%q, want\n%q", table, v.ts, read.keysOnly, read.first, got, want)
			}
		}
		return nil
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) (ops []history.Op, err error) {
			rows := map[register]columnRow{}
			for i := range columnRows {
				row, op, err := number(ctx, v, at(w, i))
				if err != nil {
					return ops, err
				}
				rows[at(w, i)], ops = row, append(ops, op)
			}
			return ops, errors.Join(check(ctx, w, v, rows), check(ctx, w, v, rows))
		})
	}
	// list reads a table page by page.
	list := func(ctx context.Context, w *Worker) error {
		table, start, end := columnTables[w.Rand.IntN(2)], w.row("r"), txn.PrefixEnd(w.row("r"))
		first, err := w.Client.Snapshot(ctx)
		if err != nil {
			return expected(err)
		}
		seen := map[string]bool{}
		for at := first.ReadTS(); ; {
			snapshot, err := w.Client.Snapshot(ctx, txn.At(at))
			if err != nil {
				return expected(err)
			}
			n := 0
			for cells, err := range snapshot.Table(table).ReadRows(ctx, bigtable.NewRange(start, end), txn.Limit(1+w.Rand.IntN(3))) {
				if err != nil {
					return expected(err)
				}
				n++
				start = cells.Key() + "\x00"
				var row columnRow
				for _, item := range cells["f"] {
					if item.Column == "f:n" {
						row.n, err = strconv.ParseInt(string(item.Value), 10, 64)
						row.ts = tso.Timestamp(item.Timestamp)
					}
				}
				want := columnRead{contains: func(txn.Column) bool { return true }}.want(row, at)
				if got := columnText(cells); err != nil || row.n == 0 || seen[cells.Key()] || !slices.Equal(got, want) {
					return broken("a page at %d has row %q with %q, want %q", at, cells.Key(), got, want)
				}
				seen[cells.Key()] = true
			}
			if n == 0 {
				return nil
			}
		}
	}
	// change writes the next number of a row, whose number is old.
	change := func(tx *txn.Txn, r register, old, next columnRow) history.Op {
		t := tx.Table(r.table)
		for _, c := range old.cells(0) {
			t.Delete(r.row, c.Family, c.Qualifier)
		}
		for _, c := range next.cells(0) {
			t.Set(r.row, c.Family, c.Qualifier, strconv.AppendInt(nil, next.n, 10))
		}
		return history.Op{F: history.Write, Key: r.key(), N: next.n}
	}
	return &Workload{
		Name:   "columns",
		Tables: []admin.TableSpec{{Name: columnTables[0], Families: columnFamilies}, {Name: columnTables[1], Families: columnFamilies}},
		Level:  history.SnapshotIsolation,
		Cell:   cellOf("f", "n"),
		Setup: func(ctx context.Context, w *Worker) error {
			for _, table := range columnTables {
				for family, expiry := range columnExpiry {
					if err := admin.SetExpiry(ctx, w.Client, table, family, expiry); err != nil {
						return err
					}
				}
			}
			return nil
		},
		Step: func(ctx context.Context, w *Worker) error {
			switch w.Rand.IntN(6) {
			case 0, 1:
				return readAll(ctx, w)
			case 2:
				return list(ctx, w)
			}
			chosen := w.Rand.Perm(columnRows)[:1+w.Rand.IntN(2)]
			next := []columnRow{{n: w.nextElement()}, {n: w.nextElement()}}
			forUpdate := w.Rand.IntN(2) == 0
			return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) (ops []history.Op, err error) {
				after := map[register]columnRow{}
				for j, i := range chosen {
					r := at(w, i)
					var old columnRow
					op := history.Op{F: history.Read, Key: r.key()}
					if forUpdate && j == 0 {
						value, ok, err := tx.Table(r.table).GetForUpdate(ctx, r.row, r.family, r.qualifier)
						if err == nil && ok {
							old.n, err = strconv.ParseInt(string(value), 10, 64)
							op.State = history.Number(old.n)
						}
						if err != nil {
							return ops, err
						}
					} else if old, op, err = number(ctx, viewOf(tx), r); err != nil {
						return ops, err
					}
					ops = append(ops, op, change(tx, r, old, next[j]))
					after[r] = next[j]
				}
				if w.Rand.IntN(3) == 0 {
					err = check(ctx, w, viewOf(tx), after)
				}
				return ops, err
			})
		},
		ReadAll: readAll,
	}
}
