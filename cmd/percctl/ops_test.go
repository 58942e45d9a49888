package main

import (
	"context"
	"os"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
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
