package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An HTTP handler that orders something once for each Idempotency-Key.
func Example() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	for table, family := range map[string]string{"orders": "order", "requests": "key"} {
		if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: table, Families: []string{family}}); err != nil {
			log.Fatal(err)
		}
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	keys, err := idempotency.New(client, "requests", "key")
	if err != nil {
		log.Fatal(err)
	}

	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key := idempotency.Key{ID: r.Header.Get("Idempotency-Key"), Request: body}
		outcome, err := keys.Update(ctx, key, func(_ context.Context, tx *txn.Txn) ([]byte, error) {
			id := fmt.Sprint("order-", tx.StartTS())
			tx.Table("orders").Set(id, "order", "item", body)
			return []byte(id), nil
		}, txn.SettleWithin(time.Second))
		switch {
		case errors.Is(err, idempotency.ErrMismatch):
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case err != nil:
			http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
		default:
			_, _ = w.Write(outcome.Result)
		}
	})

	order := func(item string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(item))
		r.Header.Set("Idempotency-Key", "bob-1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	_, first := order("a book")
	_, second := order("a book")
	code, _ := order("a car")
	fmt.Println("same order:", first == second, "other request:", code)
	// Output: same order: true other request: 422
}
