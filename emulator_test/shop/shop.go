// Package shop is an order service, written with the packages for applications
// (docs/applications.md). Its test kills the service's processes while customers repeat their
// requests.
package shop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/page"
	"github.com/percolator-bigtable/percolator/txn/row"
)

// Tables are the tables of the service, with their families.
var Tables = map[string][]string{"customers": {"c"}, "orders": {"o"}, "requests": {"key"}, "indexes": {"entry"}}

// A Customer has an e-mail address that no other customer has.
type Customer struct {
	ID      string `row:"key"`
	Email   string `row:"c:email"`
	Balance int64  `row:"c:balance"`
}

// An Order is paid from the balance of its customer.
type Order struct {
	ID       string    `row:"key"`
	Customer string    `row:"o:customer"`
	Placed   time.Time `row:"o:placed"`
	Price    int64     `row:"o:price"`
}

var (
	customers = row.MustTable[Customer]("customers")
	orders    = row.MustTable[Order]("orders")
)

// ErrBalance means that a customer cannot pay an order.
var ErrBalance = errors.New("the balance is too low")

// A Service is one process of the shop.
type Service struct {
	client  *txn.Client
	indexes *index.Indexes
	keys    *idempotency.Keys
	pages   *page.Pages
}

// New prepares a process. secret signs the tokens of pages, and is the same in all processes.
func New(client *txn.Client, secret []byte) (*Service, error) {
	s := &Service{client: client}
	var err error
	s.indexes, err = index.New("indexes", "entry",
		index.Index{Name: "customers-by-email", Table: "customers", Columns: []txn.Column{{Family: "c", Qualifier: "email"}}, Unique: true},
		index.Index{Name: "orders-by-customer", Table: "orders", Columns: []txn.Column{{Family: "o", Qualifier: "customer"}, {Family: "o", Qualifier: "placed"}}})
	if err != nil {
		return nil, err
	}
	s.indexes.Keep(client)
	if s.keys, err = idempotency.New(client, "requests", "key"); err != nil {
		return nil, err
	}
	s.pages, err = page.New(client, secret)
	return s, err
}

// SetUp creates the indexes. It may be called in every process.
func (s *Service) SetUp(ctx context.Context) error {
	for _, name := range []string{"customers-by-email", "orders-by-customer"} {
		if err := s.indexes.Create(ctx, s.client, name, nil); err != nil {
			return err
		}
	}
	return nil
}

// Register adds a customer. index.ErrUnique says that the e-mail address is taken, and
// row.ErrExists that the id is.
func (s *Service) Register(ctx context.Context, c Customer) error {
	_, err := s.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error { return customers.In(tx).Insert(ctx, c) })
	return err
}

// Place places an order and takes its price from the customer's balance. A request that is
// repeated with the same id, in any process, returns the same order.
func (s *Service) Place(ctx context.Context, request, customer string, price int64) (order Order, err error) {
	body := fmt.Appendf(nil, "%s %d", customer, price)
	outcome, err := s.keys.Update(ctx, idempotency.Key{ID: request, Request: body}, func(ctx context.Context, tx *txn.Txn) ([]byte, error) {
		rows := customers.In(tx)
		c, ok, err := rows.Get(ctx, customer)
		if err != nil || !ok || c.Balance < price {
			return nil, errors.Join(ErrBalance, err)
		}
		c.Balance -= price
		if err := rows.Set(ctx, c); err != nil {
			return nil, err
		}
		o := Order{ID: fmt.Sprintf("%s/%d", customer, tx.StartTS()), Customer: customer, Placed: tx.StartTS().Time(), Price: price}
		if err := orders.In(tx).Insert(ctx, o); err != nil {
			return nil, err
		}
		return json.Marshal(o)
	}, txn.SettleWithin(time.Second))
	if err != nil {
		return order, err
	}
	return order, json.Unmarshal(outcome.Result, &order)
}

// Orders lists the orders of a customer by time, the latest first. next is the token of the next
// page.
func (s *Service) Orders(ctx context.Context, customer string, size int, token string) (ids []string, next string, err error) {
	entries, next, err := s.indexes.Page(ctx, s.client, s.pages, "orders-by-customer", index.Query{Prefix: index.Key{customer}, Reverse: true}, customer, size, token)
	for _, e := range entries {
		ids = append(ids, e.Row)
	}
	return ids, next, err
}
