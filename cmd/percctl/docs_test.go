package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

var update = flag.Bool("update", false, "write the generated parts of docs/ again")

const docs = "../../docs/"

// compareDoc compares what is generated with a part of a document, between a
// line and the end.
func compareDoc(t *testing.T, file, from, want string) {
	t.Helper()
	text, err := os.ReadFile(docs + file)
	if err != nil {
		t.Fatal(err)
	}
	head, part, ok := strings.Cut(string(text), from+"\n")
	if !ok {
		t.Fatalf("%s has no line %q", file, from)
	}
	if *update {
		if err := os.WriteFile(docs+file, []byte(head+from+"\n"+want), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if part != want {
		t.Errorf("docs/%s is out of date: go test ./cmd/percctl -run %s -update writes it again\n%s", file, t.Name(), cmp.Diff(part, want))
	}
}

// TestReference: docs/percctl.md names every command and flag.
func TestReference(t *testing.T) {
	t.Parallel()
	root := program.Root(&cli.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	root.InitDefaultCompletionCmd()
	var out strings.Builder
	shared := map[string]string{} // flags with one meaning in most commands
	counts := map[string]int{}
	walk(root, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { counts[f.Name+"\x00"+f.Usage]++ })
	})
	fmt.Fprintf(&out, "\n<!-- Generated: go test ./cmd/percctl -run TestReference -update -->\n\nFlags that many commands have:\n\n| Flag | |\n|---|---|\n")
	for _, key := range slices.Sorted(mapsKeys(counts)) {
		name, usage, _ := strings.Cut(key, "\x00")
		if counts[key] >= 8 && name != "help" {
			shared[name] = usage
			fmt.Fprintf(&out, "| `--%s` | %s |\n", name, cellText(usage))
		}
	}
	walk(root, func(c *cobra.Command) {
		fmt.Fprintf(&out, "\n### %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
		if !c.Runnable() || c.HasAvailableSubCommands() {
			return
		}
		fmt.Fprintf(&out, "\n    %s\n", c.UseLine())
		var own []string
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" || shared[f.Name] == f.Usage {
				return
			}
			name := "`--" + f.Name + "`"
			if f.Shorthand != "" {
				name = "`-" + f.Shorthand + "`, " + name
			}
			value := ""
			if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
				value = "`" + f.DefValue + "`"
			}
			own = append(own, fmt.Sprintf("| %s | %s | %s |\n", name, value, cellText(f.Usage)))
		})
		if len(own) > 0 {
			fmt.Fprintf(&out, "\n| Flag | Default | |\n|---|---|---|\n%s", strings.Join(own, ""))
		}
	})
	compareDoc(t, "percctl.md", "## All commands and flags", out.String())
}

func cellText(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func mapsKeys(m map[string]int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// walk visits the commands that people see, in order of their names.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" || !sub.IsAvailableCommand() {
			continue
		}
		visit(sub)
		walk(sub, visit)
	}
}

// printedBy says which command prints a type, or a type inside it; CSV columns
// are found by the file that has them.
var printedBy = []struct{ path, types, command string }{
	{"checkcmd/check.go", "violation", "percctl check"},
	{"checks/report.go", "Report", "percctl doctor, percctl table verify"},
	{"checks/checks.go", "Result Finding", "percctl doctor, percctl table verify"},
	{"connect/connect.go", "Setting", "percctl config view"},
	{"configcmd/config.go", "", "percctl config view"},
	{"inspect/inspect.go", "Transaction Lock", "percctl lock list, percctl lock show, percctl txn status"},
	{"inspect/text.go", "", "percctl lock list, percctl lock show, percctl txn status"},
	{"gccmd/text.go", "report", "percctl gc plan, percctl gc run"},
	{"gccmd/status.go", "status runStatus", "percctl gc status"},
	{"picture/picture.go", "Picture Locks Notifications Workers DeadLetter", "percctl top"},
	{"picture/rates.go", "Rates", "percctl top"},
	{"consolecmd/command.go", "started", "percctl console"},
	{"lockcmd/plan.go", "plan tally", "percctl lock resolve --dry-run"},
	{"lockcmd/resolver.go", "result", "percctl lock resolve"},
	{"txncmd/explain.go", "explanation cell stored", "percctl txn explain"},
	{"readcmd/command.go", "value", "percctl get, and the cells of percctl scan"},
	{"readcmd/scan.go", "row", "percctl scan"},
	{"readcmd/history.go", "event", "percctl history"},
	{"writecmd/write.go", "result change", "percctl set, percctl delete"},
	{"movecmd/format.go", "header rowLine cellLine", "percctl export"},
	{"movecmd/import.go", "imported", "percctl import"},
	{"repaircmd/plan.go", "plan item left", "percctl repair plan"},
	{"repaircmd/apply.go", "applied", "percctl repair apply"},
	{"../../../emulator_test/lab/internal/soak/summary.go", "summary", "lab soak"},
	{"../../../emulator_test/lab/internal/soak/goals.go", "goal", "lab soak"},
	{"tablecmd/adopt.go", "adoption adoptedFamily", "percctl table adopt"},
	{"tablecmd/unadopt.go", "undoing", "percctl table unadopt"},
	{"tablecmd/describe.go", "description describedFamily describedObserved rowSample", "percctl table describe"},
	{"observercmd/list.go", "observer", "percctl observer list"},
	{"observercmd/edit.go", "edited", "percctl observer add, percctl observer remove"},
	{"workercmd/command.go", "worker", "percctl worker list"},
	{"notifycmd/item.go", "item observerItem", "percctl notify list"},
	{"notifycmd/wait.go", "waited", "percctl notify wait"},
	{"notifycmd/letters.go", "lettersPlan", "percctl notify replay --dry-run, percctl notify drop --dry-run"},
	{"notifycmd/letters.go", "lettersResult", "percctl notify replay, percctl notify drop"},
	{"notifycmd/park.go", "parked", "percctl notify park"},
	{"notifycmd/send.go", "sent sentCell", "percctl notify send"},
	{"notifycmd/backfill.go", "backfilled", "percctl notify backfill"},
	{"../../../emulator_test/lab/internal/bench/observers/latency.go", "latencyReport latencyLine", "lab bench observers latency"},
	{"../../../emulator_test/lab/internal/bench/observers/throughput.go", "throughputReport throughputLine", "lab bench observers throughput"},
	{"../../../emulator_test/lab/internal/bench/observers/figure7.go", "figure7Report point", "lab bench observers figure7"},
	{"../../../emulator_test/lab/internal/bench/compare.go", "compareReport", "lab bench compare"},
	{"../../../emulator_test/lab/internal/bench/rows.go", "rowsReport", "lab bench rows"},
	{"../../../emulator_test/lab/internal/bench/scale.go", "scaleReport scaleLine", "lab bench scale"},
	{"../../../emulator_test/lab/internal/bench/contention.go", "contentionReport contentionLine", "lab bench contention"},
	{"../../../emulator_test/lab/internal/bench/brokerage.go", "brokerageReport brokerageLine", "lab bench brokerage"},
	{"../../../emulator_test/lab/internal/bench/trips.go", "tripsReport tripsLine", "lab bench trips"},
	{"../../../emulator_test/lab/internal/bench/delay.go", "delayReport delayLine", "lab bench delay"},
	{"../../../emulator_test/lab/internal/bench/cpu.go", "cpuReport cpuLine", "lab bench cpu"},
	{"../../../emulator_test/lab/internal/bench/profile.go", "profileReport profileLine", "lab bench profile"},
	{"../capacity/plan.go", "Plan KindPlan TablePlan", "percctl plan"},
	{"../capacity/workload.go", "Workload Kind Table", "percctl plan: a workload, in its file and in the json"},
	{"../capacity/rates.go", "Rates", "percctl plan: rates"},
	{"../../../emulator_test/lab/internal/bench/verify.go", "verification verifiedLine verifiedLatency", "lab bench plan"},
	{"../../../emulator_test/lab/internal/bench/report.go", "results", "lab bench report: docs/performance.json"},
	{"../../../emulator_test/lab/internal/bench/pairs.go", "figure", "lab bench compare, lab bench rows: figures"},
	{"../../../emulator_test/lab/internal/rig/machine.go", "Machine", "lab bench: machine, of all but observers and plan"},
	{"../../../emulator_test/lab/internal/rig/flags.go", "Quantiles", "lab bench observers: quantiles, of latency and figure7"},
	{"../cli/version.go", "version", "percctl version"},
}

// notOutput are folders whose JSON is not for users, or is documented elsewhere:
// percctl tso and lab oracle in docs/oracle.md, percctl demo in its help; index
// stores its own in cells, traces reads Jaeger's, and rpcs goes between processes.
var notOutput = []string{"demo", "tsocmd", "embedded", "index", "oracle", "overhead", "traces", "rpcs.go"}

// TestOutputReference: docs/cli-output.md names every field and column that
// commands print, with the comment that the source has on it.
func TestOutputReference(t *testing.T) {
	t.Parallel()
	byCommand := map[string]*strings.Builder{}
	var order []string
	section := func(command string) *strings.Builder {
		if byCommand[command] == nil {
			byCommand[command] = &strings.Builder{}
			order = append(order, command)
		}
		return byCommand[command]
	}
	seen := map[string]bool{}
	for _, p := range printedBy {
		file := parse(t, filepath.Join("internal", p.path))
		for _, name := range strings.Fields(p.types) {
			seen[p.path+" "+name] = true
			fields := jsonFields(file, name)
			if len(fields) == 0 {
				t.Errorf("%s has no type %s with json fields", p.path, name)
			}
			out := section(p.command)
			fmt.Fprintf(out, "\n%s:\n\n| Field | |\n|---|---|\n", typeTitle(file, name))
			for _, f := range fields {
				fmt.Fprintf(out, "| `%s` | %s |\n", f.name, cellText(f.comment))
			}
		}
		for _, columns := range csvColumns(file) {
			fmt.Fprintf(section(p.command), "\nColumns of `-o csv`: `%s`\n", strings.Join(columns, "`, `"))
		}
	}
	for _, path := range sources(t) {
		file := parse(t, filepath.Join("internal", path))
		for _, decl := range structTypes(file) {
			if key := path + " " + decl.Name.Name; len(jsonFields(file, decl.Name.Name)) > 0 && !seen[key] {
				t.Errorf("%s: type %s has json fields; say in printedBy which command prints it", path, decl.Name.Name)
			}
		}
	}
	var out strings.Builder
	out.WriteString("\n<!-- Generated: go test ./cmd/percctl -run TestOutputReference -update -->\n")
	for _, c := range order {
		fmt.Fprintf(&out, "\n### %s\n%s", c, byCommand[c])
	}
	compareDoc(t, "cli-output.md", "## Fields and columns", out.String())
}

// sources are the files that may print something, as seen from the folder internal.
func sources(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"internal/*/*.go", "capacity/*.go", "cli/*.go", "../../emulator_test/lab/internal/*/*.go", "../../emulator_test/lab/internal/*/*/*.go"} {
		all, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			folder, file := filepath.Base(filepath.Dir(p)), filepath.Base(p)
			if strings.HasSuffix(p, "_test.go") || slices.Contains(notOutput, folder) || slices.Contains(notOutput, file) {
				continue
			}
			p, err = filepath.Rel("internal", p)
			if err != nil {
				t.Fatal(err)
			}
			paths = append(paths, filepath.ToSlash(p))
		}
	}
	return paths
}

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func structTypes(file *ast.File) (all []*ast.TypeSpec) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok {
			if _, ok := s.Type.(*ast.StructType); ok {
				all = append(all, s)
			}
		}
		return true
	})
	return all
}

// typeTitle is the type's comment, or its name.
func typeTitle(file *ast.File, name string) string {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Doc == nil {
			continue
		}
		for _, s := range g.Specs {
			if spec, ok := s.(*ast.TypeSpec); ok && spec.Name.Name == name {
				text := strings.Join(strings.Fields(g.Doc.Text()), " ")
				first, _, _ := strings.Cut(text, ". ")
				return strings.TrimSuffix(first, ".")
			}
		}
	}
	return name
}

type jsonField struct{ name, comment string }

func jsonFields(file *ast.File, typ string) (fields []jsonField) {
	for _, s := range structTypes(file) {
		if s.Name.Name != typ {
			continue
		}
		for _, f := range s.Type.(*ast.StructType).Fields.List {
			if f.Tag == nil {
				continue
			}
			tag, err := strconv.Unquote(f.Tag.Value)
			if err != nil {
				continue
			}
			name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			comment := ""
			if f.Comment != nil {
				comment = strings.TrimSpace(f.Comment.Text())
			}
			fields = append(fields, jsonField{name, comment})
		}
	}
	return fields
}

// csvColumns are the lists named Header, CSVHeader or csvHeader.
func csvColumns(file *ast.File) (all [][]string) {
	add := func(name string, e ast.Expr) {
		list, ok := e.(*ast.CompositeLit)
		if !ok || (name != "Header" && !strings.EqualFold(name, "CSVHeader")) {
			return
		}
		var columns []string
		for _, el := range list.Elts {
			if lit, ok := el.(*ast.BasicLit); ok {
				s, _ := strconv.Unquote(lit.Value)
				columns = append(columns, s)
			}
		}
		all = append(all, columns)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok {
				add(id.Name, n.Value)
			}
		case *ast.ValueSpec:
			for i, id := range n.Names {
				if i < len(n.Values) {
					add(id.Name, n.Values[i])
				}
			}
		}
		return true
	})
	return all
}
