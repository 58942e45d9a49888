package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestOps runs the scripts of testdata/ops against what fixture.fill leaves.
func TestOps(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/ops", (*fixture).fill, map[string]func(*testscript.TestScript, bool, []string){
		"exits":  clitest.Exits,
		"until":  clitest.Until,
		"dump":   dumpTo,
		"damage": damage,
		"policy": policy,
		"plain":  plain,

		"lockdamage": lockDamage,
		"awaitundo":  awaitUndo,
		"write":      write,
		"served":     served,
		"values":     values,
		"cut":        cut,
		"field":      field,
	})
}

// dump FILE writes what is stored in all tables.
func dumpTo(ts *testscript.TestScript, _ bool, args []string) {
	text, err := ts.Value("fixture").(*fixture).dump(context.Background())
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o666))
}

// damage makes two violations.
func damage(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(ts.Value("fixture").(*fixture).damage(context.Background()))
}

// policy TABLE FAMILY sets a garbage-collection policy.
func policy(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value("fixture").(*fixture)
	f.damaged = true // the check refuses such a table
	ts.Check(f.admin.SetGCPolicy(context.Background(), args[0], args[1], bigtable.MaxVersionsPolicy(1000)))
}

// lockdamage TABLE ROW writes a lock record that nobody can read.
func lockDamage(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value("fixture").(*fixture)
	f.damaged = true
	m := bigtable.NewMutation()
	m.Set(format.LockFamily, "info:x", pastBegin.Cell(), []byte("\x1b?"))
	ts.Check(f.bt.Open(args[0]).Apply(context.Background(), args[1], m))
}

// TestDeletedTable: a table was deleted, and its schema record was not. Commands that
// look at all tables leave it out and say so; a collection refuses, because the table may
// come back.
func TestDeletedTable(t *testing.T) {
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := admin.InitTable(t.Context(), f.admin, f.bt, "", admin.TableSpec{Name: "gone", Families: []string{"x"}, Observed: []txn.Column{{Family: "x", Qualifier: "y"}}}); err != nil {
		t.Fatal(err)
	}
	if err := f.admin.DeleteTable(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BIGTABLE_EMULATOR_HOST", f.emulator.Addr())
	t.Setenv("PERCCTL_PROJECT", fixtureProject)
	t.Setenv("PERCCTL_INSTANCE", fixtureInstance)
	for line, code := range map[string]int{
		"lock list --all": cli.ExitOK, "lock resolve --all --dry-run": cli.ExitOK, "observer list": cli.ExitOK, "notify list": cli.ExitOK,
		"top --once": cli.ExitOK, "gc plan": cli.ExitOK, "gc run --dry-run": cli.ExitNotFound, "check --all": cli.ExitFound, "notify wait": cli.ExitOK, "repair plan --all": cli.ExitOK,
		"gc run --yes": cli.ExitNotFound, "lock list gone": cli.ExitNotFound, "table verify gone": cli.ExitFound,
	} {
		var out, errs bytes.Buffer
		got := program.Main(strings.Fields(line), &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		says := "table gone has a schema record but does not exist: run percctl table verify gone"
		switch line {
		case "gc run --yes":
			says = `table "gone"`
		case "table verify gone":
			says = "gone: the table does not exist; its schema record does"
		}
		if got != code || !strings.Contains(out.String()+errs.String(), says) {
			t.Errorf("percctl %s: exit code %d, want %d\n%s%s", line, got, code, out.String(), errs.String())
		}
	}
	record := bigtable.NewMutation()
	record.DeleteRow()
	if err := f.bt.Open(format.DefaultMetadataTable).Apply(t.Context(), "schema/gone", record); err != nil {
		t.Fatal(err)
	}
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
