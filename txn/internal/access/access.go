package access

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

// Package access lets the packages beside txn (gc, admin, changes) reach what a
// *txn.Client and a *txn.Txn hold, without showing it to applications. Package txn sets
// the variables.

// resolverOf returns the resolver of a *txn.Client.
var ResolverOf func(client any) *recovery.Resolver

// transactionOf returns the inside of a *txn.Txn.
var TransactionOf func(tx any) Transaction

// traceLater makes the txn.TxnOption that changes.TraceLater describes.
var TraceLater func(begin func(context.Context) context.Context) any

// A transaction is the inside of a *txn.Txn.
type Transaction interface {
	Resolver() *recovery.Resolver
	StartTS() tso.Timestamp
	// Alive fails when the transaction may not read any more.
	Alive() error
	// Observing begins the read of an observed cell of table. end takes the error of the
	// read, and returns it or, if garbage collection has passed the transaction, a
	// TooOldError.
	Observing(ctx context.Context, table string) (_ context.Context, end func(error) error)
	// Remember keeps a cell's value at the start timestamp for later reads.
	Remember(cell format.Cell, value []byte, present bool)
	// CausedBy says that so many runs of observers led to the transaction, at least.
	CausedBy(hops int)
	// Put buffers a value for a cell of the acknowledgment family, too.
	Put(cell format.Cell, value []byte)
	// Trace begins a trace that was put off.
	Trace(ctx context.Context) context.Context
}
