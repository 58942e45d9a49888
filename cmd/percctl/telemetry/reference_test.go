package telemetry_test

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const (
	docs     = "../../../docs/"
	page     = docs + "reference/telemetry.md"
	logTable = "\n## Log lines\n\n| Level | Message | From | With |\n|---|---|---|---|\n"
)

var update = flag.Bool("update", false, "write the table of log lines in docs/reference/telemetry.md")

// TestDocumented: docs/reference/telemetry.md lists the metrics that the library registers, and the
// attributes and log lines in its source. The dashboard and the alerts name only series and labels of this
// page, and the dashboard shows every metric.
func TestDocumented(t *testing.T) {
	text := readFile(t, page)
	attributes, logs := scan(t)
	head, lines, _ := strings.Cut(text, logTable)
	if *update {
		must(t, os.WriteFile(page, []byte(head+logTable+logs), 0o666))
	} else if lines != logs {
		t.Errorf("the table of log lines is out of date, and -update writes it. It has to be\n%s", logs)
	}
	var listed []string
	for _, row := range rows(head, "Attributes") {
		listed = append(listed, row[0]...)
	}
	if slices.Sort(listed); !slices.Equal(listed, attributes) {
		t.Errorf("the page lists the attributes\n%q\nand the source has\n%q", listed, attributes)
	}

	kinds, zero := register(t)
	series, anywhere := map[string][]string{}, []string{} // labels by series, and of all series
	dashboard := readFile(t, docs+"deploy/grafana-dashboard.json")
	for _, row := range rows(head, "Metrics") {
		name, kind, unit, exposed := row[0][0], kinds[row[0][0]], row[1][0], strings.ReplaceAll(row[0][0], ".", "_")
		if unit == "s" {
			exposed += "_seconds"
		}
		suffixes := []string{""}
		switch kind {
		case "counter, " + unit:
			exposed += "_total"
		case "histogram, " + unit:
			suffixes = []string{"_bucket", "_sum", "_count"}
		case "gauge, " + unit:
		default:
			t.Errorf("metric %s is documented with unit %s, and registered as %q", name, unit, kind)
		}
		if row[3][0] != exposed || !strings.Contains(dashboard, exposed) {
			t.Errorf("metric %s: the page has %s, Prometheus and the dashboard need %s", name, row[3][0], exposed)
		}
		for _, suffix := range suffixes {
			series[exposed+suffix] = strings.Fields(strings.ReplaceAll(strings.Join(row[2], " "), ".", "_"))
			anywhere = append(anywhere, series[exposed+suffix]...)
		}
		delete(kinds, name)
	}
	if len(kinds) > 0 {
		t.Errorf("not documented: %q", kinds)
	}
	for _, name := range []string{"percolator.background.dropped", "percolator.oracle.failovers", "percolator.observer.dead_letters", "percolator.gc.reclaimed.versions"} {
		if !slices.Contains(zero, name) {
			t.Errorf("%s does not begin with 0, and Prometheus sees no increase in a series that begins with 1", name)
		}
	}
	// Each expression, each legend and each text of an alert has a line of its own.
	names, used := regexp.MustCompile(`\b(?:percolator|db|error)_\w+`), 0
	for line := range strings.Lines(dashboard + readFile(t, docs+"deploy/prometheus-alerts.yaml")) {
		found, labels := names.FindAllString(line, -1), anywhere
		if i := slices.IndexFunc(found, func(n string) bool { return series[n] != nil }); i >= 0 {
			labels, used = nil, used+1
		}
		for _, n := range found {
			labels = append(labels, series[n]...)
		}
		for _, n := range found {
			if series[n] == nil && !slices.Contains(labels, n) {
				t.Errorf("%s is neither a metric nor a label of one in %s", n, line)
			}
		}
	}
	if used < 80 {
		t.Errorf("%d lines of the dashboard and the alerts name a metric", used)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// rows are the words in backticks in the cells of the table below a heading.
func rows(page, heading string) (all [][][]string) {
	_, page, _ = strings.Cut(page, "\n## "+heading+"\n")
	page, _, _ = strings.Cut(page, "\n## ")
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		var row [][]string
		for cell := range strings.SplitSeq(strings.Trim(line, "|\n"), "|") {
			words := []string{}
			for i, word := range strings.Split(cell, "`") {
				if i%2 == 1 {
					words = append(words, word)
				}
			}
			row = append(row, words)
		}
		all = append(all, row)
	}
	return all
}

// A finder finds nothing, and ends its worker.
type finder func()

func (f finder) Find(ctx context.Context, _ notify.Search) error { f(); return ctx.Err() }

// register makes everything that registers metrics, and returns kind and unit of each, and those that are 0.
func register(t *testing.T) (kinds map[string]string, zero []string) {
	kinds = map[string]string{}
	var mu sync.Mutex
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithView(func(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
		mu.Lock()
		defer mu.Unlock()
		kind := map[sdkmetric.InstrumentKind]string{
			sdkmetric.InstrumentKindCounter: "counter", sdkmetric.InstrumentKindObservableCounter: "counter",
			sdkmetric.InstrumentKindHistogram: "histogram", sdkmetric.InstrumentKindObservableGauge: "gauge",
		}[i.Kind]
		kinds[i.Name] = kind + ", " + i.Unit
		return sdkmetric.Stream{}, false
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	txntest.ShortenGC(60) // for this process: the fence takes two seconds
	env := txntest.New(t, txntest.WithConfig(txn.Config{MeterProvider: meters}))
	env.InitTable(admin.TableSpec{Name: "docs", Families: []string{"d"}})
	_, err := gc.Run(ctx, env.Client, gc.Config{})
	must(t, err)
	metadata := env.Bigtable.Open(format.DefaultMetadataTable)
	_, err = tso.SetMode(ctx, metadata, tso.RowConfig{Row: "served"}, tso.ModeServed)
	must(t, err)
	srv, err := server.New(metadata, server.Config{Row: "served", MeterProvider: meters})
	must(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, lis) }()
	client, err := tso.NewClient(tso.ClientConfig{Addresses: []string{lis.Addr().String()}, MeterProvider: meters})
	must(t, err)
	_, err = client.Timestamp(ctx)
	must(t, err)
	must(t, client.Close())
	var rm metricdata.ResourceMetrics
	w, err := notify.NewWorker(env.Client, notify.Config{Finder: finder(func() {
		if err := reader.Collect(ctx, &rm); err != nil {
			t.Error(err)
		}
		cancel()
	})})
	must(t, err)
	must(t, w.Handle("index", "docs", txn.Column{Family: "d", Qualifier: "in"}, notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { return nil })))
	must(t, w.Run(ctx))
	must(t, <-served)
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if d, ok := m.Data.(metricdata.Sum[int64]); ok && slices.ContainsFunc(d.DataPoints, func(p metricdata.DataPoint[int64]) bool { return p.Value == 0 }) {
				zero = append(zero, m.Name)
			}
		}
	}
	return kinds, zero
}

var (
	dirs   = []string{"txn", "notify", "tso", "cmd"} // in the order of the page
	levels = []string{"Error", "Warn", "Info", "Debug"}
)

// scan reads the source: attributes, and the table of log lines, by folder, level and message.
func scan(t *testing.T) (attributes []string, logs string) {
	found, table := map[string]bool{}, map[string]string{}
	for i, dir := range dirs {
		must(t, filepath.WalkDir("../../../"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				name, context := strings.CutSuffix(method.Sel.Name, "Context")
				args := call.Args
				if context && len(args) > 0 {
					args = args[1:]
				}
				if key, ok := literal(args, 0); ok && name == "Key" && strings.HasPrefix(key, "percolator.") {
					found[key] = true
				}
				level := slices.Index(levels, name)
				message, ok := literal(args, 0)
				if level < 0 || !ok || len(args)%2 == 0 {
					return true // not a logger's: t.Error(…), for example
				}
				var keys []string
				for i := 1; i < len(args); i += 2 {
					key, ok := literal(args, i)
					if !ok {
						return true
					}
					keys = append(keys, "`"+key+"`")
				}
				table[fmt.Sprint(i, level, message)] = fmt.Sprintf("| %s | `%s` | %s | %s |\n", strings.ToLower(name), message, dir, strings.Join(keys, " "))
				return true
			})
			return nil
		}))
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		logs += table[key]
	}
	return slices.Sorted(maps.Keys(found)), logs
}

func literal(args []ast.Expr, i int) (string, bool) {
	if i >= len(args) {
		return "", false
	}
	lit, ok := args[i].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
