package consolecmd

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/format"
)

//go:embed assets
var assets embed.FS

// shown bounds what one page lists of one thing: percctl lock list and percctl
// history have all.
const (
	shownLocks  = 10
	shownEvents = 1000
)

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"line":    cli.Line, // bidirectional controls could mix up a line
	"stamp":   cli.Stamp,
	"rowURL":  rowURL,
	"columns": func() []string { return observercmd.TableHeader },
	"most":    func() int { return shownLocks },
}).ParseFS(assets, "assets/*.html"))

// rowURL is the page with the history of a cell's row.
func rowURL(cell string) string {
	c, err := format.ParseCell(cell)
	if err != nil {
		return "/row"
	}
	return "/row?" + url.Values{"table": {c.Table}, "row": {session.Row(c.Row)}}.Encode()
}

// policy allows the page its style sheet and its form.
const policy = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

type handler struct {
	source  source
	refresh time.Duration
	pages   *http.ServeMux
}

// newHandler returns the console's handler.
func newHandler(s source, refresh time.Duration) http.Handler {
	h := &handler{s, refresh, http.NewServeMux()}
	h.pages.HandleFunc("/{$}", h.overview)
	h.pages.HandleFunc("/row", h.row)
	h.pages.HandleFunc("/picture.json", h.json)
	h.pages.HandleFunc("/style.css", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, assets, "assets/style.css")
	})
	return h
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
	} {
		w.Header().Set(name, value)
	}
	switch {
	case !ours(r):
		http.Error(w, "forbidden: open this page by its loopback address", http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the console only reads: use GET or HEAD", http.StatusMethodNotAllowed)
	case r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
		http.Error(w, "forbidden: the request comes from another site", http.StatusForbidden)
	default:
		h.pages.ServeHTTP(w, r)
	}
}

// ours: the browser was told to go to this machine and port. A site whose name
// was made to resolve to this machine comes with that name (DNS rebinding).
func ours(r *http.Request) bool {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = r.Host, "80"
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	_, local, err := net.SplitHostPort(at.String())
	return err == nil && port == local && loopback(host)
}

// A page is what a template gets.
type page struct {
	Title   string
	Refresh int // seconds; 0: never
	Error   string
	Picture *picture.Picture
	Facts   []picture.Fact
	// Of a row.
	Table, Row string
	Events     []readcmd.Event
	More       int // events that are not shown
}

func (h *handler) overview(w http.ResponseWriter, r *http.Request) {
	pg := page{Title: "overview", Refresh: int(h.refresh.Seconds())}
	p, err := h.source.Picture(r.Context())
	if err == nil {
		pg.Picture, pg.Facts = p, p.Facts()
	}
	h.write(w, "overview.html", pg, err)
}

func (h *handler) row(w http.ResponseWriter, r *http.Request) {
	pg := page{Title: "row", Table: r.URL.Query().Get("table"), Row: r.URL.Query().Get("row")}
	var err error
	if pg.Table != "" || pg.Row != "" {
		pg.Events, err = h.timeline(r, pg.Table, pg.Row)
	}
	if n := len(pg.Events) - shownEvents; n > 0 {
		pg.More, pg.Events = n, pg.Events[n:]
	}
	h.write(w, "row.html", pg, err)
}

func (h *handler) timeline(r *http.Request, table, row string) ([]readcmd.Event, error) {
	if table == "" {
		return nil, cli.Usagef("no table")
	}
	key, err := session.ParseRow(row)
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	events, err := h.source.Timeline(r.Context(), table, key)
	if err == nil && len(events) == 0 {
		err = errNotFound
	}
	return events, err
}

func (h *handler) json(w http.ResponseWriter, r *http.Request) {
	p, err := h.source.Picture(r.Context())
	if err != nil {
		http.Error(w, cli.Line(err.Error()), statusOf(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(p) // who went away does not mind
}

// statusOf is the HTTP status that an error stands for.
func statusOf(err error) int {
	var coded *cli.Error
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, errNotFound):
		return http.StatusNotFound
	case errors.As(err, &coded) && coded.Code == cli.ExitUsage:
		return http.StatusBadRequest
	case errors.As(err, &coded) && coded.Code == cli.ExitNotFound:
		return http.StatusNotFound
	}
	return http.StatusServiceUnavailable
}

func (h *handler) write(w http.ResponseWriter, name string, p page, err error) {
	if err != nil {
		p.Error = err.Error()
	}
	var b bytes.Buffer
	if terr := pages.ExecuteTemplate(&b, name, p); terr != nil {
		http.Error(w, fmt.Sprintf("making the page: %s", cli.Line(terr.Error())), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(statusOf(err))
	_, _ = w.Write(b.Bytes())
}
