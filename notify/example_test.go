package notify_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"strconv"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A chain of two observers: documents are split into words, and words are
// counted.
func Example() {
	ctx := context.Background()
	client, stop := exampleClient(ctx, "documents", "words")
	defer stop()

	worker, err := notify.NewWorker(client, notify.Config{})
	if err != nil {
		log.Fatal(err)
	}
	text := txn.Column{Family: "f", Qualifier: "text"}
	err = worker.Handle("split", "documents", text, notify.ObserverFunc(
		func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			value, _, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
			if err != nil {
				return err
			}
			for _, word := range strings.Fields(string(value)) {
				tx.Table("words").Set(word, "f", "in:"+cell.Row, nil)
				tx.Table("words").Set(word, "f", "changed", []byte(cell.Row))
			}
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	changed := txn.Column{Family: "f", Qualifier: "changed"}
	err = worker.Handle("count", "words", changed, notify.ObserverFunc(
		func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			row, err := tx.Table("words").ReadRow(ctx, cell.Row)
			if err != nil {
				return err
			}
			n := 0
			for _, item := range row["f"] {
				if strings.HasPrefix(item.Column, "f:in:") {
					n++
				}
			}
			tx.Table("words").Set(cell.Row, "f", "documents", []byte(strconv.Itoa(n)))
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	defer run(ctx, worker)()

	for document, text := range map[string]string{"a": "to be", "b": "or not to be"} {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("documents").Set(document, "f", "text", []byte(text))
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	asOf, err := notify.Wait(ctx, client, notify.WaitConfig{})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx, txn.At(asOf))
	if err != nil {
		log.Fatal(err)
	}
	for row, err := range snapshot.Table("words").ReadRows(ctx, nil, txn.Columns(txn.Column{Family: "f", Qualifier: "documents"})) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", row.Key(), row["f"][0].Value)
	}
	// Output:
	// be: 2
	// not: 1
	// or: 1
	// to: 2
}

// Transactions notify a hot cell instead of writing it, so that they do not
// conflict, and one observer aggregates.
func ExampleWeak() {
	ctx := context.Background()
	client, stop := exampleClient(ctx, "sales", "totals")
	defer stop()
	worker, err := notify.NewWorker(client, notify.Config{})
	if err != nil {
		log.Fatal(err)
	}
	stale := txn.Column{Family: "f", Qualifier: "stale"}
	err = worker.Handle("sum", "totals", stale, notify.ObserverFunc(
		func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			sum := 0
			for row, err := range tx.Table("sales").ReadRows(ctx, nil) {
				if err != nil {
					return err
				}
				n, err := strconv.Atoi(string(row["f"][0].Value))
				if err != nil {
					return err
				}
				sum += n
			}
			tx.Table("totals").Set(cell.Row, "f", "sum", []byte(strconv.Itoa(sum)))
			return nil
		}), notify.Weak())
	if err != nil {
		log.Fatal(err)
	}
	defer run(ctx, worker)()
	for i := range 10 {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("sales").Set(fmt.Sprintf("sale%d", i), "f", "amount", []byte(strconv.Itoa(i)))
			tx.Table("totals").Notify("all", "f", "stale")
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	if _, err := notify.Wait(ctx, client, notify.WaitConfig{}); err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	sum, _, err := snapshot.Table("totals").Get(ctx, "all", "f", "sum")
	fmt.Println(string(sum), err)
	// Output: 45 <nil>
}

// An observer that cannot do its work now, but will be able to later, snoozes.
func ExampleSnooze() {
	ready := false
	observe := func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		if !ready {
			return notify.Snooze(10 * time.Minute)
		}
		tx.Table(cell.Table).Set(cell.Row, "f", "done", nil)
		return nil
	}
	fmt.Println(observe(context.Background(), nil, txn.Cell{}))
	// Output: snoozed for 10m0s
}

// A change that failed too often becomes a dead letter. Once its cause is gone it
// is replayed.
func ExampleMaxAttempts() {
	ctx := context.Background()
	client, stop := exampleClient(ctx, "mail")
	defer stop()
	worker, err := notify.NewWorker(client, notify.Config{Backoff: txn.Backoff{Min: time.Millisecond}})
	if err != nil {
		log.Fatal(err)
	}
	body := txn.Column{Family: "f", Qualifier: "body"}
	fail := make(chan struct{}, 2)
	fail <- struct{}{}
	fail <- struct{}{}
	err = worker.Handle("send", "mail", body, notify.ObserverFunc(
		func(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
			select {
			case <-fail:
				return errors.New("no such address")
			default:
			}
			tx.Table("mail").Set(cell.Row, "f", "sent", []byte("yes"))
			return nil
		}), notify.MaxAttempts(2))
	if err != nil {
		log.Fatal(err)
	}
	defer run(ctx, worker)()
	_, err = client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("mail").Set("1", "f", "body", []byte("hello"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := notify.Wait(ctx, client, notify.WaitConfig{}); err != nil {
		log.Fatal(err)
	}
	for letter, err := range changes.DeadLetters(ctx, client) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s failed %d times for %s: %s\n", letter.Observer, letter.Attempts, letter.Cell, letter.Error)
		if err := changes.Replay(ctx, client, letter); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := notify.Wait(ctx, client, notify.WaitConfig{}); err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	sent, _, err := snapshot.Table("mail").Get(ctx, "1", "f", "sent")
	fmt.Printf("sent: %s %v\n", sent, err)
	// Output:
	// send failed 2 times for mail/1/f:body: no such address
	// sent: yes <nil>
}

// Documents enter a chain by loader transactions.
func ExampleLoad() {
	ctx := context.Background()
	client, stop := exampleClient(ctx, "documents")
	defer stop()
	var documents iter.Seq2[string, error] = func(yield func(string, error) bool) {
		for _, d := range []string{"a", "b", "c"} {
			if !yield(d, nil) {
				return
			}
		}
	}
	n, err := notify.Load(ctx, client, documents, func(_ context.Context, tx *txn.Txn, document string) error {
		tx.Table("documents").Set(document, "f", "text", []byte("text of "+document))
		return nil
	}, notify.LoadConfig{Concurrency: 2})
	fmt.Println(n, err)
	// Output: 3 <nil>
}

// run registers a worker's observers and runs it until the function that it
// returns is called.
func run(ctx context.Context, worker *notify.Worker) (stop func()) {
	if err := worker.Register(ctx); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			log.Fatal(err)
		}
	}
}

// exampleClient is a client of an emulator with tables of a family f. (In a
// service, bt and btAdmin come from bigtable.NewClient and NewAdminClient.)
func exampleClient(ctx context.Context, tables ...string) (client *txn.Client, stop func()) {
	bt, btAdmin, stopEmulator, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, table := range tables {
		if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: table, Families: []string{"f"}}); err != nil {
			log.Fatal(err)
		}
	}
	if client, err = txn.NewClient(ctx, bt, txn.Config{}); err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close(ctx)
		stopEmulator()
	}
}
