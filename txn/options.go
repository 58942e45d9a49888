package txn

import (
	"context"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A TxnOption configures one transaction.
type TxnOption func(*txnOptions)

type txnOptions struct {
	name         string
	serializable bool
	maxAttempts  int
	traceLater   func(context.Context) context.Context
	noPrefetch   bool
	writeOnly    bool
	becameTooOld bool // set by Update
}

// WithName names a transaction for errors, logs and telemetry, and for what is
// learned about its reads (Config.PrefetchBytes). A name stands for a kind of
// transaction ("transfer"), not for one run of it.
func WithName(name string) TxnOption { return func(o *txnOptions) { o.name = name } }

// Serializable makes every point read of the transaction a lock-only write
// too, so that write skew is impossible: the transaction commits only if
// nothing it read was written meanwhile. Reads have to name their columns;
// whole rows, ranges and prefixes are refused with [ErrSerializableScan],
// because a cell that does not exist yet cannot be found to be locked. A
// transaction that writes nothing locks nothing: a snapshot is serializable
// among transactions that are.
func Serializable() TxnOption { return func(o *txnOptions) { o.serializable = true } }

// MaxAttempts bounds how often [Client.Update] runs its function; 0 is no bound:
// until the context ends.
func MaxAttempts(n int) TxnOption { return func(o *txnOptions) { o.maxAttempts = n } }

// A SnapshotOption configures a [Snapshot].
type SnapshotOption func(*snapshotOptions)

type snapshotOptions struct {
	past bool
	at   tso.Timestamp
	hold bool

	staleness *time.Duration
	prefetch  bool
	name      string
}

// At makes a snapshot show the state at ts, which must be positive and not lie in the future:
// every transaction with a commit_ts of at most ts is visible, and no other.
func At(ts tso.Timestamp) SnapshotOption {
	return func(o *snapshotOptions) { o.past, o.at = true, ts }
}

// Hold keeps garbage collection below the snapshot until [Snapshot.Release], or
// until Config.MaxHold is over: for reads that take longer than versions are
// kept. It costs a question to the oracle and a write of the worker token, and
// needs one (Config.TokenTTL). Snapshots without it hold nothing: they can be
// read for as long as garbage collection keeps versions.
func Hold() SnapshotOption { return func(o *snapshotOptions) { o.hold = true } }

// A ReadOption narrows a read of rows.
type ReadOption func(*readOptions)

type readOptions struct {
	sel     store.Selection
	limit   int
	reverse bool
}

// Columns limits a read to the named columns. Given with [Families], it adds
// to them.
func Columns(cols ...Column) ReadOption {
	return func(o *readOptions) { o.sel.Columns = append(o.sel.Columns, cols...) }
}

// Families limits a read to all columns of the named families.
func Families(families ...string) ReadOption {
	return func(o *readOptions) { o.sel.Families = append(o.sel.Families, families...) }
}

// Limit ends a read after n rows that have a visible cell in the chosen
// columns. 0 is no limit.
func Limit(n int) ReadOption { return func(o *readOptions) { o.limit = n } }

// Reverse returns rows in descending order of their keys. The row set is still
// given with its smaller key first.
func Reverse() ReadOption { return func(o *readOptions) { o.reverse = true } }

func newReadOptions(opts []ReadOption) (readOptions, error) {
	var o readOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.limit < 0 {
		return o, format.Invalidf("Limit(%d)", o.limit)
	}
	for _, f := range o.sel.Families {
		if err := format.CheckColumn(Column{Family: f}); err != nil {
			return o, err
		}
	}
	slices.Sort(o.sel.Families)
	o.sel.Families = slices.Compact(o.sel.Families)
	// A column named twice, or with its family, would be returned twice.
	var columns []Column
	for _, c := range o.sel.Columns {
		if err := format.CheckColumn(c); err != nil {
			return o, err
		}
		if !slices.Contains(columns, c) && !slices.Contains(o.sel.Families, c.Family) {
			columns = append(columns, c)
		}
	}
	o.sel.Columns = columns
	return o, nil
}
