// Package page reads a range of rows page by page, for lists that people or programs turn
// over. Each page comes with a token for the next one. A token carries the snapshot of the
// first page and the key of the last row, so all pages show one consistent state, from any
// process, and no server keeps anything between two pages.
//
//	pages, err := page.New(client, key)
//	…
//	query := page.Query{Table: "orders", Prefix: "customer/7/"}
//	list, err := pages.Read(ctx, query, 50, request.FormValue("page"))
//	switch {
//	case errors.Is(err, page.ErrToken):
//		// 400: the token is damaged, forged, or of another query
//	case errors.Is(err, txn.ErrTooOld):
//		// 410: begin again with the first page
//	…
//	}
//	show(list.Rows, list.Next)
//
// A token is signed and bound to its query, so a client of your service cannot use it to
// read other rows. It is not encrypted: who has it can read the last row's key in it. A
// snapshot of a token can be read as long as garbage collection keeps its versions (24 h by
// default).
//
// The first page costs a question to the oracle and a read; [Query.MaxStaleness] saves the
// question. Each later page is one read, if the process has seen a timestamp above the
// token's before.
package page

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// ErrToken means that a token is not one of this query, or was changed. errors.Is with
// txn.ErrInvalid holds too.
var ErrToken = fmt.Errorf("%w: page token", txn.ErrInvalid)

const (
	// MaxSize is how many rows a page may have.
	MaxSize = 10_000
	// minKey is how many bytes a key must have, and signature how many a token's signature
	// has.
	minKey, signature = 16, 16
	version           = 1
)

// A Query says which rows a list has, in which order. All fields but Options and
// MaxStaleness have to be the same for all pages of a list.
type Query struct {
	Table string
	// Prefix, if not empty, is how the keys begin. Start and End, if not empty, bound them:
	// Start ≤ key < End.
	Prefix, Start, End string
	// Reverse lists the rows in descending order.
	Reverse bool
	// Scope is bound to the token, for example the user who may see the list.
	Scope string
	// Options say which cells are read: txn.Columns and txn.Families.
	Options []txn.ReadOption
	// MaxStaleness lets the first page reuse a timestamp that is at most as old
	// ([txn.MaxStaleness]). 0 asks the oracle.
	MaxStaleness time.Duration
}

// A Page is a part of a list.
type Page struct {
	Rows []bigtable.Row
	// Next is the token of the next page, and empty after the last row.
	Next string
	// ReadTS is the timestamp of the state that all pages of the list show.
	ReadTS tso.Timestamp
}

// Pages reads pages. It is safe for concurrent use.
type Pages struct {
	client *txn.Client
	keys   [][]byte
}

// New returns a reader of pages. Tokens are signed with the first key, and those that any of
// the keys signed are accepted, so that you can replace a key. All processes of a service
// need the same keys, of at least 16 random bytes.
func New(client *txn.Client, keys ...[]byte) (*Pages, error) {
	if client == nil || len(keys) == 0 {
		return nil, fmt.Errorf("page: %w: New needs a client and a key", txn.ErrInvalid)
	}
	p := &Pages{client: client}
	for _, k := range keys {
		if len(k) < minKey {
			return nil, fmt.Errorf("page: %w: a key has %d bytes; at least %d random ones are needed", txn.ErrInvalid, len(k), minKey)
		}
		p.keys = append(p.keys, append([]byte{}, k...))
	}
	return p, nil
}

// Read reads the page of a token, or the first page if token is empty, with at most size
// rows. The error matches [ErrToken] if the token is wrong, and txn.ErrTooOld if garbage
// collection has passed its snapshot: then the list has to begin again.
func (p *Pages) Read(ctx context.Context, q Query, size int, token string) (Page, error) {
	start, end, err := q.bounds()
	if err == nil && (size < 1 || size > MaxSize) {
		err = fmt.Errorf("page: %w: a page of %d rows; 1 to %d are possible", txn.ErrInvalid, size, MaxSize)
	}
	if err != nil {
		return Page{}, err
	}
	var at txn.SnapshotOption = txn.MaxStaleness(q.MaxStaleness)
	if token != "" {
		ts, last, err := p.open(q, token)
		if err != nil {
			return Page{}, err
		}
		at = txn.At(ts)
		if q.Reverse {
			end = last
		} else {
			start = last + "\x00"
		}
	}
	snapshot, err := p.client.Snapshot(ctx, at)
	if err != nil {
		return Page{}, err
	}
	list := Page{ReadTS: snapshot.ReadTS()}
	if end != "" && start >= end {
		return list, nil
	}
	rows := bigtable.InfiniteRange(start)
	if end != "" {
		rows = bigtable.NewRange(start, end)
	}
	opts := append(q.Options[:len(q.Options):len(q.Options)], txn.Limit(size+1))
	if q.Reverse {
		opts = append(opts, txn.Reverse())
	}
	for row, err := range snapshot.Table(q.Table).ReadRows(ctx, rows, opts...) {
		if err != nil {
			return Page{}, err
		}
		if n := len(list.Rows); n > 0 && (row.Key() < list.Rows[n-1].Key()) != q.Reverse {
			return Page{}, fmt.Errorf("page: %w: Options has txn.Reverse; set Query.Reverse instead", txn.ErrInvalid)
		}
		if len(list.Rows) == size {
			list.Next = p.seal(q, list.ReadTS, list.Rows[size-1].Key())
			break
		}
		list.Rows = append(list.Rows, row)
	}
	return list, nil
}

// bounds returns the range of the query; an empty end is none.
func (q Query) bounds() (start, end string, err error) {
	start, end = q.Start, q.End
	if q.Prefix != "" {
		start = max(start, q.Prefix)
		if e := txn.PrefixEnd(q.Prefix); end == "" || e != "" && e < end {
			end = e
		}
	}
	if q.Table == "" {
		err = fmt.Errorf("page: %w: a query without a table", txn.ErrInvalid)
	}
	return start, end, err
}

// seal makes a token: version, timestamp, key of the last row, signature.
func (p *Pages) seal(q Query, ts tso.Timestamp, last string) string {
	payload := binary.BigEndian.AppendUint64([]byte{version}, uint64(ts))
	payload = append(payload, last...)
	return base64.RawURLEncoding.EncodeToString(append(payload, q.sign(p.keys[0], payload)...))
}

// open checks a token and returns what is in it.
func (p *Pages) open(q Query, token string) (ts tso.Timestamp, last string, err error) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < 1+8+signature {
		return 0, "", fmt.Errorf("page: %w: it is damaged or not a token", ErrToken)
	}
	payload, sum := data[:len(data)-signature], data[len(data)-signature:]
	for _, k := range p.keys {
		if hmac.Equal(sum, q.sign(k, payload)) {
			if payload[0] != version {
				return 0, "", fmt.Errorf("page: %w: version %d, not %d", ErrToken, payload[0], version)
			}
			return tso.Timestamp(binary.BigEndian.Uint64(payload[1:9])), string(payload[9:]), nil
		}
	}
	return 0, "", fmt.Errorf("page: %w: it belongs to another query of table %q, or was not made with this key", ErrToken, q.Table)
}

// sign signs a payload together with the query.
func (q Query) sign(key, payload []byte) []byte {
	mac := hmac.New(sha256.New, key)
	var bound strings.Builder
	for _, s := range []string{q.Table, q.Prefix, q.Start, q.End, fmt.Sprint(q.Reverse), q.Scope} {
		bound.Write(binary.AppendUvarint(nil, uint64(len(s))))
		bound.WriteString(s)
	}
	mac.Write([]byte(bound.String()))
	mac.Write(payload)
	return mac.Sum(nil)[:signature]
}
