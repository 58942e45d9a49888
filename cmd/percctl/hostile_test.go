package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// hostile is a text that would clear a terminal, set its title, ring, break a line, turn
// text around and hide it, in one or two bytes and in characters that look like none.
const hostile = "a\x1b[2J\x1b]0;owned\x07\r\nb\u202ec\u2066\u200b\u2028\x00\x7f\u0085\u009b31m\U000e0041\ufeff\x9b31m"

var (
	// text is hostile as far as a protobuf string can hold it.
	text = strings.ToValidUTF8(hostile, "")

	// typed is what a user may paste. Its line breaks are the user's.
	typed = strings.NewReplacer("\r", "", "\n", "").Replace(hostile)
)

// observer is an id. Registering one that is not printable fails.
const observer = "owned"

// hostileDeployment is a deployment in which every name, value and message is hostile.
func hostileDeployment(t *testing.T) (f *fixture, row, cell txn.Cell, start tso.Timestamp) {
	t.Helper()
	ctx := t.Context()
	f, err := newFixture(ctx, t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.InitTable(ctx, f.admin, f.bt, "", admin.TableSpec{Name: "documents", Families: []string{"contents", "index"}}))
	must(f.admin.CreateTable(ctx, "legacy"))
	must(f.admin.CreateColumnFamily(ctx, "legacy", "info"))
	plain := bigtable.NewMutation()
	plain.Set("info", hostile, bigtable.Now(), []byte(hostile))
	must(f.bt.Open("legacy").Apply(ctx, hostile, plain))
	c, err := f.client(ctx, txn.Config{Oracle: &f.past, SyncSecondaries: true, TokenTTL: -1})
	must(err)
	row = txn.Cell{Table: "accounts", Row: hostile, Family: "info", Qualifier: hostile}
	ts, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set(hostile, "info", hostile, []byte(hostile))
		tx.Table("accounts").Set(hostile, "bal", "usd", []byte(hostile))
		tx.Table("accounts").Set(text, "info", text, []byte(text))
		return nil
	})
	must(err)

	// What observers leave: a change that is not observed, one that failed, a dead letter,
	// workers that live and died.
	column := txn.Column{Family: "contents", Qualifier: hostile}
	must(changes.RegisterObserver(ctx, c, "documents", column, observer, false))
	for _, key := range []string{"1", "2", "3"} {
		at := txn.Cell{Table: "documents", Row: hostile + key, Family: column.Family, Qualifier: column.Qualifier}
		change, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table(at.Table).Set(at.Row, at.Family, at.Qualifier, []byte(hostile))
			return nil
		})
		must(err)
		switch key {
		case "2":
			must(changes.SetFailure(ctx, c, at, observer, format.Failure{ChangeTS: change, Attempts: 3, NotBefore: tso.FromTime(time.Now().Add(time.Hour)), FirstTS: change + 1, LastTS: change + 2, Error: text}))
		case "3":
			must(changes.Park(ctx, c, changes.DeadLetter{Cell: at, Observer: observer, ChangeTS: change, Attempts: 10, FirstTS: change + 1, ParkedTS: change + 2, Error: text}))
		}
	}
	must(f.announce(ctx, nil, longTTL, text))
	must(f.announce(ctx, &f.past, shortTTL, text))

	// Locks of a dead client, a record that nobody can read.
	cell = txn.Cell{Table: "journal", Row: hostile, Family: "entry", Qualifier: hostile}
	must(f.leave(ctx, "HOSTILE", txntest.StepCommit, txn.Config{LockTTL: shortTTL, TokenTTL: -1}, cell.String(), "accounts/x/bal:usd"))
	damaged := bigtable.NewMutation()
	damaged.Set(format.WriteFamily, "entry:"+hostile, ts.Cell(), []byte(hostile))
	damaged.Set("entry", "lost", (ts + 1_000_000).Cell(), []byte(hostile))
	must(f.bt.OpenTable("journal").Apply(ctx, hostile, damaged))
	return f, row, cell, f.start["HOSTILE"]
}

// hostileCase is how TestHostileNames runs a command. One of its lines shows something
// of hostile, unless the command is silent: then it reads nothing that is stored.
type hostileCase struct {
	lines  [][]string
	silent bool
}

func lines(all ...[]string) hostileCase { return hostileCase{lines: all} }

// TestHostileNames has every command show names, values and messages that are meant to
// steer a terminal, in every format. Nothing but printable characters may reach
// standard output and standard error, and JSON stays JSON. A command without a case
// fails.
func TestHostileNames(t *testing.T) {
	f, row, cell, start := hostileDeployment(t)
	dir := t.TempDir()
	t.Setenv("BIGTABLE_EMULATOR_HOST", f.emulator.Addr())
	t.Setenv("PERCCTL_PROJECT", fixtureProject)
	t.Setenv("PERCCTL_INSTANCE", fixtureInstance)
	t.Setenv("HOME", dir)
	file := filepath.Join(dir, "export.jsonl")
	damaged := filepath.Join(dir, strings.NewReplacer("\x00", "", "\r\n", "").Replace(hostile)+".jsonl")
	if err := os.WriteFile(damaged, []byte(`{"percctl_export":1,"table":`+string(quoted(text))+"}\n{\""+text+"\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at, stamp := row.String(), start.String()
	column := (txn.Column{Family: "contents", Qualifier: hostile}).String()
	failed := txn.Cell{Table: "documents", Row: hostile + "2", Family: "contents", Qualifier: hostile}.String()
	cases := map[string]hostileCase{
		"check":           lines([]string{"--all"}, []string{typed}),
		"config view":     lines([]string{"--project", typed}),
		"conformance":     lines([]string{typed}, []string{"--only", typed}, []string{"--dry-run", "--table", typed}),
		"console":         lines([]string{"--listen", typed}),
		"delete":          lines([]string{at, "--dry-run"}, []string{typed, "--yes"}),
		"demo":            lines([]string{typed}),
		"doctor":          lines(nil),
		"export":          lines([]string{"accounts"}, []string{"accounts", "--to", file}, []string{typed}),
		"gc plan":         lines([]string{}, []string{typed}),
		"gc run":          lines([]string{"--dry-run"}, []string{typed}),
		"gc status":       lines([]string{typed}),
		"get":             lines([]string{at}, []string{strings.Replace(at, "info", "none", 1)}, []string{typed}),
		"history":         lines([]string{"accounts", hostile}, []string{"journal", hostile}, []string{"accounts", hostile, "--follow", "--timeout", "300ms"}),
		"import":          lines([]string{file, "--dry-run"}, []string{damaged, "--dry-run"}, []string{file, "--table", "journal", "--yes"}),
		"index create":    lines([]string{"documents", typed, "--column", column, "--entries", "documents/" + typed, "--dry-run"}, []string{typed, "byname", "--column", column, "--entries", "documents/d", "--yes"}),
		"index drop":      lines([]string{"documents", typed, "--yes"}, []string{typed, typed, "--yes"}),
		"index list":      lines(nil, []string{typed}),
		"index status":    lines([]string{"documents", typed}),
		"index verify":    lines([]string{"documents", typed}),
		"lock list":       lines([]string{"--all"}, []string{typed}),
		"lock resolve":    lines([]string{"--all", "--dry-run"}, []string{at, "--yes"}),
		"lock watch":      lines([]string{"--all", "--timeout", "300ms"}, []string{typed}),
		"lock show":       lines([]string{cell.String()}, []string{at}),
		"notify backfill": lines([]string{"documents/" + column, "--dry-run"}, []string{typed}),
		"notify drop":     lines([]string{failed, "--dry-run"}, []string{typed}),
		"notify list":     lines(nil, []string{"--dead"}, []string{typed}),
		"notify park":     lines([]string{failed, "--dry-run"}, []string{typed}),
		"notify replay":   lines([]string{"--all", "--dry-run"}, []string{typed}),
		"notify send":     lines([]string{failed, "--dry-run"}, []string{typed}),
		"notify wait":     lines([]string{"--timeout", "200ms"}),
		"observer add":    lines([]string{"documents/" + column, observer + "2", "--dry-run"}, []string{typed, typed}),
		"observer list":   lines(nil),
		"observer remove": lines([]string{"documents/" + column, observer, "--dry-run"}, []string{typed, typed}),
		"plan":            lines([]string{typed}),
		"repair apply":    lines([]string{damaged, "--yes"}),
		"repair plan":     lines([]string{"--all"}),
		"scan":            lines([]string{"accounts"}, []string{typed}),
		"set":             lines([]string{at, hostile, "--dry-run"}, []string{typed, typed}),
		"table adopt":     lines([]string{"legacy", "--dry-run"}, []string{typed, "--yes"}),
		"table describe":  lines([]string{"documents"}, []string{typed}),
		"table expire":    lines([]string{"accounts", typed, "1h", "--yes"}, []string{typed, typed, typed}),
		"table init":      lines([]string{typed, "--families", typed}),
		"table leave":     lines([]string{"documents", "--dry-run"}, []string{typed, "--yes"}),
		"table unadopt":   lines([]string{"documents", "--dry-run"}, []string{typed, "--yes"}),
		"table verify":    lines([]string{"--all"}, []string{typed}),
		"top":             lines([]string{"--once"}),
		"tso advance":     lines([]string{"--to", typed}),
		"tso decode":      lines([]string{typed}),
		"tso mode":        lines(nil, []string{typed}),
		"tso now":         lines([]string{"--server", typed}),
		"tso serve":       lines([]string{"--advertise", typed}),
		"tso status":      lines(nil, []string{"--server", typed + ":1", "--timeout", "100ms"}),
		"txn explain":     lines([]string{cell.String(), stamp}, []string{typed, typed}),
		"txn status":      lines([]string{cell.String(), stamp}, []string{typed, typed}),
		"version":         {lines: [][]string{nil}, silent: true},
		"worker list":     lines(nil),
	}
	var missing []string
	walk(documentedRoot(), func(c *cobra.Command) {
		path := strings.TrimPrefix(c.CommandPath(), "percctl ")
		if _, ok := cases[path]; !ok && c.Runnable() && !c.HasSubCommands() && !c.IsAdditionalHelpTopicCommand() {
			missing = append(missing, path)
		}
	})
	if len(missing) > 0 {
		t.Errorf("commands without a case: %q", missing)
	}
	served := func() {
		// A leader whose name and address are hostile.
		table := f.bt.Open(format.DefaultMetadataTable)
		if _, err := tso.SetMode(t.Context(), table, tso.RowConfig{}, tso.ModeServed); err != nil {
			t.Fatal(err)
		}
		srv, err := server.New(table, server.Config{Name: text, Address: text + ":1"})
		if err != nil {
			t.Fatal(err)
		}
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(ctx, lis) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		for leader := ""; leader != text; {
			row, err := tso.ReadRow(t.Context(), table, tso.RowConfig{})
			if err != nil {
				t.Fatal(err)
			}
			leader = row.Leader
		}
	}
	shown := map[string]bool{}
	run := func(path string, args []string) {
		args = append(strings.Fields(path), args...)
		var stdout, stderr bytes.Buffer
		program.Main(args, &cli.Streams{In: strings.NewReader(""), Out: &stdout, Err: &stderr})
		for name, out := range map[string]string{"standard output": stdout.String(), "standard error": stderr.String()} {
			for i, r := range out {
				if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
					t.Errorf("%q: %s has %q at %d:\n%q", args, name, r, i, out)
					break
				}
			}
			if strings.Contains(out, "\nb\\") {
				t.Errorf("%q: %s breaks the line of a name:\n%q", args, name, out)
			}
		}
		values := [][]byte{stdout.Bytes()}
		if slices.Contains(args, "--follow") || path == "lock watch" { // they print lines
			values = bytes.Split(bytes.TrimSpace(stdout.Bytes()), []byte("\n"))
		}
		for _, v := range values {
			if slices.Contains(args, "json") && len(v) > 0 && !json.Valid(v) {
				t.Errorf("%q: it is not JSON:\n%s", args, v)
			}
		}
		shown[path] = shown[path] || strings.Contains(stdout.String()+stderr.String(), "owned")
	}
	// Locks first, before other commands resolve them; servers last.
	first := []string{"lock list", "lock show", "lock resolve", "txn status", "txn explain", "history", "check", "repair plan"}
	oracle := []string{"tso mode", "tso now", "tso status", "tso advance"}
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(cases)), func(path string) bool {
		return slices.Contains(first, path) || slices.Contains(oracle, path)
	})
	for _, path := range slices.Concat(first, rest, oracle, []string{"doctor", "get", "top"}) {
		if path == oracle[0] {
			served()
		}
		cmd, _, err := documentedRoot().Find(strings.Fields(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range cases[path].lines {
			run(path, args)
			if o := cmd.Flag("output"); o != nil {
				for _, format := range []string{"json", "jsonl", "csv", "yaml"} {
					if strings.Contains(o.Usage, format) {
						run(path, slices.Concat(args, []string{"-o", format}))
					}
				}
			}
		}
	}
	for path, c := range cases {
		if shown[path] == c.silent {
			t.Errorf("%s shows something hostile: %t", path, shown[path])
		}
	}
}

func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}
