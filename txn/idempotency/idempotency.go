// Package idempotency runs a transaction once for each key, however often it is asked to. A
// client of your service sends a key with its request, and the same key again if it got no
// answer. The first transaction of a key records its result together with its writes. Later
// ones, in any process, return the recorded result and its commit timestamp without running
// the function.
//
//	keys, err := idempotency.New(client, "requests", "key")
//	…
//	outcome, err := keys.Update(ctx, idempotency.Key{ID: id, Request: body}, func(ctx context.Context, tx *txn.Txn) ([]byte, error) {
//		…
//		return json.Marshal(order)
//	}, txn.SettleWithin(2*time.Second))
//
// If the outcome of a commit is unknown (txn.ErrUndetermined), a second call with the key
// finds it out: either the record is there, or the first transaction can never commit and the
// function runs.
//
// A record stays until [Keys.Sweep] removes it, or until it expires, if its family has an expiry
// (admin.SetExpiry). This decides for how long a key counts.
//
// A call costs what its transaction costs, and one read and one row more. A repeated call
// costs a timestamp and a read.
package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// ErrMismatch means that a key was used before with another request. Nothing was written.
var ErrMismatch = errors.New("idempotency: the key was used for another request")

// MaxResult is how many bytes a result may have.
const MaxResult = 1 << 20

// A Key names a request.
type Key struct {
	// ID is the key, at most 4 KiB. If different users choose keys, begin it with the user's
	// name.
	ID string
	// Request, if not nil, is what the request asks for. The record keeps a hash of it, and
	// the same ID with another Request is an error ([ErrMismatch]).
	Request []byte
}

// An Outcome is what the transaction of a key has done.
type Outcome struct {
	CommitTS tso.Timestamp
	// Result is what the function returned, and never nil.
	Result []byte
	// Repeated says that an earlier call has committed, and that this one wrote nothing.
	Repeated bool
}

// Keys runs transactions with keys. It is safe for concurrent use.
type Keys struct {
	client        *txn.Client
	table, family string
}

// New returns Keys that keep records in a family of a transactional table, one row for each
// key. All processes need the same.
func New(client *txn.Client, table, family string) (*Keys, error) {
	if client == nil || table == "" || family == "" {
		return nil, fmt.Errorf("idempotency: %w: New needs a client, a table and a family", txn.ErrInvalid)
	}
	return &Keys{client, table, family}, nil
}

// Update runs f in a transaction, as Client.Update does, and records what it returns, unless
// a transaction with the key has committed before: then it returns that one's outcome. If f
// returns an error, nothing is recorded, and the key can be used again.
//
// If the error is txn.ErrUndetermined, call Update with the same key to find out.
func (k *Keys) Update(ctx context.Context, key Key, f func(ctx context.Context, tx *txn.Txn) (result []byte, err error), opts ...txn.TxnOption) (Outcome, error) {
	if key.ID == "" {
		return Outcome{}, fmt.Errorf("idempotency: %w: empty key", txn.ErrInvalid)
	}
	hash := []byte{}
	if key.Request != nil {
		sum := sha256.Sum256(key.Request)
		hash = sum[:]
	}
	var o Outcome
	ts, err := k.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		records := tx.Table(k.table)
		row, err := records.ReadRow(ctx, key.ID, txn.Columns(k.result(), k.request()))
		if err != nil {
			return err
		}
		if o, err = k.recorded(row, hash); err != nil || o.Repeated {
			return err
		}
		// The first write is the primary cell. So a second call with the key finds its lock there.
		records.Set(key.ID, k.family, k.result().Qualifier, nil)
		records.Set(key.ID, k.family, k.request().Qualifier, hash)
		if o.Result, err = f(ctx, tx); err != nil {
			return err
		}
		if len(o.Result) > MaxResult {
			return fmt.Errorf("idempotency: %w: the result has %d bytes; %d are allowed", txn.ErrLimit, len(o.Result), MaxResult)
		}
		o.Result = append([]byte{}, o.Result...)
		records.Set(key.ID, k.family, k.result().Qualifier, o.Result)
		return nil
	}, opts...)
	if err != nil {
		return Outcome{}, err
	}
	if !o.Repeated {
		o.CommitTS = ts
	}
	return o, nil
}

// Lookup returns the outcome of a key. ok is false if no transaction with the key has
// committed.
func (k *Keys) Lookup(ctx context.Context, id string) (o Outcome, ok bool, err error) {
	snapshot, err := k.client.Snapshot(ctx)
	if err != nil {
		return o, false, err
	}
	row, err := snapshot.Table(k.table).ReadRow(ctx, id, txn.Columns(k.result()))
	if err != nil {
		return o, false, err
	}
	o, err = k.recorded(row, nil)
	return o, o.Repeated, err
}

// recorded returns the outcome in a row that was read. hash is nil if any request will do.
func (k *Keys) recorded(row bigtable.Row, hash []byte) (o Outcome, err error) {
	for _, item := range row[k.family] {
		if item.Column == k.family+":"+k.result().Qualifier {
			// The timestamp of a cell is that of its commit.
			o = Outcome{CommitTS: tso.Timestamp(item.Timestamp), Result: append([]byte{}, item.Value...), Repeated: true}
		} else if hash != nil && !bytes.Equal(item.Value, hash) {
			return Outcome{}, fmt.Errorf("%w: key %q", ErrMismatch, row.Key())
		}
	}
	return o, nil
}

func (k *Keys) result() txn.Column  { return txn.Column{Family: k.family, Qualifier: "result"} }
func (k *Keys) request() txn.Column { return txn.Column{Family: k.family, Qualifier: "request"} }

// sweepRows is how many records a transaction of Sweep removes.
const sweepRows = 200

// Sweep removes the records of transactions that committed more than age ago, and returns how
// many. From then on the function runs again for their keys, so age has to be longer than
// anyone repeats a request. Run Sweep regularly, in one process.
func (k *Keys) Sweep(ctx context.Context, age time.Duration) (removed int, err error) {
	if age <= 0 {
		return 0, fmt.Errorf("idempotency: %w: Sweep with an age of %v", txn.ErrInvalid, age)
	}
	now, err := k.client.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	before := now.Add(-age)
	snapshot, err := k.client.Snapshot(ctx, txn.At(now))
	if err != nil {
		return 0, err
	}
	var old bigtable.RowList
	for row, err := range snapshot.Table(k.table).ReadRows(ctx, nil, txn.Columns(k.result()), txn.KeysOnly()) {
		if err != nil {
			return removed, err
		}
		if tso.Timestamp(row[k.family][0].Timestamp) < before {
			old = append(old, row.Key())
		}
		if len(old) == sweepRows {
			n, err := k.remove(ctx, old, before)
			removed += n
			if err != nil {
				return removed, err
			}
			old = nil
		}
	}
	n, err := k.remove(ctx, old, before)
	return removed + n, err
}

// remove removes the records of a list that are still old.
func (k *Keys) remove(ctx context.Context, old bigtable.RowList, before tso.Timestamp) (removed int, err error) {
	if len(old) == 0 {
		return 0, nil
	}
	_, err = k.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		removed = 0
		records := tx.Table(k.table)
		for row, err := range records.ReadRows(ctx, old, txn.Columns(k.result()), txn.KeysOnly()) {
			if err != nil {
				return err
			}
			if tso.Timestamp(row[k.family][0].Timestamp) < before {
				removed++
				records.Delete(row.Key(), k.family, k.result().Qualifier)
				records.Delete(row.Key(), k.family, k.request().Qualifier)
			}
		}
		return nil
	})
	if err != nil {
		removed = 0
	}
	return removed, err
}
