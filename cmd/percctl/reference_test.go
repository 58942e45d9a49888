package main

import (
	"flag"
	"fmt"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
)

var update = flag.Bool("update", false, "write docs/reference again")

const (
	docs      = "../../docs/"
	reference = docs + "reference/"
)

// generated is the first line of every page.
const generated = "<!-- Generated from the commands: go test ./cmd/percctl -run TestReference -update. Do not edit. -->\n\n"

// notOutput are files whose JSON no command prints for people: the demo's process.go is
// what its processes send each other, and the others what the console sends its page.
var notOutput = []string{
	"demo/process.go", "consolecmd/handler.go", "consolecmd/row.go", "consolecmd/source.go", "consolecmd/commands.go",
	"picture/series.go", "picture/state.go", "picture/words.go", "watch/heat.go", "watch/sample.go",
}

// TestReference: docs/reference is what the commands say of themselves, with a
// description of every field that they print.
func TestReference(t *testing.T) {
	t.Parallel()
	g := &generator{t: t, root: documentedRoot(), source: newSource(t), described: map[reflect.Type]bool{}}
	pages := g.pages()
	described := map[string]bool{}
	for typ := range g.described {
		described[typ.PkgPath()+"."+typ.Name()] = true
	}
	for _, name := range g.source.jsonTypes(t) {
		if !described[name] {
			t.Errorf("%s has json fields, and no command prints it: declare it with cli.Prints", name)
		}
	}
	for _, path := range referencePages(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := pages[filepath.Base(path)]; ok || !strings.HasPrefix(string(text), generated) {
			continue
		}
		if !*update {
			t.Errorf("docs/reference/%s describes nothing that there is: go test ./cmd/percctl -run %s -update removes it", filepath.Base(path), t.Name())
		} else if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range pages {
		if *update {
			if err := os.MkdirAll(reference, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(reference+name, []byte(want), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(reference + name)
		if err != nil || string(got) != want {
			t.Errorf("docs/reference/%s is out of date: go test ./cmd/percctl -run %s -update writes it again\n%s", name, t.Name(), cmp.Diff(string(got), want))
		}
	}
}

// referencePages are the files in docs/reference: those that this test generates,
// and others.
func referencePages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(reference + "*.md")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A generator makes the pages of docs/reference from a tree of commands.
type generator struct {
	t         *testing.T
	root      *cobra.Command
	source    *source
	shared    map[string]string // usage by name, of flags with one meaning in many commands
	described map[reflect.Type]bool
}

// sharedBy is how many commands have a flag before the index describes it for
// all of them.
const sharedBy = 8

// pages returns the pages by their file names.
func (g *generator) pages() map[string]string {
	g.shared = map[string]string{}
	counts := map[[2]string]int{}
	walk(g.root, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { counts[[2]string{f.Name, f.Usage}]++ })
	})
	for flag, n := range counts {
		if n >= sharedBy && flag[0] != "help" && flag[0] != "output" {
			g.shared[flag[0]] = flag[1]
		}
	}
	all := map[string]string{"README.md": g.index()}
	for _, c := range g.root.Commands() {
		switch {
		case c.IsAdditionalHelpTopicCommand():
			all[c.Name()+".md"] = generated + "# " + sentenceCase(c.Short) + "\n\n" + g.text(c.Long)
		case shown(c):
			all[pageOf(c)] = g.page(c)
		}
	}
	return all
}

// shown: the command is for people.
func shown(c *cobra.Command) bool {
	return !c.Hidden && c.Name() != "help" && c.Name() != "completion" && c.IsAvailableCommand()
}

// walk visits the commands that people see, in order of their names.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if shown(sub) {
			visit(sub)
			walk(sub, visit)
		}
	}
}

// pageOf is the file that describes a command.
func pageOf(c *cobra.Command) string {
	for c.Parent().HasParent() {
		c = c.Parent()
	}
	return "percctl-" + c.Name() + ".md"
}

// index is the page that leads to the others.
func (g *generator) index() string {
	var out strings.Builder
	out.WriteString(generated + "# percctl: reference\n\n" + g.text(g.root.Long))
	out.WriteString("\n```sh\n" + unindent(g.root.Example) + "\n```\n\n## Commands\n\n| Command | |\n|---|---|\n")
	walk(g.root, func(c *cobra.Command) {
		fmt.Fprintf(&out, "| [%s](%s#%s) | %s |\n", code(c.CommandPath()), pageOf(c), anchor(c.CommandPath()), g.inline(c.Short))
	})
	out.WriteString("\n`percctl completion bash|fish|powershell|zsh` prints a script with which a shell completes commands, flags, tables and observers.\n")
	out.WriteString("\n## Topics\n\n| Topic | |\n|---|---|\n")
	for _, c := range g.root.Commands() {
		if c.IsAdditionalHelpTopicCommand() {
			fmt.Fprintf(&out, "| [%s](%s.md) | %s |\n", c.Name(), c.Name(), g.inline(c.Short))
		}
	}
	if others := g.others(); others != "" {
		out.WriteString("\n## Other references\n\n" + others)
	}
	out.WriteString("\n## Shared flags\n\nFlags that many commands have, with the same meaning in each.\n\n| Flag | |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(g.shared)) {
		fmt.Fprintf(&out, "| `--%s` | %s |\n", name, g.inline(g.shared[name]))
	}
	return out.String()
}

// others lists the pages of docs/reference that are not about percctl.
func (g *generator) others() string {
	var out strings.Builder
	for _, path := range referencePages(g.t) {
		text, err := os.ReadFile(path)
		if err != nil {
			g.t.Fatal(err)
		}
		title, ok := strings.CutPrefix(string(text), "# ")
		if !ok {
			continue
		}
		title, _, _ = strings.Cut(title, "\n")
		fmt.Fprintf(&out, "- [%s](%s)\n", title, filepath.Base(path))
	}
	return out.String()
}

// page describes a command and those below it.
func (g *generator) page(c *cobra.Command) string {
	p := &objects{generator: g, names: map[reflect.Type]string{}}
	var out strings.Builder
	out.WriteString(generated)
	p.command(&out, c, "#")
	if c.HasAvailableSubCommands() {
		out.WriteString("\n| Command | |\n|---|---|\n")
		walk(c, func(sub *cobra.Command) {
			fmt.Fprintf(&out, "| [%s](#%s) | %s |\n", code(sub.CommandPath()), anchor(sub.CommandPath()), g.inline(sub.Short))
		})
	}
	walk(c, func(sub *cobra.Command) {
		out.WriteString("\n")
		p.command(&out, sub, "##")
	})
	p.write(&out)
	return out.String()
}

func (p *objects) command(out *strings.Builder, c *cobra.Command, level string) {
	fmt.Fprintf(out, "%s %s\n\n", level, c.CommandPath())
	if c.HasAvailableSubCommands() {
		out.WriteString(p.text(c.Long))
		return
	}
	if c.Long == "" || c.Example == "" {
		p.t.Errorf("%s has no long help or no example", c.CommandPath())
	}
	fmt.Fprintf(out, "%s.\n\n    %s\n\n%s", p.inline(strings.TrimSuffix(c.Short, ".")), c.UseLine(), p.text(c.Long))
	if c.Example != "" {
		fmt.Fprintf(out, "\nExamples:\n\n```sh\n%s\n```\n", unindent(c.Example))
	}
	p.flags(out, c)
	p.output(out, c)
}

func (g *generator) flags(out *strings.Builder, c *cobra.Command) {
	var own, shared []string
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if g.shared[f.Name] == f.Usage {
			shared = append(shared, "`--"+f.Name+"`")
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
		own = append(own, fmt.Sprintf("| %s | %s | %s |\n", name, value, g.inline(f.Usage)))
	})
	if len(own) > 0 {
		fmt.Fprintf(out, "\n| Flag | Default | |\n|---|---|---|\n%s", strings.Join(own, ""))
	}
	if len(shared) > 0 {
		also := ""
		if len(own) > 0 {
			also = " also"
		}
		fmt.Fprintf(out, "\nThe command%s has these [shared flags](README.md#shared-flags): %s.\n", also, strings.Join(shared, ", "))
	}
}

// output says what a command prints.
func (p *objects) output(out *strings.Builder, c *cobra.Command) {
	all := cli.Outputs(c)
	f := c.Flag("output")
	if len(all) == 0 {
		if f != nil {
			p.t.Errorf("%s has -o json: say with cli.Prints what it prints", c.CommandPath())
		}
		return
	}
	for _, o := range all {
		what, as := "the object", " as JSON"
		switch {
		case f == nil:
			as = ""
		case o.List:
			what = "an array of the objects"
		}
		when := ""
		if o.When != "" {
			when = ", " + o.When
		}
		fmt.Fprintf(out, "\nOutput%s%s: %s [%s](#%s).", as, when, what, p.name(o.Type), anchor(p.name(o.Type)))
		if len(o.CSV) > 0 {
			fmt.Fprintf(out, " Columns of `-o csv`: `%s`.", strings.Join(o.CSV, "`, `"))
		}
		out.WriteString("\n")
	}
}

// objects are the types whose fields a page describes.
type objects struct {
	*generator
	order []reflect.Type
	names map[reflect.Type]string
}

// name is the heading of a type on the page; asking for it has the type
// described there.
func (p *objects) name(t reflect.Type) string {
	if name, ok := p.names[t]; ok {
		return name
	}
	name := words(t.Name())
	for other, taken := range p.names {
		if taken == name && other != t {
			name += " of " + t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]
		}
	}
	p.names[t] = name
	p.order = append(p.order, t)
	return name
}

// write describes the types, and those that they are made of.
func (p *objects) write(out *strings.Builder) {
	for i := 0; i < len(p.order); i++ {
		if i == 0 {
			out.WriteString("\n## Objects\n\nUnits, and fields that are optional: [formatting](formatting.md).\n")
		}
		t := p.order[i]
		p.described[t] = true
		comment := p.source.typeComment(t)
		if comment == "" {
			p.t.Errorf("%s.%s has no comment", t.PkgPath(), t.Name())
		}
		fmt.Fprintf(out, "\n### %s\n\n%s\n\n| Field | Type | Unit | Description |\n|---|---|---|---|\n", p.names[t], p.inline(typeSentence(t.Name(), comment)))
		for _, f := range p.fields(t) {
			fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", f.name, f.kind, f.unit, f.description)
		}
	}
}

type outputField struct{ name, kind, unit, description string }

// olderTimestamps are names that docs/stability.md keeps; new timestamps are …_ts.
var olderTimestamps = []string{"safe_point", "previous_safe_point", "now", "limit", "advance_to", "timestamp"}

// fields are those that encoding/json writes of a struct.
func (p *objects) fields(t reflect.Type) (all []outputField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			p.described[inner] = true
			for _, f := range p.fields(inner) {
				if !slices.ContainsFunc(all, func(has outputField) bool { return has.name == f.name }) {
					all = append(all, f)
				}
			}
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			p.t.Errorf("%s.%s.%s has no json name", t.PkgPath(), t.Name(), f.Name)
			continue
		}
		out := outputField{name: name, kind: p.kind(f.Type), description: p.inline(sentence(f.Name, p.source.fieldComment(t, f.Name)))}
		if out.description == "" {
			p.t.Errorf("%s: field %s of type %s has no comment: say what %q holds, and in which unit", t.PkgPath(), f.Name, t.Name(), name)
		}
		if values := p.source.values(f.Type); len(values) > 0 {
			out.description += " One of `" + strings.Join(values, "`, `") + "`."
		}
		if strings.Contains(options, "omitempty") {
			out.kind += ", optional"
		} else if f.Type.Kind() == reflect.Pointer {
			out.kind += " or null"
		}
		if out.unit = unitOf(f, name); out.unit == "" && isNumber(f.Type) {
			p.t.Errorf("%s: field %s of type %s has no unit: name it …_seconds or the like, or give it a tag unit", t.PkgPath(), f.Name, t.Name())
		}
		out.unit = strings.TrimPrefix(out.unit, "-") // it has none
		if f.Type == reflect.TypeFor[tso.Timestamp]() && name != "ts" && !strings.HasSuffix(name, "_ts") && !slices.Contains(olderTimestamps, name) {
			p.t.Errorf("%s: field %s of type %s is a timestamp: name %q …_ts", t.PkgPath(), f.Name, t.Name(), name)
		}
		all = slices.DeleteFunc(all, func(has outputField) bool { return has.name == name })
		all = append(all, out)
	}
	return all
}

// kind is the JSON type of a Go type.
func (p *objects) kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return p.kind(t.Elem())
	case reflect.Struct:
		return fmt.Sprintf("[%s](#%s)", p.name(t), anchor(p.name(t)))
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "string"
		}
		return "array of " + p.kind(t.Elem())
	case reflect.Map:
		return "object of " + p.kind(t.Elem())
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Float64:
		return "number"
	case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	}
	p.t.Errorf("no JSON type for %v", t)
	return ""
}

func isNumber(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
}

// units are those that the ends of names stand for.
var units = []struct{ suffix, unit string }{
	{"_per_second", "1/s"}, {"seconds", "s"}, {"_ms", "ms"}, {"_us", "µs"}, {"_ns", "ns"}, {"_hours", "h"},
	{"bytes", "bytes"}, {"gib", "GiB"}, {"pid", "-"},
}

// unitOf is the unit of a field: from its tag, its type or its name.
func unitOf(f reflect.StructField, name string) string {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	unit, tagged := f.Tag.Lookup("unit")
	switch {
	case tagged:
		return unit
	case t.Name() == "Timestamp":
		return "µs since 1970"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "base64"
	case t.Kind() == reflect.String && (name == "time" || strings.HasSuffix(name, "_time")):
		return "RFC 3339"
	case !isNumber(t):
		return ""
	}
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	if t.Kind() != reflect.Float64 {
		return "count"
	}
	return ""
}

var (
	acronym = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	capital = regexp.MustCompile(`([a-z])([A-Z])`)
)

// words are those of a Go name: runStatus is run status.
func words(name string) string {
	return strings.ToLower(capital.ReplaceAllString(acronym.ReplaceAllString(name, "$1 $2"), "$1 $2"))
}

// sentence makes a field's comment the description of what it holds: without
// the Go name, and with a capital and a full stop.
func sentence(goName, comment string) string {
	comment = strings.Join(strings.Fields(comment), " ")
	for _, verb := range []string{" is ", " are "} {
		comment = strings.TrimPrefix(comment, goName+verb)
	}
	if comment == "" {
		return ""
	}
	if !strings.HasSuffix(comment, ".") {
		comment += "."
	}
	return sentenceCase(comment)
}

// typeSentence is the same of a type's comment.
func typeSentence(goName, comment string) string {
	for _, article := range []string{"", "A ", "An "} {
		for _, verb := range []string{" is ", " are ", " "} {
			if rest, ok := strings.CutPrefix(comment, article+goName+verb); ok {
				return sentence("", rest)
			}
		}
	}
	return sentence("", comment)
}

var lower = regexp.MustCompile(`^[a-z]+([ ,.:;]|$)`)

func sentenceCase(s string) string {
	if lower.MatchString(s) {
		return strings.ToUpper(s[:1]) + s[1:]
	}
	return s
}

func code(s string) string { return "`" + s + "`" }

// anchor is how GitHub calls a heading.
func anchor(heading string) string { return strings.ReplaceAll(strings.ToLower(heading), " ", "-") }

func unindent(s string) string {
	lines := strings.Split(strings.Trim(s, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

// text makes Markdown of a help text: indented lines stay as they are.
func (g *generator) text(help string) string {
	var out strings.Builder
	fenced := false
	for line := range strings.Lines(strings.TrimSpace(help) + "\n") {
		line = strings.TrimSuffix(line, "\n")
		if indented := strings.HasPrefix(line, "  "); indented != fenced {
			out.WriteString("```\n")
			fenced = indented
		}
		if !fenced {
			line = g.inline(line)
		}
		out.WriteString(strings.TrimPrefix(line, "  ") + "\n")
	}
	if fenced {
		out.WriteString("```\n")
	}
	return out.String()
}

// What is code or a link in a line of help, and what Markdown would take for
// something else.
var inlineParts = regexp.MustCompile("`[^`]*`" + `|percctl(?: [a-z][a-z-]*)+|docs/[a-z-]+\.md|--[a-z][a-z-]*|-o (?:table|json|jsonl|yaml|csv)\b|-o\b|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|[a-z…]*_[a-z_]+\b|[*<\[_|]`)

// inline makes Markdown of a line of help.
func (g *generator) inline(s string) string {
	return inlineParts.ReplaceAllStringFunc(s, func(part string) string {
		switch {
		case strings.HasPrefix(part, "`"):
			return strings.ReplaceAll(part, "|", `\|`)
		case strings.HasPrefix(part, "percctl "):
			return g.link(part)
		case strings.HasPrefix(part, "docs/"):
			return fmt.Sprintf("[%s](../%s)", part, strings.TrimPrefix(part, "docs/"))
		case len(part) == 1 && !token.IsIdentifier(part), part == "_":
			return `\` + part
		}
		return code(part)
	})
}

// link leads to the command, or the topic, that a text names.
func (g *generator) link(text string) string {
	c, rest := g.root, strings.Fields(text)[1:]
	if rest[0] == "help" && len(rest) > 1 {
		for _, topic := range g.root.Commands() {
			if topic.IsAdditionalHelpTopicCommand() && topic.Name() == rest[1] {
				return strings.TrimSpace(fmt.Sprintf("[`percctl help %s`](%s.md) %s", rest[1], rest[1], strings.Join(rest[2:], " ")))
			}
		}
	}
	for len(rest) > 0 {
		i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == rest[0] && shown(sub) })
		if i < 0 {
			break
		}
		c, rest = c.Commands()[i], rest[1:]
	}
	if c == g.root {
		return text
	}
	return strings.TrimSpace(fmt.Sprintf("[%s](%s#%s) %s", code(c.CommandPath()), pageOf(c), anchor(c.CommandPath()), strings.Join(rest, " ")))
}
