package tsocmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"go.uber.org/goleak"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// percctl runs a command line.
func percctl(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	program := cli.Program{Name: "percctl", Commands: []cli.Command{tsocmd.NewCommand}}
	code = program.Main(args, &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return code, out.String(), errs.String()
}

func expect(t *testing.T, want int, inOut, inErr string, args ...string) (stdout string) {
	t.Helper()
	code, out, errs := percctl(append([]string{"tso"}, args...)...)
	if compact := new(bytes.Buffer); json.Compact(compact, []byte(out)) == nil {
		out = compact.String()
	}
	if code != want || !strings.Contains(out, inOut) || !strings.Contains(errs, inErr) {
		t.Errorf("percctl tso %s: exit %d, want %d\nstdout, want %q:\n%s\nstderr, want %q:\n%s", strings.Join(args, " "), code, want, inOut, out, inErr, errs)
	}
	return out
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		says string
		args []string
	}{
		{`unknown command "frob"`, []string{"frob"}},
		{"no Bigtable instance", []string{"mode", "--project", ""}},
		{`unknown mode "sundial"`, []string{"mode", "sundial"}},
		{"at most one mode", []string{"mode", "direct", "served"}},
		{"add --server, or --project", []string{"status", "--project", ""}},
		{"--server nohost: it has to be host:port", []string{"now", "--server", "nohost"}},
		{"--timeout 0s: it has to be positive", []string{"now", "--server", "a:1", "--timeout", "0s"}},
		{"--timeout 0s: it has to be positive", []string{"mode", "--timeout", "0s"}},
		{"host:port", []string{"serve", "--advertise", "tso-0"}},
		{"host:port", []string{"serve", "--advertise", ":7070"}},
		{"--tls-client-name needs --tls-client-ca", []string{"serve", "--tls-client-name", "billing"}},
		{"above the largest one", []string{"decode", fmt.Sprint(int64(tso.Max) + 1)}},
		{`"hello" is not valid`, []string{"decode", "hello"}},
		{"negative", []string{"decode", "--", "-5"}},
		{"takes one, TIMESTAMP", []string{"decode"}},
		{"no timestamp: add --to", []string{"advance"}},
		{`"hello" is not valid`, []string{"advance", "--to", "hello"}},
		{"ahead of this machine's clock, and there is no way back", []string{"advance", "--to", "2200-01-01T00:00:00Z"}},
		{"--timeout 0s: it has to be positive", []string{"advance", "--to", "2020-11-20T05:30:00Z", "--timeout", "0s"}},
		{"unexpected argument", []string{"advance", "2020-11-20T05:30:00Z"}},
		{"no Bigtable instance", []string{"advance", "--to", "2020-11-20T05:30:00Z", "--project", ""}},
		{"unexpected argument", []string{"serve", "now"}},
		{"--tls-cert and --tls-key", []string{"serve", "--tls-cert", "x"}},
		{"needs a certificate and a key", []string{"now", "--server", "a:1", "--tls-cert", "x"}},
		{"output", []string{"decode", "1", "-o", "xml"}},
	} {
		expect(t, cli.ExitUsage, "", test.says, test.args...)
	}
}

func TestDecode(t *testing.T) {
	const want = `"timestamp":1795152600000000,"time":"2026-11-20T05:30:00.000000Z","cell_timestamp":1795152600000000000`
	for _, in := range []string{"1795152600000000", "1795152600000000000", "2026-11-20T05:30:00Z"} {
		expect(t, cli.ExitOK, want, "", "decode", in, "-o", "json")
	}
	expect(t, cli.ExitOK, "2026-11-20T05:30:00.000000Z", "", "decode", "1795152600000000")
	expect(t, cli.ExitOK, "ahead of this machine's clock", "", "decode", "2261-01-01T00:00:00Z")
}

// deployment is an emulator with a metadata table, which commands find.
func deployment(t *testing.T) {
	t.Helper()
	e, err := txntest.StartEmulator("127.0.0.1:0", txntest.Strict()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	conn, err := e.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	bt, admin, err := txntest.Open(t.Context(), conn, "p", "i")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = bt.Close(), admin.Close() }()
	if err := admin.CreateTable(t.Context(), "percolator"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(t.Context(), "percolator", "tso"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BIGTABLE_EMULATOR_HOST", e.Addr())
	t.Setenv("PERCCTL_PROJECT", "p")
	t.Setenv("PERCCTL_INSTANCE", "i")
}

func TestModeNowStatus(t *testing.T) {
	deployment(t)
	expect(t, cli.ExitNotFound, "", "percctl table init", "mode", "--metadata-table", "none")
	expect(t, cli.ExitOK, "none", "", "mode")
	expect(t, cli.ExitOK, "timestamp", "", "now")
	expect(t, cli.ExitOK, `"mode":"direct"`, "", "mode", "-o", "json")
	expect(t, cli.ExitOK, "direct", "", "status")
	expect(t, cli.ExitUsage, "", "add --yes", "mode", "served")
	expect(t, cli.ExitOK, `"changed":false`, "set the mode to served", "mode", "served", "--dry-run", "--yes", "-o", "json")
	expect(t, cli.ExitOK, `"mode":"direct"`, "", "mode", "-o", "json") // nothing was changed
	expect(t, cli.ExitOK, "released", "set the mode to served", "mode", "served", "--yes")
	expect(t, cli.ExitOK, `"changed":false`, "", "mode", "served", "-o", "json")
	expect(t, cli.ExitUnavailable, "", "no server leads", "now")
	expect(t, cli.ExitFound, "released", "no server leads", "status")
	expect(t, cli.ExitUnavailable, "unreachable", "no server answers", "status", "--server", "127.0.0.1:1")
	expect(t, cli.ExitUnavailable, "", "127.0.0.1:1", "now", "--server", "127.0.0.1:1", "--timeout", "200ms")

	stop := serve(t)
	out := expect(t, cli.ExitOK, `"timestamp":`, "", "now", "-o", "json")
	var first, second struct{ Timestamp tso.Timestamp }
	if err := json.Unmarshal([]byte(out), &first); err != nil {
		t.Fatal(err)
	}
	expect(t, cli.ExitOK, "leading", "", "status")
	expect(t, cli.ExitOK, "TIMESTAMPS", "", "status")
	expect(t, cli.ExitOK, `"leading":true`, "", "status", "-o", "json")
	expect(t, cli.ExitFailed, "", "renews its lease", "mode", "direct", "--yes")
	stop()
	expect(t, cli.ExitOK, `"changed":true`, "at once", "mode", "direct", "--yes", "-o", "json")
	if err := json.Unmarshal([]byte(expect(t, cli.ExitOK, "", "", "now", "-o", "json")), &second); err != nil || second.Timestamp <= first.Timestamp {
		t.Errorf("%d after %d, %v", second.Timestamp, first.Timestamp, err)
	}
}

// TestAdvance: a plan first, then the row is above, in whichever mode, and never
// lower.
func TestAdvance(t *testing.T) {
	deployment(t)
	to := tso.FromTime(time.Now().Add(20 * time.Minute))
	at := to.String()
	expect(t, cli.ExitNotFound, "", "percctl table init", "advance", "--to", at, "--metadata-table", "none")
	expect(t, cli.ExitUsage, "", "add --yes", "advance", "--to", at)
	expect(t, cli.ExitOK, `"mode":"none"`, "it will be in direct mode", "advance", "--to", at, "--dry-run", "-o", "json")
	expect(t, cli.ExitOK, `"mode":"none"`, "", "mode", "-o", "json") // nothing was changed
	expect(t, cli.ExitOK, `"mode":"direct","limit":`+at, "it will be in direct mode", "advance", "--to", at, "--yes", "-o", "json")
	above := func(ts tso.Timestamp) {
		t.Helper()
		var r struct{ Timestamp tso.Timestamp }
		if err := json.Unmarshal([]byte(expect(t, cli.ExitOK, "", "", "now", "-o", "json")), &r); err != nil || r.Timestamp <= ts {
			t.Errorf("%d, %v; advanced to %d", r.Timestamp, err, ts)
		}
	}
	above(to)
	expect(t, cli.ExitOK, `"changed":false`, "", "advance", "--to", at, "--yes", "-o", "json")
	expect(t, cli.ExitOK, "changed", "", "advance", "--to", "2020-11-20T05:30:00Z", "--yes")
	above(to)

	expect(t, cli.ExitOK, "", "", "mode", "served", "--yes")
	stop := serve(t)
	above(to)
	to += 60_000_000
	expect(t, cli.ExitFailed, "", "renews its lease", "advance", "--to", to.String(), "--yes")
	stop()
	expect(t, cli.ExitOK, `"advance_to":`+to.String()+`,"changed":false`, "mode served", "advance", "--to", to.String(), "--dry-run", "-o", "json")
	expect(t, cli.ExitOK, `"changed":true`, "timestamps continue above "+to.String(), "advance", "--to", to.String(), "--yes", "-o", "json")
	stop = serve(t)
	defer stop()
	above(to)
}

// TestStatusOfDamagedRow: servers are asked although the row says nothing.
func TestStatusOfDamagedRow(t *testing.T) {
	deployment(t)
	expect(t, cli.ExitOK, "", "", "mode", "served", "--yes")
	stop := serve(t)
	defer stop()
	var r struct{ Row struct{ Address string } }
	if err := json.Unmarshal([]byte(expect(t, cli.ExitOK, "", "", "status", "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	f := connect.Flags{Project: "p", Instance: "i"}
	table, closeTable, err := f.OpenMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeTable()
	m := bigtable.NewMutation()
	m.Set("tso", "lease", 0, []byte("x"))
	if err := table.Apply(t.Context(), "oracle", m); err != nil {
		t.Fatal(err)
	}
	expect(t, cli.ExitFailed, "", "is corrupt", "status")
	expect(t, cli.ExitFailed, r.Row.Address, "is corrupt", "status", "--server", r.Row.Address)
	expect(t, cli.ExitFailed, `"row_error":`, "is corrupt", "status", "--server", r.Row.Address, "-o", "json")
}

// lines passes on what a command prints.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// serve runs a server as the command does, and returns once it leads.
func serve(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, logs := make(lines, 10), make(lines, 100)
	cmd := tsocmd.NewCommand(&cli.Streams{Out: out, Err: logs})
	cmd.SetArgs([]string{"serve", "--listen", "127.0.0.1:0", "--lease", "500ms"})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	if _, _, err := net.SplitHostPort(strings.TrimSpace(<-out)); err != nil {
		t.Errorf("the address printed: %v", err)
	}
	for !strings.Contains(<-logs, "leading") {
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

func TestServeWarnsWithoutTLS(t *testing.T) {
	deployment(t)
	ctx, cancel := context.WithCancel(t.Context())
	out, logs := make(lines, 10), make(lines, 100)
	cmd := tsocmd.NewCommand(&cli.Streams{Out: out, Err: logs})
	cmd.SetArgs([]string{"serve", "--listen", "0.0.0.0:0"})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	<-out
	if l := <-logs; !strings.Contains(l, "WITHOUT TLS") {
		t.Errorf("log: %s", l)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
