package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nil, ExitOK},
		{t.Context(), errors.New("broken"), ExitFailed},
		{t.Context(), fmt.Errorf("a: %w", Usagef("--n %d: it has to be positive", 0)), ExitUsage},
		{t.Context(), &Error{ExitFound, errors.New("2 violations")}, ExitFound},
		{t.Context(), fmt.Errorf("a: %w", context.DeadlineExceeded), ExitUnavailable},
		{t.Context(), fmt.Errorf("a: %w", status.Error(codes.Unavailable, "down")), ExitUnavailable},
		{t.Context(), status.Error(codes.PermissionDenied, "no"), ExitFailed},
		{interrupted, nil, ExitOK}, // it was done before
		{interrupted, context.Canceled, ExitInterrupted},
	} {
		if got := exitCode(test.ctx, test.err); got != test.want {
			t.Errorf("%v: exit code %d, want %d", test.err, got, test.want)
		}
	}
}

// TestMessage: an error has no words of gRPC.
func TestMessage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		code int
		want string
	}{
		{fmt.Errorf("stopped after 3 rows: %w", status.Error(codes.Canceled, context.Canceled.Error())), ExitInterrupted, "stopped after 3 rows: interrupted"},
		{fmt.Errorf("stopped after 3 rows: %w", context.Canceled), ExitInterrupted, "stopped after 3 rows: interrupted"},
		{fmt.Errorf("interrupted after 3 rows: %w", context.Canceled), ExitInterrupted, "interrupted after 3 rows"},
		{fmt.Errorf("table x: %w", status.Error(codes.FailedPrecondition, "has a policy")), ExitFailed, "table x: failed precondition: has a policy"},
		{fmt.Errorf("read: %w", status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())), ExitUnavailable, "read: timed out"},
	} {
		if got := message(test.err, test.code); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Deps:     []*debug.Module{{Path: "cloud.google.com/go/bigtable", Version: "v1.58.0"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	v := newVersion(info)
	v.Go = "go1.26"
	if got, want := v.String(), "percctl v1.2.3 (go1.26, revision abc with changes, Bigtable client v1.58.0)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := newVersion(nil).Version; got != "unknown" {
		t.Errorf("without build information: %q", got)
	}
}

// percctl version and percctl --version print one line, and -o json all fields.
func TestVersionCommand(t *testing.T) {
	t.Parallel()
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if got := (Program{Name: "percctl", Commands: []Command{NewVersionCmd}}).Main(args, &Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); got != want {
			t.Fatalf("%s: exit code %d, want %d: %s", args, got, want, &errs)
		}
		return out.String()
	}
	line := run(ExitOK, "version")
	if want := "percctl "; !strings.HasPrefix(line, want) || strings.Count(line, "\n") != 1 {
		t.Errorf("percctl version printed %q, want one line that begins with %q", line, want)
	}
	if got := run(ExitOK, "--version"); got != line {
		t.Errorf("percctl --version printed %q, want %q", got, line)
	}
	var v version
	if err := json.Unmarshal([]byte(run(ExitOK, "version", "-o", "json")), &v); err != nil {
		t.Fatal(err)
	}
	if v.Version == "" || v.Go != runtime.Version() {
		t.Errorf("percctl version -o json printed %+v", v)
	}
	run(ExitUsage, "-v")
	run(ExitUsage, "version", "1")
}

// Anything but a terminal gets plain text.
func TestStyle(t *testing.T) {
	t.Parallel()
	if got := StyleFor(&bytes.Buffer{}).Bad("text"); got != "text" {
		t.Errorf("%q in a buffer", got)
	}
	var out bytes.Buffer
	_, _ = io.WriteString(Safe(&out), (Style{on: true}).Good("\x1b[5mtext"))
	if got := out.String(); got != "\x1b[32m\\u001b[5mtext\x1b[0m" {
		t.Errorf("%q on a terminal", got)
	}
}

// TestNothingGoesAround: commands write to their Streams, which are safe.
func TestNothingGoesAround(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || path == filepath.Join("..", "cli", "streams.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, around := range []string{"os.Stdout", "os.Stderr", "fmt.Print"} {
			if bytes.Contains(text, []byte(around)) {
				t.Errorf("%s uses %s", path, around)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Nothing stored may steer a terminal, and nothing printed is ambiguous.
func TestText(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"10": "10", "two words": "two words", "": `""`, `"q"`: `"\"q\""`, " x": `" x"`,
		"\x1b[31m": `"\x1b[31m"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`, "ö🙂": "ö🙂", "\u202e": `"\u202e"`,
	} {
		if got := Text([]byte(value)); got != want {
			t.Errorf("Text(%q) is %s, want %s", value, got, want)
		}
	}
	if got, want := Line("a\x1b[31m\nö\xff"), `a\x1b[31m\nö\xff`; got != want {
		t.Errorf("Line: %s, want %s", got, want)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	type item struct {
		Name  string   `json:"name"`
		Parts []string `json:"parts"`
		N     int64    `json:"n"`
		X     any      `json:"x"`
	}
	items := []item{{"a<b", nil, 1 << 60, nil}, {"yes", []string{"1", "\x7f"}, -1, 1.5}}
	for format, want := range map[Format][2]string{
		Table: {"", "NAME   N\na<b    1152921504606846976\n\"yes\"  -1\n"},
		JSON:  {"[]\n", "[\n  {\n    \"name\": \"a<b\",\n    \"parts\": null,\n    \"n\": 1152921504606846976,\n    \"x\": null\n  },\n  {\n    \"name\": \"yes\",\n    \"parts\": [\n      \"1\",\n      \"\x7f\"\n    ],\n    \"n\": -1,\n    \"x\": 1.5\n  }\n]\n"},
		JSONL: {"", "{\"name\":\"a<b\",\"parts\":null,\"n\":1152921504606846976,\"x\":null}\n{\"name\":\"yes\",\"parts\":[\"1\",\"\x7f\"],\"n\":-1,\"x\":1.5}\n"},
		YAML:  {"[]\n", "- name: \"a<b\"\n  parts: null\n  n: 1152921504606846976\n  x: null\n- name: \"yes\"\n  parts:\n    - \"1\"\n    - \"\\x7F\"\n  n: -1\n  x: 1.5\n"},
		CSV:   {"NAME,N\n", "NAME,N\na<b,1152921504606846976\n\"\"\"yes\"\"\",-1\n"},
	} {
		for n, want := range want {
			var out bytes.Buffer
			l := &List[item]{Out: &out, Format: format, Header: []string{"NAME", "N"}, Rows: func(i item) [][]string {
				if i.Name == "yes" {
					i.Name = `"yes"`
				}
				return [][]string{{i.Name, fmt.Sprint(i.N)}}
			}}
			for _, i := range items[:n*len(items)] {
				if err := l.Add(i); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.End(); err != nil {
				t.Fatal(err)
			}
			if out.String() != want {
				t.Errorf("%s of %d items:\n%q\nwant:\n%q", format, n*len(items), out.String(), want)
			}
		}
	}
}

// What is printed as YAML reads as the JSON does, whatever the strings hold.
func TestYAML(t *testing.T) {
	t.Parallel()
	type nested struct {
		Names map[string]string `json:"names"`
		Empty []int             `json:"empty"`
		None  struct{}          `json:"none"`
		N     uint64            `json:"n"`
		F     float64           `json:"f"`
		B     bool              `json:"b"`
	}
	hostile := "\x00\x1b[31m\x7f\u0080\u0085\u009f\u2028\ufeff\ufffe\uffff🙂 yes: no # {x}\n\t'\"\\"
	v := nested{Names: map[string]string{"": "", "no": "no", "1": "1e3", "- a": hostile, "~": "~"}, Empty: []int{}, N: 1<<64 - 1, F: 1e21}
	text, err := marshalYAML(v)
	if err != nil {
		t.Fatal(err)
	}
	var got nested
	var untyped any
	if err := yaml.Unmarshal(text, &untyped); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	again, err := json.Marshal(untyped)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &got); err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%v: got %+v, want %+v in\n%s", err, got, v, text)
	}
}

// TestRefused: a refused account learns which role it lacks.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"Access denied. Missing IAM permission: bigtable.tables.readRows.":             "lacks the permission bigtable.tables.readRows: grant it roles/bigtable.user",
		"Access denied. Missing IAM permission: bigtable.appProfiles.get.":             "grant it roles/bigtable.viewer",
		"Access denied. Missing IAM permission: bigtable.tables.update.":               "grant it roles/bigtable.admin",
		"Cloud Bigtable API has not been used in project p before or it is disabled.":  "",
		"tso: this server does not serve certificates of [\"x\"], bigtable.tables.get": "",
	} {
		err := fmt.Errorf("reading: %w", status.Error(codes.PermissionDenied, text))
		if got := refused(err); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q", text, got)
		}
	}
	if got := refused(errors.New("Missing IAM permission: bigtable.tables.get")); got != "" {
		t.Errorf("an error without a code: %q", got)
	}
}

// TestFlags: what the library says about its own names does not reach an operator.
func TestFlags(t *testing.T) {
	for text, want := range map[string]string{
		"run `percctl table init`, or call admin.InitTable: not found":            "run `percctl table init`: not found",
		"run `percctl table init t` or admin.InitTable":                           "run `percctl table init t`",
		"(LeaveConfig.ClientsStopped, percctl table leave --clients-stopped)":     "(percctl table leave --clients-stopped)",
		"register one with changes.RegisterObserver, or start its worker":         "register one with percctl observer add, or start its worker",
		"remove that first (changes.UnregisterObserver, percctl observer remove)": "remove that first (percctl observer remove)",
		"failed for longer than Config.LockTTL (10s)":                             "failed for longer than the time to live of its locks (10s)",
	} {
		if got := Flags(text); got != want {
			t.Errorf("%q", got)
		}
	}
}
