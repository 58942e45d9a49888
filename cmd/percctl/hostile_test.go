package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// hostile is a row key and qualifier that would clear a terminal, set its title,
// break a line, and turn text around.
const hostile = "a\x1b[2J\x1b]0;owned\x07\r\nb\u202ec\x00\x9b31m"

// TestHostileNames has every command that looks at tables show rows, columns,
// values and locks whose names are meant to steer a terminal. Nothing but printable
// characters may reach it, on standard output and standard error.
func TestHostileNames(t *testing.T) {
	ctx := t.Context()
	f, err := newFixture(ctx, t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	c, err := f.client(ctx, txn.Config{Oracle: &f.past, SyncSecondaries: true, TokenTTL: -1})
	if err != nil {
		t.Fatal(err)
	}
	ts, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set(hostile, "info", hostile, []byte(hostile))
		tx.Table("accounts").Set(hostile, "bal", "usd", []byte(hostile))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cell := txn.Cell{Table: "journal", Row: hostile, Family: "entry", Qualifier: hostile}
	if err := f.leave(ctx, "HOSTILE", txntest.StepCommit, txn.Config{LockTTL: shortTTL, TokenTTL: -1}, cell.String(), "accounts/x/bal:usd"); err != nil {
		t.Fatal(err)
	}
	damaged := bigtable.NewMutation()
	damaged.Set(format.WriteFamily, "entry:"+hostile, ts.Cell(), []byte(hostile))
	if err := f.bt.OpenTable("journal").Apply(ctx, hostile, damaged); err != nil {
		t.Fatal(err)
	}
	row := (txn.Cell{Table: "accounts", Row: hostile, Family: "info", Qualifier: hostile}).String()
	for _, args := range [][]string{
		{"scan", "accounts"},
		{"scan", "accounts", "-o", "csv"},
		{"scan", "accounts", "-o", "json"},
		{"scan", "accounts", "-o", "yaml"},
		{"get", row},
		{"get", row, "-o", "json"},
		{"get", strings.Replace(row, "info", "none", 1)},
		{"history", "accounts", hostile},
		{"history", "accounts", hostile, "-o", "csv"},
		{"history", "journal", hostile},
		{"check", "--all"},
		{"check", "--all", "-o", "jsonl"},
		{"lock", "list", "--all"},
		{"lock", "list", "--all", "-o", "csv"},
		{"lock", "show", cell.String()},
		{"txn", "explain", cell.String(), f.start["HOSTILE"].String()},
		{"scan", hostile},
		{"get", hostile},
		{hostile},
		{"lock", "resolve", "--all", "--dry-run"},
		{"lock", "resolve", "--all", "--yes"},
	} {
		for i, a := range args {
			args[i] = strings.ReplaceAll(a, "\x00", "") // no argument of a process can have it
		}
		cmd := exec.Command("percctl", args...)
		cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if stdout.Len()+stderr.Len() == 0 {
			t.Errorf("%q printed nothing", args)
		}
		for name, out := range map[string]string{"standard output": stdout.String(), "standard error": stderr.String()} {
			for i, r := range out {
				if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == utf8.RuneError {
					t.Errorf("%q: %s has %q at %d:\n%q", args, name, r, i, out)
					break
				}
			}
			if strings.Contains(out, "\nb") && name == "standard output" {
				t.Errorf("%q: %s breaks the line of a name:\n%q", args, name, out)
			}
		}
	}
}
