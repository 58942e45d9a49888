package rig

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// The tables of the brokerage. Rows:
//
//	orders    order                        its status and contents
//	trades    order                        contents of an executed order
//	holdings  customer/security            quantity that the customer has
//	pending   customer/order               index: orders not executed yet
//	history   security/order               index: trades of a security
const (
	OrdersTable   = "orders"
	TradesTable   = "trades"
	HoldingsTable = "holdings"
	PendingTable  = "pending"
	HistoryTable  = "history"
)

var BrokerageTables = []string{OrdersTable, TradesTable, HoldingsTable, PendingTable, HistoryTable}

// Securities are fewer than customers, and each customer trades in a few.
const (
	securities = 200
	portfolio  = 10
)

func customerKey(i int) string { return fmt.Sprintf("c%06d", i) }

// The columns of the brokerage.
const (
	StatusColumn   = "status" // of an order
	OrderColumn    = "order"  // customer, security and amount
	QuantityColumn = "qty"
)

// brokerageStep runs one transaction of the workload.
func brokerageStep(ctx context.Context, w *worker, t *Task, i int) error {
	who := rand.IntN(t.Rows)
	customer := customerKey(who)
	switch n := rand.IntN(10); {
	case n < 4:
		return place(ctx, w, customer, (7*who+rand.IntN(portfolio))%securities, fmt.Sprintf("o%03d-%08d", t.First, i))
	case n < 8:
		return execute(ctx, w, customer)
	}
	return viewHoldings(ctx, w, customer)
}

func place(ctx context.Context, w *worker, customer string, security int, order string) error {
	what := strings.Join([]string{customer, fmt.Sprintf("s%03d", security), strconv.Itoa(1 + rand.IntN(100))}, " ")
	_, err := w.client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table(OrdersTable).Set(order, Family, StatusColumn, []byte("pending"))
		tx.Table(OrdersTable).Set(order, Family, OrderColumn, []byte(what))
		tx.Table(PendingTable).Set(customer+"/"+order, Family, OrderColumn, []byte(what))
		return nil
	})
	return err
}

// execute executes a customer's oldest order, if there is one.
func execute(ctx context.Context, w *worker, customer string) error {
	_, err := w.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		for row, err := range tx.Table(PendingTable).ReadRows(ctx, bigtable.PrefixRange(customer+"/"), txn.Limit(1)) {
			if err != nil {
				return err
			}
			entry := row.Key()
			_, order, _ := strings.Cut(entry, "/")
			_, security, quantity, err := OrderOf(row[Family][0].Value)
			if err != nil {
				return err
			}
			status, _, err := tx.Table(OrdersTable).Get(ctx, order, Family, StatusColumn)
			if err != nil {
				return err
			}
			if string(status) != "pending" {
				return fmt.Errorf("order %s is %q, but in the index of pending orders", order, status)
			}
			holding := customer + "/" + security
			has, _, err := tx.Table(HoldingsTable).Get(ctx, holding, Family, QuantityColumn)
			if err != nil {
				return err
			}
			tx.Table(OrdersTable).Set(order, Family, StatusColumn, []byte("executed"))
			tx.Table(TradesTable).Set(order, Family, OrderColumn, row[Family][0].Value)
			tx.Table(HoldingsTable).Set(holding, Family, QuantityColumn, Amount(AmountOf(has)+quantity))
			tx.Table(PendingTable).Delete(entry, Family, OrderColumn)
			tx.Table(HistoryTable).Set(security+"/"+order, Family, OrderColumn, nil)
		}
		return nil
	})
	return err
}

// OrderOf parses the contents of an order.
func OrderOf(text []byte) (customer, security string, quantity int64, err error) {
	parts := bytes.Fields(text)
	if len(parts) != 3 {
		return "", "", 0, fmt.Errorf("an order of the benchmark is %q", text)
	}
	quantity, err = strconv.ParseInt(string(parts[2]), 10, 64)
	return string(parts[0]), string(parts[1]), quantity, err
}

// viewHoldings reads a customer's holdings and pending orders.
func viewHoldings(ctx context.Context, w *worker, customer string) error {
	s, err := w.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{HoldingsTable, PendingTable} {
		for _, err := range s.Table(name).ReadRows(ctx, bigtable.PrefixRange(customer+"/"), txn.Limit(20)) {
			if err != nil {
				return err
			}
		}
	}
	return nil
}
