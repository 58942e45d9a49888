package recovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// put stores a committed value of a column of row "r".
func (w *world) put(qualifier string, start, commit tso.Timestamp) {
	w.Helper()
	w.record(qualifier, format.KindPut, start, commit)
	w.Set("a", "r", "f", qualifier, (base + start).Cell(), fmt.Appendf(nil, "v%d", start))
}

// record stores a record of a column of row "r".
func (w *world) record(qualifier string, kind format.Kind, start, commit tso.Timestamp) {
	w.Helper()
	c := format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: qualifier}
	family, value := format.WriteRecord{StartTS: base + start, Kind: kind, Primary: c}.Encode(c)
	w.Set("a", "r", family, "f:"+qualifier, (base + commit).Cell(), value)
}

// plain stores a value that another program has written.
func (w *world) plain(qualifier string, ts bigtable.Timestamp) {
	w.Helper()
	w.Set("a", "r", "f", qualifier, ts, fmt.Appendf(nil, "p%d", ts))
}

// prewrite stores a lock of a column of row "r", and its data.
func (w *world) prewrite(qualifier, primary string, start tso.Timestamp, ttl time.Duration, kind format.Kind, passable bool) {
	w.Helper()
	c := format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: qualifier}
	l := &format.Lock{Cell: c, StartTS: base + start, Kind: kind, Primary: c, TTL: ttl, Passable: passable && qualifier == primary}
	l.Primary.Qualifier = primary
	if l.Passable {
		l.MinCommitTS = l.StartTS
	}
	w.Set("a", "r", format.LockFamily, "f:"+qualifier, l.StartTS.Cell(), format.EncodeLock(l))
	if kind == format.KindPut {
		w.Set("a", "r", "f", qualifier, l.StartTS.Cell(), fmt.Appendf(nil, "v%d", start))
	}
}

// TestReadsOfARow: what a read at 1200, and a read of the latest state, show of a row, and which requests
// they need. testdata/reads.txt lists them.
func TestReadsOfARow(t *testing.T) {
	long.RacedAtNight(t)
	const long = 30 * time.Minute
	expiring := func(m *recordpb.TableSchema) {
		m.Expiries = []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 1000}}
	}
	none := func(*recordpb.TableSchema) {}
	many := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 200)))
		}
		return all
	}
	rows := map[string]struct {
		schema func(*recordpb.TableSchema)
		make   func(w *world)
	}{
		"absent":                   {none, func(*world) {}},
		"put":                      {none, func(w *world) { w.put("q", 100, 150) }},
		"put twice":                {none, func(w *world) { w.put("q", 100, 150); w.put("q", 1150, 1250) }},
		"put at the read":          {none, func(w *world) { w.put("q", 100, 1200) }},
		"deleted":                  {none, func(w *world) { w.put("q", 100, 150); w.record("q", format.KindDelete, 200, 250) }},
		"plain at 0":               {none, func(w *world) { w.plain("q", 0) }},
		"passable over plain at 0": {none, func(w *world) { w.plain("q", 0); w.prewrite("q", "q", 200, long, format.KindPut, true) }},
		"plain":                    {none, func(w *world) { w.plain("q", 1000); w.plain("q", 2000) }},
		"put over plain":           {none, func(w *world) { w.plain("q", 1000); w.put("q", 100, 150) }},
		"put without data":         {none, func(w *world) { w.record("q", format.KindPut, 100, 150) }},
		"columns":                  {none, func(w *world) { w.put("b", 100, 150); w.plain("a", 1000); w.put("c", 100, 150) }},
		"damaged":                  {none, func(w *world) { w.Set("a", "r", format.WriteFamily, "f:q", (base + 1).Cell(), []byte{255}) }},
		"damaged lock":             {none, func(w *world) { w.Set("a", "r", format.LockFamily, "f:q", (base + 1).Cell(), []byte{255}) }},
		"beyond the oracle":        {none, func(w *world) { w.put("q", 100, tso.Timestamp(2*time.Hour/time.Microsecond)) }},
		"locked":                   {none, func(w *world) { w.put("q", 100, 150); w.prewrite("q", "q", 200, long, format.KindPut, false) }},
		"passable":                 {none, func(w *world) { w.put("q", 100, 150); w.prewrite("q", "q", 200, long, format.KindPut, true) }},
		"passable over plain":      {none, func(w *world) { w.plain("q", 1000); w.prewrite("q", "q", 200, long, format.KindPut, true) }},
		"passable, nothing below":  {none, func(w *world) { w.prewrite("q", "q", 200, long, format.KindPut, true) }},
		"passable over a put without data": {none, func(w *world) {
			w.record("q", format.KindPut, 100, 150)
			w.prewrite("q", "q", 200, long, format.KindPut, true)
		}},
		"passable of two columns": {none, func(w *world) {
			w.put("b", 100, 150)
			w.put("c", 100, 160)
			w.prewrite("b", "b", 200, long, format.KindPut, true)
			w.prewrite("a", "b", 200, long, format.KindPut, true)
		}},
		"passable beside a commit": {none, func(w *world) {
			w.put("a", 300, 350)
			w.put("b", 100, 150)
			w.prewrite("b", "b", 200, long, format.KindPut, true)
		}},
		"locked above a commit": {none, func(w *world) { w.put("a", 100, 150); w.prewrite("b", "b", 200, long, format.KindPut, false) }},
		"committed above the read": {none, func(w *world) {
			w.put("q", 100, 150)
			w.prewrite("q", "p", 200, long, format.KindPut, false)
			w.put("p", 200, 1250)
		}},
		"primary committed": {none, func(w *world) {
			w.prewrite("q", "p", 200, long, format.KindPut, false)
			w.put("p", 200, 250)
		}},
		"lock-only, expired": {none, func(w *world) {
			w.put("q", 100, 150)
			w.prewrite("q", "q", 200, time.Millisecond, format.KindLock, false)
		}},
		"lock-only":            {none, func(w *world) { w.put("q", 100, 150); w.prewrite("q", "q", 200, long, format.KindLock, false) }},
		"expired":              {expiring, func(w *world) { w.put("q", 100, 150); w.put("r", 200, 250); w.plain("p", 1000) }},
		"expired at the read":  {expiring, func(w *world) { w.put("q", 100, 200); w.put("r", 100, 201) }},
		"expired below a lock": {expiring, func(w *world) { w.plain("q", 1000); w.prewrite("q", "q", 200, long, format.KindPut, true) }},
		"two locks": {none, func(w *world) {
			w.prewrite("q", "p", 200, long, format.KindPut, false)
			w.prewrite("q", "o", 300, long, format.KindPut, false)
			w.put("p", 200, 250)
			w.put("o", 300, 350)
		}},
		"two passable locks": {none, func(w *world) {
			w.put("q", 100, 150)
			w.prewrite("q", "q", 200, long, format.KindPut, true)
			w.prewrite("q", "q", 300, long, format.KindPut, true)
		}},
		"lock-only above a lock": {none, func(w *world) {
			w.prewrite("q", "p", 200, long, format.KindPut, false)
			w.put("p", 200, 250)
			w.prewrite("q", "o", 300, long, format.KindLock, false)
		}},
		"lock of no column": {none, func(w *world) { w.Set("a", "r", format.LockFamily, "f", (base + 1).Cell(), nil) }},
		"data at the bound": {none, func(w *world) { w.plain("q", format.PlainBefore) }},
		"passable delete": {none, func(w *world) {
			w.put("a", 100, 150)
			w.put("b", 100, 150)
			w.prewrite("a", "a", 200, long, format.KindDelete, true)
		}},
		"deleted, plain and put": {none, func(w *world) {
			w.put("a", 50, 60)
			w.record("a", format.KindDelete, 100, 150)
			w.plain("b", 1000)
			w.put("c", 100, 150)
		}},
		"many puts": {none, func(w *world) {
			for i := range 25 {
				w.put(fmt.Sprintf("%02d", i), 100, 150)
			}
		}},
		"one early": {none, func(w *world) {
			for i := range 30 {
				w.record(fmt.Sprintf("%02d", i), format.KindDelete, 100, 150)
			}
			w.put("00", 160, 170)
			w.put("31", 100, 150)
			w.put("32", 100, 150)
		}},
		"many passable": {none, func(w *world) {
			for _, q := range many(90) {
				w.put(q, 100, 150)
				w.prewrite(q, many(1)[0], 200, long, format.KindPut, true)
			}
		}},
		"many deleted": {none, func(w *world) {
			for i := range 40 {
				w.record(fmt.Sprintf("%02d", i), format.KindDelete, 100, 150)
			}
			w.put("40", 100, 150)
			w.put("41", 100, 150)
			w.plain("42", 1000)
		}},
	}
	selections := map[string]store.Selection{
		"everything":        {},
		"columns":           {Columns: []format.Column{{Family: "f", Qualifier: "q"}, {Family: "f", Qualifier: "b"}}},
		"keys":              {KeysOnly: true},
		"2 of the family":   {Ranges: []store.QualifierRange{{Family: "f"}}, First: 2},
		"many columns":      {Columns: append(columnsOf(many(120)[1:]), format.Column{Family: "f", Qualifier: "q"})},
		"1 of two families": {Ranges: []store.QualifierRange{{Family: "f"}}, Columns: []format.Column{{Family: "g", Qualifier: "q"}}, First: 1},
	}
	g := worldtest.NewGolden(t, "reads.txt", *update)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		t.Run(name, func(t *testing.T) {
			var lines []string
			for _, sel := range slices.Sorted(maps.Keys(selections)) {
				for _, kind := range []string{"at 1200", "latest"} {
					newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
						rows[name].make(w)
						var row bigtable.Row
						var err error
						if kind == "latest" {
							row, err = ReadLatest(w.Context(), w.r, w.table, "r", selections[sel])
						} else {
							row, err = ReadVisible(w.Context(), w.r, w.table, "r", selections[sel], base+1200)
						}
						w.After(time.Second)
						slices.Sort(w.Requests) // some are made in the background
						requests, after, _ := strings.Cut(w.did(), "; resolved ")
						if resolved, _, _ := strings.Cut(after, ";"); resolved != "[]" {
							requests += " resolved " + resolved
						}
						lines = append(lines, fmt.Sprintf("%s, %s: %s %s; %s; newest %d", sel, kind, shown(row), errorName(err), requests, max(w.r.Clock.Newest()-base, 0)))
					}, rows[name].schema)
				}
			}
			g.Compare(t, name, lines)
		})
	}
}

// shown returns the cells of a row, at timestamps from base on. It leaves out what many cells have in
// common.
func shown(row bigtable.Row) string {
	var all []string
	for _, family := range slices.Sorted(maps.Keys(row)) {
		for _, it := range row[family] {
			ts := int64(it.Timestamp)
			if ts > int64(base) {
				ts -= int64(base)
			}
			all = append(all, fmt.Sprintf("%s@%d=%s", strings.TrimRight(it.Column, "x"), ts, it.Value))
		}
	}
	if n := len(all); n > 4 {
		return fmt.Sprintf("[%s … %s: %d]", all[0], all[n-1], n)
	}
	return fmt.Sprint(all)
}

func columnsOf(qualifiers []string) (all []format.Column) {
	for _, q := range qualifiers {
		all = append(all, format.Column{Family: "f", Qualifier: q})
	}
	return all
}

// TestReadsFail: a read ends with the error of any of its requests.
func TestReadsFail(t *testing.T) {
	long.RacedAtNight(t)
	refused := status.Error(codes.PermissionDenied, "")
	rows := map[string]func(w *world){
		"put":       func(w *world) { w.put("q", 100, 150) },
		"put twice": func(w *world) { w.put("q", 100, 150); w.put("q", 1150, 1250) },
		"passable": func(w *world) {
			w.put("q", 100, 150)
			w.prewrite("q", "q", 200, 30*time.Minute, format.KindPut, true)
		},
		"committed lock": func(w *world) {
			w.prewrite("q", "p", 200, 30*time.Minute, format.KindPut, false)
			w.put("p", 200, 250)
		},
		"many deleted": func(w *world) {
			for i := range 40 {
				w.record(fmt.Sprintf("%02d", i), format.KindDelete, 100, 150)
			}
			w.put("40", 100, 150)
		},
	}
	fired := map[string]int{}
	for name, prepare := range rows {
		for _, sel := range []store.Selection{{}, {Ranges: []store.QualifierRange{{Family: "f"}}, First: 1}} {
			for _, latest := range []bool{false, true} {
				for _, kind := range []string{"read", "oracle"} {
					for n := 0; n < 10; n++ {
						failed := false
						newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
							prepare(w)
							w.Faults[kind] = append(make([]error, n), refused)
							var row bigtable.Row
							var err error
							if latest {
								row, err = ReadLatest(w.Context(), w.r, w.table, "r", sel)
							} else {
								row, err = ReadVisible(w.Context(), w.r, w.table, "r", sel, base+1200)
							}
							if failed = len(w.Faults[kind]) == 0; failed && (errorName(err) != "PermissionDenied" || row != nil) || !failed && err != nil {
								t.Errorf("%s, first %d, latest %t, %s %d: %v, %v; failed %t", name, sel.First, latest, kind, n, row, err, failed)
							}
							clear(w.Faults)
						})
						if !failed {
							break
						}
						fired[kind]++
					}
				}
			}
		}
	}
	if fired["read"] < 30 || fired["oracle"] < 8 {
		t.Errorf("faults that fired: %v", fired)
	}
}

// TestLatestExpires: what a read of the latest state leaves out because it has expired, later snapshots
// do not show. So if only the client's estimate says so, it asks the oracle.
func TestLatestExpires(t *testing.T) {
	newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
		w.began = time.Now()
		_, err := w.r.Clock.Timestamp(w.Context())
		must(t, err)
		w.Set("a", "r", "f", "p", bigtable.Timestamp(1000), nil)
		w.put("q", 1, 2)
		w.put("r", 1, tso.Timestamp(time.Minute.Microseconds()))
		w.put("s", 1, 5)
		w.Requests = nil
		row, err := ReadLatest(w.Context(), w.r, w.table, "r", store.Selection{Columns: []format.Column{{Family: "f", Qualifier: "s"}}})
		if shown(row) != "[f:s@5=v1]" || err != nil || len(w.Requests) != 1 || w.r.Clock.Newest() != base+5 {
			t.Errorf("%s, %v, after %v; newest %d", shown(row), err, w.Requests, w.r.Clock.Newest()-base)
		}
		<-time.After(1100 * time.Microsecond)
		w.Requests = nil
		row, err = ReadLatest(w.Context(), w.r, w.table, "r", store.Selection{Columns: []format.Column{{Family: "f", Qualifier: "p"}, {Family: "f", Qualifier: "q"}}})
		if shown(row) != "[]" || err != nil || !slices.Equal(w.Requests, []string{"read r", "oracle", "read r"}) || w.r.Clock.Newest() != base+1100 {
			t.Errorf("%s, %v, after %v; newest %d", shown(row), err, w.Requests, w.r.Clock.Newest()-base)
		}
		w.Requests = nil
		if _, err := ReadLatest(w.Context(), w.r, w.table, "r", store.Selection{Columns: []format.Column{{Family: "f", Qualifier: "q"}}}); err != nil || len(w.Requests) != 1 {
			t.Errorf("again: %v, after %v", err, w.Requests)
		}
	}, func(m *recordpb.TableSchema) {
		m.Expiries = []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 1000}}
	})
}

// TestLatestFails: a read of the latest state returns each error, and no row. The first
// cells of a row are one request. Values expire when the oracle says so, also at the same microsecond.
func TestLatestFails(t *testing.T) {
	of := func(qualifier string) store.Selection {
		return store.Selection{Columns: []format.Column{{Family: "f", Qualifier: qualifier}}}
	}
	for _, tt := range []struct {
		name, fault    string
		skip           time.Duration // after the oracle has answered; 0: it has not
		sel            store.Selection
		want, requests string
	}{
		{"the read", "read", 1, of("p"), "PermissionDenied", "read r"},
		{"the time", "oracle", 0, of("p"), "PermissionDenied", "read r, oracle"},
		{"a damaged record beside a lock", "", 1, of("d"), "corrupt", "read r"},
		{"a damaged name", "", 1, store.Selection{}, "corrupt", "read r"},
		{"the time of expiry", "oracle", 1, of("q"), "PermissionDenied", "read r, oracle"},
		{"expired", "", 1, of("q"), "[]", "read r, oracle, read r"},
		{"first cells", "", 1, store.Selection{Ranges: []store.QualifierRange{{Family: "f", Start: "w"}}, First: 1}, "[f:y@1500=v1]", "read r"},
	} {
		newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
			w.began = time.Now()
			w.plain("p", 1000)
			w.put("q", 1, 2)
			for _, q := range []string{"y", "z"} {
				w.put(q, 1, 1500)
			}
			w.record("w", format.KindDelete, 1, 1500)
			if tt.name == "a damaged record beside a lock" {
				w.Set("a", "r", format.WriteFamily, "f:d", (base + 1).Cell(), []byte{255})
				w.prewrite("d", "d", 5, time.Hour, format.KindPut, false)
			}
			if tt.name == "a damaged name" {
				w.Set("a", "r", format.WriteFamily, "damaged", (base + 1600).Cell(), nil)
			}
			<-time.After(1002 * time.Microsecond)
			if tt.skip > 0 {
				_, err := w.r.Clock.Timestamp(w.Context())
				w.Must(err)
				<-time.After(tt.skip * time.Microsecond)
			}
			w.Requests = nil
			if tt.fault != "" {
				w.Inject(tt.fault, worldtest.Denied)
			}
			row, err := ReadLatest(w.Context(), w.r, w.table, "r", tt.sel)
			got := errorName(err)
			if err == nil {
				got = shown(row)
			} else if row != nil {
				t.Errorf("%s: %s beside %v", tt.name, shown(row), err)
			}
			if got != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
			w.Expect(tt.name, tt.requests)
		}, func(m *recordpb.TableSchema) {
			m.Expiries = []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 1000}}
		})
	}
}

// TestVisibleFails: a read at a timestamp returns the error of a damaged record, also beside a lock that it
// passes, of a damaged name, and of an old schema that it cannot read again.
func TestVisibleFails(t *testing.T) {
	for name, want := range map[string]string{"record": "corrupt", "name": "corrupt", "schema": "PermissionDenied", "none": "ok"} {
		newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
			w.put("q", 1, 2)
			did := "read r"
			switch name {
			case "record":
				w.Set("a", "r", format.WriteFamily, "f:d", (base + 1).Cell(), []byte{255})
				w.prewrite("p", "p", 1100, time.Hour, format.KindPut, true)
				did = "read r, change r"
			case "name":
				w.Set("a", "r", format.WriteFamily, "damaged", (base + 1).Cell(), nil)
			case "schema":
				listed := w.Name
				w.Name = func(kind, table, what string) (string, string) {
					if kind == "scan" {
						return kind, ""
					}
					return listed(kind, table, what)
				}
				<-time.After(w.r.Store.Config.SchemaMaxAge + 1)
				w.Inject("scan", worldtest.Denied, worldtest.Denied) // in the background, and for this read
			}
			row, err := ReadVisible(w.Context(), w.r, w.table, "r", store.Selection{}, base+1200)
			if errorName(err) != want || (row != nil) != (want == "ok") {
				t.Errorf("%s: %s, %v", name, shown(row), err)
			}
			if name != "schema" { // whose requests are in any order
				w.Expect(name, did)
			}
		})
	}
}

// TestReadExactRequests: the columns of one request fit into a filter, and the next one would not.
func TestReadExactRequests(t *testing.T) {
	length := (store.FilterBudget/8-store.FilterOverhead-40)/2 - len("f:")
	for n, want := range map[int]int{7: 1, 8: 2, 14: 2, 15: 3} {
		newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
			var e Evaluation
			for i := range n {
				e.Exact = append(e.Exact, ExactRead{Column: format.Column{Family: "f", Qualifier: fmt.Sprintf("%0*d", length, i)}})
			}
			if err := e.ReadExact(w.Context(), w.table, "r"); err != nil || len(w.Requests) != want || len(e.Exact) != 0 {
				t.Errorf("%d columns: %v, %d requests, want %d", n, err, len(w.Requests), want)
			}
		})
	}
}
