package notify

import (
	"context"
	"log/slog"

	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Finder finds notifications. A worker runs changes of its own process at once only while it
// has room, and so it relies on its Finder to find every notification in the end. [Scanner] is one.
type Finder interface {
	// Find finds notifications in the tables of s and offers them, until ctx ends. It
	// then returns ctx's error. It offers each notification in the end, however many
	// others come before. After another error the worker calls Find again a second
	// later; after txn.ErrInvalid or txn.ErrClosed the worker stops.
	Find(ctx context.Context, s Search) error
}

// A Search is what a worker asks its Finder to do.
type Search struct {
	Client *txn.Client
	// Tables have observers in this worker.
	Tables []string
	// Observers are the ids of these observers.
	Observers []string
	// Offer offers a notification to the worker, and waits while the worker is busy. It
	// returns false if the worker knows the notification already, or has nothing to do
	// with it. The worker may call contended later, when another worker turns out to
	// work on the cell. A scanner then continues elsewhere (paper §2.4).
	Offer func(ctx context.Context, n changes.Notification, contended func()) (taken bool)
	// Logger is never nil.
	Logger *slog.Logger
	// lane returns which cells wait for the same observers as a cell; nil: those of its column.
	lane func(txn.Cell) target
	// busy reports whether the worker has queued a cell or is checking it; nil: unknown.
	busy func(txn.Cell) bool
	// behind reports whether cells wait until the worker has time for them; nil: unknown.
	behind func() bool
}
