package consolecmd

import (
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
)

//go:embed app
var app embed.FS

// policy allows the page its own scripts, style sheet and requests, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// maxBody bounds what a page may send.
const maxBody = 64 << 10

type handler struct {
	source source
	config Config
	token  string // proves that a change is asked for by the page
	pages  *http.ServeMux
}

// newHandler returns the console's handler.
func newHandler(s source, cfg Config) http.Handler {
	h := &handler{s, cfg, rand.Text(), http.NewServeMux()}
	files, err := fs.Sub(app, "app")
	if err != nil {
		panic(err) // it is embedded
	}
	h.pages.Handle("GET /", http.FileServerFS(files))
	for path, answer := range map[string]func(*http.Request) (any, error){
		"GET /picture.json":   func(r *http.Request) (any, error) { return h.source.Picture(r.Context()) },
		"GET /api/config":     h.settings,
		"GET /api/state":      h.state,
		"GET /api/tables":     func(r *http.Request) (any, error) { return h.source.Tables(r.Context()) },
		"GET /api/heat":       func(r *http.Request) (any, error) { return h.source.Heat(r.Context(), r.FormValue("table")) },
		"GET /api/row":        h.row,
		"GET /api/txn":        h.transaction,
		"GET /api/letters":    func(r *http.Request) (any, error) { return h.source.Letters(r.Context()) },
		"GET /api/doctor":     func(r *http.Request) (any, error) { return h.source.Doctor(r.Context(), false) },
		"POST /api/doctor":    func(r *http.Request) (any, error) { return h.source.Doctor(r.Context(), true) },
		"POST /api/plan":      func(r *http.Request) (any, error) { return h.command(r, false) },
		"POST /api/act":       func(r *http.Request) (any, error) { return h.command(r, true) },
		"GET /api/job/{name}": func(r *http.Request) (any, error) { return h.source.Job(r.PathValue("name")) },
	} {
		h.pages.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			v, err := answer(r)
			write(w, v, err)
		})
	}
	return h
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
	} {
		w.Header().Set(name, value)
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case !ours(r):
		http.Error(w, "forbidden: open this page by its loopback address", http.StatusForbidden)
	case !reads && r.Method != http.MethodPost:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "use GET, HEAD or POST", http.StatusMethodNotAllowed)
	case r.Header.Get("Sec-Fetch-Site") == "cross-site" && (!reads || r.Header.Get("Sec-Fetch-Mode") != "navigate"):
		http.Error(w, "forbidden: the request comes from another site", http.StatusForbidden)
	case !reads && !h.own(r):
		http.Error(w, "forbidden: the request does not come from this page; load the page again", http.StatusForbidden)
	default:
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		h.pages.ServeHTTP(w, r)
	}
}

// own reports whether the page asks: it knows the token, which other sites cannot read. A
// browser states the origin of a POST.
func (h *handler) own(r *http.Request) bool {
	if o := r.Header.Get("Origin"); o != "" && o != "http://"+r.Host {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Percctl-Token")), []byte(h.token)) == 1 &&
		r.Header.Get("Content-Type") == "application/json"
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

// settings are what the page has to know once.
func (h *handler) settings(*http.Request) (any, error) {
	return map[string]any{
		"token": h.token, "writes": h.config.AllowWrites, "trace_url": h.config.TraceURL, "refresh": h.config.Refresh.Seconds(), "metrics": len(h.config.Metrics) > 0,
	}, nil
}

func (h *handler) state(r *http.Request) (any, error) {
	since, _ := strconv.ParseFloat(r.FormValue("since"), 64) // the page's first request has none
	return h.source.State(r.Context(), since)
}

func (h *handler) row(r *http.Request) (any, error) {
	if r.FormValue("table") == "" {
		return nil, cli.Usagef("no table")
	}
	key, err := session.ParseRow(r.FormValue("row"))
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	return h.source.Row(r.Context(), r.FormValue("table"), key)
}

func (h *handler) transaction(r *http.Request) (any, error) {
	primary, start, err := session.ParseTransaction([]string{r.FormValue("primary"), r.FormValue("start")})
	if err != nil {
		return nil, err
	}
	return h.source.Transaction(r.Context(), primary, start)
}

// An order is a command that the page asks for.
type order struct {
	Action   string        `json:"action"` // resolve, resolve all, replay, park or gc
	Primary  string        `json:"primary"`
	StartTS  tso.Timestamp `json:"start_ts,string"`
	Cell     string        `json:"cell"`
	Observer string        `json:"observer"`
}

func (h *handler) command(r *http.Request, carryOut bool) (any, error) {
	if !h.config.AllowWrites {
		return nil, cli.Usagef("the console only reads: start it with --allow-writes")
	}
	var o order
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	args, err := o.args()
	if err != nil {
		return nil, err
	}
	return h.source.Command(args, carryOut)
}

// args are the arguments of percctl.
func (o order) args() ([]string, error) {
	// An argument that begins with a dash is no flag.
	switch o.Action {
	case "resolve all":
		return []string{"lock", "resolve", "--all"}, nil
	case "resolve":
		return []string{"lock", "resolve", "--transaction", "--", o.Primary, o.StartTS.String()}, nil
	case "replay":
		if o.Cell == "" {
			return []string{"notify", "replay", "--observer=" + o.Observer}, nil
		}
		return []string{"notify", "replay", "--observer=" + o.Observer, "--", o.Cell}, nil
	case "park":
		return []string{"notify", "park", "--observer=" + o.Observer, "--", o.Cell}, nil
	case "gc":
		return []string{"gc", "run"}, nil
	}
	return nil, cli.Usagef("there is no action %q", o.Action)
}

// statusOf is the HTTP status that an error stands for.
func statusOf(err error) int {
	var coded *cli.Error
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &coded) && coded.Code == cli.ExitUsage:
		return http.StatusBadRequest
	case errors.As(err, &coded) && coded.Code == cli.ExitNotFound:
		return http.StatusNotFound
	}
	return http.StatusServiceUnavailable
}

func write(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		v = map[string]string{"error": strings.TrimSpace(cli.Line(err.Error()))}
	}
	w.WriteHeader(statusOf(err))
	_ = json.NewEncoder(w).Encode(v) // who went away does not mind
}
