package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// notifyWithoutEntry sets the notify cell of a row as a restored backup does.
func notifyWithoutEntry(t *testing.T, env *txntest.Env, row string) {
	t.Helper()
	ts, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.Set("_notify", input.Key(), ts.Cell(), nil)
	if err := env.Bigtable.Open("docs").Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
}

// putToken stores the worker token of a client that does not run.
func putToken(t *testing.T, env *txntest.Env, owner string, journal bool, observers ...string) {
	t.Helper()
	now, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var token []byte
	for i, v := range []uint64{1, uint64(now) + uint64((10 * time.Hour).Microseconds()), uint64(now)} {
		token = protowire.AppendVarint(protowire.AppendTag(token, protowire.Number(i+1), protowire.VarintType), v)
	}
	for _, id := range observers {
		token = protowire.AppendString(protowire.AppendTag(token, 10, protowire.BytesType), id)
	}
	token = protowire.AppendVarint(protowire.AppendTag(token, 11, protowire.VarintType), protowire.EncodeBool(journal))
	m := bigtable.NewMutation()
	m.Set("meta", "token", 0, token)
	if err := env.Bigtable.Open("percolator").Apply(t.Context(), "worker/"+owner, m); err != nil {
		t.Fatal(err)
	}
}

// TestJournalPartWithoutWorker: while workers have always more to do than they can take, each reads its part
// of the journal. Entries in a part that nobody reads are found nevertheless.
func TestJournalPartWithoutWorker(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		putToken(t, env, "0", true, "o")
		putToken(t, env, "~", true, "o")
		startElsewhere(t, env, notify.Config{Concurrency: 1}, txntest.NewFaults(t), slow(200*time.Millisecond))
		for i := range 120 { // there are always changes in the part of the worker
			if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				for n := range 20 {
					tx.Table("docs").Set(fmt.Sprintf("busy%d", n), "d", "in", fmt.Append(nil, i))
					if i == 20 {
						tx.Table("docs").Set(fmt.Sprintf("row%d", n), "d", "in", nil)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			pass(time.Second)
		}
		for n := range 20 {
			wantEffects(t, env, fmt.Sprintf("row%d", n), 1)
		}
	})
}

// TestOldClientLeft: for an hour after the last client of an old release, workers sweep as before.
func TestOldClientLeft(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		putToken(t, env, "old", false)
		startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		notifyWithoutEntry(t, env, "row")
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open("percolator").Apply(t.Context(), "worker/old", m); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		notifyWithoutEntry(t, env, "late")
		pass(10 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestSweepPassesUnreadablePiece: the daily sweep continues after a piece that cannot be read, and
// does not count as complete.
func TestSweepPassesUnreadablePiece(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		for _, row := range []string{"a", "m", "z"} {
			notifyWithoutEntry(t, env, row)
		}
		faults := txntest.NewFaults(t)
		faults.On("first piece", func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			if !ok || c.Table != "docs" || len(r.GetRows().GetRowKeys()) > 0 {
				return false
			}
			ranges := r.GetRows().GetRowRanges()
			return len(ranges) == 0 || len(ranges[0].GetStartKeyClosed()) == 0
		}, txntest.DropRequest, 0)
		scanner := &notify.Scanner{MinInterval: 4 * time.Minute, MaxInterval: 20 * time.Minute}
		startElsewhere(t, env, notify.Config{Finder: scanner}, faults)
		pass(26 * time.Hour)
		wantLeft(t, env.Client, 2, 0)
		if all, err := changes.SweepPositions(t.Context(), env.Client, nil, "docs"); err != nil || len(all) != 1 || all[0].Row != "z" || !all[0].Missed {
			t.Errorf("%+v: %v", all, err)
		}
		if got, want := scanner.Stats(), (notify.ScannerStats{Sweeps: 2, Pieces: 3, Notifications: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestSweepMissed: only a sweep that has read every piece makes the journal of a table complete.
func TestSweepMissed(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		client := env.Client
		for _, missed := range []bool{true, false} {
			at := func() changes.SweepPosition {
				all, err := changes.SweepPositions(t.Context(), client, nil, "docs")
				if err != nil || len(all) != 1 {
					t.Fatalf("%+v: %v", all, err)
				}
				return all[0]
			}
			move := func(p changes.SweepPosition, row string, end bool) {
				if _, ok, err := changes.MoveSweep(t.Context(), client, p, row, end, time.Minute); err != nil || !ok {
					t.Fatal(ok, err)
				}
			}
			p := at()
			p.Missed = missed
			move(p, "m", false)
			move(at(), "", true)
			if p := at(); p.Complete == missed || p.Missed {
				t.Errorf("after a sweep that missed a piece: %v, the position is %+v", missed, p)
			}
		}
	}, txntest.WithoutJournal())
}

// TestSweepRecordOfEarlierJournal: a table that had a journal before it left the deployment, and
// that an older release adopted again, gets a new one. The sweep of the earlier one does not count.
func TestSweepRecordOfEarlierJournal(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		position := func() changes.SweepPosition {
			all, err := changes.SweepPositions(t.Context(), env.Client, nil, "docs")
			if err != nil || len(all) != 1 {
				t.Fatalf("%+v: %v", all, err)
			}
			return all[0]
		}
		if _, ok, err := changes.MoveSweep(t.Context(), env.Client, position(), "", true, time.Minute); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if p := position(); !p.Complete {
			t.Errorf("%+v", p)
		}
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		if p := position(); p.Complete {
			t.Errorf("after the table got a journal: %+v", p)
		}
	}, txntest.WithoutJournal())
}

// TestFirstSweepAfterOldSchemas: the first sweep of a table that got a journal begins only after
// every client has noticed that, however rarely a client reads schemas.
func TestFirstSweepAfterOldSchemas(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		rarely := env.NewClient(txn.Config{TokenTTL: time.Minute, SchemaMaxAge: 5 * time.Hour})
		put(t, rarely, middle, "row", "v") // it has read the schema
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		all, err := changes.SweepPositions(t.Context(), env.Client, nil, "docs")
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Duration(all[0].DueTS-changes.OracleNow(env.Client)) * time.Microsecond; left < 10*time.Hour {
			t.Errorf("the first sweep begins in %v", left)
		}
	}, txntest.WithoutJournal())
}

// TestSlowPieceCounts: a piece that takes longer than the lease is read by several workers, and the
// sweep continues after it.
func TestSlowPieceCounts(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		for _, row := range []string{"a", "z"} {
			notifyWithoutEntry(t, env, row)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		found, last := map[string]int{}, make(chan struct{})
		var finding sync.WaitGroup
		for range 2 {
			c := env.NewClient(txn.Config{TokenTTL: time.Minute})
			finding.Go(func() {
				_ = (&notify.Scanner{MinInterval: 4 * time.Minute, MaxInterval: 20 * time.Minute}).Find(ctx, notify.Search{
					Client: c, Tables: []string{"docs"}, Logger: slog.New(slog.DiscardHandler),
					Offer: func(_ context.Context, n changes.Notification, _ func()) bool {
						mu.Lock()
						if found[n.Cell.Row]++; n.Cell.Row == "z" && found["z"] == 1 {
							close(last)
						}
						mu.Unlock()
						pass15(ctx)
						return true
					},
				})
			})
		}
		// The pause after a piece depends on how the emulator cuts the table at random: 8 to 24 hours.
		select {
		case <-last:
		case <-time.After(48 * time.Hour):
		}
		cancel()
		finding.Wait()
		if found["z"] == 0 || found["a"] > 6 {
			t.Errorf("a sweep found %v", found)
		}
	})
}

// pass15 waits for longer than the lease of a piece.
func pass15(ctx context.Context) {
	select {
	case <-time.After(15 * time.Minute):
	case <-ctx.Done():
	}
}

// TestDamagedSweepRecord: a damaged record of one table's sweep does not stop those of other tables.
func TestDamagedSweepRecord(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		m := bigtable.NewMutation()
		m.Set("meta", "sweep", 0, []byte("damaged"))
		if err := env.Bigtable.Open("percolator").Apply(t.Context(), "sweep/docs", m); err != nil {
			t.Fatal(err)
		}
		all, err := changes.SweepPositions(t.Context(), env.Client, nil, "docs", "effects")
		if len(all) != 1 || all[0].Table != "effects" || !errors.Is(err, txn.ErrCorrupt) {
			t.Errorf("%+v: %v", all, err)
		}
	})
}
