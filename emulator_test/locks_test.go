package emulator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// A lock may name any primary and any time. A read resolves the lock, or says which lock it
// cannot resolve. Operators see each of them, and the check does not end at one.
func TestHostileLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cell := func(row string) format.Cell { return format.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"} }
		hostile := map[string]struct {
			primary format.Cell
			at      tso.Timestamp
			ttl     int64 // microseconds
			err     error // nil: the read finds no value
		}{
			"loop1":             {cell("loop2"), now - 2e6, 1e6, nil},
			"loop2":             {cell("loop1"), now - 2e6, 1e6, nil},
			"old":               {cell("none"), 1, 1e6, nil},
			"negative":          {cell("none"), now - 3e6, math.MinInt64, nil},
			"future":            {cell("none"), 9e15, 1e6, nil},
			"no-end":            {cell("none"), now - 4e6, math.MaxInt64, nil},
			"other-family":      {format.Cell{Table: "a", Row: "none", Family: "nowhere", Qualifier: "q"}, now - 5e6, 1e6, nil},
			"no-table":          {format.Cell{Table: "b", Row: "none", Family: "f", Qualifier: "q"}, now - 6e6, 1e6, txn.ErrNotInitialized},
			"metadata-table":    {format.Cell{Table: format.DefaultMetadataTable, Row: "oracle", Family: "tso", Qualifier: "q"}, now - 7e6, 1e6, txn.ErrCorrupt},
			"family-unreadable": {format.Cell{Table: "a", Row: "none", Family: format.LockFamily, Qualifier: "f:q"}, now - 8e6, 1e6, txn.ErrCorrupt},
			"row-unreadable":    {cell(""), now - 9e6, 1e6, txn.ErrCorrupt},
		}
		for row, l := range hostile {
			record := format.EncodeLock(&format.Lock{Cell: cell(row), StartTS: l.at, Primary: l.primary, Kind: format.KindPut})
			const ttlMicros = 4 // the field's number
			record = protowire.AppendVarint(protowire.AppendTag(record, ttlMicros, protowire.VarintType), uint64(l.ttl))
			m := bigtable.NewMutation()
			m.Set(format.LockFamily, "f:q", l.at.Cell(), record)
			m.Set("f", "q", l.at.Cell(), []byte("never committed"))
			if strings.HasSuffix(row, "-table") {
				// Damage whose repair depends on the primary.
				m.Set(format.MarkFamily, "f:q", l.at.Cell(), format.EncodeRollback(l.at))
			}
			if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
				t.Fatal(err)
			}
		}
		listed, found := 0, map[string]bool{}
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if listed++; l.Cell.Row == "" || (err != nil) != strings.HasSuffix(l.Cell.Row, "-unreadable") {
				t.Errorf("listed: %+v, %v", l, err)
			}
		}
		for v, err := range admin.Check(t.Context(), env.Client, "a", nil) {
			if err != nil {
				t.Error(err)
			}
			found[v.Cell.Row] = true
		}
		// Before the fix, the first primary that cannot be read ended the plan.
		plan, err := admin.PlanRepairs(t.Context(), env.Client, "a", nil, admin.RepairConfig{})
		if err != nil {
			t.Fatal(err)
		}
		undecided := 0
		for _, r := range plan.Undecided {
			if strings.HasSuffix(r.Cell.Row, "-table") && strings.Contains(r.Why, "cannot be read") {
				undecided++
			}
		}
		if undecided != 2 {
			t.Errorf("%d cells are undecided because of their primaries, want 2: %+v", undecided, plan)
		}
		if listed != len(hostile) {
			t.Errorf("%d of %d locks are listed", listed, len(hostile))
		}
		for row, l := range hostile {
			if l.err != nil && !found[row] {
				t.Errorf("the check found nothing in row %s", row)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			v, ok, err := takeSnapshot(t, env.Client).Table("a").Get(ctx, row, "f", "q")
			cancel()
			if ok || !errors.Is(err, l.err) || err != nil && !strings.Contains(err.Error(), cell(row).String()) {
				t.Errorf("row %s: %q, %v, %v; want the error %v with the name of the cell", row, v, ok, err, l.err)
			}
		}
	})
}

// A lock whose ttl no client writes blocks nothing: it counts as expired. The lock of a commit
// that takes days does not count as such, even for a reader at a timestamp from its beginning.
// Before the fix, the first lock blocked its cell for centuries.
func TestEndlessLocks(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for name, use := range map[string]func(context.Context, *txn.Client) error{
		"read": func(ctx context.Context, c *txn.Client) error {
			s, err := c.Snapshot(ctx)
			if err == nil {
				_, _, err = s.Table("a").Get(ctx, "bob", "f", "q")
			}
			return err
		},
		"write": func(ctx context.Context, c *txn.Client) error { return tryUpdate(ctx, c, "2", "bob") },
		"resolve": func(ctx context.Context, c *txn.Client) (err error) {
			for l := range admin.Locks(ctx, c, "a", nil) {
				_, err = admin.Resolve(ctx, c, l)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutTransport())
				env.CreateTable("a", "f")
				c := env.NewClient(txn.Config{TokenTTL: -1})
				putLock(t, env, format.Lock{Cell: cellOf("bob"), StartTS: takeSnapshot(t, c).ReadTS(), TTL: math.MaxInt64})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := use(ctx, c); err != nil {
					t.Error(err)
				}
				wantNoLocks(t, c)
			})
		})
	}
	t.Run("commit of days", func(t *testing.T) {
		long.Test(t, "60 hours of virtual time")
		synctest.Test(t, func(t *testing.T) {
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, LockTTL: 24 * time.Hour, RPCTimeout: 100 * time.Hour})
			slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
			owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
			<-slow.Fired()
			s := takeSnapshot(t, env.Client)
			advance(60 * time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if v, ok, err := s.Table("a").Get(ctx, "bob", "f", "q"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("read: %q, %v, %v; want that it waits", v, ok, err)
			}
			slow.Release()
			if o := <-owner; o.err != nil {
				t.Errorf("commit: %v", o.err)
			}
		})
	})
}

// cellOf returns the cell f:q of a row of table a.
func cellOf(row string) format.Cell {
	return format.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"}
}

// putLock writes a lock and its data as they are. The primary is the cell itself unless l names
// another.
func putLock(t *testing.T, env *txntest.Env, l format.Lock) {
	t.Helper()
	if l.Kind = format.KindPut; l.Primary == (format.Cell{}) {
		l.Primary = l.Cell
	}
	put(t, env, l.Cell.Row, format.LockFamily, "f:q", l.StartTS.Cell(), format.EncodeLock(&l))
	put(t, env, l.Cell.Row, "f", "q", l.StartTS.Cell(), []byte("never committed"))
}

// A lock above the oracle's time is of no transaction. A writer says so at once, and leaves no
// marker there, which would block the cell as well. A repair removes the lock. Before the fix,
// writers waited for centuries, and no command removed the lock.
func TestLocksAboveOracle(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env, dead, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, dead, "1", "joe") // its token goes stale
		faults.Kill()
		advance(time.Minute)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		now := takeSnapshot(t, c).ReadTS()
		const hour = tso.Timestamp(time.Hour / time.Microsecond)
		putLock(t, env, format.Lock{Cell: cellOf("century"), StartTS: now + 1e6*hour, TTL: time.Second})
		putLock(t, env, format.Lock{Cell: cellOf("day"), StartTS: now + 24*hour, TTL: time.Second, Owner: admin.Owner(dead)})
		putLock(t, env, format.Lock{Cell: cellOf("secondary"), StartTS: now + 24*hour, TTL: math.MaxInt64, Primary: cellOf("day")})
		putLock(t, env, format.Lock{Cell: cellOf("soon"), StartTS: now + hour/2, TTL: time.Second})
		rows := []string{"century", "day", "secondary", "soon"}
		for _, row := range rows {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := tryUpdate(ctx, c, "2", row)
			cancel()
			if !errors.Is(err, txn.ErrCorrupt) || !strings.Contains(err.Error(), cellOf(row).String()) || !strings.Contains(err.Error(), "percctl repair plan a") {
				t.Errorf("write of row %s: %v", row, err)
			}
			if n := len(stored(t, env, row)[format.MarkFamily]); n != 0 {
				t.Errorf("row %s has %d markers", row, n)
			}
		}
		for l, err := range admin.Locks(t.Context(), c, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			if s, err := admin.Resolve(t.Context(), c, l); !errors.Is(err, txn.ErrCorrupt) {
				t.Errorf("resolve %s: %v, %v", l.Cell, s.State, err)
			}
		}
		var found []string
		for v, err := range admin.Check(t.Context(), c, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			if v.Rule == admin.RuleFuture {
				found = append(found, v.Cell.Row)
			}
		}
		if !slices.Equal(found, rows) {
			t.Errorf("the check found rows %q, want %q", found, rows)
		}
		p := planRepairs(t, c)
		wantPlan(t, p, []string{"a/century/f:q lock above the oracle", "a/day/f:q lock above the oracle", "a/secondary/f:q lock above the oracle"}, nil)
		if len(p.Repairs) != 3 {
			t.FailNow()
		}
		// The secondary's repair removes the primary lock first.
		apply(t, c, p.Repairs[2], true)
		apply(t, c, p.Repairs[1], false)
		apply(t, c, p.Repairs[0], true)
		apply(t, c, p.Repairs[0], false)
		apply(t, c, admin.Repair{Kind: admin.RepairLockAbove, Cell: cellOf("soon"), StartTS: now + hour/2}, false)
		mustSet(t, c, "3", rows[:3]...)
		// The last one becomes an ordinary lock.
		advance(time.Hour)
		mustSet(t, c, "3", "soon")
		wantNoLocks(t, c)
	})
}

// Perhaps a lock above the oracle's time is right, and the oracle is behind. If anything says
// so, no repair removes the lock.
func TestLocksOfAnotherOracle(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	const ahead = 10 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		other := env.NewClient(txn.Config{Oracle: oracleAhead{env.Client, ahead}}, faults.DialOptions()...)
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, other, "1", "bob", "joe"))
		<-slow.Fired()
		wantUndecided := func(why string, cells ...string) {
			t.Helper()
			p := planRepairs(t, c)
			wantPlan(t, p, nil, cells)
			for _, r := range p.Undecided {
				if r.Kind == admin.RepairLockAbove && !strings.Contains(r.Why, why) {
					t.Errorf("%s: %q, want %q", r.Cell, r.Why, why)
				}
			}
		}
		wantUndecided("has an oracle that is as far ahead", "a/bob/f:q lock above the oracle", "a/joe/f:q lock above the oracle")
		for _, r := range planRepairs(t, c).Undecided {
			apply(t, c, r, false)
		}
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Fatal(o.err)
		}
		drop := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner = commitInBackground(t.Context(), beginSet(t, other, "2", "bob", "joe"))
		<-drop.Fired()
		wantUndecided("is above the oracle's time as well", "a/bob/f:q record above the oracle", "a/bob/f:q lock above the oracle", "a/joe/f:q record above the oracle", "a/joe/f:q lock above the oracle")
		for _, r := range planRepairs(t, c, admin.RepairConfig{TrustOracle: true}).Undecided {
			apply(t, c, r, false)
		}
		drop.Release()
		if o := <-owner; o.err != nil {
			t.Fatal(o.err)
		}
		advance(ahead + time.Minute)
		wantValue(t, takeSnapshot(t, c), "joe", "2")
	})
}

// oracleAhead is another deployment's oracle, whose time is ahead.
type oracleAhead struct {
	client *txn.Client
	by     time.Duration
}

func (o oracleAhead) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	ts, err := o.client.Timestamp(ctx)
	return ts.Add(o.by), err
}

// Locks lists all locks, even if one record cannot be read.
func TestLocksAfterAnUnreadableOne(t *testing.T) {
	t.Parallel()
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
	env.CreateTable("a", "f")
	c := env.NewClient(txn.Config{TokenTTL: -1})
	// A dead client's locks, one in a later format version, and one whose
	// qualifier names no column.
	faults := txntest.NewFaults(t)
	rule := faults.On("no commit", step(txntest.StepCommit), txntest.Crash, 0)
	dead := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	tx := beginSet(t, dead, "1", "r1", "r5")
	ctx, cancel := context.WithCancel(t.Context())
	done := commitInBackground(ctx, tx)
	<-rule.Fired()
	for row, qualifier := range map[string]string{"r2": "f:q", "r3": "nonsense"} {
		m := bigtable.NewMutation()
		m.Set(format.LockFamily, qualifier, tso.Timestamp(1795152600000000).Cell(), []byte{8, 99})
		if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
			t.Fatal(err)
		}
	}
	var rows []string
	unreadable := map[string]bool{}
	for l, err := range admin.Locks(t.Context(), c, "a", nil) {
		rows = append(rows, l.Cell.Row)
		switch {
		case errors.Is(err, txn.ErrCorrupt), errors.Is(err, txn.ErrFormatVersion):
			unreadable[l.Cell.Row] = l.StartTS == 1795152600000000
		case err != nil:
			t.Fatal(err)
		}
	}
	if len(rows) != 4 || !unreadable["r2"] || !unreadable["r3"] {
		t.Errorf("locks in rows %q, unreadable %v", rows, unreadable)
	}
	n := 0
	for l, err := range admin.TransactionLocks(t.Context(), c, "a", bigtable.NewRange("r3", ""), tx.StartTS()) {
		if err != nil || l.Cell.Row != "r5" {
			t.Errorf("%v, %v", l, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d locks of the transaction from r3 on, want 1", n)
	}
	faults.Kill()
	cancel()
	<-done
}

// Resolve reads the primary again before it decides. Before the fix it trusted the ttl
// from the time of the listing, and rolled a live transaction back.
func TestResolveOfOldListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		listed := 0
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			listed++
			advance(15 * time.Second) // heartbeats extend the lock meanwhile
			if s, err := admin.Resolve(t.Context(), env.Client, l); err != nil || s.State != format.StateLocked {
				t.Errorf("resolve: %v, %v; want locked", s.State, err)
			}
		}
		slow.Release()
		if o := <-owner; o.err != nil || listed != 1 {
			t.Errorf("commit: %v; %d locks listed, want 1", o.err, listed)
		}
	})
}

// A resolver that finds a damaged record at the primary does not know the outcome: it
// leaves the secondary's lock, and reports the damage.
func TestDamagedPrimaryResolvesNothing(t *testing.T) {
	for _, family := range []string{format.WriteFamily, format.MarkFamily, format.LockFamily} {
		t.Run(family, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
				env.CreateTable("a", "f")
				died := txntest.StepSecondaries
				if family == format.LockFamily {
					died = txntest.StepCommit
				}
				leaveLocks(t, env, died)
				at := stored(t, env, "bob")[format.WriteFamily]
				if family == format.LockFamily {
					at = stored(t, env, "bob")[format.LockFamily]
				}
				damage := bigtable.NewMutation()
				damage.Set(family, "f:q", at[0].Timestamp, []byte("\xff"))
				if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", damage); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, _, err := takeSnapshot(t, env.Client).Table("a").Get(ctx, "joe", "f", "q")
				if !errors.Is(err, txn.ErrCorrupt) {
					t.Errorf("read: %v", err)
				}
				if err := tryUpdate(ctx, env.Client, "1", "joe"); !errors.Is(err, txn.ErrCorrupt) {
					t.Errorf("write: %v", err)
				}
				if ctx.Err() != nil || len(stored(t, env, "joe")[format.LockFamily]) != 1 {
					t.Errorf("they waited (%v), or resolved the lock", ctx.Err())
				}
			})
		})
	}
}

// A client counts the cells that it rolls forward and back for other transactions, the
// primary included, and the locks whose outcome it had to find out.
func TestStatsOfAResolver(t *testing.T) {
	for died, want := range map[txntest.Step]txn.Stats{
		txntest.StepSecondaries: {LocksMet: 1, RolledForward: 1},
		txntest.StepCommit:      {LocksMet: 1, RolledBack: 2},
	} {
		t.Run(string(died), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutTransport())
				env.CreateTable("a", "f")
				leaveLocks(t, env, died)
				s := takeSnapshot(t, env.Client)
				for _, row := range []string{"joe", "bob"} {
					if _, _, err := s.Table("a").Get(t.Context(), row, "f", "q"); err != nil {
						t.Fatal(err)
					}
				}
				got := env.Client.Stats()
				if got.LocksMet != want.LocksMet || got.RolledForward != want.RolledForward || got.RolledBack != want.RolledBack {
					t.Errorf("%d locks, %d forward, %d back; want %d, %d, %d", got.LocksMet, got.RolledForward, got.RolledBack, want.LocksMet, want.RolledForward, want.RolledBack)
				}
			})
		})
	}
}

// The locks of a large transaction are resolved many at a time, after one read of its primary,
// and one that is alive costs no more than that. Before the fix, ResolveTransaction resolved one
// lock after the other, and asked the oracle for each.
func TestLocksOfALargeTransaction(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	const n = 640 // ten times Config.Parallelism
	for name, died := range map[string]txntest.Step{"dead": txntest.StepCommit, "committed": txntest.StepSecondaries, "alive": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := model.New(model.Config{})
				env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
				env.CreateTable("a", "f")
				operator := env.NewClient(txn.Config{TokenTTL: -1}, cluster.Client("operator")...)
				faults := txntest.NewFaults(t)
				held := faults.OnStep(cmp.Or(died, txntest.StepCommit), txntest.Hold)
				owner := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
				var rows []string
				for i := range n {
					rows = append(rows, fmt.Sprintf("row%03d", i))
				}
				tx := beginSet(t, owner, "1", rows...)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end := commitInBackground(ctx, tx)
				<-held.Fired()
				if died != "" {
					faults.Kill()
					cancel()
					<-end
					advance(time.Minute)
				}
				cluster.Reset()
				began := time.Now()
				s, locks, err := admin.ResolveTransaction(t.Context(), operator, txn.Cell{Table: "a", Row: "row000", Family: "f", Qualifier: "q"}, tx.StartTS())
				took := time.Since(began)
				requests := cluster.Sum(model.All).Requests
				t.Logf("%v: %d locks, %d requests, %v", s.State, locks, requests, took)
				wantLocks, most := n, int64(n+20)
				switch name {
				case "alive":
					most = 10
					held.Release()
					if o := <-end; o.err != nil || s.State != format.StateLocked {
						t.Errorf("commit: %v; state %v", o.err, s.State)
					}
				case "committed":
					wantLocks-- // the primary's is gone
				}
				if err != nil || locks != wantLocks || requests > most || took > 250*time.Millisecond {
					t.Errorf("%d locks with %d requests in %v: %v; want %d locks, %d requests, 250 ms", locks, requests, took, err, wantLocks, most)
				}
			})
		})
	}
}

// A resolver rolls a lock back whose transaction never reached its primary. It counts only
// that cell: there was no lock at the primary.
func TestStatsOfALockWithoutAPrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, victim, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		crash := faults.On("prewrite of bob", stepOn(txntest.StepPrewrite, "bob"), txntest.Crash, 1)
		ctx, cancel := context.WithCancel(t.Context())
		owner := commitInBackground(ctx, beginSet(t, victim, "9", "bob", "joe"))
		<-crash.Fired()
		synctest.Wait() // joe is locked
		faults.Kill()
		cancel()
		<-owner
		advance(time.Minute)
		var resolved []string
		admin.OnResolve(env.Client, func(r format.Resolution) { resolved = append(resolved, r.Lock.Cell.Row) })
		began := time.Now()
		wantValue(t, takeSnapshot(t, env.Client), "joe", "")
		if took := time.Since(began); took > 0 {
			t.Errorf("the read took %v, want it not to wait", took)
		}
		if n := env.Client.Stats().RolledBack; n != 1 || len(resolved) != 1 || resolved[0] != "joe" {
			t.Errorf("%d cells were rolled back, reported: %q; want joe", n, resolved)
		}
	})
}

// A lock has expired, but its owner commits before the resolver's rollback. Resolve looks
// again and reports the commit, although it does not wait for owners.
func TestResolveFindsALateCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		faults.On("heartbeat", step(txntest.StepHeartbeat), txntest.DropRequest, 0)
		commit := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-commit.Fired()
		advance(12 * time.Second)
		resolverFaults := txntest.NewFaults(t)
		rollBack := resolverFaults.OnStep(txntest.StepRollPrimary, txntest.Hold)
		c := env.NewClient(txn.Config{TokenTTL: -1}, resolverFaults.DialOptions()...)
		for l, err := range admin.Locks(t.Context(), c, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			resolved := inBackground(func() error {
				s, err := admin.Resolve(t.Context(), c, l)
				if s.State != txn.StateCommitted {
					t.Errorf("resolve: %v, want committed", s.State)
				}
				return err
			})
			<-rollBack.Fired()
			commit.Release()
			if o := <-owner; o.err != nil {
				t.Errorf("commit: %v", o.err)
			}
			rollBack.Release()
			if o := <-resolved; o.err != nil {
				t.Errorf("resolve: %v", o.err)
			}
		}
	})
}

// If a reader that waits for a lock gets no timestamp any more, it returns the oracle's error.
// Without a timestamp it could not decide when the lock expires.
func TestOracleFailsWhileAReaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		owner := holdCommit(t, a, faults)
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := env.NewClient(txn.Config{TokenTTL: -1, Oracle: &numberedOracle{[]tso.Timestamp{now, 0, now + 1, now + 2}}})
		s := takeSnapshot(t, c)
		if _, _, err := s.Table("a").Get(t.Context(), "bob", "f", "q"); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("read: %v, want the oracle's error", err)
		}
		owner.wantAlive(env)
	})
}

// If the context of a reader ends while it asks for a timestamp, the error names the lock that
// it waits for, as it does if the context ends in a pause.
func TestContextEndsWhileAReaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		owner := holdCommit(t, a, faults)
		oracle := &stuckOracle{Oracle: env.Oracle(), stuck: make(chan struct{})}
		s := takeSnapshot(t, env.NewClient(txn.Config{TokenTTL: -1, Oracle: oracle}))
		oracle.left.Store(3)
		ctx, cancel := context.WithCancel(t.Context())
		read := inBackground(func() error {
			_, _, err := s.Table("a").Get(ctx, "bob", "f", "q")
			return err
		})
		<-oracle.stuck
		cancel()
		if o := <-read; !errors.Is(o.err, context.Canceled) || !strings.Contains(o.err.Error(), "waiting for the lock on a/bob/f:q") {
			t.Errorf("read: %v, want the cell of the lock, and the context's error", o.err)
		}
		owner.wantAlive(env)
	})
}

// If a row was restored wrongly, a primary lock may be there beside its own commit. A reader that
// waited for the lock removes it, although the commit does not matter to the reader.
func TestLockBesideItsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		held := faults.OnStep(txntest.StepPrewrite, txntest.HoldResponse)
		done := commitInBackground(t.Context(), beginSet(t, a, "1", "bob"))
		<-held.Fired()
		synctest.Wait()
		s := takeSnapshot(t, env.NewClient(txn.Config{TokenTTL: -1}))
		lock := stored(t, env, "bob")[format.LockFamily][0]
		held.Release()
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		put(t, env, "bob", format.LockFamily, "f:q", lock.Timestamp, lock.Value)
		wantValue(t, s, "bob", "")
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}

// A stuckOracle does not answer its left-th request.
type stuckOracle struct {
	tso.Oracle
	left  atomic.Int64
	stuck chan struct{}
}

func (o *stuckOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if o.left.Add(-1) == 0 {
		close(o.stuck)
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return o.Oracle.Timestamp(ctx)
}
