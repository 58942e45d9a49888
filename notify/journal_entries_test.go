package notify_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// journalRows returns how many cells have journal entries.
func journalRows(t *testing.T, env *txntest.Env) (n int) {
	t.Helper()
	if err := env.Bigtable.Open("percolator").ReadRows(t.Context(), bigtable.PrefixRange("journal/"), func(bigtable.Row) bool {
		n++
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWithdrawnBeforeStored: a transaction that fails while its entry is still on its way leaves no
// entry.
func TestWithdrawnBeforeStored(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		for _, cancelled := range []bool{false, true} {
			faults := txntest.NewFaults(t)
			late := faults.OnStep(txntest.StepJournal, txntest.Hold)
			c := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
			tx, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			put(t, env.Client, middle, "row", "faster")
			if cancelled {
				tx.Table("docs").Set("other", middle.Family, middle.Qualifier, []byte("v"))
			} else {
				tx.Table("docs").Set("row", middle.Family, middle.Qualifier, []byte("v"))
			}
			tx.Table("docs").Set("new", input.Family, input.Qualifier, []byte("v"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = tx.Commit(ctx)
			cancel()
			if err == nil {
				t.Error("the transaction was committed")
			}
			<-late.Fired()
			late.Release()
			pass(time.Minute)
			if n := journalRows(t, env); n != 0 {
				t.Errorf("%d cells have entries after a transaction that failed (canceled: %v)", n, cancelled)
			}
		}
	})
}

// TestCommitsShareEntryRequests: commits of one client share requests with entries, however long
// they follow each other without a pause.
func TestCommitsShareEntryRequests(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, middle, "o", false)
		faults := txntest.NewFaults(t)
		var requests atomic.Int64
		slowly := txntest.ChooseFaults(func(c txntest.Call) (txntest.Action, time.Duration, bool) {
			return txntest.Hold, time.Duration(50+requests.Add(1)*37%100) * time.Millisecond, txntest.Classify(c.Method, c.Request).Step == txntest.StepJournal
		}).DialOptions()
		c := env.NewClient(txn.Config{TokenTTL: time.Minute, BackgroundTimeout: 2 * time.Second}, append(faults.DialOptions(), slowly...)...)
		var commits sync.WaitGroup
		n := func() (sent int) { return faults.Count()[txntest.StepJournal] }
		for i := range 2000 { // however long the other commits take
			commits.Go(func() { put(t, c, middle, fmt.Sprintf("row%d", i), "v") })
			<-time.After(5 * time.Millisecond)
		}
		commits.Wait()
		if sent := n(); sent > 2000/3 {
			t.Errorf("%d requests with entries of %d commits", sent, 2000)
		}
	})
}

// TestContinuedBulkLoad: a load is continued after a long time, below the safe point or not. A scan
// of the journal in the middle of it takes away nothing that is needed.
func TestContinuedBulkLoad(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	t.Run("below the safe point", func(t *testing.T) { continuedBulkLoad(t, true, 5*time.Minute) })
	t.Run("nothing was collected", func(t *testing.T) { continuedBulkLoad(t, false, 3*time.Hour) })
}

func continuedBulkLoad(t *testing.T, collected bool, row time.Duration) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		startTS, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		commitTS, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if collected {
			drain(t, env)
		}
		startElsewhere(t, env, notify.Config{Finder: &notify.Scanner{MinInterval: 12 * time.Second}}, txntest.NewFaults(t))
		faults := txntest.NewFaults(t)
		late := faults.On("row", func(c txntest.Call) bool { return c.Table == "docs" && c.Method == "CheckAndMutateRow" }, txntest.Hold, 1)
		c := env.NewClient(txn.Config{TokenTTL: time.Minute, RPCTimeout: 4 * time.Hour}, faults.DialOptions()...)
		done := make(chan error, 1)
		go func() {
			_, err := admin.BulkLoad(t.Context(), c, "docs", func(yield func(admin.BulkRow, error) bool) {
				yield(admin.BulkRow{Row: "row", Cells: []admin.BulkCell{{Family: input.Family, Qualifier: input.Qualifier, Value: []byte("v")}}}, nil)
			}, admin.BulkConfig{StartTS: startTS, CommitTS: commitTS})
			done <- err
		}()
		<-late.Fired()
		pass(row) // a scan finds that nothing needs the entry
		wantRows(t, env, 0)
		late.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		wantEffects(t, env, "row", 1)
		pass(5 * time.Minute)
		if n := journalRows(t, env); n != 0 {
			t.Errorf("%d cells have entries after the load", n)
		}
	})
}

// drain collects garbage until everything that has begun so far is below the drained safe point.
func drain(t *testing.T, env *txntest.Env) {
	t.Helper()
	for range 4 {
		pass(2 * time.Hour)
		if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEntryOfDeadTransaction: a client that dies before it has written anything else leaves an
// entry. Once a worker has seen for an hour that nothing comes, it removes the entry. Nobody has to
// collect garbage for that.
func TestEntryOfDeadTransaction(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		dead := faults.OnStep(txntest.StepPrewrite, txntest.Crash)
		commit(t, env, "row", faults)
		<-dead.Fired()
		pass(time.Second)
		faults.Kill()
		startElsewhere(t, env, notify.Config{Finder: &notify.Scanner{MinInterval: 12 * time.Second}}, txntest.NewFaults(t))
		pass(55 * time.Minute)
		wantRows(t, env, 1)
		pass(2 * time.Hour)
		wantRows(t, env, 0)
	})
}

// TestEntryOfLostNotification: the same for a notification that was never written.
func TestEntryOfLostNotification(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		dead := faults.OnStep(txntest.StepNotify, txntest.Crash)
		c := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := changes.Notify(ctx, c, inputCell("row")); err == nil {
			t.Error("the notification was written")
		}
		<-dead.Fired()
		faults.Kill()
		startElsewhere(t, env, notify.Config{Finder: &notify.Scanner{MinInterval: 12 * time.Second}}, txntest.NewFaults(t))
		wantRows(t, env, 1)
		pass(3 * time.Hour)
		wantRows(t, env, 0)
	})
}

func inputCell(row string) txn.Cell {
	return txn.Cell{Table: "docs", Row: row, Family: input.Family, Qualifier: input.Qualifier}
}

func wantRows(t *testing.T, env *txntest.Env, want int) {
	t.Helper()
	if n := journalRows(t, env); n != want {
		t.Errorf("%d cells have entries, want %d", n, want)
	}
}

// TestEntryOfSlowCommit: a commit whose prewrite takes so long that a worker has removed its entry
// writes the entry once more.
func TestEntryOfSlowCommit(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		startElsewhere(t, env, notify.Config{Finder: &notify.Scanner{MinInterval: 12 * time.Second}}, txntest.NewFaults(t))
		faults := txntest.NewFaults(t)
		late := faults.OnStep(txntest.StepPrewrite, txntest.Hold)
		const long = 4 * time.Hour
		c := env.NewClient(txn.Config{TokenTTL: time.Minute, LockTTL: long, RPCTimeout: long, SchemaMaxAge: long}, faults.DialOptions()...)
		done := make(chan error, 1)
		go func() {
			_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("docs").Set("row", input.Family, input.Qualifier, []byte("v"))
				return nil
			})
			done <- err
		}()
		<-late.Fired()
		pass(3 * time.Hour)
		wantRows(t, env, 0)
		late.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		wantEffects(t, env, "row", 1)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestOtherTablesEntries: the backlog of a table costs nothing to workers of other tables.
func TestOtherTablesEntries(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		env.CreateTable("others", "d")
		other := columnOf("others", "d", "in")
		register(t, env.Client, other, "elsewhere", false)
		register(t, env.Client, input, "o", false)
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range 3000 {
				tx.Table("others").Set(fmt.Sprint(i), "d", "in", nil)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		startElsewhere(t, env, notify.Config{}, faults)
		faults.Reset()
		pass(20 * time.Minute)
		if n := faults.Count()[txntest.StepJournalRead]; n > 20*60+1 {
			t.Errorf("an idle worker read %d pages of the journal in 20 minutes", n)
		}
	})
}

// TestTabletOfEntryDown: while a tablet does not answer, changes in other tablets are found.
func TestTabletOfEntryDown(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		startElsewhere(t, env, notify.Config{}, faults)
		down := faults.On("tablet", func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			return ok && c.Table == "docs" && slices.ContainsFunc(r.GetRows().GetRowKeys(), func(k []byte) bool { return string(k) == "a" })
		}, txntest.DropRequest, 0)
		put(t, env.Client, input, "a", "v")
		put(t, env.Client, input, "z", "v")
		<-down.Fired()
		pass(5 * time.Minute)
		wantEffects(t, env, "a", 0)
		wantEffects(t, env, "z", 1)
	})
}

// metadataTablets divides the metadata table at keys, as far as a client can see.
func metadataTablets(keys ...string) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, d, cc, method, opts...)
		return &sampled{ClientStream: s, keys: keys}, err
	})
}

type sampled struct {
	grpc.ClientStream
	keys    []string
	samples bool // of the metadata table
}

func (s *sampled) SendMsg(m any) error {
	r, ok := m.(*btpb.SampleRowKeysRequest)
	s.samples = ok && strings.HasSuffix(r.TableName, "/percolator")
	return s.ClientStream.SendMsg(m)
}

func (s *sampled) RecvMsg(m any) error {
	if !s.samples || len(s.keys) == 0 {
		return s.ClientStream.RecvMsg(m)
	}
	m.(*btpb.SampleRowKeysResponse).RowKey = []byte(s.keys[0])
	s.keys = s.keys[1:]
	return nil
}

// TestTabletOfJournalDown: while a tablet with entries does not answer, the entries of the other tablets are
// found within seconds, and its own once it answers.
func TestTabletOfJournalDown(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		rows := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		key := map[string]string{} // of the entries
		for _, row := range rows {
			put(t, env.Client, input, row, "v")
			if err := env.Bigtable.Open("percolator").ReadRows(t.Context(), bigtable.PrefixRange("journal/"), func(r bigtable.Row) bool {
				if !slices.Contains(slices.Collect(maps.Values(key)), r.Key()) {
					key[row] = r.Key()
				}
				return true
			}); err != nil {
				t.Fatal(err)
			}
		}
		slices.SortFunc(rows, func(a, b string) int { return strings.Compare(key[a], key[b]) })
		first, ill, last := rows[0], rows[3], rows[7]
		faults := txntest.NewFaults(t)
		startElsewhere(t, env, notify.Config{}, faults, metadataTablets(key[rows[2]], key[rows[5]]))
		for _, row := range rows {
			wantEffects(t, env, row, 1)
		}
		faults.Reset()
		down := faults.On("tablet of the journal", func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			return ok && c.Step == txntest.StepJournalRead && slices.ContainsFunc(r.GetRows().GetRowRanges(), func(r *btpb.RowRange) bool {
				return string(r.GetStartKeyClosed()) < key[rows[5]] && string(r.GetEndKeyOpen()) > key[rows[2]]
			})
		}, txntest.Hold, 0)
		put(t, env.Client, input, ill, "w")
		<-down.Fired()
		for i := range 3 {
			put(t, env.Client, input, first, "w")
			put(t, env.Client, input, last, "w")
			pass(10 * time.Second)
			wantEffects(t, env, first, 2+i)
			wantEffects(t, env, last, 2+i)
			wantEffects(t, env, ill, 1)
		}
		if n := faults.Count()[txntest.StepJournalRead]; n > 60 {
			t.Errorf("%d reads of the journal in 30 s", n)
		}
		down.Release()
		pass(20 * time.Second)
		wantEffects(t, env, ill, 2)
		faults.Reset()
		pass(time.Minute)
		if n := faults.Count()[txntest.StepJournalRead]; n < 30 || n > 61 {
			t.Errorf("%d reads of the journal in a minute after the outage", n)
		}
	})
}

// TestMissingTableWithEntries: of a table that was deleted while it has entries, a worker warns once.
func TestMissingTableWithEntries(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "lost", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		register(t, env.Client, columnOf("lost", "d", "in"), "gone", false)
		var mu sync.Mutex
		var text bytes.Buffer
		c := env.NewClient(txn.Config{TokenTTL: time.Minute, Logger: slog.New(slog.NewTextHandler(locked{&mu, &text}, nil))})
		w := newWorker(t, c, notify.Config{Finder: &notify.Scanner{MinInterval: 4 * time.Minute, MaxInterval: 20 * time.Minute}})
		handle(t, w, "o", input, observeEffect)
		handle(t, w, "gone", columnOf("lost", "d", "in"), func(context.Context, *txn.Txn, txn.Cell) error { return nil })
		start(t, w)
		pass(2 * time.Minute)
		put(t, env.Client, columnOf("lost", "d", "in"), "row", "v")
		if err := env.Admin.DeleteTable(t.Context(), "lost"); err != nil {
			t.Fatal(err)
		}
		pass(26 * time.Hour)
		put(t, env.Client, input, "row", "v")
		pass(10 * time.Minute)
		wantEffects(t, env, "row", 1)
		mu.Lock()
		defer mu.Unlock()
		if n := strings.Count(text.String(), "a table with observers is missing"); n != 1 {
			t.Errorf("%d warnings in a day: %s", n, text.String())
		}
		if n := strings.Count(text.String(), "reading the journal"); n > 1 {
			t.Errorf("%d other warnings", n)
		}
	})
}

// TestTableCreatedAgain: entries of a table that was deleted do no harm to one of the same name, whose
// changes are found.
func TestTableCreatedAgain(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		startElsewhere(t, env, notify.Config{Finder: &notify.Scanner{MinInterval: 12 * time.Second}}, txntest.NewFaults(t))
		faults := txntest.NewFaults(t)
		dead := faults.OnStep(txntest.StepPrewrite, txntest.Crash)
		commit(t, env, "row", faults)
		<-dead.Fired()
		pass(time.Second)
		faults.Kill()
		if err := env.Admin.DeleteTable(t.Context(), "docs"); err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Minute)
		if err := env.Admin.CreateTable(t.Context(), "docs"); err != nil {
			t.Fatal(err)
		}
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		put(t, env.Client, input, "row", "v")
		put(t, env.Client, input, "new", "v")
		pass(2 * time.Minute)
		wantEffects(t, env, "row", 1)
		wantEffects(t, env, "new", 1)
		wantLeft(t, env.Client, 0, 0)
		if n := journalRows(t, env); n != 0 {
			t.Errorf("%d cells have entries", n)
		}
	})
}
