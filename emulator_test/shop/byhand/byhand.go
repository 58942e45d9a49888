// Package byhand is the order service of package shop, written with package txn alone, to compare
// the two. It keeps the same data. It cannot build an index while the service runs, verify or drop
// one, and no other program maintains its entries.
package byhand

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// Tables are the tables of the service, with their families.
var Tables = map[string][]string{"customers": {"c"}, "orders": {"o"}, "requests": {"key"}, "indexes": {"entry"}}

// A Customer has an e-mail address that no other customer has.
type Customer struct {
	ID, Email string
	Balance   int64
}

// An Order is paid from the balance of its customer.
type Order struct {
	ID, Customer string
	Placed       time.Time
	Price        int64
}

// The errors of the service.
var (
	ErrBalance  = errors.New("the balance is too low")
	ErrExists   = errors.New("the customer exists")
	ErrTaken    = errors.New("the address is taken")
	ErrMismatch = errors.New("the request has another content than before")
	ErrToken    = errors.New("the token is not valid for this list")
)

// A Service is one process of the shop.
type Service struct {
	client *txn.Client
	secret []byte
}

// New prepares a process. secret signs the tokens of pages, and is the same in all processes.
func New(client *txn.Client, secret []byte) *Service { return &Service{client, secret} }

// Register adds a customer.
func (s *Service) Register(ctx context.Context, c Customer) error {
	_, err := s.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		customers, entries := tx.Table("customers"), tx.Table("indexes")
		row, err := customers.ReadRow(ctx, c.ID)
		if err != nil || row != nil {
			return errors.Join(ErrExists, err)
		}
		_, taken, err := entries.Get(ctx, "email/"+c.Email, "entry", "row")
		if err != nil || taken {
			return errors.Join(ErrTaken, err)
		}
		customers.Set(c.ID, "c", "email", []byte(c.Email))
		customers.Set(c.ID, "c", "balance", strconv.AppendInt(nil, c.Balance, 10))
		entries.Set("email/"+c.Email, "entry", "row", []byte(c.ID))
		return nil
	})
	return err
}

// A record is what is stored of a request.
type record struct {
	Body  string
	Order Order
}

// Place places an order and takes its price from the customer's balance. A request that is
// repeated with the same id, in any process, returns the same order.
func (s *Service) Place(ctx context.Context, request, customer string, price int64) (Order, error) {
	done := record{Body: fmt.Sprintf("%s %d", customer, price)}
	_, err := s.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		requests, customers, orders := tx.Table("requests"), tx.Table("customers"), tx.Table("orders")
		old, repeated, err := requests.Get(ctx, request, "key", "record")
		if err != nil {
			return err
		}
		if repeated {
			var r record
			if err := json.Unmarshal(old, &r); err != nil {
				return err
			}
			if r.Body != done.Body {
				return ErrMismatch
			}
			done = r
			return nil
		}
		text, ok, err := customers.Get(ctx, customer, "c", "balance")
		if err != nil || !ok {
			return errors.Join(ErrBalance, err)
		}
		balance, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || balance < price {
			return errors.Join(ErrBalance, err)
		}
		o := Order{ID: fmt.Sprintf("%s/%d", customer, tx.StartTS()), Customer: customer, Placed: tx.StartTS().Time(), Price: price}
		placed, err := o.Placed.MarshalText()
		if err != nil {
			return err
		}
		customers.Set(customer, "c", "balance", strconv.AppendInt(nil, balance-price, 10))
		orders.Set(o.ID, "o", "customer", []byte(customer))
		orders.Set(o.ID, "o", "placed", placed)
		orders.Set(o.ID, "o", "price", strconv.AppendInt(nil, price, 10))
		tx.Table("indexes").Set(entryOf(customer, o), "entry", "row", []byte(o.ID))
		done.Order = o
		if text, err = json.Marshal(done); err != nil {
			return err
		}
		requests.Set(request, "key", "record", text)
		return nil
	}, txn.SettleWithin(time.Second))
	return done.Order, err
}

// entryOf is the key of an order's entry. The escaped name ends with a byte that it cannot contain,
// so no customer's entries are among those of another one.
func entryOf(customer string, o Order) string {
	return prefixOf(customer) + string(binary.BigEndian.AppendUint64(nil, uint64(o.Placed.UnixMicro()))) + o.ID
}

func prefixOf(customer string) string {
	return "orders/" + strings.NewReplacer("\x00", "\x00\xff").Replace(customer) + "\x00\x01"
}

// Orders lists the orders of a customer by time, the latest first. next is the token of the next
// page.
func (s *Service) Orders(ctx context.Context, customer string, size int, token string) (ids []string, next string, err error) {
	var snapshot *txn.Snapshot
	prefix, end := prefixOf(customer), ""
	if token == "" {
		end = prefix[:len(prefix)-1] + "\x02"
		snapshot, err = s.client.Snapshot(ctx)
	} else {
		var at tso.Timestamp
		if at, end, err = s.open(customer, token); err == nil {
			snapshot, err = s.client.Snapshot(ctx, txn.At(at))
		}
	}
	if err != nil {
		return nil, "", err
	}
	last := ""
	rows := snapshot.Table("indexes").ReadRows(ctx, bigtable.NewRange(prefix, end), txn.Reverse(), txn.Limit(size+1))
	for row, err := range rows {
		if err != nil {
			return nil, "", err
		}
		if len(ids) == size {
			return ids, s.seal(customer, snapshot.ReadTS(), last), nil
		}
		ids, last = append(ids, string(row["entry"][0].Value)), row.Key()
	}
	return ids, "", nil
}

// seal makes a token: a signature, the timestamp of the list, and the key where the next page ends.
func (s *Service) seal(customer string, at tso.Timestamp, end string) string {
	text := append(binary.BigEndian.AppendUint64(nil, uint64(at)), end...)
	return base64.RawURLEncoding.EncodeToString(append(s.sign(customer, text), text...))
}

func (s *Service) open(customer, token string) (at tso.Timestamp, end string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < sha256.Size+8 || !hmac.Equal(b[:sha256.Size], s.sign(customer, b[sha256.Size:])) {
		return 0, "", ErrToken
	}
	b = b[sha256.Size:]
	return tso.Timestamp(binary.BigEndian.Uint64(b)), string(b[8:]), nil
}

func (s *Service) sign(customer string, text []byte) []byte {
	h := hmac.New(sha256.New, s.secret)
	fmt.Fprintf(h, "orders %d %s", len(customer), customer)
	h.Write(text)
	return h.Sum(nil)
}
