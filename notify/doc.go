// Package notify runs observers: functions of yours that run when a column changes. This
// program keeps the number of words of each document:
//
//	func main() {
//		ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
//		defer cancel()
//		bt, err := bigtable.NewClient(ctx, "project", "instance")
//		if err != nil {
//			log.Fatal(err)
//		}
//		client, err := txn.NewClient(ctx, bt, txn.Config{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		worker, err := notify.NewWorker(client, notify.Config{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		text := txn.Column{Family: "f", Qualifier: "text"}
//		if err := worker.Handle("word-counter", "documents", text, notify.ObserverFunc(countWords)); err != nil {
//			log.Fatal(err)
//		}
//		if err := worker.Run(ctx); err != nil { // until an interrupt
//			log.Fatal(err)
//		}
//	}
//
//	func countWords(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
//		documents := tx.Table(cell.Table)
//		text, _, err := documents.Get(ctx, cell.Row, cell.Family, cell.Qualifier)
//		if err != nil {
//			return err
//		}
//		words := strconv.Itoa(len(strings.Fields(string(text))))
//		documents.Set(cell.Row, "f", "words", []byte(words))
//		return nil
//	}
//
// The table must be transactional (percctl table init, or admin.InitTable). You may run
// any number of these programs at the same time.
//
// Observers are the second half of Percolator (Peng & Dabek, "Large-scale Incremental
// Processing Using Distributed Transactions and Notifications", OSDI 2010, §2.4). What an
// observer writes can trigger the next observer, and an application is a chain of them.
// Package txn is the first half: the transactions in which observers run.
//
// # What is promised
//
// At most one run of an observer commits for each change. The run's writes and its
// acknowledgment of the change are one transaction.
//
// Every change is seen, also if the client that wrote it died right after its commit
// point. One run may handle several changes of a cell.
//
// An observer may run more than once before a run commits, also in several processes. It
// must not have side effects that are wrong to repeat. docs/observers.md has the complete
// list.
//
// # When observers fail
//
// If an observer returns an error or panics, the worker rolls the run back and retries
// after a pause. The pause is stored, so all workers keep it. After Config.MaxAttempts
// failures the change becomes a dead letter: the workers ignore it, `percctl notify list
// --dead` shows it, and `percctl notify replay` has the observer run again.
//
// An observer can also return [Snooze] to delay the change, or [Drop] to acknowledge it
// without effect.
//
// # How a worker finds changes
//
// The commit of a change to an observed column also writes a notify cell, and an entry in a
// journal. Workers look at the journal every second, and share this work ([Scanner]). A worker
// runs changes of its own process at once, if it has room, and finds the rest in the journal.
//
// # More
//
// [Weak] notifications trigger an observer without a write, so that many transactions can
// notify one cell without conflicts. [Counter] uses observers to count without conflicts.
//
// [Load] feeds documents into a chain. [Wait] waits until a chain has handled everything.
// [Backfill] triggers an observer for data that was there before it.
package notify
