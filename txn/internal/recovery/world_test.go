package recovery

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
		cfg.OnConflict = func(*format.ConflictError) { w.Note("conflict") }
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
		return base.Add(time.Since(w.began)), ctx.Err()
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
	cells := w.Cells("a", base)
	w.Mu.Lock()
	defer w.Mu.Unlock()
	slices.Sort(w.resolved)
	out := fmt.Sprintf("%s; resolved %v; %s", worldtest.Repeated(w.Requests), w.resolved, cells)
	w.Requests, w.resolved = nil, nil
	return out
}

// errorName says of what kind an error is.
func errorName(err error) string {
	return worldtest.ErrorName(err, base, map[error]string{errForgotten: "forgotten", errNoTrace: "no trace", errLockPassed: "passed"})
}
