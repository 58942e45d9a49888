// Command flakes reads what go test -json printed, with the runs of tests that failed and were run again.
// It prints each test that failed and then passed, with the output of its first failure. It ends with 1
// if one of them failed for a reason that is never luck: a data race, a panic, the consistency check, or
// the verdict of a checker of histories (package txn/txntest/long says how a test announces one).
//
// Usage: flakes FILE…
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// An event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output, Key string
}

// A failure is a test that failed at least once.
type failure struct {
	name   string
	output string // of its first failure
	judged bool   // by a checker of histories
}

// neverLuck is in the output of failures that mean that something is wrong.
var neverLuck = []string{"WARNING: DATA RACE", "panic: ", "fatal error: ", "consistency check: "}

// reason says why a failure is not luck, or is empty.
func (f *failure) reason() string {
	if f.judged {
		return "a checker of histories failed"
	}
	for _, s := range neverLuck {
		if strings.Contains(f.output, s) {
			return strings.TrimRight(s, ": ")
		}
	}
	return ""
}

// read returns the tests that failed, in the order of their first failures.
func read(r io.Reader) ([]*failure, error) {
	var found []*failure
	output, judged := map[string]*strings.Builder{}, map[string]bool{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 && line[0] == '{' {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, err
			}
			name := e.Package + " " + e.Test
			switch e.Action {
			case "run":
				output[name] = &strings.Builder{}
			case "attr":
				judged[name] = judged[name] || e.Key == "verdict"
			case "output":
				if output[name] != nil {
					output[name].WriteString(e.Output)
				}
			case "fail":
				if e.Test == "" || output[name] == nil || slices.ContainsFunc(found, func(f *failure) bool { return f.name == name }) {
					break
				}
				top, _, _ := strings.Cut(name, "/")
				found = append(found, &failure{name, output[name].String(), judged[name] || judged[e.Package+" "+strings.TrimPrefix(top, e.Package+" ")]})
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, err
		}
	}
}

// report prints the failures, and returns how many are no luck.
func report(w io.Writer, found []*failure) (wrong int) {
	if len(found) == 0 {
		fmt.Fprintln(w, "none")
		return 0
	}
	fmt.Fprintln(w, "flaky: these tests failed and then passed. Each is a bug, of the code or of the test.\nAdd it with its output to the open findings in docs/testing.md, and fix it.")
	for _, f := range found {
		fmt.Fprintf(w, "\n--- %s\n%s", f.name, f.output)
		if r := f.reason(); r != "" {
			wrong++
			fmt.Fprintf(w, "This is never luck (%s), so the run fails.\n", r)
		}
	}
	return wrong
}

func main() {
	var all []*failure
	for _, name := range os.Args[1:] {
		file, err := os.Open(name)
		if err == nil {
			var found []*failure
			found, err = read(file)
			all = append(all, found...)
			_ = file.Close()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "flakes: %s: %v\n", name, err)
			os.Exit(2)
		}
	}
	if report(os.Stdout, all) > 0 {
		os.Exit(1)
	}
}
