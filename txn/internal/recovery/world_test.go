package recovery

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

var update = flag.Bool("update", false, "write the tables in testdata")

// base is timestamp 0 of these tests.
const base tso.Timestamp = 1_800_000_000_000_000

// A world is a deployment with table "a", and one client, whose requests of the table and of the oracle
// it lists. The oracle's first two answers are 1300 and 1301, and the next are an hour later.
type world struct {
	*testing.T
	r     *Resolver
	bt    *bigtable.Client
	table *store.Table

	// began, if set, is timestamp 0 of the oracle, which then follows time.
	began time.Time

	serving  sync.Mutex
	mu       sync.Mutex
	asked    int
	requests []string
	resolved []string
	// faults are the errors of the next requests of a kind; nil sends one, and
	// errApplied sends it and loses the answer.
	faults map[string][]error
	// after is called with the number of each request. It may be nil.
	after func(n int)
}

var errApplied = status.Error(codes.Unavailable, "applied")

// newWorld runs f in a world. The safe point is at safePoint, and locks are resolved up to it.
func newWorld(t *testing.T, cfg Config, safePoint tso.Timestamp, f func(w *world), edits ...func(*recordpb.TableSchema)) {
	t.Helper()
	t.Setenv("BIGTABLE_EMULATOR_HOST", "") // the client would connect there, too
	synctest.Test(t, func(t *testing.T) {
		pipe := bufconn.Listen(1 << 20)
		server, err := bttest.NewServerWithListener(pipe)
		must(t, err)
		conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }), grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		defer server.Close()
		defer pipe.Close()
		defer conn.Close()
		admin, err := bigtable.NewAdminClient(t.Context(), "p", "i", option.WithGRPCConn(conn))
		must(t, err)
		for table, families := range map[string][]string{"a": append([]string{"f"}, format.MetadataFamilies...), format.DefaultMetadataTable: {store.DeployFamily}} {
			conf := &bigtable.TableConf{TableID: table, ColumnFamilies: map[string]bigtable.Family{}}
			for _, family := range families {
				conf.ColumnFamilies[family] = bigtable.Family{GCPolicy: bigtable.NoGcPolicy()}
			}
			must(t, admin.CreateTableFromConf(t.Context(), conf))
		}
		w := &world{T: t, faults: map[string][]error{}}
		w.bt, err = bigtable.NewClientWithConfig(t.Context(), "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}, DisableSession: true}, option.WithGRPCConn(conn))
		must(t, err)
		defer w.bt.Close()
		schema := &recordpb.TableSchema{FormatVersion: format.Version, Families: []string{"f"}}
		for _, edit := range edits {
			edit(schema)
		}
		w.set(format.DefaultMetadataTable, store.SchemaRowPrefix+"a", store.DeployFamily, store.SchemaQualifier, 0, format.Marshal(schema))
		if safePoint != 0 {
			w.set(format.DefaultMetadataTable, store.GCRowKey, store.DeployFamily, "safe-point", 0, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, Ts: int64(safePoint), ResolvedTs: int64(safePoint)}))
		}
		s, err := store.New(t.Context(), w, store.Config{Backoff: store.Backoff{Min: 1, Max: 1}, RPCTimeout: time.Hour, SchemaMaxAge: 100 * time.Hour, Parallelism: 1})
		must(t, err)
		s.Clock.Oracle = w
		cfg.OnConflict = func(err error) { w.note("conflict") }
		w.r = New(s, cfg)
		w.table, err = s.Table(t.Context(), "a")
		must(t, err)
		note := func(r format.Resolution) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.resolved = append(w.resolved, r.Lock.Cell.Row)
		}
		w.r.OnResolve.Store(&note)
		defer s.Hints.Watch(func(c format.Cell) bool { w.note("hint " + c.Row); return true })()
		w.requests = nil
		f(w)
		for kind, left := range w.faults {
			if len(left) > 0 {
				t.Errorf("%d faults of %q have not fired", len(left), kind)
			}
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, what)
	if w.after != nil {
		w.after(len(w.requests))
	}
}

// fault notes a request, and returns its error.
func (w *world) fault(kind, request string) error {
	w.note(strings.TrimSpace(kind + " " + request))
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if all := w.faults[kind]; len(all) > 0 {
		err, w.faults[kind] = all[0], all[1:]
	}
	return err
}

func (w *world) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := w.fault("oracle", ""); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() {
		return base + tso.Timestamp(time.Since(w.began).Microseconds()), ctx.Err()
	}
	ts := base + 1300 + tso.Timestamp(w.asked)
	if w.asked++; w.asked > 2 {
		ts += tso.Timestamp(time.Hour.Microseconds())
	}
	return ts, ctx.Err()
}

func (w *world) OpenTable(name string) bigtable.TableAPI {
	return &spied{w.bt.OpenTable(name), name, w}
}

// serve lets one request through: the emulator races with itself where reads meet writes.
func (w *world) serve() (done func()) {
	w.serving.Lock()
	return w.serving.Unlock
}

// A spied table lists the requests of table "a" in its world.
type spied struct {
	bigtable.TableAPI
	name string
	w    *world
}

func (s *spied) ReadRow(ctx context.Context, row string, opts ...bigtable.ReadOption) (bigtable.Row, error) {
	kind := "read"
	if strings.HasPrefix(row, TokenRowPrefix) {
		kind = "read token"
	} else if s.name != "a" {
		kind = ""
	}
	if kind != "" {
		if err := s.w.fault(kind, row); err != nil {
			return nil, err
		}
	}
	defer s.w.serve()()
	return s.TableAPI.ReadRow(ctx, row, opts...)
}

func (s *spied) Apply(ctx context.Context, row string, m *bigtable.Mutation, opts ...bigtable.ApplyOption) error {
	var err error
	if s.name == "a" {
		err = s.w.fault("change", row)
	}
	defer s.w.serve()()
	if err == nil || errors.Is(err, errApplied) {
		err = cmp.Or(s.TableAPI.Apply(ctx, row, m, opts...), err)
	}
	return err
}

func (s *spied) ReadRows(ctx context.Context, rows bigtable.RowSet, f func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	defer s.w.serve()()
	return s.TableAPI.ReadRows(ctx, rows, f, opts...)
}

// set stores one cell without the library.
func (w *world) set(table, row, family, qualifier string, ts bigtable.Timestamp, value []byte) {
	w.Helper()
	m := bigtable.NewMutation()
	m.Set(family, qualifier, ts, value)
	must(w.T, w.bt.Open(table).Apply(w.Context(), row, m))
}

// cell is f:q of a row of table "a".
func cell(row string) format.Cell {
	return format.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"}
}

// startTS is the start timestamp of the transaction that the tests resolve, and committedTS when it
// commits. Its primary is row "p".
const startTS, committedTS = base + 100, base + 150

// lock stores a lock of the transaction with its data.
func (w *world) lock(row string, ttl time.Duration, passable bool) *format.Lock {
	w.Helper()
	l := &format.Lock{Cell: cell(row), StartTS: startTS, Kind: format.KindPut, Primary: cell("p"), TTL: ttl, Observed: row == "s", Passable: passable && row == "p"}
	if l.Passable {
		l.MinCommitTS = startTS
	}
	value := format.EncodeLock(l)
	w.set("a", row, format.LockFamily, "f:q", startTS.Cell(), value)
	w.set("a", row, "f", "q", startTS.Cell(), []byte("new"))
	l, err := format.DecodeLock(l.Cell, startTS, value)
	must(w.T, err)
	return l
}

// commit stores a record of the transaction.
func (w *world) commit(row string, kind format.Kind, at tso.Timestamp) {
	w.Helper()
	family, value := format.WriteRecord{StartTS: startTS, Kind: kind, Primary: cell("p")}.Encode(cell(row))
	w.set("a", row, family, "f:q", at.Cell(), value)
	if kind == format.KindPut {
		w.set("a", row, "f", "q", startTS.Cell(), []byte("new"))
	}
}

func (w *world) rollback(row string) {
	w.Helper()
	w.set("a", row, format.MarkFamily, "f:q", startTS.Cell(), format.EncodeRollback(startTS))
}

// did returns what the client asked for since the last call, what it resolved, and what is stored now.
func (w *world) did() string {
	w.Helper()
	w.settle()
	var cells []string
	must(w.T, w.bt.Open("a").ReadRows(w.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		var row []string
		for family, items := range r {
			for _, it := range items {
				ts := tso.FromCell(it.Timestamp)
				at := fmt.Sprint(int64(it.Timestamp))
				if ts > base {
					at = fmt.Sprint(ts - base)
				}
				if l, err := format.DecodeLock(cell(r.Key()), ts, it.Value); family == format.LockFamily && err == nil && l.MinCommitTS > startTS {
					at += fmt.Sprintf(" min %d raised %d", l.MinCommitTS-base, l.Raises)
				}
				row = append(row, fmt.Sprintf("%s@%s", strings.TrimSuffix(strings.TrimPrefix(it.Column, "_"), ":f:q"), at))
			}
		}
		slices.Sort(row)
		cells = append(cells, r.Key()+"("+strings.Join(row, " ")+")")
		return true
	}))
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.resolved)
	out := fmt.Sprintf("%s; resolved %v; %s", repeated(w.requests), w.resolved, strings.Join(cells, " "))
	w.requests, w.resolved = nil, nil
	return out
}

// settle waits for what the client does in the background, and tries again there.
func (w *world) settle() {
	<-time.After(time.Second)
	synctest.Wait()
}

// repeated joins requests, and counts those that repeat.
func repeated(requests []string) string {
	var all []string
	for i, n := 0, 0; i < len(requests); i += n {
		for n = 1; i+n < len(requests) && requests[i+n] == requests[i]; n++ {
		}
		all = append(all, requests[i])
		if n > 1 {
			all[len(all)-1] += fmt.Sprintf(" ×%d", n)
		}
	}
	return strings.Join(all, ", ")
}

// errorName says of what kind an error is.
func errorName(err error) string {
	var conflict *format.ConflictError
	var undetermined *format.UndeterminedError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &undetermined):
		u := *undetermined
		return fmt.Sprintf("undetermined %s@%d-%d: %s", u.Primary.Row, u.StartTS-base, u.CommitTS-base, errorName(u.Err))
	case errors.As(err, &conflict):
		return fmt.Sprintf("conflict %s %d with %d: %v", conflict.Cell.Row, conflict.StartTS-base, max(conflict.ConflictTS-base, 0), conflict.Reason)
	case errors.Is(err, format.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, format.ErrTooOld):
		return "too old"
	case errors.Is(err, format.ErrInvalid):
		return "invalid"
	case errors.Is(err, format.ErrClosed):
		return "closed"
	case errors.Is(err, errForgotten):
		return "forgotten"
	case errors.Is(err, errNoTrace):
		return "no trace"
	case errors.Is(err, errLockPassed):
		return "passed"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	for _, e := range store.RPCErrors(err) {
		if code := status.Code(e); code != codes.Unknown {
			return code.String()
		}
	}
	return err.Error()
}

// A golden is a file in testdata: after "# name" it has the lines of a subtest.
type golden struct {
	file     string
	sections map[string][]string
}

// newGolden reads a file, or writes it at the end of t if -update is set.
func newGolden(t *testing.T, name string) *golden {
	t.Helper()
	g := &golden{filepath.Join("testdata", name), map[string][]string{}}
	if *update {
		t.Cleanup(func() {
			var text strings.Builder
			for _, name := range slices.Sorted(maps.Keys(g.sections)) {
				fmt.Fprintf(&text, "# %s\n%s\n", name, strings.Join(g.sections[name], "\n"))
			}
			must(t, os.WriteFile(g.file, []byte(text.String()), 0o644))
		})
		return g
	}
	text, err := os.ReadFile(g.file)
	must(t, err)
	name = ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if next, ok := strings.CutPrefix(line, "# "); ok {
			name = next
			continue
		}
		g.sections[name] = append(g.sections[name], line)
	}
	return g
}

// compare compares the lines of a subtest with the file.
func (g *golden) compare(t *testing.T, name string, lines []string) {
	t.Helper()
	if *update {
		g.sections[name] = lines
		return
	}
	if d := gocmp.Diff(g.sections[name], lines); d != "" {
		t.Errorf("%s, %s (-want +got; -update writes it):\n%s", g.file, name, d)
	}
}
