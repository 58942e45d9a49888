package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
)

// TestMain makes the test binary run as the command lab in scripts and tests.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lab": main})
}

// TestScripts runs the scripts in testdata/script.
func TestScripts(t *testing.T) {
	clitest.Run(t, testscript.Params{
		Files:               clitest.Scripts(t, "testdata/script"),
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}

// TestCommandsInDocs: every line with lab in the documents names a command and flags
// that exist.
func TestCommandsInDocs(t *testing.T) {
	t.Parallel()
	root := program.Root(&cli.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range append(files, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"lab", "go run ./emulator_test/lab"} {
			for _, line := range clitest.DocumentedCommands(name, string(text)) {
				n++
				if err := clitest.WrongCommand(root, line); err != nil {
					t.Errorf("%s: %s %s: %v", filepath.Base(path), name, line, err)
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("found only %d commands", n)
	}
}
