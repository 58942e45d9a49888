package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
)

func documentedRoot() *cobra.Command {
	root := program.Root(&cli.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	return root
}

// TestCommandsInDocs: every percctl line in the documents names a command, and
// flags, that there are.
func TestCommandsInDocs(t *testing.T) {
	t.Parallel()
	root := documentedRoot()
	files, err := filepath.Glob(docs + "*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	pages := referencePages(t)
	inReference := 0
	for _, path := range append(append(files, docs+"../README.md"), pages...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range clitest.DocumentedCommands("percctl", string(text)) {
			if slices.Contains(pages, path) {
				inReference++
			} else {
				n[filepath.Base(path)]++
			}
			if err := clitest.WrongCommand(root, line); err != nil {
				t.Errorf("%s: percctl %s: %v", filepath.Base(path), line, err)
			}
		}
	}
	for file, least := range map[string]int{"operations.md": 60, "README.md": 4} {
		if n[file] < least {
			t.Errorf("%s: only %d commands were found", file, n[file])
		}
	}
	if inReference < 80 {
		t.Errorf("docs/reference: only %d commands were found", inReference)
	}
}

// The check above has to find what is wrong.
func TestWrongCommandsInDocs(t *testing.T) {
	t.Parallel()
	root := documentedRoot()
	text := "Say `percctl frob\nit` or `percctl gc run --yes`.\n\n    percctl lock resolve --al # all\n\n" +
		"```console\n$ percctl tso advance --from 1\nPERCCTL_PROJECT=p percctl gc sweep\n$ percctl lock list|show accounts/x -o json | jq .\npercctl check: 2 violations\n$ percctl get -z\n```\n" +
		"- to do it:\n\n      percctl lock list|resolve --dry-run\n"
	var wrong []string
	lines := clitest.DocumentedCommands("percctl", text)
	for _, line := range lines {
		if err := clitest.WrongCommand(root, line); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	want := []string{
		"percctl lock resolve has no flag --al", "percctl tso advance has no flag --from", `percctl gc has no command "sweep"`,
		"percctl get has no flag -z", "percctl lock list has no flag --dry-run", `percctl has no command "frob"`,
	}
	if len(lines) != 8 || !slices.Equal(wrong, want) {
		t.Errorf("of %q found\n%q, want\n%q", lines, wrong, want)
	}
}
