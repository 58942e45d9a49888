package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// writeCertificate writes oracle.crt and oracle.key: for 127.0.0.1 and other names, signed
// by itself, for servers and clients.
func writeCertificate(t *testing.T, names ...string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "oracle"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "oracle.crt"), filepath.Join(dir, "oracle.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestServedOracleWithTLS: commands that need timestamps get them from a served
// oracle that wants certificates, by flags and by the environment.
func TestServedOracleWithTLS(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	cert, key := writeCertificate(t)
	credentials, err := tso.TLSFiles{Cert: cert, Key: key, CA: cert}.Server()
	if err != nil {
		t.Fatal(err)
	}
	meta := f.bt.OpenTable(format.DefaultMetadataTable)
	if _, err := tso.SetMode(t.Context(), meta, tso.RowConfig{}, tso.ModeServed); err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(meta, server.Config{Credentials: credentials})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, lis) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	run := func(env []string, args ...string) (int, string) {
		cmd := exec.Command("percctl", args...)
		cmd.Env = append(append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance), env...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode(), string(out)
		}
		return 0, string(out)
	}
	flags := []string{"--oracle", lis.Addr().String(), "--oracle-ca", cert, "--oracle-cert", cert, "--oracle-key", key}
	if code, out := run(nil, append([]string{"set", "accounts/bob/bal:usd", "1", "--yes"}, flags...)...); code != 0 {
		t.Errorf("set: exit code %d: %s", code, out)
	}
	// The leader that the row names, with certificates from the environment.
	env := []string{"PERCCTL_ORACLE_CA=" + cert, "PERCCTL_ORACLE_CERT=" + cert, "PERCCTL_ORACLE_KEY=" + key}
	if code, out := run(env, "doctor"); code != 0 || !strings.Contains(out, "served mode, leader ") {
		t.Errorf("doctor: exit code %d: %s", code, out)
	}
	if code, out := run(env, "lock", "list", "--all"); code != 0 {
		t.Errorf("lock list: exit code %d: %s", code, out)
	}
	// Without them nothing works, and doctor says what to look at.
	if code, out := run(nil, "set", "accounts/bob/bal:usd", "2", "--yes", "--timeout", "500ms"); code != 5 {
		t.Errorf("set without certificates: %s", out)
	}
}

// TestWithoutTimestamps: while no server of the oracle answers, every command that only reads
// works, and says so once, with what to do. A command that changes something fails with that. It
// does not matter whether no server leads, or the one that leads is gone.
func TestWithoutTimestamps(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tso.SetMode(t.Context(), f.bt.OpenTable(format.DefaultMetadataTable), tso.RowConfig{}, tso.ModeServed); err != nil {
		t.Fatal(err)
	}
	// All at once: each waits for the oracle, and none changes anything.
	var commands sync.WaitGroup
	const remedy = "Start a server with percctl tso serve, or change to direct mode with percctl tso mode direct"
	for _, servers := range []string{"", "127.0.0.1:1"} {
		for _, test := range []struct {
			code int
			args string
		}{
			{0, "lock list --all"}, {0, "worker list"}, {0, "observer list"}, {0, "notify list"}, {0, "notify list --dead"}, {0, "gc status"}, {0, "check --all"},
			{0, "top --once"}, {3, "txn status documents/d6/contents:raw 1"}, {0, "get documents/d1/contents:raw"}, {0, "history documents d1"},
			{5, "lock resolve --all --yes"}, {5, "gc run --yes"}, {5, "set accounts/bob/bal:usd 2 --yes"},
		} {
			if servers != "" && test.args != "lock list --all" && test.code != 5 {
				continue // the first attempt takes its time
			}
			cmd := exec.Command("percctl", strings.Fields(test.args)...)
			cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance, "PERCCTL_ORACLE="+servers)
			commands.Go(func() {
				var errs strings.Builder
				cmd.Stderr = &errs
				_ = cmd.Run()
				if code := cmd.ProcessState.ExitCode(); code != test.code || strings.Count(errs.String(), remedy) != 1 && !strings.HasPrefix(test.args, "top") {
					t.Errorf("%s, --oracle %q: exit code %d: %s", test.args, servers, code, errs.String())
				}
			})
		}
		cmd := exec.Command("percctl", "doctor")
		cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance, "PERCCTL_ORACLE="+servers)
		commands.Go(func() {
			out, _ := cmd.CombinedOutput()
			if n := strings.Count(string(out), "no transaction can begin without a timestamp"); n != 1 || cmd.ProcessState.ExitCode() != 4 || !strings.Contains(string(out), "percctl tso serve, or percctl tso mode direct") || strings.Contains(string(out), "\nfailed") {
				t.Errorf("doctor, --oracle %q: exit code %d, %d findings\n%s", servers, cmd.ProcessState.ExitCode(), n, out)
			}
		})
	}
	commands.Wait()
}
