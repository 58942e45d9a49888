package emulator_test

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// packageOperations are operations of the packages that stand on txn, and options of transactions
// that operations leaves out.
func packageOperations() []operation {
	q := txn.Column{Family: "f", Qualifier: "q"}
	snapshot := func(f func(context.Context, *txn.Snapshot) (any, error), opts ...txn.SnapshotOption) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx, opts...)
			if err != nil {
				return nil, err
			}
			return f(ctx, s)
		}
	}
	update := func(f func(context.Context, *txn.Txn) error, opts ...txn.TxnOption) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			ts, err := c.Update(ctx, f, opts...)
			return ts > 0, err
		}
	}
	scan := func(rs bigtable.RowSet, opts ...txn.ReadOption) func(context.Context, *txn.Client) (any, error) {
		return snapshot(func(ctx context.Context, s *txn.Snapshot) (any, error) {
			var all []string
			for r, err := range s.Table("a").ReadRows(ctx, rs, opts...) {
				if err != nil {
					return nil, err
				}
				all = append(all, fmt.Sprintf("%s %d", r.Key(), len(r["f"])))
			}
			return all, nil
		})
	}
	job := func() *jobs.Job {
		return &jobs.Job{Name: "job", Table: "a", Progress: "b", Family: "f", Options: []txn.ReadOption{txn.Columns(q)}, BatchRows: 2, Parallel: 1}
	}
	runJob := func(ctx context.Context, c *txn.Client) (jobs.Status, error) {
		return job().Run(ctx, c, func(_ context.Context, tx *txn.Txn, r bigtable.Row) error {
			tx.Table("a").Set(r.Key(), "f", "done", []byte("1"))
			return nil
		})
	}
	once := func(c *txn.Client) *idempotency.Keys {
		k, err := idempotency.New(c, "b", "f")
		if err != nil {
			panic(err)
		}
		return k
	}
	pay := func(ctx context.Context, c *txn.Client) (idempotency.Outcome, error) {
		return once(c).Update(ctx, idempotency.Key{ID: "key"}, func(_ context.Context, tx *txn.Txn) ([]byte, error) {
			tx.Table("a").Set("bob", "f", "q", []byte("paid"))
			return []byte("result"), nil
		})
	}
	return []operation{
		{name: "write job", parts: true, repeats: true, call: func(ctx context.Context, c *txn.Client) (any, error) { return runJob(ctx, c) }},
		{name: "write job, status and end", parts: true, repeats: true, call: func(ctx context.Context, c *txn.Client) (any, error) {
			if _, err := runJob(ctx, c); err != nil {
				return nil, err
			}
			s, err := job().Status(ctx, c)
			if err != nil {
				return nil, err
			}
			return s, job().Forget(ctx, c)
		}},
		{name: "parts", call: func(ctx context.Context, c *txn.Client) (any, error) {
			all, err := jobs.Partitions(ctx, c, "a", jobs.Prefix("b"), 1)
			return all, err
		}},
		{name: "write with a key", call: func(ctx context.Context, c *txn.Client) (any, error) {
			o, err := pay(ctx, c)
			return string(o.Result), err
		}},
		{name: "write with a key, and sweep", parts: true, repeats: true, call: func(ctx context.Context, c *txn.Client) (any, error) {
			if _, err := pay(ctx, c); err != nil {
				return nil, err
			}
			o, ok, err := once(c).Lookup(ctx, "key")
			if err != nil {
				return nil, err
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			n, err := once(c).Sweep(ctx, time.Millisecond)
			return fmt.Sprint(string(o.Result), ok, n), err
		}},
		{name: "write for update", call: update(func(ctx context.Context, tx *txn.Txn) error {
			v, _, err := tx.Table("a").GetForUpdate(ctx, "joe", "f", "q")
			tx.Table("a").Set("joe", "f", "q", append(v, '+'))
			return err
		})},
		{name: "write that settles", call: update(func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("bob", "f", "q", []byte("30"))
			return nil
		}, txn.SettleWithin(time.Minute))},
		{name: "scan of keys", call: scan(bigtable.RowList{"sue", "joe", "none", "joe"}, txn.Columns(q))},
		{name: "scan of keys backwards", call: scan(bigtable.RowList{"sue", "joe"}, txn.KeysOnly(), txn.Reverse())},
		{name: "scan of first cells, its owner died", left: txntest.StepSecondaries, call: scan(bigtable.NewRange("joe", "k"), txn.Families("f"), txn.CellsPerRow(1))},
		{name: "stale snapshot", call: func(ctx context.Context, c *txn.Client) (any, error) {
			if _, err := c.Timestamp(ctx); err != nil {
				return nil, err
			}
			return snapshot(func(ctx context.Context, s *txn.Snapshot) (any, error) {
				v, ok, err := s.Table("a").Get(ctx, "joe", "f", "q")
				return fmt.Sprintf("%q %t", v, ok), err
			}, txn.MaxStaleness(time.Minute), txn.Named("x"))(ctx, c)
		}},
	}
}
