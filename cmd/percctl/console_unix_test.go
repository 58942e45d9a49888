//go:build unix

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestConsole loads the pages of a running console, which changes nothing, until
// it is interrupted.
func TestConsole(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := f.dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"table", "json"} {
		out, errs := watch("/\n"), watch("Ctrl-C")
		if format == "json" {
			out.want = "}\n"
		}
		cmd := exec.Command("percctl", "console", "--listen", "127.0.0.1:0", "-o", format)
		cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
		cmd.Stdout, cmd.Stderr = out, errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		out.await(t)
		errs.await(t)
		url := strings.TrimSpace(out.String())
		if format == "json" {
			var up struct{ Project, URL string }
			if err := json.Unmarshal([]byte(out.String()), &up); err != nil || up.Project != fixtureProject {
				t.Fatalf("%v in %s", err, out)
			}
			url = up.URL
		}
		for _, page := range []struct{ path, says string }{
			{"", "<td>parser</td>"},
			{"", "documents/d6/contents:raw"},
			{"", "boom at d4"},
			{"row?table=documents&row=d1", "notification for the column&#39;s observers"},
			{"row?table=documents&row=none", "nothing is stored in this row"},
			{"row?table=nowhere&row=x", `has no table &#34;nowhere&#34;`},
			{"picture.json", `"observer":"parser"`},
		} {
			res, err := http.Get(url + page.path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || !strings.Contains(string(body), page.says) {
				t.Errorf("/%s does not say %q, %v:\n%s", page.path, page.says, err, body)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("interrupted: %v\n%s", err, errs)
		}
	}
	if after, err := f.dump(t.Context()); err != nil || after != before {
		t.Errorf("it changed something, %v", err)
	}
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
