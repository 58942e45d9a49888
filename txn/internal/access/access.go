// Package access lets the packages beside txn (gc, admin and changes) reach the inside of a
// *txn.Client and a *txn.Txn, which applications do not see. Package txn sets the function
// variables when it is initialized. They take any, because this package is below txn and
// cannot import it. It imports format, recovery and store.
package access

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ResolverOf returns the resolver of a *txn.Client.
var ResolverOf func(client any) *recovery.Resolver

// Keep says that the functions of Client.BeforeCommit maintain all indexes whose entries are in place,
// TABLE/FAMILY.
var Keep func(client any, place string)

// TransactionOf returns the inside of a *txn.Txn.
var TransactionOf func(tx any) Transaction

// A Transaction is the inside of a *txn.Txn.
type Transaction interface {
	Resolver() *recovery.Resolver
	StartTS() tso.Timestamp
	// CheckReadable returns an error if the transaction may no longer read.
	CheckReadable() error
	// Observing begins the read of an observed cell of table. The caller calls end with the
	// error of the read. end returns that error or, if garbage collection has passed the
	// transaction, a format.TooOldError.
	Observing(ctx context.Context, table string) (_ context.Context, end func(error) error)
	// Remember keeps a cell's value at the start timestamp, so that later reads of the
	// transaction need no request. row is the row of table as the transaction sees it.
	Remember(table *store.Table, row bigtable.Row, cell format.Cell)
	// CausedBy says that at least that many observer runs, one causing the next, led to the
	// transaction.
	CausedBy(hops int)
	// Put buffers a write of a cell, which may be in the acknowledgment family.
	Put(cell format.Cell, value []byte)
	// CheckWrites returns the error with which Commit would refuse the writes before it sends
	// any of them.
	CheckWrites(ctx context.Context) error
}
