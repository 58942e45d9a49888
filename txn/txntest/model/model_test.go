package model_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// start makes a cluster with table a of 220 MB, which one node scans in a second, in ten
// tablets with ten rows each, and returns plain Bigtable's view of it.
func start(t *testing.T, cfg model.Config) (*model.Cluster, *bigtable.Table) {
	t.Helper()
	cfg.Tables = map[string]model.Table{"a": {Bytes: 220e6, Splits: model.HexSplits("", 10)}}
	c := model.New(cfg)
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
	env.CreateTable("a", "f")
	bt, _ := env.Open(c.Client("plain")...)
	var keys []string
	var muts []*bigtable.Mutation
	for i := range 100 {
		m := bigtable.NewMutation()
		m.Set("f", "q", 1000, []byte("v"))
		keys, muts = append(keys, fmt.Sprintf("%08x", uint64(2*i+1)<<32/200)), append(muts, m)
	}
	if errs, err := env.Bigtable.Open("a").ApplyBulk(t.Context(), keys, muts); err != nil || errs != nil {
		t.Fatal(err, errs)
	}
	return c, bt.Open("a")
}

func within(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want*9/10 || got > want*11/10+time.Millisecond {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}

// timed returns how long f takes.
func timed(t *testing.T, f func() error) time.Duration {
	t.Helper()
	began := time.Now()
	if err := f(); err != nil {
		t.Error(err)
	}
	return time.Since(began)
}

func scan(ctx context.Context, a *bigtable.Table, rs bigtable.RowSet, rows *int, opts ...bigtable.ReadOption) func() error {
	return func() error {
		return a.ReadRows(ctx, rs, func(bigtable.Row) bool { *rows++; return true }, opts...)
	}
}

// A scan takes as long as the bytes that it passes, whether they match or not; a limit
// ends it at its last row.
func TestScan(t *testing.T) {
	none := bigtable.RowFilter(bigtable.FamilyFilter("_none"))
	for name, tt := range map[string]struct {
		set  bigtable.RowSet
		opts []bigtable.ReadOption
		want time.Duration
		rows int
	}{
		"everything":          {bigtable.PrefixRange(""), nil, time.Second, 100},
		"nothing matches":     {bigtable.PrefixRange(""), []bigtable.ReadOption{none}, time.Second, 0},
		"half":                {bigtable.InfiniteRange("80"), nil, time.Second / 2, 50},
		"two tenths of it":    {bigtable.RowRangeList{bigtable.NewRange("cccccccc", "e6666666"), bigtable.NewRange("33333333", "4ccccccc")}, nil, time.Second / 5, 20},
		"the first fifty":     {bigtable.PrefixRange(""), []bigtable.ReadOption{bigtable.LimitRows(50)}, 495 * time.Millisecond, 50},
		"backwards":           {bigtable.PrefixRange(""), []bigtable.ReadOption{bigtable.ReverseScan()}, time.Second, 100},
		"rows by their keys":  {bigtable.RowList{"03d70a3d", "051eb851"}, nil, 0, 1},
		"a range within rows": {bigtable.NewRange("03", "031"), nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, a := start(t, model.Config{Nodes: 10})
				rows, last := 0, ""
				took := timed(t, func() error {
					return a.ReadRows(t.Context(), tt.set, func(r bigtable.Row) bool { rows++; last = max(last, r.Key()); return true }, tt.opts...)
				})
				// Hexadecimal digits are not evenly spread among all bytes, so a part of a
				// tablet is not exactly its part of the keys.
				if took < tt.want*8/10 || took > tt.want*12/10+12*time.Millisecond {
					t.Errorf("took %v, want %v", took, tt.want)
				}
				if rows != tt.rows {
					t.Errorf("%d rows, want %d (last %q)", rows, tt.rows, last)
				}
			})
		})
	}
}

// A scan that finds nothing says how far it came. So the client continues there after an
// error.
func TestLastScannedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := start(t, model.Config{LastScanned: 100 * time.Millisecond})
		c.Unavailable("a", "90", 700*time.Millisecond)
		rows := 0
		took := timed(t, scan(t.Context(), a, bigtable.PrefixRange(""), &rows, bigtable.RowFilter(bigtable.FamilyFilter("_none"))))
		if n := c.Sum(model.All); n.Requests < 2 || n.Refused == 0 || n.Bytes > 250e6 {
			t.Errorf("%+v: want at least two requests that pass little more than the table", n)
		}
		if took < time.Second || took > 2*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A scan of a deadline that is too short expires, and its bytes count.
func TestScanExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := start(t, model.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		rows := 0
		err := scan(ctx, a, bigtable.PrefixRange(""), &rows)()
		if n := c.Sum(model.All); status.Code(err) != codes.DeadlineExceeded || n.Expired != 1 || rows < 40 || rows > 60 {
			t.Errorf("%v after %d rows: %+v", err, rows, n)
		}
	})
}

// Concurrent scans of one node share it, and two nodes scan twice as fast.
func TestScansShareNodes(t *testing.T) {
	for nodes, want := range map[int]time.Duration{1: time.Second, 2: time.Second / 2, 10: time.Second / 10} {
		synctest.Test(t, func(t *testing.T) {
			_, a := start(t, model.Config{Nodes: nodes})
			began := time.Now()
			done := make(chan error)
			bounds := append(append([]string{""}, model.HexSplits("", 10)...), "~")
			for i := range 10 {
				go func() {
					rows := 0
					done <- scan(t.Context(), a, bigtable.NewRange(bounds[i], bounds[i+1]), &rows)()
				}()
			}
			for range 10 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			within(t, fmt.Sprintf("%d nodes", nodes), time.Since(began), want+5*time.Millisecond)
		})
	}
}

func set(a *bigtable.Table, row string) func() error {
	m := bigtable.NewMutation()
	m.Set("f", "q", 1000, []byte("v"))
	return func() error { return a.Apply(context.Background(), row, m) }
}

// A row takes 1,000 mutations a second; other rows do not wait for it.
func TestHotRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := start(t, model.Config{})
		done := make(chan time.Duration)
		for range 500 {
			go func() { done <- timed(t, set(a, "hot")) }()
		}
		<-time.After(3 * time.Millisecond)
		var all []time.Duration
		within(t, "another row", timed(t, set(a, "cold")), 3*time.Millisecond+500*time.Second/14_000)
		for range 500 {
			all = append(all, <-done)
		}
		within(t, "the last one", slices.Max(all), 505*time.Millisecond)
		if table, row, n := c.HottestRow(); table != "a" || row != "hot" || n != 500 {
			t.Errorf("hottest row %s of table %s: %d mutations", row, table, n)
		}
	})
}

// A node takes 17,000 reads a second. Beyond its queue it refuses requests, and says when
// to try again.
func TestBusyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := start(t, model.Config{MaxQueue: 10 * time.Millisecond})
		keys := make(bigtable.RowList, 1700)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		rows := 0
		done := make(chan error)
		go func() { done <- scan(context.Background(), a, keys, new(int))() }()
		synctest.Wait()
		took := timed(t, scan(t.Context(), a, bigtable.SingleRow("a"), &rows))
		if n := c.Sum(model.All); n.Refused != 1 || took < 90*time.Millisecond || took > 130*time.Millisecond {
			t.Errorf("took %v: %+v", took, n)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if points, scans := c.Busy(); points < 90*time.Millisecond || scans != 0 {
			t.Errorf("busy for %v and %v", points, scans)
		}
	})
}

// A throttled cluster refuses everything, an unavailable tablet its rows.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := start(t, model.Config{})
		c.Throttle(time.Second, 300*time.Millisecond)
		took := timed(t, set(a, "x"))
		if n := c.Sum(model.All); n.Refused != 4 || took < time.Second || took > 1300*time.Millisecond {
			t.Errorf("throttled for %v: %+v", took, n)
		}
		c.Unavailable("a", "10", time.Minute)
		within(t, "another tablet", timed(t, set(a, "80")), 5*time.Millisecond)
		m := bigtable.NewMutation()
		m.Set("f", "q", 1000, []byte("v"))
		began := time.Now()
		if errs, err := a.ApplyBulk(t.Context(), []string{"01", "81", "11"}, []*bigtable.Mutation{m, m, m}); err != nil || errs != nil {
			t.Error(err, errs)
		}
		if took := time.Since(began); took < time.Minute-time.Second || took > 2*time.Minute {
			t.Errorf("a bulk mutation with rows of the tablet took %v", took)
		}
	})
}

// A request for a row waits for a quantum of each scan of its node, also if the scan had the node
// for itself, and the scans take as much longer.
func TestScansDelayRequests(t *testing.T) {
	for scans, want := range map[int]time.Duration{0: 5 * time.Millisecond, 1: 10 * time.Millisecond, 8: 45 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			c, a := start(t, model.Config{})
			done := make(chan error)
			for range scans {
				go func() { done <- scan(t.Context(), a, bigtable.PrefixRange(""), new(int))() }()
			}
			began := time.Now()
			<-time.After(50 * time.Millisecond)
			var longest time.Duration
			for range 100 {
				longest = max(longest, timed(t, scan(t.Context(), a, bigtable.SingleRow("80"), new(int))))
			}
			if longest > want+time.Millisecond || longest < want*6/10 {
				t.Errorf("%d scans: a read took %v, want at most %v", scans, longest, want)
			}
			for range scans {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if took := time.Since(began); scans > 0 && (took < time.Duration(scans)*time.Second || took > time.Duration(scans)*1100*time.Millisecond) {
				t.Errorf("%d scans took %v", scans, took)
			}
			if _, busy := c.Busy(); busy > time.Duration(scans)*1010*time.Millisecond || busy < time.Duration(scans)*990*time.Millisecond {
				t.Errorf("%d scans kept the node busy for %v", scans, busy)
			}
		})
	}
}

// A removed cell and the mark that removed it cost each read of its column, conditions of
// mutations and scans too, until a compaction. A newer cell hides them.
func TestRemovedCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := start(t, model.Config{Compaction: time.Hour})
		for i := range 50 {
			m := bigtable.NewMutation()
			m.Set("f", "gone", bigtable.Timestamp(1000+1000*i), nil)
			if err := a.Apply(t.Context(), "80", m); err != nil {
				t.Fatal(err)
			}
		}
		m := bigtable.NewMutation()
		m.DeleteCellsInColumn("f", "gone")
		if err := a.Apply(t.Context(), "80", m); err != nil {
			t.Fatal(err)
		}
		c.Removed("a", "80", "f", "gone", 220_000-51)
		const cost = 100 * time.Millisecond // of 220,000 cells with 100 bytes
		gone, other := bigtable.ColumnRangeFilter("f", "gone", "gonf"), bigtable.ColumnRangeFilter("f", "q", "r")
		change := bigtable.NewMutation()
		change.Set("f", "q", 2000, nil)
		read := func(f bigtable.Filter) func() error {
			return scan(t.Context(), a, bigtable.SingleRow("80"), new(int), bigtable.RowFilter(f))
		}
		condition := func() error { return a.Apply(t.Context(), "80", bigtable.NewCondMutation(gone, nil, change)) }
		row := bigtable.NewRange("80", "80\x00")
		within(t, "a read of the column", timed(t, read(gone)), 5*time.Millisecond+cost)
		within(t, "a read of another column", timed(t, read(other)), 5*time.Millisecond)
		within(t, "a conditional mutation", timed(t, condition), 5*time.Millisecond+cost)
		within(t, "a scan", timed(t, scan(t.Context(), a, row, new(int))), 5*time.Millisecond+cost)
		if err := set(a, "80")(); err != nil {
			t.Fatal(err)
		}
		newer := bigtable.NewMutation()
		newer.Set("f", "gone", 1e6, nil)
		if err := a.Apply(t.Context(), "80", newer); err != nil {
			t.Fatal(err)
		}
		within(t, "a read of a newer cell", timed(t, read(gone)), 5*time.Millisecond)
		if err := a.Apply(t.Context(), "80", m); err != nil {
			t.Fatal(err)
		}
		within(t, "a read after another removal", timed(t, read(gone)), 5*time.Millisecond+cost)
		<-time.After(time.Hour)
		within(t, "a read after a compaction", timed(t, read(gone)), 5*time.Millisecond)
		within(t, "a scan after it", timed(t, scan(t.Context(), a, row, new(int))), 5*time.Millisecond)
	})
}

// One of 500 requests takes 50 to 500 ms longer.
func TestTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a := start(t, model.Config{Tail: 1.0 / 500})
		late := 0
		for range 10_000 {
			switch took := timed(t, scan(t.Context(), a, bigtable.SingleRow("80"), new(int))); {
			case took > 510*time.Millisecond || took > 7*time.Millisecond && took < 54*time.Millisecond:
				t.Fatalf("a read took %v", took)
			case took > 10*time.Millisecond:
				late++
			}
		}
		if late < 5 || late > 50 {
			t.Errorf("%d of 10,000 reads were late, want about 20", late)
		}
	})
}

// While a tablet moves or is split, its requests wait for a second, and other requests do not. Then it is
// on another node.
func TestMovingTablets(t *testing.T) {
	for what, change := range map[string]func(*model.Cluster){
		"move":  func(c *model.Cluster) { c.Move("a", "85") },
		"split": func(c *model.Cluster) { c.Split("a", "85") },
		"away":  func(c *model.Cluster) { c.Away("a", "85", time.Second) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, a := start(t, model.Config{Nodes: 10})
				whole := timed(t, scan(t.Context(), a, bigtable.PrefixRange(""), new(int)))
				change(c)
				began := time.Now()
				bulk := make(chan time.Duration)
				go func() {
					m := bigtable.NewMutation()
					m.Set("f", "bulk", 1000, nil)
					errs, err := a.ApplyBulk(t.Context(), []string{"86", "11"}, []*bigtable.Mutation{m, m})
					if err != nil || errs != nil {
						t.Error(errs, err)
					}
					bulk <- time.Since(began)
				}()
				within(t, "a row of another tablet", timed(t, set(a, "10")), 5*time.Millisecond)
				r, err := a.ReadRow(t.Context(), "11", bigtable.RowFilter(bigtable.ColumnFilter("bulk")))
				if err != nil || len(r) == 0 {
					t.Errorf("%v, %v: the other entry of a bulk mutation waits", r, err)
				}
				if err := set(a, "86")(); err != nil {
					t.Error(err)
				}
				within(t, "a row of the tablet", time.Since(began), time.Second)
				within(t, "a bulk mutation", <-bulk, time.Second)
				rows := 0
				within(t, "a scan", timed(t, scan(t.Context(), a, bigtable.PrefixRange(""), &rows)), whole)
				if rows < 100 {
					t.Errorf("%d rows", rows)
				}
			})
		})
	}
}
