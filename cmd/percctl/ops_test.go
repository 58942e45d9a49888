package main

import (
	"context"
	"os"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/txn"
)

// TestOps runs the scripts of testdata/ops, each against an emulator of its own
// with what fixture.fill leaves. The start timestamps of its transactions are
// in $FORWARD, $DEAD and so on. Every script ends with the consistency check.
func TestOps(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/ops",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			ctx := context.Background()
			f, err := newFixture(ctx, t)
			if err != nil {
				return err
			}
			env.Values["fixture"] = f
			env.Defer(func() {
				if err := f.check(ctx); err != nil {
					t.Errorf("%s: %v", env.WorkDir, err)
				}
				f.close()
			})
			env.Setenv("BIGTABLE_EMULATOR_HOST", f.emulator.Addr())
			env.Setenv("PERCCTL_PROJECT", fixtureProject)
			env.Setenv("PERCCTL_INSTANCE", fixtureInstance)
			if err := f.fill(ctx); err != nil {
				return err
			}
			for name, ts := range f.start {
				env.Setenv(name, ts.String())
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  exits,
			"until":  until,
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
		},
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
	m.Set(txn.LockFamily, "info:x", pastBegin.Cell(), []byte("\x1b?"))
	ts.Check(f.bt.Open(args[0]).Apply(context.Background(), args[1], m))
}
