package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

var commitTS = regexp.MustCompile(`,"commit_ts":\d+`)

// values FILE OUT writes the rows of an export without their commit timestamps.
func values(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	out := commitTS.ReplaceAllString(strings.Join(lines[1:len(lines)-1], ""), "")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(out), 0o666))
}

// cut FILE BYTES cuts bytes off the end of a file, as a crash does.
func cut(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	path := ts.MkAbs(args[0])
	info, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.Truncate(path, info.Size()-n))
}

// field NAME FIELD puts a field of the JSON on standard output into a variable.
func field(ts *testscript.TestScript, _ bool, args []string) {
	var object map[string]any
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	dec.UseNumber()
	ts.Check(dec.Decode(&object))
	ts.Setenv(args[0], fmt.Sprint(object[args[1]]))
}
