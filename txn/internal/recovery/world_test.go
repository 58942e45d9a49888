package recovery

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
)

var update = flag.Bool("update", false, "write the tables in testdata")

// base is timestamp 0 of these tests.
const base tso.Timestamp = 1_800_000_000_000_000

// A world has table "a", and one client, whose requests of the table and of the oracle it lists. The
// oracle's first two answers are 1300 and 1301, and the next are an hour later.
type world struct {
	*worldtest.World
	r     *Resolver
	table *store.Table

	// began, if set, is timestamp 0 of the oracle, which then follows time.
	began    time.Time
	asked    int
	resolved []string
}

var errApplied = worldtest.ErrApplied

// newWorld runs f in a world. The safe point is at safePoint, and locks are resolved up to it.
func newWorld(t *testing.T, cfg Config, safePoint tso.Timestamp, f func(w *world), edits ...func(*recordpb.TableSchema)) {
	t.Helper()
	worldtest.Run(t, map[string][]string{"a": append([]string{"f"}, format.MetadataFamilies...), format.DefaultMetadataTable: {store.DeployFamily}}, func(in *worldtest.World) {
		in.Name = func(kind, table, what string) (string, string) {
			row := strings.TrimPrefix(what, "/")
			switch {
			case kind == "read" && strings.HasPrefix(row, TokenRowPrefix):
				return "read token", row
			case table != "a" || kind != "read" && kind != "change":
				return "", ""
			}
			return kind, row
		}
		w := &world{World: in}
		schema := &recordpb.TableSchema{FormatVersion: format.Version, Families: []string{"f"}}
		for _, edit := range edits {
			edit(schema)
		}
		w.Set(format.DefaultMetadataTable, store.SchemaRowPrefix+"a", store.DeployFamily, store.SchemaQualifier, 0, format.Marshal(schema))
		if safePoint != 0 {
			w.Set(format.DefaultMetadataTable, store.GCRowKey, store.DeployFamily, "safe-point", 0, format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version, Ts: int64(safePoint), ResolvedTs: int64(safePoint)}))
		}
		s, err := store.New(w.Context(), w, store.Config{Backoff: store.Backoff{Min: 1, Max: 1}, RPCTimeout: time.Hour, SchemaMaxAge: 100 * time.Hour, Parallelism: 1})
		w.Must(err)
		s.Clock.Oracle = w
		cfg.OnConflict = func(err error) { w.Note("conflict") }
		w.r = New(s, cfg)
		w.table, err = s.Table(w.Context(), "a")
		w.Must(err)
		note := func(r format.Resolution) {
			w.Mu.Lock()
			defer w.Mu.Unlock()
			w.resolved = append(w.resolved, r.Lock.Cell.Row)
		}
		w.r.OnResolve.Store(&note)
		defer s.Hints.Watch(func(c format.Cell) bool { w.Note("hint " + c.Row); return true })()
		w.Requests = nil
		f(w)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := w.Fault(ctx, "oracle", ""); err != nil {
		return 0, err
	}
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if !w.began.IsZero() {
		return base + tso.Timestamp(time.Since(w.began).Microseconds()), ctx.Err()
	}
	ts := base + 1300 + tso.Timestamp(w.asked)
	if w.asked++; w.asked > 2 {
		ts += tso.Timestamp(time.Hour.Microseconds())
	}
	return ts, ctx.Err()
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
	w.Set("a", row, format.LockFamily, "f:q", startTS.Cell(), value)
	w.Set("a", row, "f", "q", startTS.Cell(), []byte("new"))
	l, err := format.DecodeLock(l.Cell, startTS, value)
	w.Must(err)
	return l
}

// commit stores a record of the transaction.
func (w *world) commit(row string, kind format.Kind, at tso.Timestamp) {
	w.Helper()
	family, value := format.WriteRecord{StartTS: startTS, Kind: kind, Primary: cell("p")}.Encode(cell(row))
	w.Set("a", row, family, "f:q", at.Cell(), value)
	if kind == format.KindPut {
		w.Set("a", row, "f", "q", startTS.Cell(), []byte("new"))
	}
}

func (w *world) rollback(row string) {
	w.Helper()
	w.Set("a", row, format.MarkFamily, "f:q", startTS.Cell(), format.EncodeRollback(startTS))
}

// did returns what the client asked for since the last call, what it resolved, and what is stored now.
func (w *world) did() string {
	w.Helper()
	w.After(time.Second) // for what the client does in the background, and tries again there
	var cells []string
	w.Must(w.Client.Open("a").ReadRows(w.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
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
	w.Mu.Lock()
	defer w.Mu.Unlock()
	slices.Sort(w.resolved)
	out := fmt.Sprintf("%s; resolved %v; %s", repeated(w.Requests), w.resolved, strings.Join(cells, " "))
	w.Requests, w.resolved = nil, nil
	return out
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
