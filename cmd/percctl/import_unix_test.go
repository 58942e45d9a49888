//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestImportInterrupted: Ctrl-C in the middle of an import ends it with what to
// do next, and doing so brings the rest.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flags []string
		step  txntest.Step
	}{
		"transactions": {[]string{"--batch", "2"}, txntest.StepPrewrite},
		"bulk":         {[]string{"--bulk"}, txntest.StepOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &gate{}
			f, err := newFixture(t.Context(), t, grpc.UnaryInterceptor(g.intercept))
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			if err := admin.InitTable(t.Context(), f.admin, f.bt, "", admin.TableSpec{Name: "copy", Families: []string{"f"}}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "in.jsonl")
			percctl := func(args ...string) *exec.Cmd {
				cmd := exec.Command("percctl", args...)
				cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
				return cmd
			}
			// Something to import: what was exported from another table.
			if err := admin.InitTable(t.Context(), f.admin, f.bt, "", admin.TableSpec{Name: "from", Families: []string{"f"}}); err != nil {
				t.Fatal(err)
			}
			c, err := f.client(t.Context(), txn.Config{TokenTTL: -1, SyncSecondaries: true})
			if err != nil {
				t.Fatal(err)
			}
			tx, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range 100 {
				put(tx, fmt.Sprintf("from/row%03d/f:q", i), fmt.Sprint(i))
			}
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if out, err := percctl("export", "from", "--to", file).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}

			held := g.arm(test.step, 10)
			load := append([]string{"import", file, "--table", "copy", "--yes"}, test.flags...)
			cmd := percctl(load...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-held
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 || !strings.Contains(stderr.String(), "run the command again") {
				t.Fatalf("%v, want exit code 130; %s", err, stderr.String())
			}
			g.open()
			if m := regexp.MustCompile(`run the command again with (--resume) (\d+,\d+)`).FindStringSubmatch(stderr.String()); m != nil {
				load = append(load, m[1:]...)
			}
			if out, err := percctl(load...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			out, err := percctl("export", "copy").Output()
			if err != nil || !strings.Contains(string(out), `{"rows":100,"cell_count":100,`) {
				t.Errorf("%v: %s", err, out)
			}
			if err := f.check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
