package emulator_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"maps"
	"math/bits"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"pgregory.net/rapid"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// What follows draws the options of TestMetamorphic. TestEveryOptionIsDrawn fails if the
// library has an option that is not here.

func pick[T any](t *rapid.T, label string, of ...T) T {
	return rapid.Map(below(len(of)), func(i int) T { return of[i] }).Draw(t, label)
}

// below generates numbers from 0 to n-1, each as often as the others. rapid's own generators
// prefer small ones.
func below(n int) *rapid.Generator[int] {
	return rapid.Custom(func(t *rapid.T) (i int) {
		for range bits.Len(uint(n-1)) + 2 {
			i *= 2
			if rapid.Bool().Draw(t, "bit") {
				i++
			}
		}
		return i % n
	})
}

// drawConfig draws a client's options, except those that all clients share.
func drawConfig(t *rapid.T, slow bool) txn.Config {
	cfg := txn.Config{
		LockTTL:           pick(t, "LockTTL", 10*time.Second, crashTTL),
		TokenTTL:          pick(t, "TokenTTL", time.Minute, -1, 0),
		RPCTimeout:        pick(t, "RPCTimeout", 0, 3*time.Second),
		Backoff:           pick(t, "Backoff", txn.Backoff{}, txn.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}),
		Parallelism:       pick(t, "Parallelism", 0, 1, 2),
		LatchWait:         pick(t, "LatchWait", 0, -1, time.Millisecond),
		PrefetchBytes:     pick(t, "PrefetchBytes", 0, -1, 1),
		BatchReads:        pick(t, "BatchReads", 0, 1, 2),
		PassLocks:         rapid.Bool().Draw(t, "PassLocks"),
		SyncSecondaries:   rapid.Bool().Draw(t, "SyncSecondaries"),
		BackgroundBytes:   pick(t, "BackgroundBytes", 0, 1, 5000),
		BackgroundTimeout: pick(t, "BackgroundTimeout", 0, 5*time.Second),
		SchemaMaxAge:      pick(t, "SchemaMaxAge", 0, time.Millisecond),
		TraceRowKeys:      rapid.Bool().Draw(t, "TraceRowKeys"),
	}
	if !slow {
		cfg.LockTTL = pick(t, "short LockTTL", cfg.LockTTL, time.Millisecond, 50*time.Millisecond)
	}
	if rapid.Bool().Draw(t, "TracerProvider") {
		cfg.TracerProvider = sdktrace.NewTracerProvider()
	}
	if rapid.Bool().Draw(t, "MeterProvider") {
		cfg.MeterProvider = sdkmetric.NewMeterProvider()
	}
	if rapid.Bool().Draw(t, "Logger") {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return cfg
}

// The fields of these types have the names of the functions that make the options.

type txnChoice struct {
	Named                    string
	Serializable, NoPrefetch bool
	OnAttempt                bool
	MaxAttempts              int
	SettleWithin             time.Duration
}

func drawTxn(t *rapid.T) txnChoice {
	c := txnChoice{Named: pick(t, "name", "", "x"), MaxAttempts: pick(t, "MaxAttempts", 0, 3), NoPrefetch: pick(t, "NoPrefetch", false, false, true), SettleWithin: pick(t, "SettleWithin", 0, 0, 10*time.Second), OnAttempt: rapid.Bool().Draw(t, "OnAttempt")}
	c.Serializable = below(3).Draw(t, "kind of transaction") == 0
	return c
}

// options returns the options.
func (c txnChoice) options() (opts []txn.TxnOption) {
	if c.Named != "" {
		opts = append(opts, txn.Named(c.Named))
	}
	if c.Serializable {
		opts = append(opts, txn.Serializable())
	}
	if c.NoPrefetch {
		opts = append(opts, txn.NoPrefetch())
	}
	if c.MaxAttempts > 0 {
		opts = append(opts, txn.MaxAttempts(c.MaxAttempts))
	}
	if c.OnAttempt {
		opts = append(opts, txn.OnAttempt(func(context.Context, txn.Attempt) {}))
	}
	if c.SettleWithin > 0 {
		opts = append(opts, txn.SettleWithin(c.SettleWithin))
	}
	return opts
}

type snapshotChoice struct {
	Named        string // "-": none
	At           int    // which of the timestamps so far, from the newest; 0: now
	Hold         bool
	MaxStaleness time.Duration // negative: none
}

func drawSnapshot(t *rapid.T) snapshotChoice {
	c := snapshotChoice{Named: pick(t, "name", "-", "", "x"), Hold: pick(t, "Hold", false, false, true), MaxStaleness: -1}
	switch below(4).Draw(t, "kind of snapshot") {
	case 0:
		c.At = 1 + below(20).Draw(t, "At")
	case 1:
		c.MaxStaleness = pick(t, "MaxStaleness", 0, 100*time.Millisecond, 5*time.Second, time.Hour)
	}
	return c
}

func (c snapshotChoice) options(at tso.Timestamp) (opts []txn.SnapshotOption) {
	if c.Named != "-" {
		opts = append(opts, txn.Named(c.Named))
	}
	if at != 0 {
		opts = append(opts, txn.At(at))
	}
	if c.Hold {
		opts = append(opts, txn.Hold())
	}
	if c.MaxStaleness >= 0 {
		opts = append(opts, txn.MaxStaleness(c.MaxStaleness))
	}
	return opts
}

func drawGC(t *rapid.T) gc.Config {
	cfg := gc.Config{
		Retention: pick(t, "Retention", retention, retention+5*time.Minute),
		Rate:      pick(t, "Rate", 0, 1000.0),
		FullEvery: pick(t, "FullEvery", 0, time.Hour),
		LockWait:  pick(t, "LockWait", 0, 10*time.Second),
		Plain:     rapid.Bool().Draw(t, "Plain"),
		Restart:   rapid.Bool().Draw(t, "Restart"),
	}
	if rapid.Bool().Draw(t, "Progress") {
		cfg.Progress = func(gc.Progress) {}
	}
	return cfg
}

func drawBulk(t *rapid.T, row string) admin.BulkConfig {
	cfg := admin.BulkConfig{Rows: bigtable.RowSet(bigtable.RowList{row}), Idle: rapid.Bool().Draw(t, "Idle")}
	if cfg.Idle && rapid.Bool().Draw(t, "all rows") {
		cfg.Rows = nil
	}
	if rapid.Bool().Draw(t, "Started") {
		cfg.Started = func(tso.Timestamp, tso.Timestamp) {}
	}
	if rapid.Bool().Draw(t, "Progress") {
		cfg.Progress = func(int) {}
	}
	return cfg
}

// drawColumns draws the columns of all rows, 1 to 100, with every kind of qualifier.
func drawColumns(t *rapid.T) (columns []txn.Column) {
	n := pick(t, "columns", 1, 2, 3, 5, 5, 12, 100)
	awkward := []string{"", "q", "q\x00", "\x00", ":", ";", "q:r", "q/s", "%", "\x7f", "\x80", "\xff", "\xff\xff", "é", "q.*", "(a|b)+", `\C*`, "[", "^$", "\n"}
	first := below(len(awkward)).Draw(t, "first qualifier")
	for i := range n {
		q := awkward[(first+i)%len(awkward)]
		if i >= len(awkward) {
			q = fmt.Sprintf("%s%d", q, i)
		}
		columns = append(columns, txn.Column{Family: modelFamilies[(first+i)%len(modelFamilies)], Qualifier: q})
	}
	return columns
}

// optionsOf returns the exported functions of package txn that return a value of the type.
func optionsOf(t *testing.T, types ...string) (names []string) {
	t.Helper()
	files, err := filepath.Glob("../txn/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() || fn.Type.Results == nil {
				continue
			}
			if id, ok := fn.Type.Results.List[0].Type.(*ast.Ident); ok && slices.Contains(types, id.Name) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// drawn checks that each field of the drawn struct takes several values, and returns the
// fields' names.
func drawn[T any](t *testing.T, draw func(*rapid.T) T) []string {
	t.Helper()
	seen := map[string]map[string]bool{}
	gen := rapid.Custom(draw)
	for i := range 300 {
		v := reflect.ValueOf(gen.Example(i))
		for f := range v.NumField() {
			field := v.Field(f)
			name := v.Type().Field(f).Name
			if seen[name] == nil {
				seen[name] = map[string]bool{}
			}
			text := fmt.Sprint(field)
			if k := field.Kind(); k == reflect.Func || k == reflect.Interface || k == reflect.Pointer {
				text = fmt.Sprint(field.IsNil())
			}
			seen[name][text] = true
		}
	}
	for name, values := range seen {
		if len(values) < 2 {
			t.Errorf("%s of %T is always %v", name, *new(T), slices.Collect(maps.Keys(values)))
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestEveryOptionIsDrawn: TestMetamorphic draws every option that package txn has for
// clients, transactions, snapshots and reads, and uses every method that reads or writes. If
// this test fails, draw the new option.
func TestEveryOptionIsDrawn(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	drawn(t, func(t *rapid.T) txn.Config {
		p := drawPlan(t)
		return p.config(0, tso.NewLocal(tso.LocalConfig{}), &bigtable.AdminClient{})
	})
	drawn(t, drawGC)
	drawn(t, func(t *rapid.T) admin.BulkConfig {
		s := drawPlan(t).drawStep(t, "bulk")
		if s.again {
			s.bulk.StartTS, s.bulk.CommitTS = 1, 2 // as the step does
		}
		return s.bulk
	})
	for _, c := range []struct {
		fields []string
		types  []string
	}{
		{drawn(t, drawTxn), []string{"TxnOption", "NameOption"}},
		{drawn(t, drawSnapshot), []string{"SnapshotOption", "NameOption"}},
		{[]string{"CellsPerRow", "Columns", "Families", "KeysOnly", "Limit", "Qualifiers", "Reverse"}, []string{"ReadOption"}}, // fields of query
	} {
		if want := optionsOf(t, c.types...); !slices.Equal(c.fields, want) {
			t.Errorf("options of the types %v: %v are drawn, package txn has %v", c.types, c.fields, want)
		}
	}
	for of, uses := range map[reflect.Type][]string{
		reflect.TypeFor[*txn.Table]():    {"Delete", "DeleteRow", "Get", "GetForUpdate", "Lock", "Notify", "ReadRow", "ReadRows", "Set"},
		reflect.TypeFor[*txn.Snapshot](): {"ReadTS", "Release", "Table"},
		reflect.TypeFor[*txn.Latest]():   {"Get", "ReadRow"},
		reflect.TypeFor[*txn.Txn]():      {"Client", "Commit", "CommitBefore", "Rollback", "Serializable", "StartTS", "Table", "Writes"},
		reflect.TypeFor[*txn.Client]():   {"BeforeCommit", "Begin", "CheckTable", "Close", "Latest", "Settle", "Snapshot", "Stats", "Timestamp", "Update"},
	} {
		var has []string
		for i := range of.NumMethod() {
			has = append(has, of.Method(i).Name)
		}
		if !slices.Equal(has, uses) {
			t.Errorf("%v has the methods %v; TestMetamorphic uses %v", of, has, uses)
		}
	}
	seen := map[string]bool{}
	for i := range 100 {
		for _, s := range rapid.Custom(drawPlan).Example(i).steps {
			seen[s.kind] = true
		}
	}
	for _, kind := range stepKinds {
		if !seen[kind] {
			t.Errorf("no history has the step %q", kind)
		}
	}
}
