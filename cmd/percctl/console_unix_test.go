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
	"time"
)

// TestConsole asks a running console for everything that its page shows, which changes
// nothing, until it is interrupted.
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
		cmd := exec.Command("percctl", "console", "--listen", "127.0.0.1:0", "-o", format, "--max-requests", "1000")
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
			{"", `src="main.js"`},
			{"picture.json", `"observer":"parser"`},
			{"api/state", `"primary":"documents/d6/contents:raw"`},
			{"api/state", `"live_workers":1`},
			{"api/state", `"complete":true`},
			{"api/tables", `"observed":["contents:raw","index:dirty"]`},
			{"api/heat?table=documents", `"locks":[`},
			{"api/letters", "boom at d4"},
			{"api/row?table=documents&row=d1", "notification for the column's observers"},
			{"api/row?table=documents&row=none", "nothing is stored in row none of table documents"},
			{"api/row?table=nowhere&row=x", "has no table"},
			{"api/txn?primary=documents/d6/contents:raw&start=" + stuckTS(t, url), `"outcome":"roll back"`},
			{"api/doctor", `"check":"oracle"`},
		} {
			body := ""
			// The scanner finds it, sooner or later.
			for began := time.Now(); !strings.Contains(body, page.says); {
				if time.Since(began) > time.Minute {
					t.Fatalf("/%s does not say %q:\n%s", page.path, page.says, body)
				}
				res, err := http.Get(url + page.path)
				if err != nil {
					t.Fatal(err)
				}
				raw, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if body = string(raw); err != nil {
					t.Fatal(err)
				}
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

// stuckTS is the start timestamp of the transaction with locks.
func stuckTS(t *testing.T, url string) string {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; {
		res, err := http.Get(url + "api/state")
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Transactions []struct {
				StartTS json.Number `json:"start_ts"`
			}
		}
		err = json.NewDecoder(res.Body).Decode(&s)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Transactions) > 0 {
			return s.Transactions[0].StartTS.String()
		}
	}
	t.Fatal("no transaction with locks is found")
	return ""
}
