package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// exitsInTests are exit codes that no script produces, and the tests that do.
var exitsInTests = map[string]string{
	"percctl conformance 6": "TestConformanceUnsafe",
	"percctl demo 4":        "TestVerdict",
	"percctl demo 130":      "TestInterrupt",
	"percctl doctor 1":      "TestDoctorInTheCloud",
	"percctl tso status 5":  "TestModeNowStatus",
}

var (
	exitStatus = regexp.MustCompile(`Exit (?:status|code)s? (\d+)((?:[^.]|\.[^\s])*\.(?: \d+: [^.]*\.)*)`)
	furtherOne = regexp.MustCompile(`\. (\d+): `)
	scriptLine = regexp.MustCompile(`(?m)^exits (\d+) percctl (.+)$`)
	codeLine   = regexp.MustCompile(`(?m)^ +(\d+) `)
	testName   = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestExitCodes: a script or a test produces every exit code that the help of a command, or
// percctl help exit-codes, lists.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	produced, of := map[string]bool{}, map[string]bool{}
	scripts, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal(err)
	}
	root := documentedRoot()
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range scriptLine.FindAllStringSubmatch(string(text), -1) {
			of[m[1]] = true
			if cmd, _, err := root.Find(strings.Fields(m[2])); err == nil {
				produced[cmd.CommandPath()+" "+m[1]] = true
			}
		}
	}
	tests := map[string]bool{}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	internal, err := filepath.Glob("internal/*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, internal...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
	}
	for code, name := range exitsInTests {
		if !tests[name] {
			t.Errorf("%s: there is no test %s", code, name)
		}
		produced[code] = true
		of[code[strings.LastIndexByte(code, ' ')+1:]] = true
	}
	listed := 0
	want := func(path, code string) {
		listed++
		if !produced[path+" "+code] {
			t.Errorf("%s lists exit code %s, and no test produces it", path, code)
		}
	}
	walk(root, func(c *cobra.Command) {
		for _, m := range exitStatus.FindAllStringSubmatch(strings.ReplaceAll(c.Long, "\n", " "), -1) {
			want(c.CommandPath(), m[1])
			for _, further := range furtherOne.FindAllStringSubmatch(m[2], -1) {
				want(c.CommandPath(), further[1])
			}
		}
	})
	topic, _, err := root.Find([]string{"exit-codes"})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range codeLine.FindAllStringSubmatch(topic.Long, -1) {
		if !of[m[1]] {
			t.Errorf("percctl help exit-codes lists %s, and no test produces it", m[1])
		}
		if !slices.Contains(strings.Fields(root.Long), m[1]) {
			t.Errorf("percctl help exit-codes lists %s, and percctl --help does not", m[1])
		}
	}
	if listed < 30 {
		t.Errorf("only %d exit codes found in the help of commands", listed)
	}
}
