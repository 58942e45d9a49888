package conformance_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var runningOn = regexp.MustCompile(`running on (\S+)`)

// gcloudEmulator starts the emulator of the gcloud SDK, and returns its address; "" if it is
// not installed.
func gcloudEmulator(t *testing.T) string {
	t.Helper()
	gcloud, err := exec.LookPath("gcloud")
	if err != nil {
		return ""
	}
	if gcloud, err = filepath.EvalSymlinks(gcloud); err != nil {
		return ""
	}
	program := filepath.Join(filepath.Dir(gcloud), "..", "platform", "bigtable-emulator", "cbtemulator")
	if _, err := os.Stat(program); err != nil {
		return ""
	}
	cmd := exec.Command(program, "-host", "127.0.0.1", "-port", "0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := runningOn.FindStringSubmatch(lines.Text()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("%s ended", program)
	return ""
}

// TestServers: every server that this machine has is safe: the emulator in this process, the
// emulator of the gcloud SDK where it is installed, and what BIGTABLE_EMULATOR_HOST names.
func TestServers(t *testing.T) {
	long.RacedAtNight(t)
	servers := map[string]func(*testing.T) server{
		"in this process": func(t *testing.T) server { return start(t) },
	}
	for name, address := range map[string]string{"gcloud": gcloudEmulator(t), "BIGTABLE_EMULATOR_HOST": os.Getenv("BIGTABLE_EMULATOR_HOST")} {
		if address == "" {
			t.Logf("%s: there is none", name)
			continue
		}
		servers[name] = func(t *testing.T) server {
			return open(t, func(opts ...grpc.DialOption) (*grpc.ClientConn, error) { return txntest.Dial(address, opts...) })
		}
	}
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			cfg := quick
			cfg.Only = timeless("permission-code") // these servers have no accounts
			cfg.Dial = s.dial
			r, err := conformance.Run(t.Context(), s.bt, s.admin, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Broken)+len(r.Untested) > 0 {
				t.Errorf("broken %v, untested %v", r.Broken, r.Untested)
				for _, x := range r.Results {
					if x.State != conformance.Kept {
						t.Logf("%s %s: %s", x.State, x.ID, x.Detail)
					}
				}
			}
			// The emulator tears plain reads, but not in every run.
			limits := slices.DeleteFunc(slices.Clone(r.Limits), func(id string) bool { return id == "read-plain-whole" })
			if name != "BIGTABLE_EMULATOR_HOST" && !slices.Equal(limits, emulatorLimits) {
				t.Errorf("limits %v, want %v", limits, emulatorLimits)
			}
			if all, err := s.admin.Tables(t.Context()); err != nil || slices.Contains(all, r.Table) {
				t.Errorf("tables: %v, %v", all, err)
			}
		})
	}
}
