package notify_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
)

// A service with an outbox, and its shutdown in the right order. The order and the message are
// written in one transaction; an observer sends the message. It may send a message again, so the
// message has a key: its row.
func Example_outboxAndShutdown() {
	ctx := context.Background()
	client, stop := exampleClient(ctx, "orders", "outbox")
	sent := make(chan string, 1)
	message := txn.Column{Family: "f", Qualifier: "message"}
	worker, err := notify.NewWorker(client, notify.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = worker.Handle("send", "outbox", message, notify.ObserverFunc(
		func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			text, ok, err := tx.Table("outbox").Get(ctx, cell.Row, message.Family, message.Qualifier)
			if err != nil || !ok {
				return err // the delete below has removed it
			}
			sent <- fmt.Sprintf("%s with the key %s", text, cell.Row)
			tx.Table("outbox").Delete(cell.Row, message.Family, message.Qualifier)
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	stopWorker := run(ctx, worker)

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := client.Update(r.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("orders").Set("7", "f", "total", []byte("12"))
			tx.Table("outbox").Set("orders/7", message.Family, message.Qualifier, []byte("placed"))
			return nil
		}, txn.SettleWithin(time.Second))
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}))
	answer, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	_ = answer.Body.Close()
	fmt.Println(answer.Status)
	fmt.Println("sent:", <-sent)

	// First no new requests, and those under way end. In a service: http.Server.Shutdown.
	server.Close()
	// Then the worker: it starts no run, and those under way end.
	stopWorker()
	// Then the client, which completes commits in the background, with a bounded time.
	closing, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fmt.Println("client:", client.Close(closing))
	// Last the Bigtable client and the exporters of traces and metrics.
	stop()
	// Output:
	// 200 OK
	// sent: placed with the key orders/7
	// client: <nil>
}
