package changes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

const (
	deadRowPrefix = "dead/"
	deadQualifier = "letter"
)

// A DeadLetter is a notification that was given up: its observer failed too
// often, or triggers itself without end. It is kept in the metadata table, where
// it costs no scan anything, until it is replayed or dropped. A newer change of
// the cell triggers the observer as ever.
type DeadLetter struct {
	Cell     format.Cell
	Observer string
	// ChangeTS is the change that the observer failed for.
	ChangeTS tso.Timestamp
	Attempts int
	// FirstTS is the oracle time of the first failed run, ParkedTS when it was
	// given up. Together with cell and observer it names the letter.
	FirstTS, ParkedTS tso.Timestamp
	// Error is the last run's, in words.
	Error string
	// TraceParent is the W3C trace context of the change; may be empty.
	TraceParent string
}

func (d *DeadLetter) row() string {
	// A row key of the user's may be as long as ours may be.
	sum := sha256.Sum256([]byte(d.Cell.String()))
	return deadRowPrefix + d.Cell.Table + "/" + d.Observer + "/" + hex.EncodeToString(sum[:16])
}

func (d *DeadLetter) check() error {
	if err := format.CheckCell(d.Cell); err != nil {
		return err
	}
	return format.CheckObserver(d.Observer)
}

// Park stores a dead letter, in place of an earlier one for the same cell and
// observer, with a ParkedTS of its own. It does not remove the notification:
// that comes after, so that nothing is lost in between. On an error it may be
// stored or not.
func Park(ctx context.Context, client *txn.Client, d DeadLetter) error {
	c := access.Resolver(client)
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
		Error:         format.Clip(d.Error),
		TraceParent:   d.TraceParent,
	}))
	_, err = c.Metadata.Apply(ctx, []store.RowMutation{{Row: d.row(), Mut: m, Ops: 2}})
	return err
}

// DeadLetters iterates over the dead letters of the deployment, by table and
// observer.
func DeadLetters(ctx context.Context, client *txn.Client) iter.Seq2[DeadLetter, error] {
	c := access.Resolver(client)
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
		return DeadLetter{}, fmt.Errorf("txn: %w: dead letter %q in table %q does not parse: %w", format.ErrCorrupt, key, table, err)
	}
	if err := format.CheckFormat(&m, fmt.Sprintf("dead letter %q in table %q", key, table)); err != nil {
		return DeadLetter{}, fmt.Errorf("txn: %w", err)
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

// Replay gives a dead letter's notification another try: it notifies the cell
// again, forgets the failures, and removes the letter. When it ends half-way
// both are there, and to replay it again is harmless. An observer that has
// acknowledged the change since does not run. One that fails again leaves
// another letter, even if it is faster than the removal of this one.
func Replay(ctx context.Context, client *txn.Client, d DeadLetter) error {
	if err := d.check(); err != nil {
		return err
	}
	if err := ClearNotifications(ctx, client, Cleared{Cell: d.Cell, Failures: []string{d.Observer}}); err != nil {
		return err
	}
	if err := Notify(ctx, client, d.Cell); err != nil {
		return err
	}
	return Drop(ctx, client, d)
}

// Drop removes a dead letter for good, but not one that was parked
// after it, which d's ParkedTS tells. Its change stays without acknowledgment:
// the next notification of the cell runs the observer all the same.
func Drop(ctx context.Context, client *txn.Client, d DeadLetter) error {
	c := access.Resolver(client)
	if err := d.check(); err != nil {
		return err
	}
	m := bigtable.NewMutation()
	m.DeleteTimestampRange(store.DeployFamily, deadQualifier, 0, (d.ParkedTS + 1).Cell())
	_, err := c.Metadata.Apply(ctx, []store.RowMutation{{Row: d.row(), Mut: m, Ops: 1}})
	return err
}
