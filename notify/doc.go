// Package notify runs observers: code that runs when a column changes. It is the
// other half of Percolator (Peng & Dabek, OSDI 2010, §2.4): an application is a
// chain of observers, each of which reacts to a change in a transaction and, by
// what it writes, causes the next one to run.
//
// # An observer
//
//	worker, err := notify.NewWorker(client, notify.Config{})
//	…
//	contents := txn.Column{Family: "contents", Qualifier: "raw"}
//	err = worker.Handle("parser", "documents", contents, notify.ObserverFunc(
//		func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
//			documents := tx.Table(cell.Table)
//			raw, _, err := documents.Get(ctx, cell.Row, cell.Family, cell.Qualifier)
//			if err != nil {
//				return err
//			}
//			documents.Set(cell.Row, "contents", "links", links(raw))
//			return nil
//		}))
//	…
//	err = worker.Run(ctx) // until ctx ends; then it drains
//
// Any number of workers may run the same observers.
//
// # What is promised
//
// At most one observer transaction commits for each change, and its writes are
// committed together with the acknowledgment that the change was seen. Every
// change is seen, also those of clients that died right after their commit point.
// Several changes of a cell may be seen by one run. An observer may be called more
// than once before a run commits, in several processes even, so that it must not
// have side effects that are wrong to repeat. docs/observers.md has the whole
// list.
//
// # When observers fail
//
// An error, or a panic, rolls the run back, and it is tried again after a pause,
// which is kept in the store for all workers. After Config.MaxAttempts the
// change becomes a dead letter: it is out of everybody's way, and `percctl
// notify list --dead` and `percctl notify replay` show it and give it another
// try. [Snooze] and [Drop] put a change off or away.
//
// # How work is found
//
// A commit of an observed column sets a notify cell. Workers scan for them, each
// its share, and what is committed by, or hinted to, a worker's own process is
// run at once. Hints may be lost; the scan finds what they miss.
package notify
