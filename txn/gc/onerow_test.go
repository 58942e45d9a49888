package gc_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestOneRow: what a run removes from a row with locks, or with newest deletes, and with which requests.
// What came since the row was read is not hidden and not lost. A request that is refused ends it.
func TestOneRow(t *testing.T) {
	long.RacedAtNight(t)
	const first = tso.Timestamp(946_684_799_000_000) // a second before the virtual time begins; the safe point is 100 later
	column := func(n int) txn.Column {
		return txn.Column{Family: "f", Qualifier: fmt.Sprintf("%d%s", n, strings.Repeat("q", 2000*min(n, 1)))}
	}
	cell := func(n int) txn.Cell {
		return txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: column(n).Qualifier}
	}
	record := func(m *bigtable.Mutation, n int, kind format.Kind, start, commit tso.Timestamp) {
		family, value := format.EncodeCommit(cell(n), cell(n), kind, first+start)
		m.Set(family, column(n).Key(), (first + commit).Cell(), value)
		if kind == format.KindPut {
			m.Set("f", column(n).Qualifier, (first + start).Cell(), []byte("v"))
		}
	}
	deleted := func(m *bigtable.Mutation, n int) {
		record(m, n, format.KindPut, 10, 20)
		record(m, n, format.KindDelete, 30, 40)
	}
	primary := txn.Cell{Table: "a", Row: "p", Family: "f", Qualifier: "q"}
	lock := func(m *bigtable.Mutation, primary txn.Cell, ttl time.Duration) {
		const start = 60
		m.Set("f", column(0).Qualifier, (first + start).Cell(), []byte("new"))
		m.Set(format.LockFamily, column(0).Key(), (first + start).Cell(), format.EncodeLock(&format.Lock{Cell: cell(0), Primary: primary, Kind: format.KindPut, StartTS: first + start, TTL: ttl}))
	}
	// notified notifies a column that a request names.
	notified := func(m *bigtable.Mutation, request string) {
		for n := range 6 {
			if q := column(n).Qualifier; strings.Contains(request, `"`+q+`"`) {
				m.Set(format.NotifyFamily, column(n).Key(), (first + 50).Cell(), nil)
				return
			}
		}
	}
	for name, tt := range map[string]struct {
		stored    func(*bigtable.Mutation)
		committed bool                                       // the transaction of the lock
		meanwhile func(m *bigtable.Mutation, request string) // after the row was read
		counts    gc.Counts                                  // without bytes
		locks     gc.LockCounts
		requests  string
	}{
		"a newest delete": {func(m *bigtable.Mutation) { deleted(m, 0) }, false, nil,
			gc.Counts{RowsChanged: 1, Versions: 2, Deletes: 1, Data: 1, Cells: 3}, gc.LockCounts{}, "collect row r"},
		"a newest delete, and another column": {func(m *bigtable.Mutation) {
			deleted(m, 0)
			record(m, 1, format.KindPut, 10, 20)
			record(m, 1, format.KindPut, 30, 40)
		}, false, nil, gc.Counts{RowsChanged: 1, Versions: 3, Deletes: 1, Data: 2, Cells: 5}, gc.LockCounts{}, "collect row r, collect r"},
		"a newest delete that is notified meanwhile": {func(m *bigtable.Mutation) { deleted(m, 0) }, false, notified,
			gc.Counts{RowsChanged: 1, Versions: 1, Data: 1, Cells: 2}, gc.LockCounts{}, "collect row r, read r, collect r"},
		"several newest deletes, one of which is notified meanwhile": {func(m *bigtable.Mutation) {
			for n := range 5 {
				deleted(m, n+1)
			}
		}, false, notified, gc.Counts{RowsChanged: 1, Versions: 3, Deletes: 1, Data: 2, Cells: 5}, gc.LockCounts{}, "collect row r, collect row r, collect row r, read r, collect row r, collect r"},
		"a lock of a committed transaction": {func(m *bigtable.Mutation) {
			record(m, 0, format.KindPut, 10, 20)
			lock(m, primary, time.Microsecond)
		}, true, nil, gc.Counts{RowsChanged: 1, Versions: 1, Data: 1, Cells: 2}, gc.LockCounts{Found: 1, RolledForward: 1}, "read p, roll forward r, read r, collect r"},
		"a lock of a live transaction": {func(m *bigtable.Mutation) { lock(m, cell(0), time.Hour) }, false, nil,
			gc.Counts{RowsSkipped: 1}, gc.LockCounts{}, "read r, read r, read r, read r, read r, read r"},
		"a lock that is gone": {func(m *bigtable.Mutation) { lock(m, primary, time.Hour) }, false, func(m *bigtable.Mutation, _ string) {
			m.DeleteCellsInColumn(format.LockFamily, column(0).Key())
		}, gc.Counts{}, gc.LockCounts{Found: 1, Gone: 1}, "read p, read r, read r"},
		"a damaged record": {func(m *bigtable.Mutation) {
			m.Set(format.WriteFamily, column(0).Key(), (first + 20).Cell(), []byte("\xff"))
		}, false, nil, gc.Counts{RowsSkipped: 1}, gc.LockCounts{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			// refuse is the request that is refused, or 0.
			collect := func(refuse int) (n gc.Counts, locks gc.LockCounts, sent []string, err error) {
				synctest.Test(t, func(t *testing.T) {
					env := newTable(t, txntest.WithoutCheck())
					apply := func(row string, change func(*bigtable.Mutation)) {
						m := bigtable.NewMutation()
						change(m)
						if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
							t.Error(err)
						}
					}
					apply("r", tt.stored)
					if tt.committed {
						apply("p", func(m *bigtable.Mutation) {
							family, value := format.EncodeCommit(primary, primary, format.KindPut, first+60)
							m.Set(family, primary.Column().Key(), (first + 70).Cell(), value)
						})
					}
					var mu sync.Mutex
					listening, seen := false, 0
					c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
						mu.Lock()
						defer mu.Unlock()
						if call.Table != "a" {
							return nil
						}
						if seen++; seen == 1 || !listening {
							return nil // it reads the row
						}
						if sent = append(sent, string(call.Step)+" "+call.Row); seen == 2 && tt.meanwhile != nil {
							apply("r", func(m *bigtable.Mutation) { tt.meanwhile(m, fmt.Sprint(call.Request)) })
						}
						if len(sent) == refuse {
							return status.Error(codes.PermissionDenied, "on purpose")
						}
						return nil
					})...)
					if err := c.CheckTable(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					listening, seen = true, 0
					mu.Unlock()
					n, locks, err = gc.CollectRow(t.Context(), access.ResolverOf(c), first+100, first+100, "a", "r")
				})
				n.Bytes = 0
				return n, locks, sent, err
			}
			n, locks, sent, err := collect(0)
			if got := strings.Join(sent, ", "); n != tt.counts || locks != tt.locks || got != tt.requests || err != nil {
				t.Errorf("%+v, %+v, with %q, %v; want %+v, %+v, with %q", n, locks, got, err, tt.counts, tt.locks, tt.requests)
			}
			for i := range sent {
				if _, _, again, err := collect(i + 1); status.Code(err) != codes.PermissionDenied || !slices.Equal(again, sent[:i+1]) {
					t.Errorf("without %s: sent %q, %v", sent[i], again, err)
				}
			}
		})
	}
}

// TestRowsOfAPage: the rows of a page are collected in one request, but for those with locks, with newest deletes or with damaged
// records: also those of a lock that comes after the locks were resolved. A plan counts what a run skips.
func TestRowsOfAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t, txntest.WithoutCheck())
		for _, value := range []string{"1", "2"} {
			for _, row := range []string{"bob", "joe", "late", "damaged"} {
				set(t, env.Client, row, value)
			}
		}
		startTS, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		apply := func(row string, change func(*bigtable.Mutation)) {
			m := bigtable.NewMutation()
			change(m)
			if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
				t.Error(err)
			}
		}
		apply("damaged", func(m *bigtable.Mutation) { m.Set(format.WriteFamily, "f:q", startTS.Cell(), []byte("\xff")) })
		<-time.After(retention + time.Minute)
		if r, err := gc.Plan(t.Context(), env.Client, gc.Config{Retention: retention}); err != nil || r.Total.Rows != 4 || r.Total.RowsSkipped != 1 || r.Total.Versions != 3 {
			t.Errorf("plan: %+v, %v", r, err)
		}
		var mu sync.Mutex
		var sent []string
		collecting := false
		c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if call.Table != "a" {
				return nil
			}
			if read, ok := call.Request.(*btpb.ReadRowsRequest); ok && !collecting && strings.Contains(read.GetFilter().String(), format.MarkFamily) {
				collecting = true
				cell := txn.Cell{Table: "a", Row: "late", Family: "f", Qualifier: "q"}
				apply("late", func(m *bigtable.Mutation) {
					m.Set(format.LockFamily, "f:q", startTS.Cell(), format.EncodeLock(&format.Lock{Cell: cell, Primary: cell, Kind: format.KindPut, StartTS: startTS, TTL: time.Second}))
				})
			}
			if write, ok := call.Request.(*btpb.MutateRowsRequest); ok {
				rows := ""
				for _, e := range write.Entries {
					rows += " " + string(e.RowKey)
				}
				sent = append(sent, string(call.Step)+rows)
			}
			return nil
		})...)
		r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention, Rate: 1000})
		want := gc.Counts{Rows: 4, RowsSkipped: 1, RowsChanged: 3, Versions: 3, Data: 3, Cells: 6, Bytes: r.Total.Bytes}
		if err != nil || r.Total != want || r.Locks != (gc.LockCounts{Found: 1, RolledBack: 1}) {
			t.Errorf("%+v, %v; want %+v", r, err, want)
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"collect bob joe", "collect late"}; !slices.Equal(sent, want) {
			t.Errorf("sent %q, want %q", sent, want)
		}
	})
}
