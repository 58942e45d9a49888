package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestUnreadTable: a table whose schema record is of a newer format does not keep commands from the
// other tables. They name it, and exit with 4.
func TestUnreadTable(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	meta := f.bt.OpenTable(format.DefaultMetadataTable)
	row, err := meta.ReadRow(t.Context(), "schema/accounts")
	if err != nil || len(row["meta"]) == 0 {
		t.Fatalf("%v, %v", row, err)
	}
	item := row["meta"][0]
	m := bigtable.NewMutation()
	m.Set("meta", strings.TrimPrefix(item.Column, "meta:"), 0, []byte("\x08\x63"))
	if err := meta.Apply(t.Context(), "schema/accounts", m); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{
		"lock list --all": 4, "check --all": 4, "observer list": 4,
		"lock resolve --all --yes": 1, // it resolves no lock whose primary is in the table
	} {
		cmd := exec.Command("percctl", strings.Fields(args)...)
		cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != want || !strings.Contains(string(out), "table accounts cannot be read") {
			t.Errorf("%s: exit code %d\n%s", args, code, out)
		}
	}
}
