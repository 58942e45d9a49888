package page_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/page"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var key = []byte("0123456789abcdef")

func newPages(t *testing.T, c *txn.Client, keys ...[]byte) *page.Pages {
	t.Helper()
	p, err := page.New(c, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newEnv makes a table with rows a0 … a9, b0 … b9 and \xff\xff0 ….
func newEnv(t *testing.T) *txntest.Env {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("t", "f", "g")
	env.CreateTable("u", "f", "g")
	write(t, env.Client, "v")
	return env
}

func write(t *testing.T, c *txn.Client, value string) {
	t.Helper()
	_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for _, prefix := range []string{"a", "b", "\xff\xff"} {
			for i := range 10 {
				row := fmt.Sprint(prefix, i)
				tx.Table("t").Set(row, "f", "q", []byte(value))
				tx.Table("t").Set(row, "g", "q", []byte(value))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// list reads all pages and returns the keys, and how many pages there were. between runs
// after each page.
func list(t *testing.T, p *page.Pages, q page.Query, size int, between func()) (keys []string, pages int) {
	t.Helper()
	token, ts := "", tso.Timestamp(0)
	for {
		part, err := p.Read(t.Context(), q, size, token)
		if err != nil {
			t.Fatal(err)
		}
		if pages++; ts != 0 && part.ReadTS != ts {
			t.Errorf("page %d shows the state at %d, the first one at %d", pages, part.ReadTS, ts)
		}
		ts = part.ReadTS
		for _, r := range part.Rows {
			keys = append(keys, r.Key())
			for _, items := range r {
				if string(items[0].Value) != "v" {
					t.Errorf("row %q has value %q from after the snapshot", r.Key(), items[0].Value)
				}
			}
		}
		if token = part.Next; token == "" {
			return keys, pages
		}
		between()
	}
}

func TestPages(t *testing.T) {
	env := newEnv(t)
	all := []string{}
	for _, prefix := range []string{"a", "b", "\xff\xff"} {
		for i := range 10 {
			all = append(all, fmt.Sprint(prefix, i))
		}
	}
	reversed := slices.Clone(all)
	slices.Reverse(reversed)
	for _, tt := range []struct {
		name  string
		query page.Query
		want  []string
	}{
		{"everything", page.Query{}, all},
		{"reversed", page.Query{Reverse: true}, reversed},
		{"prefix", page.Query{Prefix: "b"}, all[10:20]},
		{"prefix reversed", page.Query{Prefix: "b", Reverse: true}, reversed[10:20]},
		{"prefix without an end", page.Query{Prefix: "\xff\xff"}, all[20:]},
		{"range", page.Query{Start: "a5", End: "b5"}, all[5:15]},
		{"range in a prefix", page.Query{Prefix: "a", Start: "a5", End: "z"}, all[5:10]},
		{"prefix in a range", page.Query{Prefix: "a", Start: "0", End: "a5", Reverse: true}, reversed[25:]},
		{"nothing", page.Query{Prefix: "c"}, nil},
		{"range that is empty", page.Query{Prefix: "a", Start: "b"}, nil},
		{"one family", page.Query{Prefix: "a", Options: []txn.ReadOption{txn.Families("g")}}, all[:10]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPages(t, env.Client, key)
			tt.query.Table = "t"
			for _, size := range []int{1, 3, 5, 10, 100} {
				got, pages := list(t, p, tt.query, size, func() {})
				if want := max(1, (len(tt.want)+size-1)/size); !slices.Equal(got, tt.want) || pages != want {
					t.Errorf("pages of %d: %d pages %q, want %d of %q", size, pages, got, want, tt.want)
				}
			}
		})
	}
}

// TestSnapshot: what is written between two pages does not show.
func TestSnapshot(t *testing.T) {
	env := newEnv(t)
	n := 0
	keys, _ := list(t, newPages(t, env.Client, key), page.Query{Table: "t"}, 7, func() {
		n++
		write(t, env.Client, fmt.Sprint("new", n))
	})
	if len(keys) != 30 || n != 4 {
		t.Errorf("%d rows, with %d writes between the pages", len(keys), n)
	}
}

// TestOtherProcess: a token is good in another process.
func TestOtherProcess(t *testing.T) {
	env := newEnv(t)
	q := page.Query{Table: "t", Prefix: "a"}
	first, err := newPages(t, env.Client, key).Read(t.Context(), q, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	write(t, env.Client, "new")
	second, err := newPages(t, env.NewClient(txn.Config{}), []byte("another key of 16"), key).Read(t.Context(), q, 100, first.Next)
	if err != nil || len(second.Rows) != 6 || string(second.Rows[0]["f"][0].Value) != "v" || second.ReadTS != first.ReadTS {
		t.Errorf("the second page is %v, error %v", second, err)
	}
}

// TestTokenRefused: a token is refused by every other query, with another key, and after any
// change of a byte.
func TestTokenRefused(t *testing.T) {
	env := newEnv(t)
	p := newPages(t, env.Client, key)
	q := page.Query{Table: "t", Prefix: "a", Start: "a1", End: "a8", Scope: "bob"}
	first, err := p.Read(t.Context(), q, 2, "")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(name string, p *page.Pages, q page.Query, token string) {
		t.Helper()
		if got, err := p.Read(t.Context(), q, 2, token); !errors.Is(err, page.ErrToken) || !errors.Is(err, txn.ErrInvalid) || len(got.Rows) > 0 {
			t.Errorf("%s: %v, error %v", name, got, err)
		}
	}
	for name, change := range map[string]func(*page.Query){
		"table":   func(q *page.Query) { q.Table = "u" },
		"prefix":  func(q *page.Query) { q.Prefix = "" },
		"start":   func(q *page.Query) { q.Start = "" },
		"end":     func(q *page.Query) { q.End = "" },
		"reverse": func(q *page.Query) { q.Reverse = true },
		"scope":   func(q *page.Query) { q.Scope = "eve" },
		"fields that run together": func(q *page.Query) {
			q.Prefix, q.Start = "aa", "1"
		},
	} {
		other := q
		change(&other)
		refused(name, p, other, first.Next)
	}
	refused("key", newPages(t, env.Client, []byte("another key of 16")), q, first.Next)
	refused("text", p, q, "no token!")
	refused("short", p, q, "AQ")
	raw, err := base64.RawURLEncoding.DecodeString(first.Next)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		changed := slices.Clone(raw)
		changed[i] ^= 1
		refused(fmt.Sprint("byte ", i), p, q, base64.RawURLEncoding.EncodeToString(changed))
		if i > 0 { // an empty token is the first page
			refused(fmt.Sprint("cut at ", i), p, q, base64.RawURLEncoding.EncodeToString(raw[:i]))
		}
	}
}

// TestTooOld: after garbage collection has passed the snapshot, the error says so.
func TestTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		p := newPages(t, env.Client, key)
		first, err := p.Read(t.Context(), page.Query{Table: "t"}, 5, "")
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Hour)
		write(t, env.Client, "new")
		if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		_, err = p.Read(t.Context(), page.Query{Table: "t"}, 5, first.Next)
		if !errors.Is(err, txn.ErrTooOld) || errors.Is(err, page.ErrToken) {
			t.Errorf("a page of a collected snapshot: %v, want ErrTooOld", err)
		}
	})
}

// TestRoundTrips: the first page asks the oracle unless it may be stale; later pages are one
// read.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		p := newPages(t, c, key)
		read := func(name string, q page.Query, token string, oracle int) page.Page {
			t.Helper()
			synctest.Wait()
			faults.Reset()
			part, err := p.Read(t.Context(), q, 5, token)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := faults.Count(); n[txntest.StepOracle] != oracle || n[txntest.StepRead] != 1 {
				t.Errorf("%s: requests %v, want %d to the oracle and one read", name, n, oracle)
			}
			return part
		}
		q := page.Query{Table: "t"}
		if _, err := p.Read(t.Context(), q, 1, ""); err != nil { // opens the table
			t.Fatal(err)
		}
		first := read("first page", q, "", 1)
		read("second page", q, first.Next, 0)
		q.MaxStaleness = time.Minute
		read("first page that may be stale", q, "", 0)
	})
}

func TestBadArguments(t *testing.T) {
	env := newEnv(t)
	if _, err := page.New(nil, key); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("no client: %v", err)
	}
	if _, err := page.New(env.Client); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
	if _, err := page.New(env.Client, key, []byte("short")); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), "16") {
		t.Errorf("a short key: %v", err)
	}
	p := newPages(t, env.Client, key)
	for _, size := range []int{-1, 0, page.MaxSize + 1} {
		if _, err := p.Read(t.Context(), page.Query{Table: "t"}, size, ""); !errors.Is(err, txn.ErrInvalid) || errors.Is(err, page.ErrToken) {
			t.Errorf("pages of %d: %v", size, err)
		}
	}
	if _, err := p.Read(t.Context(), page.Query{}, 1, ""); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("no table: %v", err)
	}
	if _, err := p.Read(t.Context(), page.Query{Table: "t", MaxStaleness: -1}, 1, ""); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("a negative staleness: %v", err)
	}
	if _, err := p.Read(t.Context(), page.Query{Table: "t", Options: []txn.ReadOption{txn.Families("no")}}, 1, ""); !errors.Is(err, txn.ErrSchema) {
		t.Errorf("an unknown family: %v", err)
	}
	for _, reverse := range []bool{false, true} {
		q := page.Query{Table: "t", Reverse: reverse, Options: []txn.ReadOption{txn.Reverse()}}
		if _, err := p.Read(t.Context(), q, 2, ""); !reverse && (!errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), "Query.Reverse")) || reverse && err != nil {
			t.Errorf("Options with Reverse, Query.Reverse %v: %v", reverse, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Read(ctx, page.Query{Table: "t"}, 1, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

// A list of one customer's orders, two on a page.
func Example() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "orders", Families: []string{"order"}}); err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	_, err = client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for _, row := range []string{"customer/7/1", "customer/7/2", "customer/7/3", "customer/8/1"} {
			tx.Table("orders").Set(row, "order", "state", []byte("paid"))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	pages, err := page.New(client, []byte("16 random bytes!")) // the same in all processes
	if err != nil {
		log.Fatal(err)
	}
	query := page.Query{Table: "orders", Prefix: "customer/7/"}
	for token, n := "", 1; n == 1 || token != ""; n++ {
		list, err := pages.Read(ctx, query, 2, token) // token comes with each HTTP request
		if err != nil {
			log.Fatal(err)
		}
		for _, row := range list.Rows {
			fmt.Println("page", n, row.Key())
		}
		token = list.Next
	}
	// Output:
	// page 1 customer/7/1
	// page 1 customer/7/2
	// page 2 customer/7/3
}
