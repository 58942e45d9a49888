package emulator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A prefetchScene is a table a with rows of columns f:a to f:d. Its client has learned
// to prefetch f:b and f:c with f:a in transactions named "page".
type prefetchScene struct {
	*testing.T
	env    *txntest.Env
	c      *txn.Client
	faults *txntest.Faults
}

const page = "page"

func newPrefetchScene(t *testing.T, cfg txn.Config) *prefetchScene {
	cfg.TokenTTL = -1
	env, c, faults := budgetEnv(t, cfg)
	s := &prefetchScene{t, env, c, faults}
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for i := range 20 {
			for _, q := range []string{"a", "b", "c", "d"} {
				tx.Table("a").Set(fmt.Sprintf("row%d", i), "f", q, []byte(q+"0"))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	for i := range 4 {
		s.read(begin(t, c, txn.Named(page)), fmt.Sprintf("row%d", i), "a", "b", "c")
	}
	faults.Reset()
	return s
}

// read reads columns of a row in a transaction and rolls it back.
func (s *prefetchScene) read(tx *txn.Txn, row string, columns ...string) (values []string) {
	s.Helper()
	defer tx.Rollback()
	for _, q := range columns {
		values = append(values, s.get(&tx.Table("a").View, row, q))
	}
	return values
}

func (s *prefetchScene) get(v *txn.View, row, q string) string {
	s.Helper()
	b, ok, err := v.Get(s.Context(), row, "f", q)
	switch {
	case err != nil:
		s.Fatal(err)
	case !ok:
		return "absent"
	}
	return string(b)
}

// reads fails the test unless there were n read requests since the last call.
func (s *prefetchScene) reads(n int) {
	s.Helper()
	if got := s.faults.Count()[txntest.StepRead]; got != n {
		s.Errorf("%d reads, want %d", got, n)
	}
	s.faults.Reset()
}

func (s *prefetchScene) want(got, want any) {
	s.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		s.Errorf("got %v, want %v", g, w)
	}
}

// Columns that transactions of one name read together come in one request.
func TestPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		s.want(s.read(begin(t, s.c, txn.Named(page)), "row9", "a", "b", "c"), "[a0 b0 c0]")
		s.reads(1)
		s.want(s.read(begin(t, s.c, txn.Named(page)), "row9", "a", "b", "b", "d", "c"), "[a0 b0 b0 d0 c0]")
		s.reads(2)
		s.want(s.read(begin(t, s.c, txn.Named(page)), "none", "a", "b", "c"), "[absent absent absent]")
		s.reads(1)
		stats := s.c.Stats()
		s.want([]int64{stats.PrefetchedCells, stats.PrefetchUsed}, "[8 8]")

		// Transactions with another name, or with NoPrefetch, do not prefetch.
		s.read(begin(t, s.c, txn.Named("other")), "row9", "a", "b", "c")
		s.reads(3)
		s.read(begin(t, s.c, txn.Named(page), txn.NoPrefetch()), "row9", "a", "b", "c")
		s.reads(3)
		s.want(valueOf(s, takeSnapshot(t, s.c), "row9", "a", "b", "c"), "[a0 b0 c0]")
		s.reads(3)
		s.want(valueOf(s, takeSnapshot(t, s.c, txn.Named(page)), "row9", "a", "b", "c"), "[a0 b0 c0]")
		s.reads(1)

		// Prefetched columns that are not used are counted, and no longer prefetched.
		before := s.c.Stats()
		for i := 0; ; i++ {
			n := s.c.Stats().PrefetchedCells
			s.read(begin(t, s.c, txn.Named(page)), "row9", "a")
			if s.c.Stats().PrefetchedCells == n {
				t.Logf("stopped prefetching after %d rows", i)
				break
			}
			if i > 20 {
				t.Fatal("the client still prefetches columns that are never read")
			}
		}
		after := s.c.Stats()
		if after.PrefetchUsed != before.PrefetchUsed || after.PrefetchedCells == before.PrefetchedCells {
			t.Errorf("cells prefetched and not used: %+v, then %+v", before, after)
		}
	})

	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{PrefetchBytes: -1})
		s.read(begin(t, s.c, txn.Named(page)), "row9", "a", "b", "c")
		s.reads(3)
	})
}

func valueOf(s *prefetchScene, snapshot *txn.Snapshot, row string, columns ...string) (values []string) {
	s.Helper()
	v := snapshot.Table("a") // one view for all reads
	for _, q := range columns {
		values = append(values, s.get(v, row, q))
	}
	return values
}

// The cache holds data of the transaction's snapshot, and the transaction's own writes
// come first.
func TestPrefetchIsTheSameSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		tx := begin(t, s.c, txn.Named(page))
		v := &tx.Table("a").View
		tx.Table("a").Set("row5", "f", "b", []byte("own"))
		s.want(s.get(v, "row5", "a"), "a0")
		other := begin(t, s.env.Client)
		other.Table("a").Set("row5", "f", "c", []byte("c1"))
		other.Table("a").Delete("row5", "f", "d")
		if _, err := other.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.want(s.get(v, "row5", "b"), "own")
		s.want(s.get(v, "row5", "c"), "c0")
		s.reads(1)
		tx.Table("a").Delete("row5", "f", "c")
		s.want(s.get(v, "row5", "c"), "absent")
		s.reads(0)
		tx.Rollback()
		s.want(s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "b", "c", "d"), "[a0 b0 c1 absent]")

		// The caller may change a value that came from the cache.
		tx = begin(t, s.c, txn.Named(page))
		defer tx.Rollback()
		for _, q := range []string{"a", "b", "b"} {
			b, _, err := tx.Table("a").Get(t.Context(), "row5", "f", q)
			if err != nil || string(b) != q+"0" {
				t.Errorf("%q, %v", b, err)
			}
			clear(b)
		}
	})
}

// A lock on a prefetched column does not delay the read, and is not touched. A read of
// that column resolves the lock.
func TestPrefetchLeavesLocks(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprintf("committed %v", committed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPrefetchScene(t, txn.Config{})
				dying := txntest.NewFaults(t)
				step := txntest.StepCommit
				if committed {
					step = txntest.StepSecondaries
				}
				rule := dying.OnStep(step, txntest.Crash)
				victim := s.env.NewClient(txn.Config{TokenTTL: -1}, dying.DialOptions()...)
				tx, done := begin(t, victim), make(chan struct{})
				tx.Table("b").Set("primary", "f", "q", nil)
				tx.Table("a").Set("row5", "f", "b", []byte("b1"))
				ctx, cancel := context.WithCancel(t.Context())
				go func() { _, _ = tx.Commit(ctx); close(done) }()
				<-rule.Fired()
				dying.Kill()
				cancel()
				<-done

				s.faults.Reset()
				reader := begin(t, s.c, txn.Named(page))
				defer reader.Rollback()
				v := &reader.Table("a").View
				s.want(s.get(v, "row5", "a"), "a0") // in no virtual time
				s.want(s.get(v, "row5", "c"), "c0")
				synctest.Wait()
				got := s.faults.Count()
				if got[txntest.StepRead] != 1 ||
					got[txntest.StepRollPrimary]+got[txntest.StepRollBackCell]+got[txntest.StepRollForward] != 0 {
					t.Errorf("requests %v, want one read", got)
				}
				want := "b0"
				if committed {
					want = "b1"
				}
				s.want(s.get(v, "row5", "b"), want)
				if n := s.c.Stats().LocksMet; n != 1 {
					t.Errorf("%d locks found, want 1", n)
				}
			})
		})
	}
}

// If the newest data of a prefetched column belongs to a later commit, only a read of
// that column fetches the right version.
func TestPrefetchOfOtherData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		writer := begin(t, s.env.Client)
		writer.Table("a").Set("row5", "f", "b", []byte("b1"))
		reader := begin(t, s.c, txn.Named(page))
		defer reader.Rollback()
		if _, err := writer.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		v := &reader.Table("a").View
		s.want([]string{s.get(v, "row5", "a"), s.get(v, "row5", "b"), s.get(v, "row5", "c")}, "[a0 b0 c0]")
		s.reads(3) // with the one of the exact version
	})
}

// A serializable transaction conflicts on the columns that it asked for, from wherever
// they came, and on no others.
func TestPrefetchSerializable(t *testing.T) {
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprintf("asked %v", asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPrefetchScene(t, txn.Config{})
				tx := begin(t, s.c, txn.Named(page), txn.Serializable())
				v := &tx.Table("a").View
				s.get(v, "row5", "a")
				if asked {
					s.want(s.get(v, "row5", "b"), "b0")
				}
				s.reads(1)
				tx.Table("a").Set("row6", "f", "a", nil)
				other := begin(t, s.env.Client)
				other.Table("a").Set("row5", "f", "b", []byte("b1"))
				if _, err := other.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Commit(t.Context()); errors.Is(err, txn.ErrConflict) != asked {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// Large values are not prefetched, except the first, whose size is unknown.
func TestPrefetchOfLargeValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{PrefetchBytes: 1000})
		grow := func(q string, bytesEach int) {
			tx := begin(t, s.env.Client)
			tx.Table("a").Set("row5", "f", q, bytes.Repeat([]byte{'x'}, bytesEach))
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		grow("b", 2<<20)
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "c") // the client learns the size
		s.reads(1)
		n := s.c.Stats().PrefetchedCells
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "c")
		s.reads(1)
		if got := s.c.Stats().PrefetchedCells - n; got != 1 {
			t.Errorf("%d cells prefetched, want that of c", got)
		}
		if got := s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "b"); len(got[1]) != 2<<20 {
			t.Errorf("%d bytes of b, want all", len(got[1]))
		}
		s.reads(2)
		grow("c", 600)
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "c")
		s.reads(1)
	})
}

// A transaction caches a mebibyte of prefetched values, and no more.
func TestPrefetchCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 400 << 10
		s := newPrefetchScene(t, txn.Config{PrefetchBytes: 1 << 20})
		for i := range 4 {
			putColumns(t, s.env.Client, fmt.Sprintf("row%d", i), strings.Repeat("x", size), "b")
			synctest.Wait()
		}
		s.faults.Reset()
		tx := begin(t, s.c, txn.Named(page))
		defer tx.Rollback()
		for i, want := range []int{1, 1, 2, 2} {
			row := fmt.Sprintf("row%d", i)
			s.get(&tx.Table("a").View, row, "a")
			if got := s.get(&tx.Table("a").View, row, "b"); len(got) != size {
				t.Errorf("%s: %d bytes", row, len(got))
			}
			s.reads(want)
		}
	})
}

// If Bigtable refuses a read because of the prefetched columns, the client reads again
// without them.
func TestPrefetchRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		var refuse atomic.Int64
		options := append(s.faults.DialOptions(), grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if strings.HasSuffix(method, "/ReadRows") && refuse.Load() > 0 {
				refuse.Add(-1)
				return nil, status.Error(codes.InvalidArgument, "injected fault: no such family")
			}
			return streamer(ctx, desc, cc, method, opts...)
		}))
		s.c = s.env.NewClient(txn.Config{TokenTTL: -1}, options...)
		for i := range 4 {
			s.read(begin(t, s.c, txn.Named(page)), fmt.Sprintf("row%d", i), "a", "b")
		}
		s.faults.Reset()
		refuse.Store(1)
		s.want(s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "b"), "[a0 b0]")
		if refuse.Load() != 0 {
			t.Error("the fault did not fire")
		}
		s.reads(2)
		s.read(begin(t, s.c, txn.Named(page)), "row6", "a", "b") // the client learns again
		s.reads(2)
		refuse.Store(1)
		tx := begin(t, s.c, txn.Named("other"))
		defer tx.Rollback()
		if _, _, err := tx.Table("a").Get(t.Context(), "row5", "f", "a"); err == nil {
			t.Error("a refused read of the requested columns returned no error")
		}
	})
}

// Transactions of observers prefetch too, besides the columns that Observe reads.
func TestPrefetchBesideObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		for i := range 5 {
			tx := begin(t, s.c, txn.Named("observer"))
			cell := txn.Cell{Table: "a", Row: fmt.Sprintf("row%d", i), Family: "f", Qualifier: "d"}
			if _, err := changes.Observe(t.Context(), tx, cell); err != nil {
				t.Fatal(err)
			}
			s.faults.Reset()
			s.want(s.read(tx, cell.Row, "d", "a", "b", "c"), "[d0 a0 b0 c0]")
		}
		s.reads(1)
	})
}

// A transaction's own writes lie over what Observe has read of its cell.
func TestObservedCellShowsOwnWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, cfg := range []txn.Config{{}, {PrefetchBytes: -1}} {
			s := newPrefetchScene(t, cfg)
			tx := begin(t, s.c)
			defer tx.Rollback()
			table := tx.Table("a")
			for _, q := range []string{"c", "d"} {
				if _, err := changes.Observe(t.Context(), tx, txn.Cell{Table: "a", Row: "row9", Family: "f", Qualifier: q}); err != nil {
					t.Fatal(err)
				}
			}
			s.faults.Reset()
			s.want(s.get(&table.View, "row9", "d"), "d0")
			table.Set("row9", "f", "d", []byte("own"))
			s.want(s.get(&table.View, "row9", "d"), "own")
			table.Delete("row9", "f", "d")
			s.want(s.get(&table.View, "row9", "d"), "absent")
			table.Lock("row9", "f", "c")
			s.want(s.get(&table.View, "row9", "c"), "c0")
			s.reads(0)
		}
	})
}

// What a snapshot has read ahead is its own: another of its name shows the state of
// its own timestamp.
func TestPrefetchOfSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		named := txn.Named(page)
		first := takeSnapshot(t, s.c, named)
		s.want(s.get(first.Table("a"), "row9", "a"), "a0") // and b and c
		s.reads(1)
		_, err := s.env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("row9", "f", "b", []byte("b1"))
			tx.Table("a").Delete("row9", "f", "c")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.faults.Reset()
		s.want(valueOf(s, takeSnapshot(t, s.c, named), "row9", "a", "b", "c"), "[a0 b1 absent]")
		s.want(valueOf(s, takeSnapshot(t, s.c, named, txn.At(first.ReadTS())), "row9", "a", "b", "c"), "[a0 b0 c0]")
		s.reads(2)
		s.want(valueOf(s, first, "row9", "b", "c"), "[b0 c0]")
		s.reads(0)
	})
}

// The client soon forgets columns that are not read together any more.
func TestPrefetchFollowsTheWorkload(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		for range 40 {
			s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "b")
		}
		s.faults.Reset()
		for range 120 {
			s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "d")
		}
		s.faults.Reset()
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "d")
		s.reads(1)
		<-time.After(time.Second)
	})
}

// One read prefetches a value from before the adoption, a committed value, and one that
// needs a second read. All are found in the cache. Before the fix the first two were
// out of order, and the cache reported the first as absent.
func TestPrefetchOfDataFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		plain := bigtable.NewMutation()
		plain.Set("f", "b", bigtable.Now(), []byte("plain"))
		if err := s.env.Bigtable.Open("a").Apply(t.Context(), "adopted", plain); err != nil {
			t.Fatal(err)
		}
		putColumns(t, s.env.Client, "adopted", "1", "a", "c", "d")
		for range 8 {
			s.read(begin(t, s.c, txn.Named(page)), "row0", "a", "b", "c", "d")
		}
		// The data of column d is newer than the reader's timestamp.
		late := begin(t, s.env.Client)
		late.Table("a").Set("adopted", "f", "d", []byte("2"))
		reader := begin(t, s.c, txn.Named(page))
		if _, err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.faults.Reset()
		s.want(s.read(reader, "adopted", "a", "b", "c", "d"), "[1 plain 1 1]")
		s.reads(3) // b and c are prefetched, d is read separately
	})
}

// putColumns commits a value in columns of family f of a row of table a.
func putColumns(t *testing.T, c *txn.Client, row, value string, columns ...string) {
	t.Helper()
	tx := begin(t, c)
	for _, q := range columns {
		tx.Table("a").Set(row, "f", q, []byte(value))
	}
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// If a column's name is so long that more columns would make the filter too large,
// nothing is prefetched. Before the fix all of the row's families were read.
func TestPrefetchNeverReadsWholeFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		long, next := strings.Repeat("l", 2200), strings.Repeat("n", 900)
		for i := range 6 {
			s.faults.Reset()
			s.read(begin(t, s.c, txn.Named("long")), fmt.Sprintf("row%d", i), long, next)
			for _, call := range s.faults.Calls() {
				r, ok := call.Request.(*btpb.ReadRowsRequest)
				if !ok || call.Step != txntest.StepRead {
					continue
				}
				if f := r.GetFilter().String(); !strings.Contains(f, long) && !strings.Contains(f, next) {
					t.Errorf("row %d: a read that names no column: %s", i, f)
				}
			}
		}
	})
}
