package notify_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func TestCounterReads(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		c := notify.Counter{Table: "docs", Family: "d", Qualifier: "n"}
		w := newWorker(t, env.Client, notify.Config{})
		if err := w.Handle("fold", c.Table, c.Column(), c); err != nil {
			t.Fatal(err)
		}
		if err := w.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		read := func(c notify.Counter, want int64) {
			t.Helper()
			s, err := env.Client.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(t.Context(), s.Table("docs"), "page"); err != nil || n != want {
				t.Errorf("the counter is %d, %v; want %d", n, err, want)
			}
		}
		add := func(c notify.Counter, deltas ...int64) {
			t.Helper()
			_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
				for _, delta := range deltas {
					if err := c.Add(ctx, tx, "page", delta); err != nil {
						return err
					}
				}
				n, err := c.Read(ctx, tx.Table("docs"), "page")
				if err == nil && len(deltas) == 3 && n != 5 {
					t.Errorf("the transaction sees %d of its own increments, want 5", n)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		read(c, 0)
		add(c, 7, 0, -2)
		for range 40 {
			add(c, 1)
		}
		read(c, 45)
		start(t, w)
		pass(3 * time.Minute)
		read(c, 45)
		// Whatever is folded is not written again: that would only conflict.
		if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			err := c.Observe(ctx, tx, txn.Cell{Table: c.Table, Row: "page#shard-0000", Family: c.Family, Qualifier: c.Qualifier})
			for cell := range tx.Writes() {
				t.Errorf("the observer writes %v, and there is nothing to fold", cell)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		// More shards later: those that were there count.
		more := c
		more.Shards = 64
		for range 40 {
			add(more, -1)
		}
		read(more, 5)
	})
}

// A backlog of a key is folded once, whatever the concurrency: the runs for its other shards only acknowledge.
type countedLocks struct {
	*tso.RowLocks
	acquired atomic.Int32
}

func (l *countedLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	l.acquired.Add(1)
	return l.RowLocks.Acquire(ctx, name, owner, ttl)
}

func TestCounterFoldsOnce(t *testing.T) {
	long.RacedAtNight(t)
	for name, workers := range map[string]int{"one worker": 1, "two workers, with advisory locks": 2} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				c := notify.Counter{Table: "docs", Family: "d", Qualifier: "n", Shards: 32}
				register(t, env.Client, column{c.Table, c.Column()}, "fold", false)
				const adds = 150
				for range adds {
					if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
						return errors.Join(c.Add(ctx, tx, "page0", 1), c.Add(ctx, tx, "page1", 1))
					}); err != nil {
						t.Fatal(err)
					}
				}
				s, err := env.Client.Snapshot(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				shards := 0
				for _, err := range s.Table("docs").ReadRows(t.Context(), bigtable.PrefixRange("page")) {
					if shards++; err != nil {
						t.Fatal(err)
					}
				}
				var ev events
				locks := &countedLocks{RowLocks: tso.NewRowLocks(env.Bigtable.Open(format.DefaultMetadataTable), env.Oracle(), tso.RowLocksConfig{})}
				cfg := notify.Config{OnEvent: ev.add}
				if workers > 1 {
					cfg.Locks = locks
				}
				for range workers {
					w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, slow(5*time.Millisecond)), cfg)
					if err := w.Handle("fold", c.Table, c.Column(), c); err != nil {
						t.Fatal(err)
					}
					start(t, w)
				}
				pass(3 * time.Minute)
				if committed := ev.count(notify.Committed); committed != shards || shards < 10 {
					t.Errorf("%d runs committed, for %d shards", committed, shards)
				}
				if n := ev.count(notify.Conflicted) + ev.count(notify.LostRace); n > 0 {
					t.Errorf("%d runs conflicted", n)
				}
				if taken := int(locks.acquired.Load()); (taken >= shards) != (workers > 1) {
					t.Errorf("%d attempts to take a lock", taken)
				}
				for _, key := range []string{"page0", "page1"} {
					versions, err := admin.History(t.Context(), env.Client, c.Table, key)
					if err != nil {
						t.Fatal(err)
					}
					folds := 0
					for _, v := range versions {
						if v.Kind == admin.VersionWrite {
							folds++
						}
						if v.Kind == admin.VersionData && binary.BigEndian.Uint64(v.Value) != adds {
							t.Errorf("%s: a fold wrote %d, want %d", key, binary.BigEndian.Uint64(v.Value), adds)
						}
					}
					if folds != 1 {
						t.Errorf("%s was folded %d times, want once", key, folds)
					}
				}
			})
		})
	}
}

func TestCounterRefuses(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		c := notify.Counter{Table: "docs", Family: "d", Qualifier: "n"}
		for _, shards := range []int{-1, 5000} {
			bad := c
			bad.Shards = shards
			if err := bad.Add(t.Context(), tx, "page", 1); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%d shards: %v", shards, err)
			}
			if _, err := bad.Read(t.Context(), tx.Table("docs"), "page"); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%d shards: %v", shards, err)
			}
		}
		tx.Table("docs").Set("page", "d", "n", []byte("12"))
		if _, err := c.Read(t.Context(), tx.Table("docs"), "page"); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a sum that is no number: %v", err)
		}
		if err := c.Observe(t.Context(), tx, txn.Cell{Table: "docs", Row: "page", Family: "d", Qualifier: "n.added"}); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a row that is no shard: %v", err)
		}
	})
}

// The shards and the sum of a counter would expire at different times, so none of them may.
func TestCounterHasToLast(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		c := notify.Counter{Table: "docs", Family: "d", Qualifier: "n"}
		add := func() error {
			_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return c.Add(ctx, tx, "page", 1) })
			return err
		}
		if err := add(); err != nil {
			t.Fatal(err)
		}
		if err := admin.SetExpiry(t.Context(), env.Client, c.Table, c.Family, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := add(); !errors.Is(err, txn.ErrSchema) {
			t.Errorf("an increment of a counter that expires: %v", err)
		}
		_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			return c.Observe(ctx, tx, txn.Cell{Table: c.Table, Row: "page#shard-0000", Family: c.Family, Qualifier: c.Column().Qualifier})
		})
		if !errors.Is(err, txn.ErrSchema) {
			t.Errorf("a fold of a counter that expires: %v", err)
		}
	})
}
