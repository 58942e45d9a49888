package consolecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

const hostile = "<script>hacked=1</script><img src=x onerror=hacked=1>\x1b[31m\u202e\"'`${hacked=1}"

// fake is a source with some contents; it counts what it is asked.
type fake struct {
	name         string // that everything has
	transactions int
	locks        int // of each
	tables       int
	first        bool // the first pass is under way
	runs         map[string]float64
	err          error

	asked    atomic.Int32
	again    atomic.Int32 // how often the checks were asked for
	mu       sync.Mutex   // of writes of the last arguments; pages ask for several things at a time
	table    string
	row      string
	args     []string
	carryOut bool
}

const now = tso.Timestamp(1_795_000_000_000_000)

func (f *fake) Picture(context.Context) (*picture.Picture, error) {
	f.asked.Add(1)
	if f.err != nil {
		return nil, f.err
	}
	p := &picture.Picture{
		Project: "p" + f.name, Instance: "i", TS: now, Time: cli.Time(now), Tables: []string{}, Warnings: []string{}, NotVisible: []string{"much"},
		Oracle: &tsocmd.Report{Row: &tsocmd.RowReport{Mode: "direct"}}, GC: &gccmd.Status{}, Observers: []observercmd.Observer{}, DeadLetters: []picture.DeadLetter{},
	}
	p.Scan = picture.Scan{Complete: !f.first, Rows: 100 * f.tables, Oldest: 3, MaxRequests: 20, MaxBytes: 1e6}
	for i := range f.tables {
		table := fmt.Sprint("table", i, f.name)
		p.Tables = append(p.Tables, table)
		p.Observers = append(p.Observers, observercmd.Observer{Column: table + "/f:q", Observer: "observer" + f.name, Kind: "strong", Pending: i, Failing: i % 3, Dead: i % 2, Lag: float64(i), OldestTS: now})
	}
	if f.name != "" {
		p.Warnings = append(p.Warnings, f.name)
	}
	p.Locks.Locks, p.Locks.Transactions, p.Locks.More = f.transactions*f.locks, f.transactions, f.first
	p.Locks.OldestAge = 99.4
	return p, nil
}

func (f *fake) State(ctx context.Context, since float64) (*picture.State, error) {
	p, err := f.Picture(ctx)
	if err != nil {
		return nil, err
	}
	s := &picture.State{Picture: p, Points: []picture.Point{}, Edges: []watch.Edge{}, Runs: f.runs, GCFacts: p.GC.Facts(), Facts: p.Facts(), Transactions: []picture.Summary{}, Failure: f.name}
	s.Now = picture.Point{Time: float64(now) / 1e6, Locks: f.transactions * f.locks}
	for i := range 30 * min(f.tables, 1) {
		if at := float64(now)/1e6 - 30 + float64(i); at > since {
			s.Points = append(s.Points, picture.Point{Time: at, Locks: f.transactions * f.locks, Pending: i})
		}
	}
	for i, o := range p.Observers {
		s.Edges = append(s.Edges, watch.Edge{Column: o.Column, Observer: o.Observer, Writes: p.Tables[(i+1)%len(p.Tables)] + "/f:q"})
	}
	for i := range min(f.transactions, 100) {
		t := f.txn(i)
		t.Locks = nil
		s.Transactions = append(s.Transactions, picture.Summary{Transaction: t, Locks: f.locks, Age: "3 s", Owner: f.name, Dead: true})
	}
	return s, nil
}

func (f *fake) txn(i int) *inspect.Transaction {
	t := &inspect.Transaction{Primary: "table0/row" + cli.Line(f.name) + "/f:q", StartTS: now + tso.Timestamp(i), State: "committed", Outcome: doctor.Forward, Verdict: "safe" + f.name, Owner: f.name, OwnerToken: admin.OwnerStale, TraceID: f.name, Locks: []inspect.Lock{}}
	for n := range f.locks {
		t.Locks = append(t.Locks, inspect.Lock{Cell: fmt.Sprintf("table%d/row%d%s/f:q", n%3, n, f.name), Kind: "put"})
	}
	return t
}

func (f *fake) Tables(context.Context) ([]picture.Table, error) {
	f.asked.Add(1)
	all := []picture.Table{}
	for i := range f.tables {
		all = append(all, picture.Table{Name: fmt.Sprint("table", i, f.name), Rows: i * 1000, Complete: !f.first, Columns: []string{}})
	}
	return all, f.err
}

func (f *fake) Heat(_ context.Context, table string) (*picture.Heat, error) {
	f.asked.Add(1)
	f.mu.Lock()
	f.table = table
	f.mu.Unlock()
	h := &picture.Heat{Bounds: []string{"m" + f.name}, Slots: []watch.HeatSlot{}, Slot: 10, GC: &gccmd.Status{}}
	for i := range 20 {
		h.Slots = append(h.Slots, watch.HeatSlot{Time: int64(now)/1e7*10 + int64(10*i), Locks: []int{i, 0}, Conflicts: []int{0, 0}, Pending: []int{1, 2}})
	}
	return h, f.err
}

func (f *fake) Letters(context.Context) ([]picture.DeadLetter, error) {
	f.asked.Add(1)
	all := []picture.DeadLetter{}
	for i := range f.tables {
		all = append(all, picture.DeadLetter{Cell: fmt.Sprintf("table%d/r%s/f:q", i, f.name), Observer: "observer" + f.name, Parked: cli.Time(now), Error: f.name})
	}
	return all, f.err
}

func (f *fake) Row(_ context.Context, table, row string) (*rowAnswer, error) {
	f.asked.Add(1)
	f.mu.Lock()
	f.table, f.row = table, row
	f.mu.Unlock()
	a := &readcmd.Row{Now: now + 100, RowHistory: &admin.RowHistory{SafePoint: now + 1}}
	for i := range tso.Timestamp(10) {
		column, text := fmt.Sprintf("f:q%d%s", i%3, f.name), "value"+f.name
		a.Events = append(a.Events, readcmd.Event{TS: now + 2*i, StartTS: now + 2*i, Kind: admin.VersionData, Column: column, Text: &text, Size: 5, Words: f.name},
			readcmd.Event{TS: now + 2*i + 1, StartTS: now + 2*i, CommitTS: now + 2*i + 1, Kind: admin.VersionWrite, Write: "put", Column: column, Words: f.name})
		a.Readings = append(a.Readings, admin.Reading{Cell: txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: column[2:]}, From: now + 2*i + 1, To: now + 2*i + 7, Shown: admin.ShownValue, Value: []byte(text), CommitTS: now + 2*i + 1})
	}
	for i, k := range []admin.VersionKind{admin.VersionPlain, admin.VersionLock, admin.VersionRollback, admin.VersionLockOnly, admin.VersionNotify, admin.VersionFailure, admin.VersionUnreadable} {
		a.Events = append(a.Events, readcmd.Event{TS: now + 50 + tso.Timestamp(i), Kind: k, Column: "f:q" + f.name, Primary: "table0/r/f:q" + f.name, StartTS: 7, Words: f.name})
	}
	return newRowAnswer(a), f.err
}

func (f *fake) Transaction(_ context.Context, primary txn.Cell, _ tso.Timestamp) (*txnAnswer, error) {
	f.asked.Add(1)
	f.mu.Lock()
	f.table, f.row = primary.Table, primary.Row
	f.mu.Unlock()
	return &txnAnswer{Transaction: f.txn(0), Age: "3 s", OwnerT: f.name, Cells: []readcmd.Event{{TS: now, Cell: "table0/r/f:q" + f.name, Kind: admin.VersionWrite, Words: f.name}}}, f.err
}

func (f *fake) Doctor(_ context.Context, again bool) (*health, error) {
	f.asked.Add(1)
	at := 1.0
	if again {
		f.again.Add(1)
	}
	if f.again.Load() > 0 {
		at = float64(time.Now().UnixMilli()) / 1000
	}
	r := &checks.Report{Checks: []doctor.Result{{Check: "stranded locks", State: doctor.OK}}}
	switch {
	case f.first:
		r.Checks[0] = doctor.Result{Check: "stranded locks", State: doctor.Found, Findings: []doctor.Finding{{Severity: doctor.Warning, Subject: "table0", What: "9 locks of dead clients"}}}
	case f.name != "":
		r.Checks = append(r.Checks, doctor.Result{Check: "oracle", State: doctor.OK, Detail: f.name, Findings: []doctor.Finding{{Severity: doctor.Error, Subject: f.name, What: f.name, Fix: f.name}}})
	}
	return &health{At: at, Report: r}, f.err
}

func (f *fake) Command(args []string, carryOut bool) (*job, error) {
	f.asked.Add(1)
	f.mu.Lock()
	f.args, f.carryOut = args, carryOut
	f.mu.Unlock()
	return &job{Name: "j", Done: true, Text: f.name}, f.err
}

func (f *fake) Job(string) (*job, error) { return &job{Name: "j", Done: true, Text: f.name}, f.err }

type asker func(method, path, body string, edit func(*http.Request)) (*http.Response, string)

func serve(t *testing.T, f *fake, cfg Config) (url string, ask asker) {
	t.Helper()
	cfg.Refresh = time.Second
	s := httptest.NewServer(newHandler(f, cfg))
	t.Cleanup(s.Close)
	return s.URL, func(method, path, body string, edit func(*http.Request)) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if edit != nil {
			edit(r)
		}
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(answer)
	}
}

// TestAnswers: every address answers with its type and the headers, also after an error.
func TestAnswers(t *testing.T) {
	f := &fake{name: hostile, tables: 1, transactions: 1, locks: 1}
	_, ask := serve(t, f, Config{})
	for _, test := range []struct {
		path   string
		status int
		kind   string
		says   string
	}{
		{"/", 200, "text/html", "<script type=\"module\" src=\"main.js\">"},
		{"/main.js", 200, "text/javascript", "import"},
		{"/style.css", 200, "text/css", "--bg"},
		{"/vendor/uplot.js", 200, "text/javascript", "uPlot"},
		{"/api/config", 200, "application/json", `"writes":false`},
		{"/api/state", 200, "application/json", `"transactions":[{`},
		{"/api/tables", 200, "application/json", `"rows":0`},
		{"/api/heat?table=t", 200, "application/json", `"slots":[`},
		{"/api/row?table=t&row=a%252Fb%2500", 200, "application/json", `"events":[`},
		{"/api/row?table=t&row=%25zz", 400, "application/json", "escape"},
		{"/api/row?row=x", 400, "application/json", "no table"},
		{"/api/txn?primary=t/r/f:q&start=7", 200, "application/json", `"cells":[`},
		{"/api/txn?primary=t&start=7", 400, "application/json", "error"},
		{"/api/txn?primary=t/r/f:q&start=x", 400, "application/json", "START_TS"},
		{"/api/letters", 200, "application/json", `"observer":`},
		{"/api/doctor", 200, "application/json", `"report":`},
		{"/picture.json", 200, "application/json", `"not_visible":["much"]`},
		{"/nothing", 404, "text/plain", ""},
		{"/api/nothing", 404, "text/plain", ""},
	} {
		res, body := ask(http.MethodGet, test.path, "", nil)
		if res.StatusCode != test.status || !strings.HasPrefix(res.Header.Get("Content-Type"), test.kind) || !strings.Contains(body, test.says) {
			t.Errorf("%s: %s, %s, %.200s", test.path, res.Status, res.Header.Get("Content-Type"), body)
		}
		if test.kind == "application/json" && strings.ContainsAny(body, "<>\x1b") {
			t.Errorf("%s: contents are not escaped:\n%s", test.path, body)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self';", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if name == "Cache-Control" && res.StatusCode == http.StatusNotFound {
				continue // net/http removes it from errors
			}
			if got := res.Header.Get(name); !strings.HasPrefix(got, want) || strings.Contains(got, "unsafe") {
				t.Errorf("%s: %s: %q", test.path, name, got)
			}
		}
	}
	if _, _ = ask(http.MethodGet, "/api/row?table=t&row=a%252Fb%2500", "", nil); f.table != "t" || f.row != "a/b\x00" {
		t.Errorf("it asked for table %q, row %q", f.table, f.row)
	}
	for _, test := range []struct {
		err    error
		status int
	}{
		{errors.New("broken " + hostile), 503},
		{&cli.Error{Code: cli.ExitUnavailable, Err: errors.New("no server leads")}, 503},
		{&cli.Error{Code: cli.ExitNotFound, Err: errors.New("no such table")}, 404},
	} {
		f.err = test.err
		for _, path := range []string{"/api/state", "/api/row?table=t&row=r", "/picture.json"} {
			if res, body := ask(http.MethodGet, path, "", nil); res.StatusCode != test.status || !strings.HasPrefix(body, `{"error":"`) {
				t.Errorf("%v at %s: %s\n%s", test.err, path, res.Status, body)
			}
		}
	}
}

// TestWhoMayAsk: other methods, other names of this machine and other sites are
// refused, before anything is read.
func TestWhoMayAsk(t *testing.T) {
	f := &fake{}
	base, ask := serve(t, f, Config{})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	for _, test := range []struct {
		name   string
		method string
		edit   func(*http.Request)
		status int
	}{
		{"GET", http.MethodGet, nil, 200},
		{"HEAD", http.MethodHead, nil, 200},
		{"POST", http.MethodPost, nil, 403},
		{"PUT", http.MethodPut, nil, 405},
		{"DELETE", http.MethodDelete, nil, 405},
		{"OPTIONS", http.MethodOptions, nil, 405},
		{"localhost", http.MethodGet, host("localhost:" + port), 200},
		{"IPv6", http.MethodGet, host("[::1]:" + port), 200},
		{"rebound name", http.MethodGet, host("evil.example:" + port), 403},
		{"rebound name like localhost", http.MethodGet, host("localhost.evil.example:" + port), 403},
		{"rebound name like an address", http.MethodGet, host("127.0.0.1.evil.example:" + port), 403},
		{"other port", http.MethodGet, host("127.0.0.1:1"), 403},
		{"no port", http.MethodGet, host("127.0.0.1"), 403},
		{"other address", http.MethodGet, host("192.0.2.1:" + port), 403},
		{"request of another site", http.MethodGet, headers("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), 403},
		{"link from another site", http.MethodGet, headers("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 200},
	} {
		before := f.asked.Load()
		res, body := ask(test.method, "/api/state", "", test.edit)
		if res.StatusCode != test.status || (f.asked.Load() != before) != (test.status == 200) {
			t.Errorf("%s: %s, asked %d times\n%s", test.name, res.Status, f.asked.Load()-before, body)
		}
		if test.method == http.MethodHead && body != "" {
			t.Errorf("HEAD: %q", body)
		}
		if res.Header.Get("X-Frame-Options") == "" {
			t.Errorf("%s: no headers", test.name)
		}
	}
}

func headers(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Set(pairs[i], pairs[i+1])
		}
	}
}

// TestWhoMayChange: a change needs --allow-writes and the token that only the page can
// read, as JSON and from the page's own origin.
func TestWhoMayChange(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		f := &fake{}
		base, ask := serve(t, f, Config{AllowWrites: allowed})
		_, body := ask(http.MethodGet, "/api/config", "", nil)
		var settings struct{ Token string }
		if err := json.Unmarshal([]byte(body), &settings); err != nil || len(settings.Token) < 20 {
			t.Fatalf("%v in %s", err, body)
		}
		const asJSON = "application/json"
		for _, test := range []struct {
			name   string
			edit   func(*http.Request)
			body   string
			status int
		}{
			{"the page", headers("X-Percctl-Token", settings.Token, "Content-Type", asJSON, "Origin", base, "Sec-Fetch-Site", "same-origin"), `{"action":"gc"}`, 200},
			{"no token", headers("Content-Type", asJSON), `{"action":"gc"}`, 403},
			{"wrong token", headers("X-Percctl-Token", settings.Token+"x", "Content-Type", asJSON), `{"action":"gc"}`, 403},
			{"a form", headers("X-Percctl-Token", settings.Token, "Content-Type", "text/plain"), `{"action":"gc"}`, 403},
			{"other origin", headers("X-Percctl-Token", settings.Token, "Content-Type", asJSON, "Origin", "http://evil.example"), `{"action":"gc"}`, 403},
			{"other site", headers("X-Percctl-Token", settings.Token, "Content-Type", asJSON, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), `{"action":"gc"}`, 403},
			{"no such action", headers("X-Percctl-Token", settings.Token, "Content-Type", asJSON), `{"action":"drop"}`, 400},
			{"no JSON", headers("X-Percctl-Token", settings.Token, "Content-Type", asJSON), `{`, 400},
			{"too long", headers("X-Percctl-Token", settings.Token, "Content-Type", asJSON), `{"action":"` + strings.Repeat("x", maxBody) + `"}`, 400},
		} {
			for _, path := range []string{"/api/plan", "/api/act"} {
				f.args = nil
				want := test.status
				if !allowed && want == 200 {
					want = 400
				}
				res, body := ask(http.MethodPost, path, test.body, test.edit)
				if res.StatusCode != want || (f.args != nil) != (want == 200) || f.args != nil && f.carryOut != (path == "/api/act") {
					t.Errorf("%s, allowed %v, %s: %s, args %q\n%s", test.name, allowed, path, res.Status, f.args, body)
				}
			}
		}
	}
}

// TestOrders: what is stored or typed cannot become a flag of the command.
func TestOrders(t *testing.T) {
	for _, test := range []struct {
		order order
		want  []string
	}{
		{order{Action: "resolve", Primary: "--yes", StartTS: 7}, []string{"lock", "resolve", "--transaction", "--", "--yes", "7"}},
		{order{Action: "resolve all"}, []string{"lock", "resolve", "--all"}},
		{order{Action: "replay", Cell: "-x", Observer: "--all"}, []string{"notify", "replay", "--observer=--all", "--", "-x"}},
		{order{Action: "replay", Observer: "o"}, []string{"notify", "replay", "--observer=o"}},
		{order{Action: "park", Cell: "t/r/f:q", Observer: "o"}, []string{"notify", "park", "--observer=o", "--", "t/r/f:q"}},
		{order{Action: "gc"}, []string{"gc", "run"}},
	} {
		if got, err := test.order.args(); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q, %v", test.order, got, err)
		}
	}
	if got := cli.Shell([]string{"lock", "--", "a b", "it's", "t/r/f:q"}); got != `lock 'a b' 'it'\''s' t/r/f:q` {
		t.Error(got)
	}
}

func TestCheckListen(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:0": true, "127.8.9.1:80": true, "[::1]:7080": true, "localhost:7080": true,
		":7080": false, "0.0.0.0:7080": false, "[::]:7080": false, "192.0.2.1:7080": false, "localhost.example:80": false, "127.0.0.1": false, "": false,
	} {
		if err := checkListen(listen); (err == nil) != ok {
			t.Errorf("%q: %v", listen, err)
		}
	}
}
