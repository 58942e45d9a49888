package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
)

var (
	codeSpan = regexp.MustCompile("`(percctl [^`]+)`")
	codeLine = regexp.MustCompile(`^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*percctl (.+)$`)
	indented = regexp.MustCompile(`^ {4}`)
	// What percctl prints on standard error begins with the command, too.
	message = regexp.MustCompile(`^[a-z ]+: `)
)

// documentedCommands are the command lines in a document, without "percctl": in
// fenced and indented code, and in code spans, which may run over a line's end.
func documentedCommands(text string) (all []string) {
	fenced := false
	var prose []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
			prose = append(prose, "")
		case fenced, indented.MatchString(line) && codeLine.MatchString(line):
			if m := codeLine.FindStringSubmatch(line); m != nil && !message.MatchString(m[1]) {
				all = append(all, m[1])
			}
		default:
			prose = append(prose, strings.TrimSpace(line))
		}
	}
	for paragraph := range strings.SplitSeq(strings.Join(prose, "\n"), "\n\n") {
		for _, m := range codeSpan.FindAllStringSubmatch(strings.ReplaceAll(paragraph, "\n", " "), -1) {
			all = append(all, strings.TrimPrefix(m[1], "percctl "))
		}
	}
	return all
}

// wrongCommand says what a command line names that does not exist. list|show
// stands for both commands; words in capitals and the like are arguments.
func wrongCommand(root *cobra.Command, line string) error {
	words := strings.Fields(line)
	if end := slices.IndexFunc(words, func(w string) bool {
		return w == "|" || w == "&&" || w == "&" || strings.HasPrefix(w, "#") || strings.HasPrefix(w, ">") || strings.HasSuffix(w, ";")
	}); end >= 0 {
		if strings.HasSuffix(words[end], ";") {
			words[end] = strings.TrimSuffix(words[end], ";")
			end++
		}
		words = words[:end]
	}
	all := []*cobra.Command{root}
	for len(words) > 0 && all[0].HasAvailableSubCommands() {
		var next []*cobra.Command
		for name := range strings.SplitSeq(words[0], "|") {
			i := slices.IndexFunc(all[0].Commands(), func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) })
			if i >= 0 {
				next = append(next, all[0].Commands()[i])
			} else if regexp.MustCompile(`^[a-z]`).MatchString(name) {
				return fmt.Errorf("%s has no command %q", all[0].CommandPath(), name)
			}
		}
		if len(next) == 0 {
			break
		}
		all, words = next, words[1:]
	}
	for _, c := range all {
		for _, w := range words {
			name, _, _ := strings.Cut(strings.Trim(w, "[]()…,."), "=")
			switch {
			case strings.HasPrefix(name, "--") && len(name) > 2:
				if c.Flag(name[2:]) == nil && name != "--help" {
					return fmt.Errorf("%s has no flag %s", c.CommandPath(), name)
				}
			case regexp.MustCompile(`^-[a-z]$`).MatchString(name):
				if c.Flags().ShorthandLookup(name[1:]) == nil && c.InheritedFlags().ShorthandLookup(name[1:]) == nil {
					return fmt.Errorf("%s has no flag %s", c.CommandPath(), name)
				}
			}
		}
	}
	return nil
}

func documentedRoot() *cobra.Command {
	root := cli.NewRoot(&cli.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}, commands()...)
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
		for _, line := range documentedCommands(string(text)) {
			if slices.Contains(pages, path) {
				inReference++
			} else {
				n[filepath.Base(path)]++
			}
			if err := wrongCommand(root, line); err != nil {
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
	lines := documentedCommands(text)
	for _, line := range lines {
		if err := wrongCommand(root, line); err != nil {
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
