package tso_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// authority signs certificates into a directory.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	a.cert, a.key = a.make(name, nil)
	return a
}

// make writes name.crt and name.key; without an authority it signs itself.
func (a *authority) make(name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	parent, signer := tmpl, key
	if by != nil {
		parent, signer = by.cert, by.key
	} else {
		tmpl.IsCA, tmpl.KeyUsage = true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
	return cert, key
}

func (a *authority) write(name string, content []byte) {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func TestTLS(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		dir := t.TempDir()
		ca, other := newAuthority(t, dir, "ca"), newAuthority(t, dir, "other-ca")
		ca.make("a", ca)
		ca.make("client", ca)
		other.make("stranger", other)
		creds := func(c credentials.TransportCredentials, err error) credentials.TransportCredentials {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		files := tso.TLSFiles{Cert: ca.path("a.crt"), Key: ca.path("a.key"), CA: ca.path("ca.crt")}
		c.Start("a", server.Config{Credentials: creds(files.Server())})
		synctest.Wait()
		// A server without CA serves clients without a certificate.
		c.Start("b", server.Config{Credentials: creds(tso.TLSFiles{Cert: files.Cert, Key: files.Key}.Server())})
		open := healthpb.NewHealthClient(c.Dial("b", creds(tso.TLSFiles{CA: files.CA, ServerName: "a"}.Client())))
		if r, err := open.Check(t.Context(), &healthpb.HealthCheckRequest{Service: server.LiveService}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("without a certificate: %v, %v", r, err)
		}
		if _, err := (tso.TLSFiles{CA: ca.path("none")}).Client(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a missing CA: %v", err)
		}
		good := tso.TLSFiles{Cert: ca.path("client.crt"), Key: ca.path("client.key"), CA: ca.path("ca.crt"), ServerName: "a"}
		ask := func(f *tso.TLSFiles) error {
			cfg := tso.ClientConfig{Timeout: time.Second}
			if f != nil {
				cfg.Credentials = creds(f.Client())
			}
			_, err := c.Client(cfg, "a").Timestamp(t.Context())
			return err
		}
		if err := ask(&good); err != nil {
			t.Fatal(err)
		}
		none, stranger, wrongCA, wrongName := good, good, good, good
		none.Cert, none.Key = "", ""
		stranger.Cert, stranger.Key = ca.path("stranger.crt"), ca.path("stranger.key")
		wrongCA.CA = ca.path("other-ca.crt")
		wrongName.ServerName = "b"
		for name, test := range map[string]struct {
			files *tso.TLSFiles
			says  string
		}{
			"plain text":             {nil, ""},
			"no certificate":         {&none, ""},
			"stranger's certificate": {&stranger, ""},
			"server of another CA":   {&wrongCA, "unknown authority"},
			"another name":           {&wrongName, "not b"},
		} {
			if err := ask(test.files); !errors.Is(err, tso.ErrUnavailable) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", name, err)
			}
		}

		// Both sides move to another CA without a restart.
		tsotest.Advance(time.Second)
		for _, name := range []string{"a", "client"} {
			other.make(name, other)
		}
		raw, err := os.ReadFile(ca.path("other-ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		kept := creds(good.Client()) // made before, used after
		ca.write("ca.crt", raw)
		if _, err := c.Client(tso.ClientConfig{Credentials: kept}, "a").Timestamp(t.Context()); err != nil {
			t.Errorf("new certificates: %v", err)
		}
		// Files that cannot be read change nothing.
		ca.write("a.crt", []byte("broken"))
		if err := ask(&good); err != nil {
			t.Errorf("broken file: %v", err)
		}
	})
}

// TestClientNames: of the certificates of a CA, a server serves those with a name
// that it knows. Health checks need none.
func TestClientNames(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		ca := newAuthority(t, t.TempDir(), "ca")
		files := func(name string) tso.TLSFiles {
			ca.make(name, ca)
			return tso.TLSFiles{Cert: ca.path(name + ".crt"), Key: ca.path(name + ".key"), CA: ca.path("ca.crt"), ServerName: "a"}
		}
		serving, err := files("a").Server()
		if err != nil {
			t.Fatal(err)
		}
		c.Start("a", server.Config{Credentials: serving, ClientNames: []string{"billing", "search"}})
		synctest.Wait()
		for name, want := range map[string]error{"billing": nil, "search": nil, "stranger": errDenied} {
			creds, err := files(name).Client()
			if err != nil {
				t.Fatal(err)
			}
			client := c.Client(tso.ClientConfig{Credentials: creds}, "a")
			began := time.Now()
			_, err = client.Timestamp(t.Context())
			if (want == nil) != (err == nil) || want != nil && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), want.Error())) {
				t.Errorf("%s: %v", name, err)
			}
			if waited := time.Since(began); waited > time.Second {
				t.Errorf("%s: the answer took %s", name, waited)
			}
			if _, err := healthpb.NewHealthClient(c.Dial("a", creds)).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("health for %s: %v", name, err)
			}
		}
	})
}

var errDenied = errors.New(`does not serve certificates of ["stranger"]`)

func TestTLSFiles(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	ca.make("a", ca)
	ca.make("b", ca)
	ca.write("empty", nil)
	for _, f := range []tso.TLSFiles{
		{},
		{Cert: ca.path("a.crt")},
		{Cert: ca.path("a.crt"), Key: ca.path("b.key")},
		{Cert: ca.path("none"), Key: ca.path("a.key")},
		{Cert: ca.path("a.crt"), Key: ca.path("a.key"), CA: ca.path("none")},
		{Cert: ca.path("a.crt"), Key: ca.path("a.key"), CA: ca.path("empty")},
	} {
		if _, err := f.Server(); err == nil {
			t.Errorf("accepted for a server: %+v", f)
		}
	}
	for _, f := range []tso.TLSFiles{{Cert: ca.path("a.crt")}, {Key: ca.path("a.key")}, {CA: ca.path("empty")}} {
		if _, err := f.Client(); err == nil {
			t.Errorf("accepted for a client: %+v", f)
		}
	}
}
