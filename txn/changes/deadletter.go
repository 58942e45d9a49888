package changes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

const (
	deadRowPrefix = "dead/"
	deadQualifier = "letter"
)

// A DeadLetter is a change that was set aside, because its observer failed on it
// too often, or because the chain of runs that led to it was too long. It stays
// in the metadata table, where it slows no scan, until it is replayed or dropped.
// A newer change of the cell triggers the observer as usual.
type DeadLetter struct {
	Cell     format.Cell
	Observer string
	// ChangeTS is the change on which the observer failed.
	ChangeTS tso.Timestamp
	// Attempts is how many runs failed.
	Attempts int
	// FirstTS is the oracle time of the first failed run, and ParkedTS that of
	// Park. Cell, Observer and ParkedTS together identify the letter.
	FirstTS, ParkedTS tso.Timestamp
	// Error is the text of the last run's error.
	Error string
	// TraceParent is the W3C trace context of the change. It may be empty.
	TraceParent string
}

func (d *DeadLetter) row() string {
	// The cell's row key may already be as long as a row key may be.
	sum := sha256.Sum256([]byte(d.Cell.String()))
	return deadRowPrefix + d.Cell.Table + "/" + d.Observer + "/" + hex.EncodeToString(sum[:16])
}

func (d *DeadLetter) check() error {
	if err := format.CheckCell(d.Cell); err != nil {
		return err
	}
	return format.CheckObserver(d.Observer)
}

// Park stores a dead letter with a new ParkedTS. It replaces an earlier letter of
// the same cell and observer. It does not remove the notification: do that
// afterwards, so that the change cannot be lost in between. After an error the
// letter may be stored or not.
func Park(ctx context.Context, client *txn.Client, d DeadLetter) error {
	c := access.ResolverOf(client)
	if err := d.check(); err != nil {
		return err
	}
	var err error
	if d.ParkedTS, err = c.Clock.Timestamp(ctx); err != nil {
		return err
	}
	m := bigtable.NewMutation()
	m.DeleteTimestampRange(store.DeployFamily, deadQualifier, 0, d.ParkedTS.Cell())
	m.Set(store.DeployFamily, deadQualifier, d.ParkedTS.Cell(), format.Marshal(&recordpb.DeadLetter{
		FormatVersion: format.Version,
		Table:         d.Cell.Table,
		Row:           []byte(d.Cell.Row),
		Column:        &recordpb.Column{Family: d.Cell.Family, Qualifier: []byte(d.Cell.Qualifier)},
		Observer:      d.Observer,
		ChangeTs:      int64(d.ChangeTS),
		Attempts:      uint32(d.Attempts),
		FirstTs:       int64(d.FirstTS),
		ParkedTs:      int64(d.ParkedTS),
		Error:         format.ClipErrorText(d.Error),
		TraceParent:   d.TraceParent,
	}))
	_, err = c.Metadata.Apply(ctx, []store.RowMutation{{Row: d.row(), Mut: m, Ops: 2}})
	return err
}

// DeadLetters iterates over the dead letters of the deployment, in order of table
// and observer. It fails with txn.ErrCorrupt or txn.ErrFormatVersion at a letter
// that it cannot read.
func DeadLetters(ctx context.Context, client *txn.Client) iter.Seq2[DeadLetter, error] {
	c := access.ResolverOf(client)
	return func(yield func(DeadLetter, error) bool) {
		err := c.MetadataRows(ctx, deadRowPrefix, deadQualifier, func(r bigtable.Row, value []byte) (bool, error) {
			d, err := decodeDeadLetter(c.Metadata.Name, r.Key(), value)
			if err != nil {
				return false, err
			}
			return yield(d, nil), nil
		})
		if err != nil {
			yield(DeadLetter{}, err)
		}
	}
}

func decodeDeadLetter(table, key string, value []byte) (DeadLetter, error) {
	var m recordpb.DeadLetter
	if err := proto.Unmarshal(value, &m); err != nil {
		return DeadLetter{}, fmt.Errorf("changes: %w: dead letter %q in table %q does not parse: %w", format.ErrCorrupt, key, table, err)
	}
	if err := format.CheckVersion(&m, fmt.Sprintf("dead letter %q in table %q", key, table)); err != nil {
		return DeadLetter{}, fmt.Errorf("changes: %w", err)
	}
	return DeadLetter{
		Cell:        format.Cell{Table: m.Table, Row: string(m.Row), Family: m.GetColumn().GetFamily(), Qualifier: string(m.GetColumn().GetQualifier())},
		Observer:    m.Observer,
		ChangeTS:    tso.Timestamp(m.ChangeTs),
		Attempts:    int(m.Attempts),
		FirstTS:     tso.Timestamp(m.FirstTs),
		ParkedTS:    tso.Timestamp(m.ParkedTs),
		Error:       m.Error,
		TraceParent: m.TraceParent,
	}, nil
}

// Replay triggers the observer of a dead letter again: it removes the stored
// failures, notifies the cell, and removes the letter. After an error, the
// notification and the letter may both exist; to replay again is harmless. An
// observer that has acknowledged the change since does not run. The notification
// names the change, because garbage collection may have removed it: of a delete
// nothing else may be left. If the run fails
// too often again, there is a new letter, even if the run is faster than the
// removal of this one.
func Replay(ctx context.Context, client *txn.Client, d DeadLetter) error {
	if err := d.check(); err != nil {
		return err
	}
	if err := ClearNotifications(ctx, client, Cleared{Cell: d.Cell, Failures: []string{d.Observer}}); err != nil {
		return err
	}
	if err := setNotifications(ctx, access.ResolverOf(client), format.EncodeReplay(format.TraceParent(ctx), d.ChangeTS), d.Cell); err != nil {
		return err
	}
	return Drop(ctx, client, d)
}

// Drop deletes a dead letter, unless it was parked again after d.ParkedTS. Its
// change stays unacknowledged: the next notification of the cell still triggers
// the observer. After an error the letter may exist or not.
func Drop(ctx context.Context, client *txn.Client, d DeadLetter) error {
	c := access.ResolverOf(client)
	if err := cmp.Or(d.check(), c.CheckOpen()); err != nil {
		return err
	}
	m := bigtable.NewMutation()
	m.DeleteTimestampRange(store.DeployFamily, deadQualifier, 0, (d.ParkedTS + 1).Cell())
	_, err := c.Metadata.Apply(ctx, []store.RowMutation{{Row: d.row(), Mut: m, Ops: 1}})
	return err
}
