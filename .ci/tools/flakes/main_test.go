package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	run := func(test, output, end string) string {
		return `{"Action":"run","Package":"p","Test":"` + test + `"}
{"Action":"output","Package":"p","Test":"` + test + `","Output":"` + output + `\n"}
{"Action":"` + end + `","Package":"p","Test":"` + test + `","Elapsed":1}
`
	}
	judged := `{"Action":"attr","Package":"p","Test":"TestA","Key":"verdict","Value":"history"}` + "\n"
	for _, c := range []struct {
		name, events string
		want         string // part of what is printed
		wrong        int
	}{
		{"nothing", run("TestA", "fine", "pass"), "none", 0},
		{"passes at last", run("TestA", "first", "fail") + run("TestA", "second", "fail") + run("TestA", "fine", "pass"), "--- p TestA\nfirst\n", 0},
		{"a race", run("TestA", "WARNING: DATA RACE", "fail"), "never luck (WARNING: DATA RACE)", 1},
		{"a race in a test that passes", run("TestA", "no consistency check: here", "pass"), "none", 0},
		{"the consistency check", run("TestA", "x.go:1: consistency check: a lock", "fail"), "never luck", 1},
		{"a checker", strings.Replace(run("TestA", "a cycle", "fail"), "\n", "\n"+judged, 1), "a checker of histories", 1},
		{"a checker of its parent", `{"Action":"run","Package":"p","Test":"TestA"}` + "\n" + judged + run("TestA/7", "a cycle", "fail"), "a checker of histories", 1},
		{"a checker that passed", strings.Replace(run("TestA", "fine", "pass"), "\n", "\n"+judged, 1) + run("TestB", "slow", "fail"), "--- p TestB", 0},
		{"what is no event", "go: downloading\n" + run("TestA", "first", "fail") + `{"Action":"fail","Package":"p"}`, "first", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, err := read(strings.NewReader(c.events))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if wrong := report(&out, found); wrong != c.wrong || !strings.Contains(out.String(), c.want) {
				t.Errorf("%d, and printed:\n%s", wrong, out.String())
			}
		})
	}
	if _, err := read(strings.NewReader("{broken\n")); err == nil {
		t.Error("a broken line was read")
	}
}
