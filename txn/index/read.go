package index

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// A Reader reads indexes at one timestamp. It reads the state of the index in the same
// request, so it never returns a part of an index that is being built or dropped: the error
// is [ErrState] then.
type Reader struct {
	x    *Indexes
	view txn.Reader
	// tx is the transaction if it is serializable. Then the state is read apart: in the same
	// request the transaction would lock it, and conflict with all others that read the index.
	tx *txn.Txn
}

// stateApart reports whether the state is ready, if it is not read together with the entries.
func (r Reader) stateApart(ctx context.Context, i *Index) (ready bool, err error) {
	view := r.view
	if r.tx != nil {
		s, err := r.tx.Client().Snapshot(ctx, txn.At(r.tx.StartTS()))
		if err != nil {
			return false, err
		}
		view = s.Table(r.x.table)
	}
	row, err := view.ReadRow(ctx, statePrefix+i.Name, txn.Columns(r.x.stateColumn()))
	if err == nil {
		ready, err = r.x.ready(i, row)
	}
	return ready, err
}

// A Query is a range of an index.
type Query struct {
	// Prefix, if not empty, are the first parts of the keys.
	Prefix Key
	// PartPrefix, if not empty, is how the part after Prefix begins.
	PartPrefix string
	// From and To, if not empty, bound the keys: From ≤ key < To. They may have fewer parts
	// than the keys.
	From, To Key
	Reverse  bool
	Limit    int // 0 is no limit
}

// bounds returns the range of the rows of entries.
func (q Query) bounds(i *Index) (start, end string) {
	start = i.base() + q.Prefix.encode() + escape(q.PartPrefix)
	end = txn.PrefixEnd(start)
	if len(q.From) > 0 {
		start = max(start, i.base()+q.From.encode())
	}
	if len(q.To) > 0 {
		end = min(end, i.base()+q.To.encode())
	}
	return start, end
}

// Get returns the row with a key of a unique index.
func (r Reader) Get(ctx context.Context, name string, key ...string) (row string, ok bool, err error) {
	i, err := r.x.find(name)
	if err != nil {
		return "", false, err
	}
	if !i.Unique {
		return "", false, fmt.Errorf("index: %s: %w: Get needs a unique index; use Scan", name, txn.ErrInvalid)
	}
	at := i.base() + Key(key).encode()
	ready := false
	list, columns := bigtable.RowList{statePrefix + name, at}, txn.Columns(r.x.rowColumn(), r.x.stateColumn())
	if r.tx != nil {
		if ready, err = r.stateApart(ctx, i); err != nil {
			return "", false, err
		}
		list, columns = list[1:], txn.Columns(r.x.rowColumn())
	}
	for found, err := range r.view.ReadRows(ctx, list, columns) {
		switch {
		case err != nil:
			return "", false, err
		case found.Key() == at:
			row, ok = string(found[r.x.family][0].Value), true
		default:
			if ready, err = r.x.ready(i, found); err != nil {
				return "", false, err
			}
		}
	}
	if !ready {
		return "", false, notReady(i, Absent)
	}
	return row, ok, nil
}

// Scan returns the entries of a range in order of their keys.
func (r Reader) Scan(ctx context.Context, name string, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := r.scan(ctx, name, q, "", yield); err != nil {
			yield(Entry{}, err)
		}
	}
}

// scan reads the entries of a range. If after is not empty, they follow the entry that is stored in this row.
func (r Reader) scan(ctx context.Context, name string, q Query, after string, yield func(Entry, error) bool) error {
	i, err := r.x.find(name)
	if err != nil {
		return err
	}
	if q.Limit < 0 {
		return fmt.Errorf("index: %s: %w: Limit is %d", name, txn.ErrInvalid, q.Limit)
	}
	start, end := q.bounds(i)
	switch {
	case after != "" && q.Reverse:
		end = after
	case after != "":
		start = after + "\x00"
	}
	ranges := bigtable.RowRangeList{bigtable.NewRange(statePrefix+name, statePrefix+name+"\x00")}
	if start < end {
		ranges = append(ranges, bigtable.NewRange(start, end))
	}
	opts := []txn.ReadOption{txn.Columns(r.x.rowColumn(), r.x.stateColumn())}
	ready := false
	if q.Reverse { // the state would come last
		if ready, err = r.stateApart(ctx, i); err != nil || start >= end {
			return err
		}
		ranges, opts = ranges[1:], append(opts, txn.Reverse())
	}
	n := q.Limit
	if n > 0 {
		if !q.Reverse {
			n++
		}
		opts = append(opts, txn.Limit(n))
	}
	for row, err := range r.view.ReadRows(ctx, ranges, opts...) {
		if err != nil {
			return err
		}
		if !ready {
			if ready, err = r.x.ready(i, row); err != nil {
				return err
			}
			continue
		}
		e, err := i.decodeEntry(row.Key(), string(row[r.x.family][0].Value))
		if err != nil {
			return err
		}
		if !yield(e, nil) {
			return nil
		}
	}
	if !ready {
		return notReady(i, Absent)
	}
	return nil
}

func notReady(i *Index, s State) error {
	if s == Absent {
		return fmt.Errorf("index: %s: %w: it does not exist at this timestamp; Create builds it", i.Name, ErrState)
	}
	return fmt.Errorf("index: %s: %w: it is %s", i.Name, ErrState, s)
}

// readPage does the work of Indexes.Page.
func readPage(ctx context.Context, x *Indexes, client *txn.Client, name string, q Query, size int, token string) (entries []Entry, next string, err error) {
	i, err := x.find(name)
	if err != nil {
		return nil, "", err
	}
	if size < 1 {
		return nil, "", fmt.Errorf("index: %s: %w: a page of %d entries", name, txn.ErrInvalid, size)
	}
	var at []txn.SnapshotOption
	var after string
	if token != "" {
		var ts tso.Timestamp
		ts, after = openToken(token)
		if start, end := q.bounds(i); after < start || after >= end {
			return nil, "", fmt.Errorf("index: %s: %w: the page token is damaged, or of another range", name, txn.ErrInvalid)
		}
		at = append(at, txn.At(ts))
	}
	snapshot, err := client.Snapshot(ctx, at...)
	if err != nil {
		return nil, "", err
	}
	q.Limit = size + 1
	err = x.At(snapshot).scan(ctx, name, q, after, func(e Entry, _ error) bool {
		if len(entries) < size {
			entries = append(entries, e)
			return true
		}
		last, _ := i.entryOf(entries[size-1].Row, entries[size-1].Key) // it was read, so it is valid
		next = newToken(snapshot.ReadTS(), last.at)
		return false
	})
	if err != nil {
		return nil, "", err
	}
	return entries, next, nil
}

// newToken returns the token of a page after the entry that is stored in a row, at a timestamp.
func newToken(at tso.Timestamp, after string) string {
	return base64.RawURLEncoding.EncodeToString(append(binary.BigEndian.AppendUint64(nil, uint64(at)), after...))
}

// openToken returns what is in a token: nothing if it is damaged.
func openToken(token string) (at tso.Timestamp, after string) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(data) < 8 {
		return 0, ""
	}
	return tso.Timestamp(binary.BigEndian.Uint64(data)), string(data[8:])
}

// prefix is the range of the keys that begin with a prefix.
func prefix(p string) bigtable.RowRange { return bigtable.NewRange(p, txn.PrefixEnd(p)) }
