package emulator_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// budgetEnv makes a client whose requests are counted. It is warm: its tables are open,
// the oracle knows its row and the client's token is written.
func budgetEnv(t *testing.T, cfg txn.Config) (*txntest.Env, *txn.Client, *txntest.Faults) {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("a", "f")
	env.CreateTable("b", "f")
	faults := txntest.NewFaults(t)
	// Background requests must not be counted later.
	cfg.SchemaMaxAge = time.Hour
	c := env.NewClient(cfg, faults.DialOptions()...)
	_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
		tx.Table("a").Set("warm", "f", "q", nil)
		tx.Table("b").Set("warm", "f", "q", nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	faults.Reset()
	return env, c, faults
}

// TestRoundTrips counts the requests of each operation exactly.
func TestRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	write := func(tables []string, rows, columns int) func(context.Context, *txn.Client) error {
		return func(ctx context.Context, c *txn.Client) error {
			_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				for _, table := range tables {
					for r := range rows {
						for q := range columns {
							tx.Table(table).Set(fmt.Sprintf("row%d", r), "f", fmt.Sprintf("q%d", q), []byte("v"))
						}
					}
				}
				return nil
			})
			return err
		}
	}
	for _, tt := range []struct {
		name string
		do   func(context.Context, *txn.Client) error
		want map[txntest.Step]int
	}{
		{"read one cell", func(ctx context.Context, c *txn.Client) error {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			_, _, err = s.Table("a").Get(ctx, "warm", "f", "q")
			return err
		}, map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 1}},

		{"read the latest state of one cell", func(ctx context.Context, c *txn.Client) error {
			_, _, err := c.Latest("a").Get(ctx, "warm", "f", "q")
			return err
		}, map[txntest.Step]int{txntest.StepRead: 1}},

		{"snapshot of a timestamp that the client has seen", func(ctx context.Context, c *txn.Client) error {
			now, err := c.Timestamp(ctx)
			if err != nil {
				return err
			}
			for _, ts := range []tso.Timestamp{now, now - 1} {
				s, err := c.Snapshot(ctx, txn.At(ts))
				if err == nil {
					_, _, err = s.Table("a").Get(ctx, "warm", "f", "q")
				}
				if err != nil {
					return err
				}
			}
			return nil
		}, map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 2}},

		{"read a list of 300 rows", func(ctx context.Context, c *txn.Client) error {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			rows := make(bigtable.RowList, 300)
			for i := range rows {
				rows[i] = fmt.Sprintf("row%d", i)
			}
			for _, err := range s.Table("a").ReadRows(ctx, rows) {
				if err != nil {
					return err
				}
			}
			return nil
		}, map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 1}},

		{"write one cell", write([]string{"a"}, 1, 1),
			map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepPrewrite: 1, txntest.StepCommit: 1}},
		{"write ten columns of one row", write([]string{"a"}, 1, 10),
			map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepPrewrite: 1, txntest.StepCommit: 1}},
		{"write ten rows", write([]string{"a"}, 10, 1),
			map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepPrewrite: 2, txntest.StepRead: 1, txntest.StepCommit: 1, txntest.StepSecondaries: 1}},
		{"write ten rows in each of two tables", write([]string{"a", "b"}, 10, 3),
			map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepPrewrite: 3, txntest.StepRead: 2, txntest.StepCommit: 1, txntest.StepSecondaries: 2}},

		{"write nothing", func(ctx context.Context, c *txn.Client) error {
			_, err := c.Update(ctx, func(context.Context, *txn.Txn) error { return nil })
			return err
		}, map[txntest.Step]int{txntest.StepOracle: 1}},

		{"read what the transaction wrote", func(ctx context.Context, c *txn.Client) error {
			tx, err := c.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			tx.Table("a").Set("r", "f", "q", nil)
			_, _, err = tx.Table("a").Get(ctx, "r", "f", "q")
			return err
		}, map[txntest.Step]int{txntest.StepOracle: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c, faults := budgetEnv(t, txn.Config{})
				if err := tt.do(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if d := cmp.Diff(tt.want, faults.Count()); d != "" {
					t.Errorf("requests (-want +got):\n%s", d)
				}
			})
		})
	}
}

// TestRoundTripsOfRecovery counts the requests that it takes to resolve dead locks:
// none to the oracle except the reader's own, and two or three for each lock.
func TestRoundTripsOfRecovery(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for _, tt := range []struct {
		name string
		die  txntest.Step
		row  string
		want map[txntest.Step]int
	}{
		{"dead primary lock", txntest.StepCommit, "row0",
			map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 2, txntest.StepRollPrimary: 1}},
		{"dead secondary lock", txntest.StepCommit, "row1",
			map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 3, txntest.StepRollPrimary: 1, txntest.StepRollBackCell: 1}},
		{"committed secondary lock", txntest.StepSecondaries, "row1",
			map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 3, txntest.StepRollForward: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := budgetEnv(t, txn.Config{})
				dying := txntest.NewFaults(t)
				rule := dying.OnStep(tt.die, txntest.Crash)
				victim := env.NewClient(txn.Config{TokenTTL: -1}, dying.DialOptions()...)
				ctx, cancel := context.WithCancel(t.Context())
				tx, err := victim.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for r := range 2 {
					tx.Table("a").Set(fmt.Sprintf("row%d", r), "f", "q", []byte("v"))
				}
				done := make(chan struct{})
				go func() { _, _ = tx.Commit(ctx); close(done) }()
				<-rule.Fired()
				dying.Kill()
				cancel()
				<-done
				<-time.After(time.Minute) // virtual time, past the ttl
				synctest.Wait()
				// After a pause the oracle catches up with the clock, and the client reads the
				// safe point again. These requests do not count here.
				if _, err := c.Timestamp(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				faults.Reset()

				s, err := c.Snapshot(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := s.Table("a").Get(t.Context(), tt.row, "f", "q"); err != nil {
					t.Fatal(err)
				}
				got := faults.Count()
				delete(got, txntest.StepToken) // the renewals of a minute
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("requests (-want +got):\n%s", d)
				}
			})
		})
	}
}

// TestSequentialRoundTrips measures the critical path in virtual time. Each request
// takes 10 ms, so the latency of a write transaction shows its number of sequential
// requests. It does not depend on the number of rows, and journal entries add none.
func TestSequentialRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, tt := range []struct {
		rows     int
		observed bool
	}{{1, false}, {2, false}, {50, false}, {1, true}, {50, true}} {
		rows := tt.rows
		t.Run(fmt.Sprintf("%d rows, observed: %v", rows, tt.observed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				if tt.observed {
					if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "q"}, "o", false); err != nil {
						t.Fatal(err)
					}
				}
				delay := 10 * time.Millisecond
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, append(faults.DialOptions(), slow(delay)...)...)
				update := func() {
					_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
						for r := range rows {
							tx.Table("a").Set(fmt.Sprintf("row%d", r), "f", "q", nil)
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				update() // opens the table
				synctest.Wait()
				<-time.After(time.Second)
				faults.Reset()
				begun := time.Now()
				update()
				if got, want := time.Since(begun)/delay, 4; int(got) != want {
					t.Errorf("%d sequential requests, want %d: start_ts, prewrite, commit_ts, primary", got, want)
				}
				if n := faults.Count()[txntest.StepJournal]; (n == 1) != tt.observed || n > 1 {
					t.Errorf("%d requests with journal entries", n)
				}
			})
		})
	}
}
