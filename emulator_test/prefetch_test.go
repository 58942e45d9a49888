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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A prefetchScene is a table a with rows of columns f:a to f:d, and a client that
// has learned to read f:b and f:c behind f:a in transactions named "page".
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

// reads fails the test unless there were n reads since the last call.
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

// Columns that are read together are read in one request, by those who read them
// together.
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

		// Not by others, nor where it is switched off.
		s.read(begin(t, s.c, txn.Named("other")), "row9", "a", "b", "c")
		s.reads(3)
		s.read(begin(t, s.c, txn.Named(page), txn.NoPrefetch()), "row9", "a", "b", "c")
		s.reads(3)
		s.want(valueOf(s, takeSnapshot(t, s.c), "row9", "a", "b", "c"), "[a0 b0 c0]")
		s.reads(3)
		s.want(valueOf(s, takeSnapshot(t, s.c, txn.Named(page)), "row9", "a", "b", "c"), "[a0 b0 c0]")
		s.reads(1)

		// What is read ahead in vain is counted, and given up.
		before := s.c.Stats()
		for i := 0; ; i++ {
			n := s.c.Stats().PrefetchedCells
			s.read(begin(t, s.c, txn.Named(page)), "row9", "a")
			if s.c.Stats().PrefetchedCells == n {
				t.Logf("given up after %d rows", i)
				break
			}
			if i > 20 {
				t.Fatal("columns that nobody asks for are read ahead for ever")
			}
		}
		after := s.c.Stats()
		if after.PrefetchUsed != before.PrefetchUsed || after.PrefetchedCells == before.PrefetchedCells {
			t.Errorf("cells read in vain: %+v, then %+v", before, after)
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
	v := snapshot.Table("a") // one for all
	for _, q := range columns {
		values = append(values, s.get(v, row, q))
	}
	return values
}

// What is in the cache is of the transaction's own snapshot, below its own writes.
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

		// A value is the caller's, also that of a cache.
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

// A lock on a column that was not asked for holds nobody up and is not touched;
// whoever asks for the column settles it.
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
				s.want(s.get(v, "row5", "a"), "a0") // and virtual time stands still
				s.want(s.get(v, "row5", "c"), "c0")
				synctest.Wait()
				got := s.faults.Count()
				if got[txntest.StepRead] != 1 || got[txntest.StepRollPrimary]+got[txntest.StepRollBackCell]+got[txntest.StepRollForward] != 0 {
					t.Errorf("requests %v, want one read", got)
				}
				want := "b0"
				if committed {
					want = "b1"
				}
				s.want(s.get(v, "row5", "b"), want)
				if n := s.c.Stats().LocksMet; n != 1 {
					t.Errorf("%d locks met", n)
				}
			})
		})
	}
}

// A column whose newest data is of a later commit is read where its value stands,
// by those who ask for it.
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
		s.reads(3) // with that at the exact timestamp
	})
}

// Only what a serializable transaction asks for conflicts, and all of that,
// wherever it was read from.
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

// Large values are not read ahead, but for the first that nobody expected.
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
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "c") // learns the size
		s.reads(1)
		n := s.c.Stats().PrefetchedCells
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "c")
		s.reads(1)
		if got := s.c.Stats().PrefetchedCells - n; got != 1 {
			t.Errorf("%d cells read ahead, want that of c", got)
		}
		if got := s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "b"); len(got[1]) != 2<<20 {
			t.Errorf("%d bytes of b", len(got[1]))
		}
		s.reads(2)
		grow("c", 600)
		s.read(begin(t, s.c, txn.Named(page)), "row5", "a", "c")
		s.reads(1)
	})
}

// Where what is read ahead makes Bigtable refuse, the read is made without.
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
		s.read(begin(t, s.c, txn.Named(page)), "row6", "a", "b") // it learns anew
		s.reads(2)
		refuse.Store(1)
		tx := begin(t, s.c, txn.Named("other"))
		defer tx.Rollback()
		if _, _, err := tx.Table("a").Get(t.Context(), "row5", "f", "a"); err == nil {
			t.Error("the refusal of what was asked for is lost")
		}
	})
}

// Observers' transactions read ahead as others do, beside what Observe brings.
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

// What is learned does not outlive its use for long.
func TestPrefetchFollowsTheWorkload(t *testing.T) {
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
