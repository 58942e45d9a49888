package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/rogpeppe/go-internal/testscript"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Far enough in the past for every ttl to have expired, but the long one: leave stretches a
// lock until 12 hours from now, as heartbeats do.
var pastBegin = tso.FromTime(time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC))

const (
	shortTTL = 10 * time.Second
	longTTL  = 200_000 * time.Hour
)

// past hands out timestamps of long ago, a second apart: transactions of dead
// clients, without waiting for them to be dead.
type past struct{ last atomic.Int64 }

func (p *past) Timestamp(context.Context) (tso.Timestamp, error) {
	return pastBegin + tso.Timestamp(p.last.Add(1_000_000)), nil
}

// A fixture is an emulator with two tables and what clients left in them that
// died at different moments.
type fixture struct {
	t        testing.TB
	emulator *txntest.Emulator
	bt       *bigtable.Client
	admin    *bigtable.AdminClient
	past     past
	// start are the start timestamps of transactions by name.
	start   map[string]tso.Timestamp
	damaged bool
	closers []func()
}

// The tables' names, and where percctl finds them.
const (
	fixtureProject  = "proj"
	fixtureInstance = "inst"
)

func newFixture(ctx context.Context, t testing.TB, opts ...grpc.ServerOption) (f *fixture, err error) {
	f = &fixture{t: t, start: map[string]tso.Timestamp{}}
	if f.emulator, err = txntest.StartEmulator("127.0.0.1:0", append(opts, txntest.Strict()...)...); err != nil {
		return nil, err
	}
	f.closers = append(f.closers, f.emulator.Close)
	if f.bt, f.admin, err = f.open(ctx); err != nil {
		return f, err
	}
	for _, spec := range []admin.TableSpec{
		{Name: "accounts", Families: []string{"bal", "info"}, Observed: []txn.Column{{Family: "bal", Qualifier: "usd"}}},
		{Name: "journal", Families: []string{"entry"}},
	} {
		if err := admin.InitTable(ctx, f.admin, f.bt, "", spec); err != nil {
			return f, err
		}
	}
	return f, nil
}

// runScripts runs the scripts of a folder, each against an emulator of its own with
// what fill leaves. The start timestamps of its transactions are in $FORWARD,
// $DEAD and so on. Every script ends with the consistency check.
func runScripts(t *testing.T, dir string, fill func(*fixture, context.Context) error, cmds map[string]func(*testscript.TestScript, bool, []string)) {
	clitest.Run(t, testscript.Params{
		Files:               clitest.Scripts(t, dir),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			ctx := context.Background()
			f, err := newFixture(ctx, t)
			if err != nil {
				return err
			}
			env.Values["fixture"] = f
			env.Defer(func() {
				if err := f.check(ctx); err != nil {
					t.Errorf("%s: %v", env.WorkDir, err)
				}
				f.close()
			})
			env.Setenv("BIGTABLE_EMULATOR_HOST", f.emulator.Addr())
			env.Setenv("PERCCTL_PROJECT", fixtureProject)
			env.Setenv("PERCCTL_INSTANCE", fixtureInstance)
			if err := fill(f, ctx); err != nil {
				return fmt.Errorf("filling the tables: %w", err)
			}
			for name, ts := range f.start {
				env.Setenv(name, ts.String())
			}
			return nil
		},
		Cmds: cmds,
	})
}

func (f *fixture) open(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, error) {
	conn, err := f.emulator.Dial(opts...)
	if err != nil {
		return nil, nil, err
	}
	bt, admin, err := txntest.Open(ctx, conn, fixtureProject, fixtureInstance)
	if err != nil {
		return nil, nil, err
	}
	f.closers = append(f.closers, func() {
		_ = bt.Close()
		_ = admin.Close()
		_ = conn.Close()
	})
	return bt, admin, nil
}

// client makes a client of the past, unless cfg names another oracle.
func (f *fixture) client(ctx context.Context, cfg txn.Config, opts ...grpc.DialOption) (*txn.Client, error) {
	bt, _, err := f.open(ctx, opts...)
	if err != nil {
		return nil, err
	}
	c, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, func() {
		// What a dead client has under way is abandoned.
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ended)
	})
	return c, nil
}

// close ends everything in the order in which it was begun, backwards.
func (f *fixture) close() {
	for _, c := range slices.Backward(f.closers) {
		c()
	}
}

func put(tx *txn.Txn, cell, value string) {
	c, err := format.ParseCell(cell)
	if err != nil {
		panic(err) // a constant of this file
	}
	tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte(value))
}

// fill commits some history, and leaves the locks of transactions by name:
//
//	FORWARD  died after its commit point; two locks
//	DEAD     died before it, its token is stale; three locks
//	ALIVE    in the middle of its commit; two locks
//	NOTHING  its primary was never written; one lock, ttl not over
//	BACK     rolled back at its primary; one lock
func (f *fixture) fill(ctx context.Context) error {
	plain := bigtable.NewMutation()
	plain.Set("info", "note", bigtable.Time(time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)), []byte("from before"))
	if err := f.bt.Open("accounts").Apply(ctx, "zoe", plain); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		f.commits,
		func(ctx context.Context) error {
			return f.leave(ctx, "FORWARD", txntest.StepSecondaries, txn.Config{LockTTL: shortTTL}, "accounts/bob/bal:usd", "accounts/joe/bal:usd", "journal/2/entry:text")
		},
		func(ctx context.Context) error {
			return f.leave(ctx, "DEAD", txntest.StepCommit, txn.Config{LockTTL: shortTTL}, "accounts/ann/bal:usd", "accounts/ann/bal:eur", "journal/3/entry:text")
		},
		func(ctx context.Context) error {
			return f.leave(ctx, "ALIVE", txntest.StepCommit, txn.Config{LockTTL: longTTL, TokenTTL: longTTL}, "accounts/eve/bal:usd", "journal/4/entry:text")
		},
		func(ctx context.Context) error {
			return f.leave(ctx, "NOTHING", txntest.StepPrewrite, txn.Config{LockTTL: longTTL, TokenTTL: -1}, "accounts/kim/bal:usd", "accounts/lee/bal:usd")
		},
		func(ctx context.Context) error {
			return f.leave(ctx, "BACK", txntest.StepCommit, txn.Config{LockTTL: shortTTL, TokenTTL: -1}, "accounts/max/bal:usd", "accounts/ned/bal:usd")
		},
		f.rollBackPrimary,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// commits is the history that is through.
func (f *fixture) commits(ctx context.Context) error {
	// It stays open: with a token it would keep renewing it.
	c, err := f.client(ctx, txn.Config{Oracle: &f.past, SyncSecondaries: true, TokenTTL: -1})
	if err != nil {
		return err
	}
	for i, write := range []func(tx *txn.Txn){
		func(tx *txn.Txn) {
			put(tx, "accounts/bob/bal:usd", "10")
			put(tx, "accounts/joe/bal:usd", "2")
			put(tx, "accounts/odd%00%FF/info:a%2Fb", "\x1b[31mred\x00")
			put(tx, "journal/1/entry:text", "bob opens")
		},
		func(tx *txn.Txn) { put(tx, "accounts/joe/bal:usd", "3") },
		func(tx *txn.Txn) { tx.Table("accounts").Lock("joe", "bal", "usd") },
		func(tx *txn.Txn) {
			put(tx, "accounts/joe/info:empty", "")
			tx.Table("journal").Delete("1", "entry", "text")
		},
	} {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		write(tx)
		if _, err := tx.Commit(ctx); err != nil {
			return err
		}
		f.start[fmt.Sprintf("COMMIT%d", i+1)] = tx.StartTS()
	}
	return nil
}

// leave runs a transaction, primary first, whose client dies before a step.
func (f *fixture) leave(ctx context.Context, name string, before txntest.Step, cfg txn.Config, cells ...string) (err error) {
	primary, err := format.ParseCell(cells[0])
	if err != nil {
		return err
	}
	faults := txntest.NewFaults(f.t)
	rule := faults.On(name+" "+string(before), func(c txntest.Call) bool {
		return c.Step == before && (before != txntest.StepPrewrite || c.Row == primary.Row)
	}, txntest.Crash, 0)
	cfg.Oracle = &f.past
	if cfg.LockTTL == longTTL {
		cfg.LockTTL = shortTTL
		defer func(ctx context.Context) { err = errors.Join(err, f.stretch(ctx, cells)) }(ctx)
	}
	c, err := f.client(ctx, cfg, faults.DialOptions()...)
	if err != nil {
		return err
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	f.start[name] = tx.StartTS()
	for i, cell := range cells {
		put(tx, cell, fmt.Sprintf("%s %d", strings.ToLower(name), i))
	}
	committed := make(chan error, 1)
	go func() { _, err := tx.Commit(ctx); committed <- err }()
	<-rule.Fired()
	if before == txntest.StepPrewrite {
		if err := errors.Join(f.awaitLock(ctx, cells[1]), f.awaitEntries(ctx, tx.StartTS(), len(cells))); err != nil {
			return err
		}
	}
	if before == txntest.StepSecondaries {
		err = <-committed
	}
	faults.Kill()
	cancel()
	if before != txntest.StepSecondaries {
		if err = <-committed; err == nil {
			return fmt.Errorf("%s is committed", name)
		}
		err = nil
	}
	return err
}

// stretch gives the locks on cells a ttl of twenty years.
func (f *fixture) stretch(ctx context.Context, cells []string) error {
	for _, name := range cells {
		at, err := format.ParseCell(name)
		if err != nil {
			return err
		}
		table := f.bt.Open(at.Table)
		row, err := table.ReadRow(ctx, at.Row)
		if err != nil {
			return err
		}
		for _, item := range row[format.LockFamily] {
			_, cell, err := format.MetadataCell(at.Table, at.Row, item)
			if err != nil || cell != at {
				continue
			}
			lock, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
			if err != nil {
				return err
			}
			lock.TTL = time.Since(lock.StartTS.Time()) + 12*time.Hour
			m := bigtable.NewMutation()
			m.Set(format.LockFamily, strings.TrimPrefix(item.Column, format.LockFamily+":"), item.Timestamp, format.EncodeLock(lock))
			if err := table.Apply(ctx, at.Row, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitLock returns once a cell is locked.
func (f *fixture) awaitLock(ctx context.Context, cell string) error {
	at, err := format.ParseCell(cell)
	if err != nil {
		return err
	}
	for {
		row, err := f.bt.Open(at.Table).ReadRow(ctx, at.Row)
		if err != nil || len(row[format.LockFamily]) > 0 {
			return err
		}
	}
}

// awaitEntries returns once the journal holds the entries of a transaction's cells. They are written
// beside its prewrite: what a dead client has sent may arrive at any later time.
func (f *fixture) awaitEntries(ctx context.Context, start tso.Timestamp, cells int) error {
	for {
		found := 0
		err := f.bt.Open(format.DefaultMetadataTable).ReadRows(ctx, bigtable.PrefixRange("journal/"), func(bigtable.Row) bool {
			found++
			return true
		}, bigtable.RowFilter(bigtable.TimestampRangeFilterMicros(start.Cell(), start.Cell()+1000)))
		if err != nil || found == cells {
			return err
		}
	}
}

// rollBackPrimary settles the primary of BACK and nothing else of it.
func (f *fixture) rollBackPrimary(ctx context.Context) error {
	c, err := f.client(ctx, txn.Config{TokenTTL: -1})
	if err != nil {
		return err
	}
	for l, err := range admin.Locks(ctx, c, "accounts", bigtable.RowList{"max"}) {
		if err != nil {
			return err
		}
		s, err := admin.Resolve(ctx, c, l)
		if err != nil || s.State != txn.StateRolledBack {
			return errors.Join(err, fmt.Errorf("primary of BACK: %v", s.State))
		}
	}
	return nil
}

// dump is every cell of every table but the oracle's row, which every question
// for the time changes.
func (f *fixture) dump(ctx context.Context) (string, error) {
	tables, err := f.admin.Tables(ctx)
	if err != nil {
		return "", err
	}
	slices.Sort(tables)
	var lines []string
	for _, table := range tables {
		err := f.bt.Open(table).ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			if table == format.DefaultMetadataTable && r.Key() == "oracle" {
				return true
			}
			for _, items := range r {
				for _, it := range items {
					lines = append(lines, fmt.Sprintf("%s %q %q %d %q", table, it.Row, it.Column, it.Timestamp, it.Value))
				}
			}
			return true
		})
		if err != nil {
			return "", err
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}

// damage writes what no transaction writes: data without a record, and a
// record that nobody can read.
func (f *fixture) damage(ctx context.Context) error {
	f.damaged = true
	at := pastBegin.Cell()
	orphan := bigtable.NewMutation()
	orphan.Set("info", "lost", at, []byte("x"))
	if err := f.bt.Open("accounts").Apply(ctx, "zoe", orphan); err != nil {
		return err
	}
	unreadable := bigtable.NewMutation()
	unreadable.Set(format.WriteFamily, "entry:text", at, []byte("\x1b?"))
	return f.bt.Open("journal").Apply(ctx, "9", unreadable)
}

// check runs the consistency check over the tables.
func (f *fixture) check(ctx context.Context) error {
	if f.damaged {
		return nil
	}
	c, err := txn.NewClient(ctx, f.bt, txn.Config{Admin: f.admin, TokenTTL: -1})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	tables, err := admin.Tables(ctx, c)
	if err != nil {
		return err
	}
	for _, table := range tables {
		for v, err := range admin.Check(ctx, c, table, nil) {
			if err != nil {
				return err
			}
			return fmt.Errorf("consistency check: %v", v)
		}
	}
	return nil
}
