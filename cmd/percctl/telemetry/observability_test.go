package telemetry_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

const (
	root    = "../../../"
	docPath = root + "docs/reference/telemetry.md"
	module  = "github.com/percolator-bigtable/percolator/"
)

// logging are the folders whose log lines are documented.
var logging = []string{"txn", "notify", "tso", "cmd"}

var update = flag.Bool("update", false, "write the generated part of docs/reference/telemetry.md again")

// A table of the document: rows of cells, by the heading above it.
type table [][]string

// tables reads the document's tables, without their headings.
func tables(t *testing.T) map[string]table {
	t.Helper()
	text, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	all, heading, lines := map[string]table{}, "", 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
			heading, lines = strings.TrimLeft(line, "# "), 0
		case strings.HasPrefix(line, "|"):
			if lines++; lines > 2 {
				cells := strings.Split(strings.Trim(line, "|"), "|")
				for i := range cells {
					cells[i] = strings.TrimSpace(cells[i])
				}
				all[heading] = append(all[heading], cells)
			}
		}
	}
	return all
}

var quoted = regexp.MustCompile("`([^`]+)`")

// codes are the words in backticks of a cell.
func codes(cell string) []string {
	var all []string
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// list is a set's members in order.
func list(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

func setOf(words ...string) map[string]bool {
	set := map[string]bool{}
	for _, w := range words {
		set[w] = true
	}
	return set
}

// pattern matches the names of spans: TABLE and such stand for anything, what is
// in brackets may be missing.
func pattern(name string) *regexp.Regexp {
	e := regexp.QuoteMeta(name)
	e = regexp.MustCompile(` \\\[[A-Z]+\\\]`).ReplaceAllString(e, "( .+)?")
	e = regexp.MustCompile(`\b[A-Z]{2,}\b`).ReplaceAllString(e, ".+")
	return regexp.MustCompile("^" + e + "$")
}

// everySpan are attributes that any span below the library may have.
var everySpan = setOf("error.type", "db.system.name", "db.operation.name", "db.collection.name")

// TestDocumented compares what a scene of everything produces with
// docs/reference/telemetry.md, the dashboard and the alerts.
func TestDocumented(t *testing.T) {
	s := newScene(t)
	s.play()
	t.Run("page", func(t *testing.T) { compareDocument(t, s) })
	t.Run("zero", func(t *testing.T) {
		for _, name := range []string{"percolator.background.dropped", "percolator.oracle.failovers", "percolator.observer.dead_letters", "percolator.gc.reclaimed.versions"} {
			if !s.wasZero(name) {
				t.Errorf("%s does not begin with 0", name)
			}
		}
	})
	t.Run("expressions", func(t *testing.T) { compareExpressions(t, s) })
}

// compareDocument: nothing may be missing in the document, and nothing be there
// that is not produced.
func compareDocument(t *testing.T, s *scene) {
	doc := tables(t)
	attributes := map[string]bool{}
	note := func(keys map[string]bool) {
		for k := range keys {
			attributes[k] = true
		}
	}
	compareSpans(t, s, doc, note)
	compareMetrics(t, s, doc["Metrics"], note)
	listed := map[string]bool{}
	for _, row := range doc["Attributes"] {
		for _, name := range codes(row[0]) {
			listed[name] = true
		}
	}
	for k := range attributes {
		if strings.HasPrefix(k, "percolator.") && !listed[k] {
			t.Errorf("attribute %s is not in the table of attributes", k)
		}
	}
	for k := range listed {
		if !attributes[k] {
			t.Errorf("attribute %s is documented and on nothing that was produced", k)
		}
	}
}

// produced is what was seen of one kind of thing.
type produced struct {
	kind string
	keys map[string]bool
}

func keysOf(kvs []attribute.KeyValue) map[string]bool {
	keys := map[string]bool{}
	for _, kv := range kvs {
		keys[string(kv.Key)] = true
	}
	return keys
}

func compareSpans(t *testing.T, s *scene, doc map[string]table, note func(map[string]bool)) {
	t.Helper()
	spans, events := make([]produced, len(doc["Spans"])), map[string]map[string]bool{}
	for _, span := range s.recorder.Ended() {
		for _, e := range span.Events() {
			if events[e.Name] == nil {
				events[e.Name] = map[string]bool{}
			}
			maps.Copy(events[e.Name], keysOf(e.Attributes))
			note(keysOf(e.Attributes))
		}
		if !strings.HasPrefix(span.InstrumentationScope().Name, module) {
			continue
		}
		found := -1
		for i, row := range doc["Spans"] {
			if pattern(codes(row[0])[0]).MatchString(span.Name()) {
				found = i
				break
			}
		}
		if found < 0 {
			t.Errorf("span %q is not documented", span.Name())
			continue
		}
		p := &spans[found]
		if p.keys == nil {
			p.keys = map[string]bool{}
		}
		p.kind = span.SpanKind().String()
		maps.Copy(p.keys, keysOf(span.Attributes()))
		note(keysOf(span.Attributes()))
	}
	for i, row := range doc["Spans"] {
		name, want := codes(row[0])[0], setOf(codes(row[3])...)
		got := maps.Clone(spans[i].keys)
		for k := range everySpan {
			delete(got, k)
		}
		switch {
		case spans[i].keys == nil:
			t.Errorf("span %q is documented and was not produced", name)
		case spans[i].kind != row[1]:
			t.Errorf("span %q is of kind %s, documented as %s", name, spans[i].kind, row[1])
		case !maps.Equal(got, want):
			t.Errorf("span %q has the attributes\n%s\ndocumented are\n%s", name, list(got), list(want))
		}
	}
	documented := map[string]bool{}
	for _, row := range doc["Events"] {
		name := codes(row[0])[0]
		documented[name] = true
		if got, want := events[name], setOf(codes(row[2])...); !maps.Equal(got, want) {
			t.Errorf("event %q has the attributes\n%s\ndocumented are\n%s", name, list(got), list(want))
		}
	}
	for name := range events {
		if !documented[name] {
			t.Errorf("event %q is not documented", name)
		}
	}
}

// compareMetrics looks at names, types, units, attributes and what Prometheus
// makes of a name.
func compareMetrics(t *testing.T, s *scene, doc table, note func(map[string]bool)) {
	t.Helper()
	type instrument struct {
		kind, unit string
		keys       map[string]bool
	}
	all := map[string]*instrument{}
	for _, rm := range s.seen {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				in := all[m.Name]
				if in == nil {
					in = &instrument{unit: m.Unit, keys: map[string]bool{}}
					all[m.Name] = in
				}
				var sets []attribute.Set
				in.kind, sets = points(m.Data)
				for _, set := range sets {
					maps.Copy(in.keys, keysOf(set.ToSlice()))
				}
				note(in.keys)
			}
		}
	}
	documented := map[string]bool{}
	for _, row := range doc {
		name := codes(row[0])[0]
		documented[name] = true
		in := all[name]
		if in == nil {
			t.Errorf("metric %s is documented and was not produced", name)
			continue
		}
		if got, want := fmt.Sprintf("%s, `%s`", in.kind, in.unit), row[1]; got != want {
			t.Errorf("metric %s is a %s, documented as %s", name, got, want)
		}
		if want := setOf(codes(row[2])...); !maps.Equal(in.keys, want) {
			t.Errorf("metric %s has the attributes\n%s\ndocumented are\n%s", name, list(in.keys), list(want))
		}
		series := codes(row[3])[0]
		if s.exposed[series] == nil && s.exposed[series+"_bucket"] == nil {
			t.Errorf("metric %s: Prometheus has no %s", name, series)
		}
	}
	for name, in := range all {
		if !documented[name] {
			t.Errorf("metric %s is not documented: %s, `%s`, %s", name, in.kind, in.unit, list(in.keys))
		}
	}
}

func points(data metricdata.Aggregation) (kind string, sets []attribute.Set) {
	switch d := data.(type) {
	case metricdata.Histogram[int64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
		return "histogram", sets
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
		return "histogram", sets
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
		return "counter", sets
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
		return "gauge", sets
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
		return "gauge", sets
	}
	return fmt.Sprintf("%T", data), nil
}

// TestLogsDocumented compares the document's table of log lines with the calls of
// loggers in the source. With -update it writes the table.
func TestLogsDocumented(t *testing.T) {
	source := map[string]string{} // by level and message: where, and attributes
	for _, dir := range logging {
		if err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return scanLogs(path, dir, source)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if *update {
		writeLogs(t, source)
	}
	documented := map[string]string{}
	for _, row := range tables(t)["Log lines"] {
		documented[row[0]+" "+codes(row[1])[0]] = row[2] + " " + strings.Join(codes(row[3]), " ")
	}
	for line, where := range source {
		if documented[line] != where {
			t.Errorf("not documented, or not like this (-update writes the table):\n%s", logRow(line, where))
		}
	}
	for line := range documented {
		if source[line] == "" {
			t.Errorf("documented and not in the source: %s", line)
		}
	}
}

// logRow is a log line's row of the table.
func logRow(line, where string) string {
	level, message, _ := strings.Cut(line, " ")
	words := strings.Fields(where)
	for i, w := range words[1:] {
		words[i+1] = "`" + w + "`"
	}
	return fmt.Sprintf("| %s | `%s` | %s | %s |", level, message, words[0], strings.Join(words[1:], " "))
}

// writeLogs writes the table of log lines: by package, then level, then message.
func writeLogs(t *testing.T, source map[string]string) {
	t.Helper()
	text, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(text), "\n## Log lines\n")
	if !ok {
		t.Fatalf("%s has no section on log lines", docPath)
	}
	key := func(line string) string {
		level, message, _ := strings.Cut(line, " ")
		dir, _, _ := strings.Cut(source[line], " ")
		return fmt.Sprintf("%d %d %s", slices.Index(logging, dir), slices.Index([]string{"error", "warn", "info", "debug"}, level), message)
	}
	lines := slices.SortedFunc(maps.Keys(source), func(a, b string) int { return strings.Compare(key(a), key(b)) })
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n## Log lines\n\n| Level | Message | From | With |\n|---|---|---|---|\n", head)
	for _, line := range lines {
		fmt.Fprintln(&out, logRow(line, source[line]))
	}
	if err := os.WriteFile(docPath, []byte(out.String()), 0o666); err != nil {
		t.Fatal(err)
	}
}

var levels = map[string]string{
	"Debug": "debug", "DebugContext": "debug", "Info": "info", "InfoContext": "info",
	"Warn": "warn", "WarnContext": "warn", "Error": "error", "ErrorContext": "error",
}

// scanLogs finds calls such as log.WarnContext(ctx, "message", "key", value).
func scanLogs(path, dir string, found map[string]string) error {
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
		if !ok || levels[method.Sel.Name] == "" {
			return true
		}
		args := call.Args
		if strings.HasSuffix(method.Sel.Name, "Context") && len(args) > 0 {
			args = args[1:]
		}
		message, ok := literal(args, 0)
		if !ok || len(args)%2 == 0 {
			return true // no logger's: t.Error(…), for example
		}
		keys := []string{dir}
		for i := 1; i < len(args); i += 2 {
			key, ok := literal(args, i)
			if !ok {
				return true
			}
			keys = append(keys, key)
		}
		found[levels[method.Sel.Name]+" "+message] = strings.Join(keys, " ")
		return true
	})
	return nil
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
