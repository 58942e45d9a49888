package changes_test

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestSeveralPages: what takes several pages is returned once, all of it. A caller who leaves the loop gets
// nothing more, and costs no further request.
func TestSeveralPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newObservedTable(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithoutCheck())
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		large := strings.Repeat("x", store.MaxPageBytes/2+1) // two on a page
		const most = 1001                                    // entries of the journal; a page has 1,000
		env.CreateTable("small", "f")
		if err := changes.RegisterObserver(t.Context(), env.Client, "small", observedCell.Column(), "o", false); err != nil {
			t.Fatal(err)
		}
		var rows []string
		var muts []*bigtable.Mutation
		var cells []txn.Cell
		for i := range most {
			m := bigtable.NewMutation()
			m.Set(format.NotifyFamily, observedCell.Column().Key(), now.Cell(), nil)
			rows, muts = append(rows, fmt.Sprintf("%04d", i)), append(muts, m)
			cells = append(cells, txn.Cell{Table: "small", Row: rows[i], Family: "f", Qualifier: "q"})
		}
		if errs, err := env.Bigtable.Open("small").ApplyBulk(t.Context(), rows, muts); errs != nil || err != nil {
			t.Fatal(errs, err)
		}
		if err := changes.Enter(t.Context(), env.Client, now, cells...); err != nil {
			t.Fatal(err)
		}
		for _, row := range []string{"a", "b", "c"} {
			cell := observedCell
			cell.Row = row
			lock := format.Lock{Cell: cell, Primary: cell, Kind: format.KindPut, StartTS: now, TTL: time.Hour, TraceParent: large}
			letter := format.Marshal(&recordpb.DeadLetter{FormatVersion: format.Version, Error: large})
			for _, c := range []struct{ table, row, family, qualifier, value string }{
				{"t", row, format.NotifyFamily, "f:q", large},
				{"t", row, format.LockFamily, "f:other", string(format.EncodeLock(&lock))},
				{format.DefaultMetadataTable, "dead/" + row, store.DeployFamily, "letter", string(letter)},
			} {
				m := bigtable.NewMutation()
				m.Set(c.family, c.qualifier, now.Cell(), []byte(c.value))
				if err := env.Bigtable.Open(c.table).Apply(t.Context(), c.row, m); err != nil {
					t.Fatal(err)
				}
			}
		}
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		for name, of := range map[string]struct {
			want int
			all  iter.Seq2[int, error]
		}{
			"Notifications":  {3, counted(changes.Notifications(t.Context(), c, "t", nil))},
			"Sweep":          {3, counted(changes.Sweep(t.Context(), c, "t", nil))},
			"Observations":   {3, counted(changes.Observations(t.Context(), c, "t", nil))},
			"FindUnfinished": {6, counted(changes.FindUnfinished(t.Context(), c, "t", nil, now, true))},
			"DeadLetters":    {3, counted(changes.DeadLetters(t.Context(), c))},
			"Pending":        {most, counted(changes.Pending(t.Context(), c, []string{"small"}, changes.Part{Of: 1}))},
		} {
			n, requests := 0, len(faults.Calls())
			for _, err := range of.all {
				if n++; err != nil {
					t.Fatal(name, err)
				}
			}
			if n != of.want {
				t.Errorf("%s: %d, want %d", name, n, of.want)
			}
			last := len(faults.Calls())
			requests = last - requests
			sent := 0
			for range of.all {
				sent = len(faults.Calls()) - last
				break
			}
			synctest.Wait()
			if more := len(faults.Calls()) - last; sent == 0 || more != sent || more >= requests {
				t.Errorf("%s: %d requests for all, %d until the caller left, and then %d", name, requests, sent, more-sent)
			}
		}
		if got, err := changes.EnteredRows(t.Context(), c, "small"); err != nil || !slices.Equal(got, rows) {
			t.Errorf("%d rows, %v", len(got), err)
		}
	})
}

// counted iterates without the values.
func counted[T any](all iter.Seq2[T, error]) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for _, err := range all {
			if !yield(0, err) {
				return
			}
		}
	}
}
