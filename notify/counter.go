package notify

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Counter is a sum that many transactions add to at a time, which one cell
// could not be: any two that overlap would conflict on it. As the paper does it
// for the brokers of TPC-E (§4.3), an increment goes to a side cell, and an
// observer folds those into the sum:
//
//   - Add adds to one of the key's shards, each a cell in a row of its own.
//   - Observe, the observer of the shards' column, adds to the sum what the shards
//     have gained. It never writes what Add writes, so the two do not conflict.
//   - Read returns the sum and what is not folded yet, as of one timestamp: it is
//     exact at any moment, whether an observer runs or not.
//
// The folded sum alone, which lags behind, is a cell like any other:
// (key, Family, Qualifier), 8 bytes, big-endian, absent before the first fold.
//
//	visits := notify.Counter{Table: "pages", Family: "c", Qualifier: "visits"}
//	w.Handle("fold-visits", visits.Table, visits.Column(), visits)
//
// Sums wrap around at 2^63, as integers do. All of a counter's cells stay for
// ever; a key may be counted again from zero only under another name.
type Counter struct {
	Table     string
	Family    string
	Qualifier string
	// Shards is among how many cells the increments of one key are spread. k
	// transactions at a time conflict with each other in about k²/2·Shards pairs.
	// It may be made larger later, by all processes at once, and never smaller.
	// Defaults to 16.
	Shards int
}

const (
	maxShards   = 4096 // what one request reads
	shardInfix  = "#shard-"
	shardDigits = 4
	// addedSuffix is of the column of all increments of a shard, foldedSuffix of
	// that of those that are in the sum.
	addedSuffix  = ".added"
	foldedSuffix = ".folded"
)

// A CounterReader reads rows as of one timestamp: a *txn.Table, which sees its
// transaction's own increments, or the *txn.View of a snapshot.
type CounterReader interface {
	ReadRows(ctx context.Context, rs bigtable.RowSet, opts ...txn.ReadOption) iter.Seq2[bigtable.Row, error]
}

// Column is the column of Table that increments go to, and that the observer watches.
func (c Counter) Column() txn.Column {
	return txn.Column{Family: c.Family, Qualifier: c.Qualifier + addedSuffix}
}

// String returns table/family:qualifier of the sum.
func (c Counter) String() string {
	return target{c.Table, txn.Column{Family: c.Family, Qualifier: c.Qualifier}}.String()
}

// Add adds delta to the counter key, when tx commits. It reads one cell. Which
// shard it is follows from the transaction's start_ts, so a run after a conflict
// takes another.
func (c Counter) Add(ctx context.Context, tx *txn.Txn, key string, delta int64) error {
	shards, err := c.shards()
	if err != nil || delta == 0 {
		return err
	}
	// Multiplied, because timestamps that follow each other are close.
	shard := uint64(tx.StartTS()) * 0x9e3779b97f4a7c15 >> 32 % uint64(shards)
	t, row, column := tx.Table(c.Table), shardRow(key, int(shard)), c.Qualifier+addedSuffix
	v, ok, err := t.Get(ctx, row, c.Family, column)
	if err != nil {
		return err
	}
	n := int64(0)
	if ok {
		if n, err = decodeCount(txn.Cell{Table: c.Table, Row: row, Family: c.Family, Qualifier: column}, v); err != nil {
			return err
		}
	}
	t.Set(row, c.Family, column, encodeCount(n+delta))
	return nil
}

// Read returns the counter key as of the reader's timestamp: everything that was
// added and committed before, folded or not. It reads the key's rows in one
// request. A key that was never added to is 0.
func (c Counter) Read(ctx context.Context, r CounterReader, key string) (int64, error) {
	s, err := c.read(ctx, r, key)
	return s.sum + s.unfolded, err
}

// Observe is the observer of Column: it folds what the shards of the cell's key
// have gained. When several run for one key, one commits, and the others find
// nothing left to do.
func (c Counter) Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	key, _, ok := cutLast(cell.Row, shardInfix)
	if !ok {
		return fmt.Errorf("notify: counter %s: %w: row %q is not one of its shards; has something else written the column?", c, txn.ErrInvalid, cell.Row)
	}
	t := tx.Table(c.Table)
	s, err := c.read(ctx, t, key)
	if err != nil || len(s.gained) == 0 {
		return err
	}
	t.Set(key, c.Family, c.Qualifier, encodeCount(s.sum+s.unfolded))
	for row, added := range s.gained {
		t.Set(row, c.Family, c.Qualifier+foldedSuffix, encodeCount(added))
	}
	return nil
}

// counted is what a key's rows hold.
type counted struct {
	sum      int64            // folded
	unfolded int64            // added and not folded
	gained   map[string]int64 // what was ever added, by row of a shard that is not all folded
}

func (c Counter) read(ctx context.Context, r CounterReader, key string) (s counted, err error) {
	shards, err := c.shards()
	if err != nil {
		return s, err
	}
	rows := make(bigtable.RowList, 0, shards+1)
	rows = append(rows, key)
	for i := range shards {
		rows = append(rows, shardRow(key, i))
	}
	s.gained = map[string]int64{}
	column := func(suffix string) txn.Column {
		return txn.Column{Family: c.Family, Qualifier: c.Qualifier + suffix}
	}
	for row, err := range r.ReadRows(ctx, rows, txn.Columns(column(""), column(addedSuffix), column(foldedSuffix))) {
		if err != nil {
			return counted{}, err
		}
		n := map[string]int64{}
		for _, item := range row[c.Family] {
			name := strings.TrimPrefix(item.Column, c.Family+":")
			if n[name], err = decodeCount(txn.Cell{Table: c.Table, Row: row.Key(), Family: c.Family, Qualifier: name}, item.Value); err != nil {
				return counted{}, err
			}
		}
		if row.Key() == key {
			s.sum = n[c.Qualifier]
			continue
		}
		added := n[c.Qualifier+addedSuffix]
		if left := added - n[c.Qualifier+foldedSuffix]; left != 0 {
			s.unfolded += left
			s.gained[row.Key()] = added
		}
	}
	return s, nil
}

func (c Counter) shards() (int, error) {
	switch {
	case c.Shards == 0:
		return 16, nil
	case c.Shards < 0 || c.Shards > maxShards:
		return 0, fmt.Errorf("notify: counter %s: %w: Shards is %d; it has to be from 1 to %d, or zero for its default", c, txn.ErrInvalid, c.Shards, maxShards)
	}
	return c.Shards, nil
}

func shardRow(key string, shard int) string {
	s := strconv.Itoa(shard)
	return key + shardInfix + strings.Repeat("0", shardDigits-len(s)) + s
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+len(sep):], true
}

func encodeCount(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func decodeCount(cell txn.Cell, v []byte) (int64, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("notify: %s holds %d bytes, which is no count: %w: has something else written it?", cell, len(v), txn.ErrInvalid)
	}
	return int64(binary.BigEndian.Uint64(v)), nil
}
