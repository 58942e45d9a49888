package tso

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWatchedFiles: files are read again when they changed, and only then. What cannot be read is tried
// again by the next connection, and the configuration before stays.
func TestWatchedFiles(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	file, when := filepath.Join(t.TempDir(), "ca.crt"), time.Now().Add(-time.Hour)
	write := func(content []byte, age time.Duration) {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, when, when.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	write(good, 0)
	var log bytes.Buffer
	builds := 0
	w, err := TLSFiles{CA: file, Logger: slog.New(slog.NewTextHandler(&log, nil))}.watch(func(_ []tls.Certificate, ca *x509.CertPool) *tls.Config {
		builds++
		return &tls.Config{RootCAs: ca, MinVersion: tls.VersionTLS13}
	})
	if err != nil {
		t.Fatal(err)
	}
	last := w.current()
	for i, tt := range []struct {
		change func()
		builds int
		warns  int
	}{
		{func() {}, 1, 0},
		{func() { write(good, 0) }, 1, 0},
		{func() { write(good, time.Second) }, 2, 0}, // of the same size
		{func() {}, 2, 0},
		{func() { write(append(good, '\n'), time.Second) }, 3, 0}, // of the same time
		{func() { write([]byte("no certificate"), 0) }, 3, 1},
		{func() {}, 3, 2},
		{func() { _ = os.Remove(file) }, 3, 3},
		{func() { write(good, 0) }, 4, 3},
		{func() {}, 4, 3},
	} {
		tt.change()
		before := builds
		now := w.current()
		if builds != tt.builds || (now != last) != (builds > before) || now.RootCAs == nil || strings.Count(log.String(), "reading TLS files again failed") != tt.warns {
			t.Errorf("%d: built %d times, want %d; %s", i, builds, tt.builds, &log)
		}
		last = now
	}
	creds, err := TLSFiles{CA: file}.Client()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := creds.ServerHandshake(nil); err == nil {
		t.Error("the credentials of a client serve")
	}
	if err := creds.(reloading).OverrideServerName("x"); err == nil {
		t.Error("the name of the server was replaced")
	}
	for _, f := range []TLSFiles{{Cert: file}, {Key: file}} {
		if _, err := f.Server(); err == nil || !strings.Contains(err.Error(), "needs a certificate and a key") {
			t.Errorf("server: %v", err)
		}
		if _, err := f.Client(); err == nil || !strings.Contains(err.Error(), "needs a certificate and a key") {
			t.Errorf("client: %v", err)
		}
	}
}
