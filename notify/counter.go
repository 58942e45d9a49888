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
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Counter is a sum to which many transactions can add at the same time. With a single
// cell they would conflict. As in the paper, for the brokers of TPC-E (§4.3), each
// increment goes to one of several shards, and an observer folds (adds) the shards into
// the sum:
//
//   - [Counter.Add] adds to one shard of a key. Each shard is a cell in its own row.
//   - [Counter.Observe], the observer of the shards' column, adds to the sum what the
//     shards have gained. It writes no cell that Add writes, so they do not conflict.
//   - [Counter.Read] returns the sum plus what is not folded yet, at one timestamp. It is
//     exact at any moment, whether an observer runs or not.
//
// The folded sum, which lags, is a normal cell: (key, Family, Qualifier), with 8 bytes,
// big-endian. It does not exist before the first fold.
//
//	visits := notify.Counter{Table: "pages", Family: "c", Qualifier: "visits"}
//	w.Handle("fold-visits", visits.Table, visits.Column(), visits)
//
// Sums wrap around at 2^63, as integers do. The cells of a counter must not be deleted, and must
// not expire (admin.SetExpiry): Add and Observe then fail with txn.ErrSchema.
// To count from zero again, use another key.
type Counter struct {
	Table     string
	Family    string
	Qualifier string
	// Shards is the number of cells that share the increments of one key, from 1 to
	// 4096. Of k transactions at the same time, about k²/(2·Shards) pairs conflict. You
	// may make it larger later, in all processes at once, and never smaller.
	// Defaults to 16.
	Shards int
}

const (
	maxShards   = 4096 // Read reads them with one request
	shardInfix  = "#shard-"
	shardDigits = 4
	// A shard has two columns: the sum of its increments, and how much of that is
	// already in the sum of the key.
	addedSuffix  = ".added"
	foldedSuffix = ".folded"
)

// A CounterReader reads rows as of one timestamp. A *txn.Table is one, and sees the
// increments of its own transaction; so is the *txn.View of a snapshot.
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

// Add adds delta to the counter key when tx commits. It reads one cell. The start_ts of the
// transaction decides the shard, so a retry after a conflict uses another shard. Fails
// with txn.ErrInvalid if Shards is out of range or the shard's cell is not a count, and
// with the errors of [txn.Table.Get].
func (c Counter) Add(ctx context.Context, tx *txn.Txn, key string, delta int64) error {
	shards, err := c.shards()
	if err != nil || delta == 0 {
		return err
	}
	if err := c.checkLasting(ctx, tx); err != nil {
		return err
	}
	// The multiplication spreads timestamps that are close to each other.
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

// Read returns the counter key as of the reader's timestamp: everything that was committed
// before it, folded or not. It reads the key's rows with one request. A key to which nothing
// was added is 0. Fails like Add.
func (c Counter) Read(ctx context.Context, r CounterReader, key string) (int64, error) {
	s, err := c.read(ctx, r, key)
	return s.sum + s.unfolded, err
}

// Observe is the observer of Column: it folds what the shards of the cell's key have
// gained. A worker runs it for one shard of a key after the other: the first run folds all
// shards, and the next ones find nothing to do. Runs of several workers may conflict, unless the workers
// use advisory locks (Config.Locks). Fails like Add, and with txn.ErrInvalid if the cell is not a shard's.
func (c Counter) Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	key, _, ok := cutLast(cell.Row, shardInfix)
	if !ok {
		return fmt.Errorf("notify: counter %s: %w: row %q is not one of its shards; only Counter.Add may write the column", c, txn.ErrInvalid, cell.Row)
	}
	t := tx.Table(c.Table)
	s, err := c.read(ctx, t, key)
	if err == nil {
		err = c.checkLasting(ctx, tx)
	}
	if err != nil || len(s.gained) == 0 {
		return err
	}
	t.Set(key, c.Family, c.Qualifier, encodeCount(s.sum+s.unfolded))
	for row, added := range s.gained {
		t.Set(row, c.Family, c.Qualifier+foldedSuffix, encodeCount(added))
	}
	return nil
}

// shared returns the cell of the sum, which the folds of all shards write.
func (c Counter) shared(cell txn.Cell) (sum txn.Cell, ok bool) {
	key, _, ok := cutLast(cell.Row, shardInfix)
	return txn.Cell{Table: c.Table, Row: key, Family: c.Family, Qualifier: c.Qualifier}, ok
}

// checkLasting fails if the cells of the counter expire: each does so at a time of its own.
func (c Counter) checkLasting(ctx context.Context, tx *txn.Txn) error {
	if err := changes.CheckLasting(ctx, tx.Client(), c.Table, c.Family); err != nil {
		return fmt.Errorf("notify: counter %s: %w", c, err)
	}
	return nil
}

// counted is what the rows of a key contain.
type counted struct {
	sum      int64            // folded
	unfolded int64            // added and not folded
	gained   map[string]int64 // all increments of a shard, by the row of each shard that is not folded completely
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
		return 0, fmt.Errorf("notify: counter %s: %w: Shards is %d; it must be from 1 to %d, or zero for its default", c, txn.ErrInvalid, c.Shards, maxShards)
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
		return 0, fmt.Errorf("notify: %s has %d bytes: %w: a count has 8; only a Counter may write the cell", cell, len(v), txn.ErrInvalid)
	}
	return int64(binary.BigEndian.Uint64(v)), nil
}
