package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestViews: percctl works through an authorized view that has the families of transactions.
// What is beyond the view fails clearly, and so does a view that lacks such a family. It ends
// with the consistency check, through the view.
func TestViews(t *testing.T) {
	t.Parallel()
	all := append([]string{"bal"}, format.MetadataFamilies...)
	f, err := newFixture(t.Context(), t, txntest.Views(map[string]txntest.View{
		"accounts/eu":      {Prefix: "eu/", Families: all},
		"accounts/nolocks": {Prefix: "eu/", Families: slices.DeleteFunc(slices.Clone(all), func(f string) bool { return f == format.LockFamily })},
	})...)
	if f != nil {
		t.Cleanup(f.close)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, views string
		args        []string
		code        int
		want        string
	}{
		{"write", "accounts=eu", []string{"set", "accounts/eu/bob/bal:eur", "7", "--yes"}, 0, ""},
		{"read", "accounts=eu", []string{"get", "accounts/eu/bob/bal:eur"}, 0, "7"},
		{"scan", "accounts=eu", []string{"scan", "accounts"}, 0, "eu/bob"},
		{"history", "accounts=eu", []string{"history", "accounts", "eu/bob"}, 0, "bal:eur"},
		{"locks", "accounts=eu", []string{"lock", "list", "accounts"}, 0, ""},
		{"delete", "accounts=eu", []string{"delete", "accounts/eu/bob/bal:eur", "--yes"}, 0, ""},
		{"another row", "accounts=eu", []string{"set", "accounts/us/bob/bal:eur", "7", "--yes"}, 1, `The row "us/bob" is not in the authorized view`},
		{"another family", "accounts=eu", []string{"set", "accounts/eu/bob/info:name", "7", "--yes"}, 1, `The family "info" is not in the authorized view`},
		{"no locks in the view", "accounts=nolocks", []string{"set", "accounts/eu/bob/bal:eur", "7", "--yes"}, 1, `The family "_lock" is not in the authorized view`},
		{"no such view", "accounts=none", []string{"get", "accounts/eu/bob/bal:eur"}, 3, "Authorized view not found"},
		{"the table itself", "", []string{"get", "accounts/eu/bob/bal:eur"}, 1, "Access denied to table accounts"},
		{"bad setting", "accounts", []string{"get", "accounts/eu/bob/bal:eur"}, 2, "is not of the form TABLE=VIEW"},
		{"check", "accounts=eu", []string{"check", "accounts"}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("percctl", test.args...)
			cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance, "PERCCTL_VIEWS="+test.views)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("exit code %d, want %d and %q: %s", code, test.code, test.want, out)
			}
		})
	}
}
