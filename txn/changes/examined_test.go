package changes_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestExaminedEntries: which requests an entry without a notification costs, and when it is removed: two minutes after it was
// written, at once again, and an hour later. A request that is refused then is an error of the table, and ends the scan.
func TestExaminedEntries(t *testing.T) {
	const (
		look    = "journal read, read"
		examine = look + ", safe point, read"
		none    = "journal read"
	)
	at := func(ts tso.Timestamp) journal.Entry { return journal.Entry{NotifyTS: ts} }
	transaction := func(ts tso.Timestamp) journal.Entry { return journal.Entry{StartTS: ts} }
	failure := func(ts tso.Timestamp) journal.Entry { return journal.Entry{FailureTS: ts} }
	commit := func(m *bigtable.Mutation, ts tso.Timestamp) {
		family, value := format.EncodeCommit(observedCell, observedCell, format.KindPut, ts-5)
		m.Set(family, "f:q", ts.Cell(), value)
	}
	lock := func(m *bigtable.Mutation, ts tso.Timestamp) {
		m.Set(format.LockFamily, "f:q", ts.Cell(), format.EncodeLock(&format.Lock{Cell: observedCell, Primary: observedCell, Kind: format.KindPut, StartTS: ts, TTL: 3 * time.Hour, Observed: true}))
	}
	notify := func(m *bigtable.Mutation, ts tso.Timestamp) { m.Set(format.NotifyFamily, "f:q", ts.Cell(), nil) }
	type change = func(*bigtable.Mutation, tso.Timestamp)
	for name, tt := range map[string]struct {
		entry     func(tso.Timestamp) journal.Entry
		rows      int
		age       time.Duration
		stored    change // with the entry
		drained   bool
		meanwhile change // before read number
		before    int
		want      []string
		left      bool
	}{
		"young":                         {at, 1, 59 * time.Second, nil, false, nil, 0, []string{look, look, examine + ", journal clear"}, true},
		"a notification":                {at, 1, 2 * time.Minute, notify, false, nil, 0, []string{look, look, look}, true},
		"no notification":               {at, 1, 2 * time.Minute, nil, false, nil, 0, []string{examine + ", journal clear", look, examine + ", journal clear, read"}, false},
		"two without a notification":    {at, 2, 2 * time.Minute, nil, false, nil, 0, []string{examine + ", journal clear, read, journal clear", look, examine + ", journal clear, read, read, journal clear, read"}, false},
		"drained":                       {at, 1, 2 * time.Minute, nil, true, nil, 0, []string{examine + ", journal clear", none, none}, false},
		"a transaction, drained":        {transaction, 1, 2 * time.Minute, nil, true, nil, 0, []string{examine + ", journal clear", none, none}, false},
		"an ended transaction":          {transaction, 1, 2 * time.Minute, commit, false, nil, 0, []string{examine + ", journal clear", none, none}, false},
		"a transaction":                 {transaction, 1, 2 * time.Minute, nil, false, nil, 0, []string{examine + ", journal clear", look, examine + ", journal clear, read"}, false},
		"a failure":                     {failure, 1, 2 * time.Minute, nil, false, nil, 0, []string{examine + ", journal clear", look, examine + ", journal clear"}, false},
		"locked meanwhile":              {transaction, 1, 2 * time.Minute, nil, false, lock, 2, []string{examine, look, look}, true},
		"notified meanwhile":            {at, 1, 2 * time.Minute, nil, false, notify, 2, []string{examine, look, look}, true},
		"locked before it is forgotten": {transaction, 1, 2 * time.Minute, nil, false, lock, 6, []string{examine + ", journal clear", look, examine + ", journal clear, read, journal"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			// refuse is a request of the last scan, or 0.
			scan := func(refuse int) (sent [3][]string, errs []error, left int) {
				synctest.Test(t, func(t *testing.T) {
					env := newObservedTable(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}), txntest.WithoutCheck())
					now, err := env.Client.Timestamp(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					apply := func(table, row string, change func(*bigtable.Mutation)) {
						m := bigtable.NewMutation()
						change(m)
						if err := env.Bigtable.Open(table).Apply(t.Context(), row, m); err != nil {
							t.Error(err)
						}
					}
					var cells []txn.Cell
					for _, row := range []string{"r", "s"}[:tt.rows] {
						cell := observedCell
						cell.Row = row
						cells = append(cells, cell)
					}
					if err := access.ResolverOf(env.Client).Journal.Enter(t.Context(), tt.entry(now), cells...); err != nil {
						t.Fatal(err)
					}
					if tt.stored != nil {
						apply("t", "r", func(m *bigtable.Mutation) { tt.stored(m, now) })
					}
					if tt.drained {
						apply(format.DefaultMetadataTable, store.GCRowKey, func(m *bigtable.Mutation) {
							m.Set(store.DeployFamily, "safe-point", 0, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, Ts: int64(now), DrainedTs: int64(now)}))
						})
					}
					var mu sync.Mutex
					n, reads, listening := 0, 0, false
					c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
						mu.Lock()
						defer mu.Unlock()
						if !listening || call.Step == txntest.StepOracle {
							return nil
						}
						sent[n] = append(sent[n], string(call.Step))
						if call.Step == txntest.StepRead {
							if reads++; reads == tt.before {
								apply("t", "r", func(m *bigtable.Mutation) { tt.meanwhile(m, now) })
							}
						}
						if n == 2 && len(sent[n]) == refuse {
							return status.Error(codes.PermissionDenied, "on purpose")
						}
						return nil
					})...)
					if err := c.CheckTable(t.Context(), "t"); err != nil {
						t.Fatal(err)
					}
					for i, pause := range []time.Duration{tt.age, 0, time.Hour} {
						<-time.After(pause)
						if _, err := c.Timestamp(t.Context()); err != nil { // it knows how old entries are
							t.Fatal(err)
						}
						if err := c.CheckTable(t.Context(), "t"); err != nil { // its schema is fresh
							t.Fatal(err)
						}
						if _, err := access.ResolverOf(c).SafePoint.Current(t.Context()); err != nil {
							t.Fatal(err)
						}
						synctest.Wait() // what the client does by itself
						mu.Lock()
						listening, n = true, i
						mu.Unlock()
						for found, err := range changes.Pending(t.Context(), c, []string{"t"}, changes.Part{Of: 1}) {
							if err != nil {
								if errs = append(errs, err); found.Cell.Table != "t" && len(sent[2]) > 1 {
									t.Errorf("of table %q: %v", found.Cell.Table, err)
								}
							}
						}
						mu.Lock()
						listening = false
						mu.Unlock()
					}
					if err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRows(t.Context(), bigtable.PrefixRange(journal.RowPrefix), func(bigtable.Row) bool {
						left++
						return true
					}); err != nil {
						t.Error(err)
					}
				})
				return sent, errs, left
			}
			sent, errs, left := scan(0)
			for i, want := range tt.want {
				if got := strings.Join(sent[i], ", "); got != want {
					t.Errorf("scan %d: sent %s, want %s", i, got, want)
				}
			}
			if len(errs) > 0 || (left > 0) != tt.left {
				t.Errorf("%d entries are left, %v", left, errs)
			}
			for i := range sent[2] {
				want := slices.Clone(sent[2][:i+1])
				if i == 1 {
					want = append(want, "other") // where the tablets end
				} else if i > 0 && want[i] == "read" && want[i-1] == "journal clear" {
					want = append(want, "journal") // the entry comes back
				}
				again, errs, _ := scan(i + 1)
				if len(errs) != 1 || status.Code(errs[0]) != codes.PermissionDenied || !slices.Equal(again[2], want) {
					t.Errorf("without request %d of %q: sent %q, %v", i, sent[2], again[2], errs)
				}
			}
		})
	}
}
