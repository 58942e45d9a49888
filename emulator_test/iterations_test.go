package emulator_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestIterationsEndEarly: a loop that ends after its first element reads one page. A loop to the
// end reads all of them, and yields each element once.
func TestIterationsEndEarly(t *testing.T) {
	const rows = 5 // on three pages: a page ends after 4 MiB
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		observed := txn.Column{Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "a", observed, "o", false); err != nil {
			t.Fatal(err)
		}
		start, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		bt, _ := env.Open()
		large := strings.Repeat("x", 3<<20)
		for i := range rows {
			cell := txn.Cell{Table: "a", Row: fmt.Sprint(i), Family: "f", Qualifier: "q"}
			_, record := format.EncodeCommit(cell, cell, format.KindPut, start)
			m := bigtable.NewMutation()
			m.Set(format.NotifyFamily, observed.Key(), (start + 1).Cell(), []byte(large))
			m.Set(format.WriteFamily, observed.Key(), (start + 1).Cell(), record)
			m.Set("f", "q", start.Cell(), []byte("v"))
			later := cell
			later.Qualifier = "locked"
			m.Set(format.LockFamily, later.Column().Key(), (start + 2).Cell(), format.EncodeLock(&format.Lock{Cell: later, Primary: later, StartTS: start + 2, Kind: format.KindPut, TTL: time.Hour, TraceParent: large}))
			if err := bt.Open("a").Apply(t.Context(), cell.Row, m); err != nil {
				t.Fatal(err)
			}
			letter := changes.DeadLetter{Cell: cell, Observer: "o", ChangeTS: start + 1, Attempts: 1}
			if err := changes.Park(t.Context(), env.Client, letter); err != nil {
				t.Fatal(err)
			}
		}
		reads := 0
		c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Table == "a" && call.Method == "ReadRows" {
				reads++
			}
			return nil
		})...)
		if err := c.CheckTable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		asOf := func() tso.Timestamp {
			ts, err := c.Timestamp(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return ts
		}
		for name, all := range map[string]func(context.Context) iter.Seq[error]{
			"notifications": func(ctx context.Context) iter.Seq[error] { return errorsOf(changes.Notifications(ctx, c, "a", nil)) },
			"sweep":         func(ctx context.Context) iter.Seq[error] { return errorsOf(changes.Sweep(ctx, c, "a", nil)) },
			"observations":  func(ctx context.Context) iter.Seq[error] { return errorsOf(changes.Observations(ctx, c, "a", nil)) },
			"unfinished": func(ctx context.Context) iter.Seq[error] {
				return errorsOf(changes.FindUnfinished(ctx, c, "a", nil, asOf(), false))
			},
			"locks":        func(ctx context.Context) iter.Seq[error] { return errorsOf(admin.Locks(ctx, c, "a", nil)) },
			"dead letters": func(ctx context.Context) iter.Seq[error] { return errorsOf(changes.DeadLetters(ctx, c)) },
		} {
			whole, seen := 0, 0
			reads = 0
			for err := range all(t.Context()) {
				if seen++; err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			whole, reads = reads, 0
			for range all(t.Context()) {
				break
			}
			if seen != rows || name != "dead letters" && (reads == 0 || 3*reads > whole) {
				t.Errorf("%s: %d elements in %d requests; %d requests for the first element", name, seen, whole, reads)
			}
		}
	})
}

func errorsOf[T any](all iter.Seq2[T, error]) iter.Seq[error] {
	return func(yield func(error) bool) {
		for _, err := range all {
			if !yield(err) {
				return
			}
		}
	}
}
