package txn

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A TxnOption configures one transaction.
type TxnOption interface{ applyTxn(*txnOptions) }

type txnOption func(*txnOptions)

func (f txnOption) applyTxn(o *txnOptions) { f(o) }

// A SnapshotOption configures a [Snapshot].
type SnapshotOption interface{ applySnapshot(*snapshotOptions) }

type snapshotOption func(*snapshotOptions)

func (f snapshotOption) applySnapshot(o *snapshotOptions) { f(o) }

// A NameOption names a transaction or a snapshot: see [Named].
type NameOption string

func (n NameOption) applyTxn(o *txnOptions) { o.name = string(n) }

func (n NameOption) applySnapshot(o *snapshotOptions) { o.name, o.prefetch = string(n), true }

type txnOptions struct {
	name         string
	serializable bool
	maxAttempts  int
	noPrefetch   bool
	settleWithin time.Duration
	onAttempt    func(context.Context, Attempt)
	becameTooOld bool // set by Update: garbage collection has passed the transaction
}

// check refuses options that contradict each other, or themselves.
func (o *txnOptions) check() error {
	switch {
	case o.maxAttempts < 0:
		return format.Invalidf("MaxAttempts(%d); it has to be positive, or 0 for no bound", o.maxAttempts)
	case o.settleWithin < 0:
		return format.Invalidf("SettleWithin(%v); it has to be positive, or 0 to leave outcomes unknown", o.settleWithin)
	}
	return nil
}

// Named names a kind of transaction, such as "transfer": in errors, logs and telemetry,
// and for prefetching. A Get also reads the columns of the row that transactions and
// snapshots of the same name usually ask for next ([Config.PrefetchBytes]), and keeps
// them for later Gets. A snapshot without a name prefetches nothing.
func Named(name string) NameOption { return NameOption(name) }

// Serializable also writes a lock-only record for every point read, which makes write skew
// impossible: the transaction commits only if no other transaction wrote what it read.
// Reads must name their columns. Reads of whole rows, ranges and prefixes fail with
// [ErrSerializableScan], because nothing can lock a cell that does not exist yet. A
// transaction that writes nothing locks nothing: its snapshot is serializable if the writers
// are.
func Serializable() TxnOption { return txnOption(func(o *txnOptions) { o.serializable = true }) }

// MaxAttempts bounds how often [Client.Update] runs its function. After the n-th conflict,
// Update returns it. 0, the default, is no bound: Update runs the function until the context
// ends.
func MaxAttempts(n int) TxnOption { return txnOption(func(o *txnOptions) { o.maxAttempts = n }) }

type snapshotOptions struct {
	past bool
	at   tso.Timestamp
	hold bool

	staleness *time.Duration
	prefetch  bool
	name      string
}

// At makes a snapshot show the state at ts: every transaction with a commit_ts of at most
// ts, and no other. ts must be positive and not lie in the future. If this client has seen a
// later timestamp, the snapshot costs no request.
func At(ts tso.Timestamp) SnapshotOption {
	return snapshotOption(func(o *snapshotOptions) { o.past, o.at = true, ts })
}

// Hold keeps garbage collection below the snapshot until [Snapshot.Release], for at most 24
// hours: for reads that take longer than versions are kept. It costs a write of the worker
// token, so it needs one (Config.TokenTTL). A snapshot
// without it can be read as long as garbage collection keeps its versions.
func Hold() SnapshotOption { return snapshotOption(func(o *snapshotOptions) { o.hold = true }) }

// A ReadOption narrows a read of rows.
type ReadOption interface{ applyRead(*readOptions) }

type readOption func(*readOptions)

func (f readOption) applyRead(o *readOptions) { f(o) }

type readOptions struct {
	sel      store.Selection
	limit    int
	reverse  bool
	empty    bool // Columns or Families named nothing
	negative bool // CellsPerRow
}

// Columns limits a read to the named columns, at least one. Together with [Families] and
// [Qualifiers], it adds to them.
func Columns(cols ...Column) ReadOption {
	return readOption(func(o *readOptions) {
		o.sel.Columns = append(o.sel.Columns, cols...)
		o.empty = o.empty || len(cols) == 0
	})
}

// Families limits a read to all columns of the named families, at least one. A read of a
// family that the table does not have fails with ErrSchema.
func Families(families ...string) ReadOption {
	return readOption(func(o *readOptions) {
		for _, f := range families {
			o.sel.Ranges = append(o.sel.Ranges, store.QualifierRange{Family: f})
		}
		o.empty = o.empty || len(families) == 0
	})
}

// Qualifiers limits a read to the columns of a family with start ≤ qualifier < end, in the order
// of bytes. An empty end is no bound. Qualifiers(family, prefix, PrefixEnd(prefix)) are those that
// begin with prefix.
func Qualifiers(family, start, end string) ReadOption {
	return readOption(func(o *readOptions) {
		o.sel.Ranges = append(o.sel.Ranges, store.QualifierRange{Family: family, Start: start, End: end})
	})
}

// KeysOnly leaves the values out: the cells that a read returns have no Value.
func KeysOnly() ReadOption { return readOption(func(o *readOptions) { o.sel.KeysOnly = true }) }

// CellsPerRow limits a read to the first n visible cells of each row, in the order of their
// families and qualifiers. 0 is no limit. If the read names one Families or one Qualifiers and
// nothing else, a request returns 16 columns more than n of a row. If so many are deleted that the
// row shows fewer than n cells, the client reads the rest of the row. All other reads fetch all
// cells, and the client drops those beyond n.
func CellsPerRow(n int) ReadOption {
	return readOption(func(o *readOptions) { o.sel.First, o.negative = min(n, math.MaxInt32), n < 0 })
}

// Limit ends a read after n rows that have a visible cell in the chosen
// columns. 0 is no limit.
func Limit(n int) ReadOption { return readOption(func(o *readOptions) { o.limit = n }) }

// Reverse returns rows in descending order of their keys. A row range still names its
// smaller key first.
func Reverse() ReadOption { return readOption(func(o *readOptions) { o.reverse = true }) }

// PrefixEnd returns the smallest key above all keys that begin with prefix, or "" if there is
// none. bigtable.NewRange(from, PrefixEnd(prefix)) is the part of a prefix from a key on.
func PrefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}

func newReadOptions(opts []ReadOption) (readOptions, error) {
	var o readOptions
	for _, opt := range opts {
		opt.applyRead(&o)
	}
	if o.limit < 0 {
		return o, format.Invalidf("Limit(%d)", o.limit)
	}
	if o.negative {
		return o, format.Invalidf("CellsPerRow(%d)", o.sel.First)
	}
	if o.empty {
		return o, format.Invalidf("Columns or Families without a name; leave the option out to read whole rows")
	}
	for _, r := range o.sel.Ranges {
		if r.End != "" && r.End <= r.Start {
			return o, format.Invalidf("Qualifiers of family %q from %q to %q, which is no range", r.Family, r.Start, r.End)
		}
		if err := cmp.Or(format.CheckColumn(Column{Family: r.Family, Qualifier: r.Start}), format.CheckColumn(Column{Family: r.Family, Qualifier: r.End})); err != nil {
			return o, err
		}
	}
	for _, c := range o.sel.Columns {
		if err := format.CheckColumn(c); err != nil {
			return o, err
		}
	}
	o.sel.Normalize()
	return o, nil
}

// SettleWithin lets [Txn.Commit] and [Client.Update] find out an unknown outcome themselves,
// for at most d. They do so even after their context has ended, so a call may take up to d
// longer than its deadline. If they find out that the transaction is committed, they succeed.
// If it is rolled back, Commit returns a conflict, after which Update runs the function again
// unless the context has ended. If they cannot find out, the error is ErrUndetermined as
// without the option. It costs nothing as long as outcomes are known.
func SettleWithin(d time.Duration) TxnOption {
	return txnOption(func(o *txnOptions) { o.settleWithin = d })
}

// NoPrefetch makes a transaction read only what it asks for, and learn nothing for later
// transactions of its name.
func NoPrefetch() TxnOption { return txnOption(func(o *txnOptions) { o.noPrefetch = true }) }

// MaxStaleness lets a snapshot reuse a timestamp that this client has received before,
// instead of asking the oracle, if the client asked for it less than d ago. Then the
// snapshot costs no request, and each of its reads costs one. It shows
//
//   - a consistent state, as every snapshot does: all or nothing of each transaction;
//   - every transaction whose Commit returned, in any process, at least d before the
//     call of Snapshot, and perhaps later ones;
//   - every transaction that this Client committed or settled before the call;
//   - everything that an earlier snapshot or transaction of this Client has shown: time
//     does not go back within a client.
//
// Transactions that other clients committed less than d ago may be missing. If the client
// has no timestamp as young as that, or garbage collection has passed it, the client asks
// the oracle as usual. 0 always asks. It cannot be combined with [At].
func MaxStaleness(d time.Duration) SnapshotOption {
	return snapshotOption(func(o *snapshotOptions) { o.staleness = &d })
}
