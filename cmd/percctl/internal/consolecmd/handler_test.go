package consolecmd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
)

const hostile = "<script>alert(1)</script>\x1b[31m\u202e\"'"

// fake is a source with hostile contents; it counts what it is asked.
type fake struct {
	err        error
	asked      int
	table, row string
	events     int
}

func (f *fake) Picture(context.Context) (*picture.Picture, error) {
	f.asked++
	if f.err != nil {
		return nil, f.err
	}
	p := &picture.Picture{
		Project: hostile, Instance: "i", Tables: []string{hostile}, Warnings: []string{hostile}, NotVisible: []string{"much"},
		Oracle: &tsocmd.Report{Row: &tsocmd.RowReport{Mode: hostile}}, GC: &gccmd.Status{},
		Observers:   []observercmd.Observer{{Column: hostile, Observer: hostile, Kind: "strong"}},
		DeadLetters: []picture.DeadLetter{{Cell: "t/" + hostile + "/f:q", Observer: hostile, Error: hostile}},
	}
	p.Notifications.Dead = 30
	locks := make([]inspect.Lock, 12)
	for i := range locks {
		locks[i] = inspect.Lock{Cell: "t/a%2Fb%00/f:q", Kind: "put"}
	}
	p.Locks.Listed, p.Locks.Transactions = []*inspect.Transaction{{Primary: "t/a%2Fb%00/f:q", Verdict: hostile, Owner: hostile, Locks: locks}}, 5
	return p, nil
}

func (f *fake) Timeline(_ context.Context, table, row string) ([]readcmd.Event, error) {
	f.asked++
	f.table, f.row = table, row
	if f.err != nil {
		return nil, f.err
	}
	events := make([]readcmd.Event, f.events)
	for i := range events {
		events[i] = readcmd.Event{TS: tso.Timestamp(i + 1), Column: hostile, Words: hostile}
	}
	return events, nil
}

func serve(t *testing.T, f *fake) (url string, ask func(method, path string, edit func(*http.Request)) (*http.Response, string)) {
	t.Helper()
	s := httptest.NewServer(newHandler(f, 7*time.Second))
	t.Cleanup(s.Close)
	return s.URL, func(method, path string, edit func(*http.Request)) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
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
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
}

// TestPages: hostile contents are text, links lead to rows, and headers are on
// every answer.
func TestPages(t *testing.T) {
	f := &fake{events: shownEvents + 3}
	_, ask := serve(t, f)
	for _, test := range []struct {
		path   string
		status int
		says   []string
	}{
		{"/", 200, []string{`<meta http-equiv="refresh" content="7">`, `href="/row?row=a%2Fb%2500&amp;table=t"`, "12 locks in all", "The oldest 1 of 5 transactions", "The first 1 of 30", "&lt;script&gt;"}},
		{"/row", 200, []string{`<form action="/row"`}},
		{"/row?table=t&row=a%252Fb%2500", 200, []string{"3 earlier ones are left out", "&lt;script&gt;", `value="a%2Fb%00"`}},
		{"/row?table=t&row=%25zz", 400, []string{"escape"}},
		{"/row?row=x", 400, []string{"no table"}},
		{"/row?table=%3Cscript%3E&row=%22%3E%3Cscript%3E", 200, []string{`value="&lt;script&gt;"`}},
		{"/picture.json", 200, []string{`"not_visible":["much"]`}},
		{"/style.css", 200, []string{"body {"}},
		{"/nothing", 404, nil},
		{"/assets/head.html", 404, nil},
	} {
		res, body := ask(http.MethodGet, test.path, nil)
		if res.StatusCode != test.status {
			t.Errorf("%s: %s", test.path, res.Status)
		}
		for _, want := range test.says {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not say %q:\n%s", test.path, want, body)
			}
		}
		if test.path != "/picture.json" && strings.ContainsAny(body, "\x1b\u202e") || strings.Contains(body, "<script") {
			t.Errorf("%s: contents are not escaped:\n%s", test.path, body)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := res.Header.Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s: %q", test.path, name, got)
			}
		}
	}
	if _, _ = ask(http.MethodGet, "/row?table=t&row=a%252Fb%2500", nil); f.table != "t" || f.row != "a/b\x00" {
		t.Errorf("it asked for table %q, row %q", f.table, f.row)
	}
}

// TestWhoMayAsk: other methods, other names of this machine and other sites are
// refused, before anything is read.
func TestWhoMayAsk(t *testing.T) {
	f := &fake{}
	base, ask := serve(t, f)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	header := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	for _, test := range []struct {
		name   string
		method string
		edit   func(*http.Request)
		status int
	}{
		{"GET", http.MethodGet, nil, 200},
		{"HEAD", http.MethodHead, nil, 200},
		{"POST", http.MethodPost, nil, 405},
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
		{"image of another site", http.MethodGet, header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), 403},
		{"link from another site", http.MethodGet, header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 200},
	} {
		before := f.asked
		res, body := ask(test.method, "/", test.edit)
		if res.StatusCode != test.status || (f.asked != before) != (test.status == 200) {
			t.Errorf("%s: %s, asked for %d pictures\n%s", test.name, res.Status, f.asked-before, body)
		}
		if test.method == http.MethodHead && body != "" {
			t.Errorf("HEAD: %q", body)
		}
		if res.Header.Get("X-Frame-Options") == "" {
			t.Errorf("%s: no headers", test.name)
		}
	}
}

// TestErrorPages: a page says what went wrong, escaped, and keeps trying.
func TestErrorPages(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
	}{
		{errors.New("broken " + hostile), 503},
		{&cli.Error{Code: cli.ExitUnavailable, Err: errors.New("no server leads")}, 503},
		{&cli.Error{Code: cli.ExitNotFound, Err: errors.New("no such table")}, 404},
	} {
		_, ask := serve(t, &fake{err: test.err})
		for _, path := range []string{"/", "/row?table=t&row=r", "/picture.json"} {
			res, body := ask(http.MethodGet, path, nil)
			if res.StatusCode != test.status || strings.ContainsAny(body, "\x1b\u202e") || (path != "/picture.json" && strings.Contains(body, "<script")) {
				t.Errorf("%v at %s: %s\n%s", test.err, path, res.Status, body)
			}
			if (path == "/") != strings.Contains(body, "http-equiv") {
				t.Errorf("%s: refresh in\n%s", path, body)
			}
		}
	}
	_, ask := serve(t, &fake{})
	if res, body := ask(http.MethodGet, "/row?table=t&row=r", nil); res.StatusCode != 404 || !strings.Contains(body, "nothing is stored in this row") {
		t.Errorf("%s\n%s", res.Status, body)
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
