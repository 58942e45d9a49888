package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// base is timestamp 0 of these tests.
const base tso.Timestamp = 1_800_000_000_000_000

// A world is a deployment with the tables "a" and "b" that have a journal, and "c" that has none.
type world struct {
	*testing.T
	env    *txntest.Env
	faults *txntest.Faults
	client *txn.Client
	store  *store.Store
	*journal.Journal
	log bytes.Buffer
}

// inWorld runs f in virtual time.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, env: txntest.New(t, txntest.Embedded()), faults: txntest.NewFaults(t)}
		for _, table := range []string{"a", "b", "c"} {
			spec := admin.TableSpec{Name: table, Families: []string{"f"}}
			if table != "c" {
				spec.Observed = []txn.Column{{Family: "f", Qualifier: "q"}}
			}
			w.env.InitTable(spec)
		}
		w.must(store.ReplaceSchema(t.Context(), w.env.Bigtable.OpenTable(format.DefaultMetadataTable), format.DefaultMetadataTable, "c", time.Minute, func(m *recordpb.TableSchema) error {
			m.Journal = recordpb.Journal_JOURNAL_NONE
			return nil
		}))
		w.client = w.env.NewClient(txn.Config{TokenTTL: -1, Logger: slog.New(slog.NewTextHandler(&w.log, nil))}, w.faults.DialOptions()...)
		r := access.ResolverOf(w.client)
		w.store, w.Journal = r.Store, r.Journal
		f(t, w)
	})
}

func cell(table, row string) format.Cell {
	return format.Cell{Table: table, Row: row, Family: "f", Qualifier: "q"}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// entries returns what is stored of cells, and of the whole journal of tables if there are none.
func (w *world) entries(cells ...format.Cell) map[format.Cell]journal.Entry {
	w.Helper()
	found := map[format.Cell]journal.Entry{}
	if len(cells) > 0 {
		var err error
		found, err = w.Find(w.Context(), cells...)
		w.must(err)
		return found
	}
	w.must(w.Read(w.Context(), []string{"a", "b", "c"}, journal.Part{Of: 1}, func(page []journal.Entry) bool {
		for _, e := range page {
			found[e.Cell] = e
		}
		return true
	}))
	return found
}

func (w *world) want(got map[format.Cell]journal.Entry, want ...journal.Entry) {
	w.Helper()
	all := map[format.Cell]journal.Entry{}
	for _, e := range want {
		all[e.Cell] = e
	}
	if !maps.Equal(got, all) {
		w.Errorf("the entries are %+v, want %+v", got, all)
	}
}

// TestEntries: each kind of entry is written at its own timestamp, of tables with a journal, and a
// removal takes what it names.
func TestEntries(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c := cell("a", "r")
		w.must(w.Enter(w.Context(), journal.Entry{StartTS: base + 10}, c, cell("c", "r")))
		w.must(w.Enter(w.Context(), journal.Entry{NotifyTS: base + 20}, c))
		w.must(w.Enter(w.Context(), journal.Entry{FailureTS: base + 30}, c))
		w.must(w.Enter(w.Context(), journal.Entry{StartTS: base + 5}, cell("b", "r")))
		whole := journal.Entry{Cell: c, StartTS: base + 10, NotifyTS: base + 20, FailureTS: base + 30}
		other := journal.Entry{Cell: cell("b", "r"), StartTS: base + 5}
		w.want(w.entries(), whole, other)
		w.want(w.entries(c, c, cell("a", "none")), whole)
		w.want(w.entries(cell("a", "none")))

		var pages int
		w.must(w.Read(w.Context(), nil, journal.Part{Of: 1}, func([]journal.Entry) bool { pages++; return true }))
		w.must(w.Read(w.Context(), []string{"c"}, journal.Part{Of: 1}, func([]journal.Entry) bool { pages++; return true }))
		if pages != 0 {
			t.Errorf("without entries, %d pages were read", pages)
		}

		remove := func(r journal.Removal, want journal.Entry) {
			t.Helper()
			r.Cell = c
			w.must(w.Remove(w.Context(), r))
			want.Cell = c
			w.want(w.entries(c), want)
		}
		remove(journal.Removal{From: base}, whole)
		remove(journal.Removal{StartTS: base + 9, NotifyTS: base + 19, FailureTS: base + 29}, whole)
		remove(journal.Removal{From: base + 11, StartTS: base + 12}, whole)
		remove(journal.Removal{StartTS: base + 10}, journal.Entry{NotifyTS: base + 20, FailureTS: base + 30})
		w.must(w.Enter(w.Context(), journal.Entry{StartTS: base + 40}, c))
		remove(journal.Removal{From: base + 40, StartTS: base + 40, NotifyTS: base + 20}, journal.Entry{FailureTS: base + 30})
		w.must(w.Remove(w.Context(), journal.Removal{Cell: c, FailureTS: base + 30}, journal.Removal{Cell: cell("b", "r"), StartTS: base + 5}))
		w.want(w.entries())
	})
}

// TestReplacedNotification: of the notifications that one client enters for a cell, the newest stays.
func TestReplacedNotification(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c := cell("a", "r")
		for _, ts := range []tso.Timestamp{10, 20, 15} {
			w.must(w.Enter(w.Context(), journal.Entry{NotifyTS: base + ts}, c))
		}
		w.must(w.Remove(w.Context(), journal.Removal{Cell: c, NotifyTS: base + 15}))
		w.want(w.entries(c), journal.Entry{Cell: c, NotifyTS: base + 20})
		w.must(w.Notify(w.Context(), []format.Cell{c, cell("c", "r")}, base+30, []byte("v")))
		w.want(w.entries(), journal.Entry{Cell: c, NotifyTS: base + 30})
		for _, table := range []string{"a", "c"} {
			row, err := w.env.Bigtable.Open(table).ReadRow(t.Context(), "r", bigtable.RowFilter(bigtable.FamilyFilter(format.NotifyFamily)))
			w.must(err)
			if len(row[format.NotifyFamily]) != 1 || string(row[format.NotifyFamily][0].Value) != "v" || tso.FromCell(row[format.NotifyFamily][0].Timestamp) != base+30 {
				t.Errorf("the notify cells of table %s are %v", table, row)
			}
		}
		for _, table := range []string{"a", "c"} { // the consistency check knows no cell without a value
			m := bigtable.NewMutation()
			m.DeleteRow()
			w.must(w.env.Bigtable.Open(table).Apply(t.Context(), "r", m))
		}
	})
}

// TestPagesOfTheJournal: a reading ends when its function says so, leaves out what is damaged, and says so
// in the log.
func TestPagesOfTheJournal(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var cells []format.Cell
		for i := range 1500 {
			cells = append(cells, cell("a", fmt.Sprint(i)))
		}
		w.must(w.Enter(w.Context(), journal.Entry{StartTS: base}, cells...))
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, "t", base.Cell(), []byte("damaged"))
		w.must(w.env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), journal.RowKey(cell("a", "7")), m))
		for i := range 4 {
			goOn, apart := i%2 == 0, i > 1
			w.log.Reset()
			var pages []int
			sum := 0
			w.must(w.Read(w.Context(), []string{"a", "b"}, journal.Part{Of: 1, Patience: time.Second, Apart: apart}, func(page []journal.Entry) bool {
				pages, sum = append(pages, len(page)), sum+len(page)
				return goOn
			}))
			damaged := strings.Count(w.log.String(), "an entry of the journal is damaged") + strings.Count(w.log.String(), "does not parse")
			if goOn && (len(pages) != 2 && !apart || sum != 1499 || damaged != 2) {
				t.Errorf("the pages have %v entries; log: %s", pages, w.log.String())
			}
			if !goOn && len(pages) != 1 {
				t.Errorf("after its function said no, %d pages were read", len(pages))
			}
		}
		away := w.faults.On("journal", func(c txntest.Call) bool { return c.Step == txntest.StepJournalRead }, txntest.Crash, 0)
		began := time.Now()
		err := w.Read(w.Context(), []string{"a", "b"}, journal.Part{Of: 1, Patience: time.Second}, func([]journal.Entry) bool {
			t.Error("it does not answer, and has entries")
			return true
		})
		<-away.Fired()
		if took := time.Since(began); !errors.Is(err, journal.ErrLate) || took < 2*time.Second || took > 3*time.Second {
			t.Errorf("nothing answers: %v after %v", err, took)
		}
		away.Release()
		w.client = w.env.NewClient(txn.Config{TokenTTL: -1})
		w.Journal = access.ResolverOf(w.client).Journal
		found := map[string]int{}
		for n := range 3 {
			w.must(w.Read(w.Context(), []string{"a"}, journal.Part{N: n, Of: 3}, func(page []journal.Entry) bool {
				for _, e := range page {
					found[e.Cell.Row]++
				}
				return true
			}))
		}
		if len(found) != 1499 || slices.Max(slices.Collect(maps.Values(found))) != 1 {
			t.Errorf("three parts have %d entries, want 1499 once each", len(found))
		}
	})
}

// TestForget: it removes the entries of a table and its sweep, and nothing else.
func TestForget(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, table := range []string{"a", "b"} {
			w.must(w.Enter(w.Context(), journal.Entry{StartTS: base}, cell(table, "r"), cell(table, "s")))
			m := bigtable.NewMutation()
			m.Set(store.DeployFamily, journal.SweepQualifier, 0, []byte("v"))
			w.must(w.env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), journal.SweepRow(table), m))
		}
		w.must(journal.Forget(w.Context(), w.store.Metadata, "a"))
		w.want(w.entries(), journal.Entry{Cell: cell("b", "r"), StartTS: base}, journal.Entry{Cell: cell("b", "s"), StartTS: base})
		for table, want := range map[string]int{"a": 0, "b": 1} {
			row, err := w.env.Bigtable.Open(format.DefaultMetadataTable).ReadRow(t.Context(), journal.SweepRow(table))
			w.must(err)
			if len(row[store.DeployFamily]) != want {
				t.Errorf("the sweep of table %s: %v", table, row)
			}
			w.must(w.env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), journal.SweepRow(table), deleteRow()))
		}
	})
}

func deleteRow() *bigtable.Mutation {
	m := bigtable.NewMutation()
	m.DeleteRow()
	return m
}

// begin begins to write the entry of a transaction that writes observed cells of table.
func (w *world) begin(ctx context.Context, table string, ts tso.Timestamp) *journal.Pending {
	w.Helper()
	t, err := w.store.Table(w.Context(), table)
	w.must(err)
	row := &store.RowWrites{Table: t, Row: "r", Writes: []*store.Write{{Cell: cell(table, "r"), Kind: format.KindPut, Observed: true}}}
	return w.Begin(ctx, []*store.RowWrites{row}, ts)
}

// TestPending: a commit waits for its entries until its context ends; a withdrawal brings back what
// was replaced; a transaction without observed cells has none.
func TestPending(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		now, err := w.client.Timestamp(t.Context())
		w.must(err)
		if p := w.begin(t.Context(), "c", now); p != nil || p.Wait(t.Context()) != nil {
			t.Error("a table without a journal has entries")
		}
		w.Withdraw(nil)
		c := cell("a", "r")
		p := w.begin(t.Context(), "a", now)
		w.must(p.Wait(t.Context()))
		w.want(w.entries(c), journal.Entry{Cell: c, StartTS: now})
		newer := w.begin(t.Context(), "a", now+1)
		w.must(newer.Wait(t.Context()))
		w.want(w.entries(c), journal.Entry{Cell: c, StartTS: now + 1})
		w.Withdraw(newer)
		synctest.Wait()
		w.want(w.entries(c), journal.Entry{Cell: c, StartTS: now})

		held := w.faults.OnStep(txntest.StepJournal, txntest.Hold)
		late := w.begin(t.Context(), "a", now+2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := late.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a commit whose caller left got %v", err)
		}
		w.Withdraw(late) // it is removed when it has been stored
		held.Release()
		synctest.Wait()
		w.want(w.entries(c), journal.Entry{Cell: c, StartTS: now})
		w.Withdraw(p)
		synctest.Wait()
		w.want(w.entries(c))
	})
}

// TestLateEntry: an entry that may be old is written once more after its cell.
func TestLateEntry(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		now, err := w.client.Timestamp(t.Context())
		w.must(err)
		for _, s := range []struct {
			after    time.Duration
			requests int
		}{{29 * time.Minute, 1}, {31 * time.Minute, 2}} {
			w.faults.Reset()
			p := w.begin(t.Context(), "a", now)
			synctest.Wait()
			<-time.After(s.after)
			w.must(p.Wait(t.Context()))
			if n := w.faults.Count()[txntest.StepJournal]; n != s.requests {
				t.Errorf("after %v, an entry took %d requests, want %d", s.after, n, s.requests)
			}
			if now, err = w.client.Timestamp(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.must(w.Remove(t.Context(), journal.Removal{Cell: cell("a", "r"), StartTS: now}))
	})
}

// TestFailedEntries: an entry whose shared request failed is sent again, by itself.
func TestFailedEntries(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c := cell("a", "r")
		lost := w.faults.OnStep(txntest.StepJournal, txntest.DropRequest)
		w.must(w.Enter(t.Context(), journal.Entry{StartTS: base}, c))
		<-lost.Fired()
		w.want(w.entries(c), journal.Entry{Cell: c, StartTS: base})

		held := w.faults.OnStep(txntest.StepJournal, txntest.Hold)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Enter(ctx, journal.Entry{StartTS: base + 1}, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller whose time is up got %v", err)
		}
		held.Release()
		w.must(w.Remove(t.Context(), journal.Removal{Cell: c, StartTS: base + 1}))
		if err := w.Enter(t.Context(), journal.Entry{StartTS: base}, cell("none", "r")); err == nil {
			t.Error("an entry of a table that does not exist was written")
		}

		// While the background is full, each caller sends its own entries.
		full := make(chan struct{})
		for w.store.Background.Run(func(context.Context) { <-full }) {
		}
		p := w.begin(t.Context(), "a", base+3)
		w.must(p.Wait(t.Context()))
		w.want(w.entries(c), journal.Entry{Cell: c, StartTS: base + 3})
		close(full)
		w.must(w.Remove(t.Context(), journal.Removal{Cell: c, StartTS: base + 3}))
	})
}
