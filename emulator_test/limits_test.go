package emulator_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Bigtable's limits, in bytes. The emulator does not have them.
const (
	maxFilter      = 20 << 10
	maxReadRequest = 512 << 10
)

// sizes compares the sizes of requests with Bigtable's limits.
type sizes struct {
	t      *testing.T
	mu     sync.Mutex
	filter map[txntest.Step]int // the largest
	total  map[txntest.Step]int
	count  map[txntest.Step]int
	reads  []*btpb.ReadRowsRequest
}

func newSizes(t *testing.T) *sizes {
	return &sizes{t: t, filter: map[txntest.Step]int{}, total: map[txntest.Step]int{}, count: map[txntest.Step]int{}}
}

func (s *sizes) dialOptions() []grpc.DialOption { return txntest.Intercept(s.see) }

// see measures one request.
func (s *sizes) see(c txntest.Call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	switch r := c.Request.(type) {
	case *btpb.CheckAndMutateRowRequest:
		n = proto.Size(r.PredicateFilter)
	case *btpb.ReadRowsRequest:
		n = proto.Size(r.Filter)
		s.reads = append(s.reads, r)
		if all := proto.Size(r); all > maxReadRequest {
			s.t.Errorf("%s of %d bytes", c.Step, all)
		}
	}
	if n > maxFilter {
		s.t.Errorf("%s with a filter of %d bytes", c.Step, n)
	}
	s.filter[c.Step] = max(s.filter[c.Step], n)
	s.total[c.Step] += n
	s.count[c.Step]++
	return nil
}

func (s *sizes) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = nil
}

// columnNames returns n columns, with names of the greatest allowed length, or short
// ones.
func columnNames(n int, long bool) []txn.Column {
	cols := make([]txn.Column, n)
	for i := range cols {
		cols[i] = txn.Column{Family: "f", Qualifier: fmt.Sprintf("q%03d", i)}
		if long {
			cols[i].Qualifier += strings.Repeat("\xff", 2400-len("f:q000"))
		}
	}
	return cols
}

// setColumns sets columns of a row in which another column was changed meanwhile. Then
// the prewrite has to name its columns.
func setColumns(t *testing.T, c *txn.Client, row string, cols []txn.Column) {
	t.Helper()
	tx, other := begin(t, c), begin(t, c)
	for _, col := range cols {
		tx.Table("a").Set(row, col.Family, col.Qualifier, []byte("v"))
	}
	other.Table("a").Delete(row, "f", "other")
	for _, tx := range []*txn.Txn{other, tx} {
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// No prewrite or read has a filter larger than Bigtable allows, for any number of
// columns and length of names. Before the fix, marker-if-nothing-there was larger for a
// single long name.
func TestFilterSizes(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	step := reducedTo(9) // which comes to 118
	for _, long := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			seen := newSizes(t)
			env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithDialOptions(seen.dialOptions()...))
			env.CreateTable("a", "f")
			counts := []int{1, 2, 3, 5, 8, 20, 60, 117, 118, 119, 150, 300, 500}
			if long {
				counts = []int{1, 2, 3, 5, 8, 20}
			}
			for _, n := range counts {
				setColumns(t, env.Client, fmt.Sprint("row", n), columnNames(n, long))
			}
			s := takeSnapshot(t, env.Client)
			for n := 1; n <= 500; n += step {
				for _, err := range s.Table("a").ReadRows(t.Context(), bigtable.RowList{"row5"}, txn.Columns(columnNames(n, long)...)) {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			synctest.Wait()
			t.Logf("long names: %v; largest filters: %v", long, seen.filter)
		})
	}
}

// The same for the requests that resolve locks: reading the status,
// marker-if-nothing-there, roll forward and back, heartbeat, and the second read of
// exact versions.
func TestFilterSizesOfRecovery(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	short, longest := 400, 30
	if long.Reduced() {
		short, longest = 130, 12 // it takes the emulator a time that grows with the square
	}
	for _, cols := range [][]txn.Column{columnNames(short, false), columnNames(longest, true)} {
		synctest.Test(t, func(t *testing.T) {
			seen := newSizes(t)
			env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithDialOptions(seen.dialOptions()...))
			env.CreateTable("a", "f")
			setColumns(t, env.Client, "many", cols)
			// The primary is never written: marker-if-nothing-there.
			dieLocking(t, env, cols, stepOn(txntest.StepPrewrite, "p"), time.Minute)
			wantColumns(t, takeSnapshot(t, env.Client), cols, "v")
			// The client dies before its commit point.
			dieLocking(t, env, cols, step(txntest.StepCommit), time.Minute)
			wantColumns(t, takeSnapshot(t, env.Client), cols, "v")
			// The client dies after its commit point. A read between start_ts and
			// commit_ts ignores the locks, and reads the older versions separately.
			between := dieLocking(t, env, cols, step(txntest.StepSecondaries), 0)
			wantColumns(t, between, cols, "v")
			wantColumns(t, takeSnapshot(t, env.Client), cols, "w")
			synctest.Wait()
			for _, s := range []txntest.Step{txntest.StepRollPrimary, txntest.StepRollForward, txntest.StepRollBackCell} {
				if seen.count[s] == 0 {
					t.Errorf("no request for %s was made", s)
				}
			}
			t.Logf("largest filters: %v", seen.filter)
		})
	}
}

// dieLocking makes a client write p, the primary, and the columns of row many, and die.
// It returns a snapshot from between start and commit.
func dieLocking(t *testing.T, env *txntest.Env, cols []txn.Column, died func(txntest.Call) bool, later time.Duration) *txn.Snapshot {
	t.Helper()
	faults := txntest.NewFaults(t)
	rule := faults.On("death", died, txntest.Crash, 1)
	victim := env.NewClient(txn.Config{TokenTTL: -1}, append(faults.DialOptions(), newSizes(t).dialOptions()...)...)
	ctx, cancel := context.WithCancel(t.Context())
	tx := begin(t, victim)
	s := takeSnapshot(t, env.Client)
	tx.Table("a").Set("p", "f", cols[0].Qualifier, []byte("v"))
	for _, c := range cols {
		tx.Table("a").Set("many", "f", c.Qualifier, []byte("w"))
	}
	owner := commitInBackground(ctx, tx)
	<-rule.Fired()
	synctest.Wait()
	faults.Kill()
	cancel()
	<-owner
	advance(later)
	return s
}

func wantColumns(t *testing.T, s *txn.Snapshot, cols []txn.Column, value string) {
	t.Helper()
	r, err := s.Table("a").ReadRow(t.Context(), "many")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r["f"]); n != len(cols) {
		t.Errorf("%d columns, want %d", n, len(cols))
	}
	for _, it := range r["f"] {
		if string(it.Value) != value {
			t.Fatalf("%.20s is %q, want %q", it.Column, it.Value, value)
		}
	}
}

// Filters are not smaller than necessary either. A prewrite of 300 short columns that
// have to be named takes three requests; by their bytes it could be two. Before the fix
// it took five.
func TestPrewritesOfManyColumns(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		seen := newSizes(t)
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithDialOptions(seen.dialOptions()...))
		env.CreateTable("a", "f")
		setColumns(t, env.Client, "many", columnNames(300, false))
		synctest.Wait()
		const others = 2 // that of the other column, and the first try, which names no columns
		n, fewest := seen.count[txntest.StepPrewrite]-others, (seen.total[txntest.StepPrewrite]+maxFilter-1)/maxFilter
		if n != 3 || float64(n) > 1.5*float64(fewest) {
			t.Errorf("%d prewrites of a row with 300 short columns, want 3; the predicates' %d bytes fit into %d", n, seen.total[txntest.StepPrewrite], fewest)
		}
	})
}

// Limit(math.MaxInt) reads all rows. Before the fix it overflowed into a negative
// rows_limit.
func TestLargestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := newSizes(t)
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithDialOptions(seen.dialOptions()...))
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "v", "r1", "r2", "r3")
		synctest.Wait()
		s := takeSnapshot(t, env.Client)
		seen.reset()
		for _, rs := range []bigtable.RowSet{nil, bigtable.RowList{"r1", "r2", "r3"}} {
			wantKeys(t, s, rs, []string{"r1", "r2", "r3"}, txn.Limit(math.MaxInt))
		}
		synctest.Wait()
		for _, r := range seen.reads {
			if r.RowsLimit <= 0 || r.RowsLimit > 5000 {
				t.Errorf("rows_limit %d", r.RowsLimit)
			}
		}
	})
}

func wantKeys(t *testing.T, s *txn.Snapshot, rs bigtable.RowSet, want []string, opts ...txn.ReadOption) {
	t.Helper()
	var got []string
	for r, err := range s.Table("a").ReadRows(t.Context(), rs, opts...) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Key())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d rows, want %d: %.100q…", len(got), len(want), got)
	}
}

// A long list of row ranges is split into several requests, as a list of keys is.
// Before the fix the request was larger than Bigtable allows.
func TestLongListOfRanges(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		seen := newSizes(t)
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithDialOptions(seen.dialOptions()...))
		env.CreateTable("a", "f")
		var ranges bigtable.RowRangeList
		var keys bigtable.RowList
		for i := range 5000 {
			start := fmt.Sprintf("%06d%s", i, strings.Repeat("x", 120))
			ranges = append(ranges, bigtable.NewRange(start, start+"y"))
			keys = append(keys, start)
		}
		want := []string{keys[0], keys[1], keys[1800], keys[2500], keys[4998], keys[4999]}
		mustSet(t, env.Client, "v", append(want, "between", "0")...)
		synctest.Wait()
		s := takeSnapshot(t, env.Client)
		backwards := slices.Clone(want)
		slices.Reverse(backwards)
		for _, rs := range []bigtable.RowSet{ranges, keys} {
			seen.reset()
			wantKeys(t, s, rs, want)
			synctest.Wait()
			if len(seen.reads) < 2 {
				t.Errorf("%d requests; the test needs more than one", len(seen.reads))
			}
			wantKeys(t, s, rs, backwards, txn.Reverse())
			for v, err := range admin.Check(t.Context(), env.Client, "a", rs) {
				t.Errorf("violation: %v, %v", v, err)
			}
		}
	})
}
