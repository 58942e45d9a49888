//go:build !race

package txn_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An overheadEnv is a stub of Bigtable with clients for two tables: "accounts" is
// transactional, and "plain" holds the same values without metadata.
type overheadEnv struct {
	stub   *txntest.Stub
	bt     *bigtable.Client
	client *txn.Client
	plain  *bigtable.Table
}

func newOverheadEnv(t testing.TB) *overheadEnv {
	t.Helper()
	column := txn.Column{Family: "bal", Qualifier: "usd"}
	value := make([]byte, 100)
	stub, err := txntest.StartStub("",
		txntest.StubTable{Name: "accounts", Columns: []txn.Column{column}, Value: value, CommitTS: 1_700_000_000_000_000, Rows: 1000},
		txntest.StubTable{Name: "plain", Columns: []txn.Column{column}, Value: value, Rows: 1000})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := stub.Dial()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	bt, btAdmin, err := txntest.Open(ctx, conn, "project", "instance")
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "accounts", Families: []string{"bal"}}); err != nil {
		t.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{Oracle: tso.NewLocal(tso.LocalConfig{}), SyncSecondaries: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_, _, _ = bt.Close(), btAdmin.Close(), conn.Close()
		if err := stub.Close(); err != nil {
			t.Error(err)
		}
	})
	return &overheadEnv{stub: stub, bt: bt, client: client, plain: bt.Open("plain")}
}

// An overheadCase is the same work done by this library (ours) and by the Bigtable client
// alone (raw), with the same requests.
type overheadCase struct {
	name  string
	ours  func(context.Context) error
	raw   func(context.Context) error
	units int // the number of rows
	// allocs bounds how many more allocations ours makes than raw, for each row.
	allocs float64
	// requests is how many requests ours makes. bytes bounds their total size.
	requests, bytes int64
}

func (e *overheadEnv) cases(t testing.TB) []overheadCase {
	snapshot, err := e.client.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	accounts := snapshot.Table("accounts")
	// Each request makes its filter, as callers of the Bigtable client do.
	latest := func() bigtable.ReadOption { return bigtable.RowFilter(bigtable.LatestNFilter(1)) }
	column := func(family, qualifier string) bigtable.ReadOption {
		return bigtable.RowFilter(bigtable.ChainFilters(bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00"), bigtable.LatestNFilter(1)))
	}
	value := make([]byte, 100)
	keys := make(bigtable.RowList, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("key%03d", i)
	}
	conditional := func(ctx context.Context, row string) error {
		m := bigtable.NewMutation()
		m.Set("bal", "usd", 1000, value)
		var matched bool
		return e.plain.Apply(ctx, row, bigtable.NewCondMutation(bigtable.ColumnRangeFilter("bal", "usd", "usd\x00"), nil, m), bigtable.GetCondMutationResult(&matched))
	}
	rawRows := func(rows bigtable.RowSet, opts ...bigtable.ReadOption) func(context.Context) error {
		return func(ctx context.Context) error {
			return e.plain.ReadRows(ctx, rows, func(bigtable.Row) bool { return true }, opts...)
		}
	}
	ourRows := func(rows bigtable.RowSet, opts ...txn.ReadOption) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, err := range accounts.ReadRows(ctx, rows, opts...) {
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	writes := func(n int) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := e.client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				table := tx.Table("accounts")
				for _, key := range keys[:n] {
					table.Set(key, "bal", "usd", value)
				}
				return nil
			})
			return err
		}
	}
	// The requests of a transaction of n rows, one after the other.
	rawWrites := func(n int) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, key := range append(keys[:n:n], keys[0]) { // the prewrites, and the commit of the primary
				if err := conditional(ctx, key); err != nil {
					return err
				}
			}
			muts := make([]*bigtable.Mutation, n-1)
			for i := range muts {
				muts[i] = bigtable.NewMutation()
				muts[i].Set("bal", "usd", 1000, value)
			}
			_, err := e.plain.ApplyBulk(ctx, keys[1:n], muts)
			return err
		}
	}
	return []overheadCase{
		{
			name: "write of ten rows", units: 10, allocs: 32, requests: 12, bytes: 4600,
			ours: writes(10), raw: rawWrites(10),
		},
		{
			name: "write of 100 rows", units: 100, allocs: 26, requests: 102, bytes: 45_000,
			ours: writes(100), raw: rawWrites(100),
		},
		{
			name: "read", units: 1, allocs: 30, requests: 1, bytes: 175,
			ours: func(ctx context.Context) error {
				_, _, err := accounts.Get(ctx, "bob", "bal", "usd")
				return err
			},
			raw: func(ctx context.Context) error {
				_, err := e.plain.ReadRow(ctx, "bob", column("bal", "usd"))
				return err
			},
		},
		{
			name: "latest read", units: 1, allocs: 22, requests: 1, bytes: 175,
			ours: func(ctx context.Context) error {
				_, _, err := e.client.Latest("accounts").Get(ctx, "bob", "bal", "usd")
				return err
			},
			raw: func(ctx context.Context) error {
				_, err := e.plain.ReadRow(ctx, "bob", column("bal", "usd"))
				return err
			},
		},
		{
			name: "row read", units: 1, allocs: 28, requests: 1, bytes: 100,
			ours: func(ctx context.Context) error {
				_, err := accounts.ReadRow(ctx, "bob")
				return err
			},
			raw: func(ctx context.Context) error {
				_, err := e.plain.ReadRow(ctx, "bob", latest())
				return err
			},
		},
		{
			name: "batch read", units: 100, allocs: 7, requests: 1, bytes: 1000,
			ours: ourRows(keys, txn.Columns(txn.Column{Family: "bal", Qualifier: "usd"})),
			raw:  rawRows(keys, column("bal", "usd")),
		},
		{
			name: "scan", units: 1000, allocs: 6, requests: 1, bytes: 95,
			ours: ourRows(nil),
			raw:  rawRows(bigtable.InfiniteRange(""), latest()),
		},
		{
			name: "write", units: 1, allocs: 67, requests: 2, bytes: 535,
			ours: writes(1),
			raw: func(ctx context.Context) error {
				if err := conditional(ctx, "bob"); err != nil {
					return err
				}
				return conditional(ctx, "bob")
			},
		},
		{
			name: "write of three rows", units: 3, allocs: 45, requests: 5, bytes: 1500,
			ours: writes(3),
			raw: func(ctx context.Context) error {
				var muts []*bigtable.Mutation
				for _, key := range keys[:3] {
					if err := conditional(ctx, key); err != nil {
						return err
					}
					m := bigtable.NewMutation()
					m.Set("bal", "usd", 1000, value)
					muts = append(muts, m)
				}
				if err := conditional(ctx, keys[0]); err != nil {
					return err
				}
				_, err := e.plain.ApplyBulk(ctx, keys[1:3], muts[1:])
				return err
			},
		},
	}
}

// TestOverhead checks the exact number of a transaction's requests, and bounds how much
// more it allocates than the Bigtable client. It counts both, so the result is the same on
// every machine. docs/design/measuring.md says how.
func TestOverhead(t *testing.T) {
	e := newOverheadEnv(t)
	for _, c := range e.cases(t) {
		t.Run(c.name, func(t *testing.T) {
			count := func(f func(context.Context) error) float64 {
				ctx, cancel := context.WithTimeout(t.Context(), 19*time.Second) // below Config.RPCTimeout, as most callers' are
				defer cancel()
				return testing.AllocsPerRun(200/c.units+5, func() {
					if err := f(ctx); err != nil {
						t.Fatal(err)
					}
				})
			}
			count(c.raw)
			count(c.ours)
			// Of several results the smallest, because the client and the server sometimes work in
			// the background. On a busy machine that takes more of them.
			ours, raw, extra := math.Inf(1), math.Inf(1), math.Inf(1)
			for round := 0; round < 3 || round < 10 && extra > c.allocs; round++ {
				ours, raw = min(ours, count(c.ours)), min(raw, count(c.raw))
				extra = (ours - raw) / float64(c.units)
			}
			t.Logf("%.1f allocations beyond the Bigtable client's", extra)
			if extra > c.allocs {
				t.Errorf("%.1f allocations beyond the Bigtable client's, want at most %v", extra, c.allocs)
			}
			requests, bytes := e.stub.Counts()
			if err := c.ours(t.Context()); err != nil {
				t.Fatal(err)
			}
			r, b := e.stub.Counts()
			t.Logf("%d requests of %d bytes", r-requests, b-bytes)
			if r-requests != c.requests || b-bytes > c.bytes {
				t.Errorf("%d requests of %d bytes, want %d of at most %d", r-requests, b-bytes, c.requests, c.bytes)
			}
		})
	}
}
