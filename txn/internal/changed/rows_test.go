package changed_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/changed"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestChangedRows: a client gathers the rows whose values it changes while a collector reads them,
// writes them when there are 8,192, keeps what it cannot write, and drops what is too much.
func TestChangedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("t", "f")
		metadata := env.Bigtable.Open(format.DefaultMetadataTable)
		apply := func(row string, m *bigtable.Mutation) {
			t.Helper()
			if err := metadata.Apply(t.Context(), row, m); err != nil {
				t.Fatal(err)
			}
		}
		faults := txntest.NewFaults(t)
		open := func(noteUntil tso.Timestamp) (*changed.Rows, *store.Table) {
			t.Helper()
			m := bigtable.NewMutation()
			m.Set(store.DeployFamily, "safe-point", 0, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, NoteUntilTs: int64(noteUntil)}))
			apply(store.GCRowKey, m)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			if _, err := c.Timestamp(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := access.ResolverOf(c).Store
			table, err := s.Table(t.Context(), "t")
			if err != nil {
				t.Fatal(err)
			}
			return changed.New(s), table
		}
		next := 0
		rows := func(table *store.Table, kind format.Kind, n int) (all []*store.RowWrites) {
			for range n {
				all = append(all, &store.RowWrites{Table: table, Row: fmt.Sprint(next), Writes: []*store.Write{{Kind: kind}}})
				next++
			}
			return all
		}
		// noted removes the notes, and returns how many rows they have, and the newest commit.
		noted := func() (n int, newest tso.Timestamp) {
			t.Helper()
			synctest.Wait()
			found := map[string][]string{}
			var keys []string
			if err := metadata.ReadRows(t.Context(), bigtable.PrefixRange(changed.RowPrefix), func(raw bigtable.Row) bool {
				keys = append(keys, raw.Key())
				newest = max(newest, changed.NotedAt(raw.Key()))
				n += changed.Decode(raw, found)
				return true
			}); err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				m := bigtable.NewMutation()
				m.DeleteRow()
				apply(key, m)
			}
			return n, newest
		}
		want := func(rows int, newest tso.Timestamp) {
			t.Helper()
			if n, at := noted(); n != rows || at != newest {
				t.Errorf("the notes have %d rows up to %d, want %d up to %d", n, at, rows, newest)
			}
		}

		c, table := open(0)
		c.Note(rows(table, format.KindPut, 8192), 5)
		c.Flush(t.Context())
		want(0, 0)

		c, table = open(tso.Max)
		c.Flush(t.Context())
		c.FlushSoon()
		want(0, 0)
		c.Note(rows(table, format.KindLock, 8192), 5)
		c.Note(rows(table, format.KindPut, 4191), 7)
		c.Note(rows(table, format.KindDelete, 4000), 6)
		want(0, 0) // there are 8,191
		c.Note(rows(table, format.KindPut, 1), 6)
		want(8192, 7)

		again := rows(table, format.KindPut, 10)
		c.Note(again, 8)
		c.Note(again, 9)
		c.FlushSoon()
		want(10, 9)
		c.Note(rows(table, format.KindPut, 1), 9)
		c.FlushSoon()
		want(1, 9)

		// A request that fails for good: the rows wait for the next one.
		held := faults.OnStep(txntest.StepChanged, txntest.Hold)
		c.Note(again, 10)
		c.Flush(t.Context()) // it gives up after flushTimeout
		<-held.Fired()
		held.Release()
		noted()
		c.Note(rows(table, format.KindPut, 1), 9)
		c.Flush(t.Context())
		want(11, 10)

		// While a note is on its way, four times 8,192 rows are kept.
		held = faults.OnStep(txntest.StepChanged, txntest.HoldResponse)
		c.Note(rows(table, format.KindPut, 8192), 11)
		synctest.Wait()
		<-held.Fired()
		c.Note(rows(table, format.KindPut, 4*8192-1), 12)
		c.Note(rows(table, format.KindPut, 2), 13)
		held.Release()
		want(8192, 11)
		c.Flush(t.Context())
		want(4*8192, 13)
	})
}
