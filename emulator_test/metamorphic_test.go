package emulator_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"pgregory.net/rapid"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A plan is a history before it runs: clients with options, tables, and steps that run one
// after the other.
type plan struct {
	metadata string // the metadata table
	oracle   string // direct, served or local
	clients  []txn.Config
	admins   []bool // which clients have Config.Admin
	slow     bool   // requests take some time
	late     int    // of a hundred requests, how many are sent again, or for secondaries are kept, for a while
	seed     uint64 // of both
	columns  []txn.Column
	observed int // how many columns of the first table are observed
	expiries []planStep
	plain    []planStep
	steps    []planStep
}

// A planStep is one step. Which fields count depends on its kind.
type planStep struct {
	kind    string
	client  int
	which   int // of the open transactions or snapshots
	table   int
	row     string
	more    []string // rows that a write changes, too
	columns []txn.Column
	value   string
	txn     txnChoice
	snap    snapshotChoice
	query   query
	gc      gc.Config
	bulk    admin.BulkConfig
	again   bool // a bulk load is repeated
	passes  time.Duration
}

// GoString describes a step in rapid's report.
func (s planStep) GoString() string {
	if s.kind == "nothing" {
		return ""
	}
	text := fmt.Sprintf("\n\t%s: client %d, which %d, table %d, rows %q, %d columns from %q, value of %d bytes", s.kind, s.client, s.which, s.table, append(s.more, s.row), len(s.columns), s.columns[:1], len(s.value))
	switch s.kind {
	case "begin", "update":
		text += fmt.Sprintf(", %+v", s.txn)
	case "snapshot":
		text += fmt.Sprintf(", %+v", s.snap)
	case "read row", "query", "together", "latest":
		text += fmt.Sprintf(", %v, %+v", s.query, s.txn)
	case "bulk":
		text += fmt.Sprintf(", %+v", s.bulk)
	case "page":
		text += fmt.Sprintf(", %v", s.query)
	case "collect", "pass time", "commit with deadline", "expire":
		text += fmt.Sprintf(", %v", s.passes)
	}
	return text
}

// planSteps is the length of a history. rapid would draw short ones most of the time.
const planSteps = 50

// stepKinds are the kinds of steps. Those that occur several times are more frequent. rapid
// makes a failing history smaller by drawing the first one, which does nothing.
var stepKinds = []string{
	"nothing",
	"begin", "begin", "begin", "begin", "begin", "set", "set", "set", "set", "set", "set", "delete", "delete",
	"lock", "delete row", "notify", "gets", "gets", "gets", "get for update", "observe", "observe", "observe",
	"read row", "read row", "query", "query", "query", "commit", "commit", "commit", "commit", "commit",
	"commit with deadline", "commit with deadline", "rollback", "update", "update", "together", "together",
	"snapshot", "snapshot", "release", "latest", "latest", "agree", "bulk", "collect", "pass time",
	"get many", "get many", "page", "page", "page", "expire",
}

var planRows = []string{"r", "r.", "\x00", "b\xff"}

// drawPlan draws a history. Everything is drawn before anything runs, so that rapid can
// make a failing history smaller.
func drawPlan(t *rapid.T) *plan {
	p := &plan{
		metadata: pick(t, "metadata table", "", "meta"),
		oracle:   pick(t, "oracle", "direct", "served", "local"),
		slow:     rapid.Bool().Draw(t, "slow"),
		late:     pick(t, "late", 0, 30, 80),
		seed:     rapid.Uint64().Draw(t, "seed"),
		columns:  drawColumns(t),
		observed: below(3).Draw(t, "observed"),
	}
	for range 1 + below(3).Draw(t, "clients") {
		p.clients = append(p.clients, drawConfig(t, p.slow))
		p.admins = append(p.admins, rapid.Bool().Draw(t, "admin"))
	}
	for range max(0, below(5).Draw(t, "expiries")-2) {
		p.expiries = append(p.expiries, p.drawStep(t, "expire"))
	}
	for range below(5).Draw(t, "plain values") {
		p.plain = append(p.plain, p.drawStep(t, "plain"))
	}
	steps := rapid.Custom(func(t *rapid.T) planStep { return p.drawStep(t, pick(t, "step", stepKinds...)) })
	p.steps = rapid.SliceOfN(steps, planSteps, planSteps).Draw(t, "steps")
	return p
}

func (p *plan) drawStep(t *rapid.T, kind string) planStep {
	s := planStep{
		kind: kind, client: below(3).Draw(t, "client"), which: below(6).Draw(t, "which"),
		table: pick(t, "table", 0, 0, 0, 1), row: pick(t, "row", planRows...),
		more: rapid.SliceOfN(rapid.SampledFrom(planRows), 0, 3).Draw(t, "more rows"),
	}
	first, n := below(len(p.columns)).Draw(t, "first column"), pick(t, "number of columns", 1, 2, 5, 100)
	s.columns = p.columns[first:min(first+n, len(p.columns))]
	s.value = pick(t, "value", "", "x", "y", strings.Repeat("z", 300))
	switch kind {
	case "begin", "update":
		s.txn = drawTxn(t)
	case "snapshot":
		s.snap = drawSnapshot(t)
	case "read row", "query", "together", "latest", "page":
		s.query = queries(rapid.SampledFrom(planRows), p.columns, modelFamilies, 4).Draw(t, "query")
		s.txn = drawTxn(t)
	case "bulk":
		s.bulk = drawBulk(t, s.row)
		s.again = rapid.Bool().Draw(t, "again")
	case "collect":
		s.gc = drawGC(t)
		s.passes = pick(t, "time before", 0, 12*time.Minute, 30*time.Minute)
	case "commit with deadline":
		s.passes = pick(t, "time", 0, 0, 0, time.Nanosecond, 10*time.Millisecond, 30*time.Millisecond)
	case "expire":
		s.passes = pick(t, "expiry", 30*time.Minute, 5*time.Minute, 3*time.Second)
	case "pass time":
		s.passes = pick(t, "time", time.Millisecond, 120*time.Millisecond, 3*time.Second, time.Minute)
	}
	return s
}

// config completes the options of a client.
func (p *plan) config(client int, oracle tso.Oracle, a *bigtable.AdminClient) txn.Config {
	cfg := p.clients[client]
	cfg.MetadataTable = p.metadata
	if p.oracle != "direct" {
		cfg.Oracle = oracle
	}
	if p.admins[client] {
		cfg.Admin = a
	}
	return cfg
}

// servedOracle switches the deployment to a served oracle and starts a server. Its
// connections are pipes in memory.
func servedOracle(t *testing.T, meta *bigtable.Table) func() tso.Oracle {
	if _, err := tso.SetMode(t.Context(), meta, tso.RowConfig{}, tso.ModeServed); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(meta, server.Config{Address: "passthrough:///oracle"})
	if err != nil {
		t.Fatal(err)
	}
	pipe := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, pipe) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func() tso.Oracle {
		c, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"passthrough:///oracle"}, DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) })}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// A lateOracle is set after the configuration that contains it was made.
type lateOracle struct{ tso.Oracle }

// TestMetamorphic runs random histories of overlapping transactions, each under random
// options, which must not change a result: go test ./emulator_test -run TestMetamorphic
// -rapid.checks 5000. Each step shows what a model in memory expects, in whatever way it
// reads. Without the flag it runs 60 histories with all tests, and otherwise the same 4 each time.
func TestMetamorphic(t *testing.T) {
	long.Judged(t)
	t.Parallel()
	histories := 60
	switch {
	case testing.Short():
		histories = 3
	case long.Reduced():
		histories = 4
	}
	flag.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "rapid.") {
			histories = math.MaxInt
		}
	})
	counts := &tally{n: map[string]int{}}
	rapid.Check(t, func(rt *rapid.T) {
		if counts.n["histories"] >= histories {
			return
		}
		p := drawPlan(rt)
		var err error
		synctest.Test(t, func(t *testing.T) { err = p.run(t, counts) })
		if err != nil {
			rt.Fatal(err)
		}
	})
	for _, what := range slices.Sorted(maps.Keys(counts.n)) {
		t.Logf("%8d %s", counts.n[what], what)
	}
	if counts.n["histories"] < 60 {
		return // some histories only, or a failure
	}
	for _, what := range []string{
		"commits", "conflicts", "too old", "refused", "invalid", "bulk loads", "collections", "versions collected", "settled",
		"late copies", "secondaries kept", "cells from the cache", "timestamps reused", "locks passed", "reads in batches",
		"locks found", "collections held back", "reruns", "reads of the latest state", "stale snapshots behind them",
		"later pages", "cells of several tables", "expiries set",
	} {
		if counts.n[what] == 0 {
			t.Errorf("no history had %s", what)
		}
	}
}
