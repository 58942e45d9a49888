package tso

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// TLSFiles names PEM files for TLS. If the files changed, the next new connection
// reads them again, so certificates can be renewed without a restart. If that
// fails, the failure is logged and the certificates read before stay in use.
// Replace files by renaming, certificate and key in any order.
type TLSFiles struct {
	// Cert and Key are the certificate chain and key to show to the other side.
	// A server needs them; a client needs them for mutual TLS.
	// Default to none.
	Cert, Key string

	// CA has the certificates of the authorities that may sign the other side's
	// certificate. A server with CA refuses clients without a certificate.
	// Defaults to none for a server, and to the system's for a client.
	CA string

	// ServerName is the name that a client expects in the server's certificate.
	// Defaults to the host in the address.
	ServerName string

	// Logger receives failures to read the files again.
	// Defaults to no logging.
	Logger *slog.Logger
}

// Server returns the credentials of a server. It fails if the files cannot be
// read, or if certificate and key do not belong together.
func (f TLSFiles) Server() (credentials.TransportCredentials, error) {
	if f.Cert == "" || f.Key == "" {
		return nil, errors.New("tso: TLS for a server needs a certificate and a key")
	}
	w, err := f.watch(func(cert []tls.Certificate, ca *x509.CertPool) *tls.Config {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: cert, NextProtos: []string{"h2"}}
		if ca != nil {
			cfg.ClientCAs, cfg.ClientAuth = ca, tls.RequireAndVerifyClientCert
		}
		return cfg
	})
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.current(), nil },
	}), nil
}

// Client returns the credentials of a client. It fails if the files cannot be
// read, or if certificate and key do not belong together.
func (f TLSFiles) Client() (credentials.TransportCredentials, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("tso: TLS for a client needs a certificate and a key, or neither")
	}
	w, err := f.watch(func(cert []tls.Certificate, ca *x509.CertPool) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: cert, RootCAs: ca, ServerName: f.ServerName}
	})
	if err != nil {
		return nil, err
	}
	return reloading{w}, nil
}

// reloading is a client's credentials, made again for each handshake.
type reloading struct{ files *watchedFiles }

func (r reloading) now() credentials.TransportCredentials {
	return credentials.NewTLS(r.files.current())
}

func (r reloading) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return r.now().ClientHandshake(ctx, authority, c)
}

func (r reloading) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("tso: TLSFiles.Client returns credentials for clients; a server needs TLSFiles.Server")
}

func (r reloading) Info() credentials.ProtocolInfo          { return r.now().Info() }
func (r reloading) Clone() credentials.TransportCredentials { return r }
func (r reloading) OverrideServerName(string) error {
	return errors.New("tso: set TLSFiles.ServerName")
}

// watchedFiles is the configuration made from the present content of files.
type watchedFiles struct {
	files TLSFiles
	build func([]tls.Certificate, *x509.CertPool) *tls.Config

	mu     sync.Mutex
	stamps [3]stamp
	config *tls.Config
}

// stamp distinguishes the contents of a file without reading it.
type stamp struct {
	modified time.Time
	size     int64
}

func (f TLSFiles) watch(build func([]tls.Certificate, *x509.CertPool) *tls.Config) (*watchedFiles, error) {
	w := &watchedFiles{files: f, build: build}
	w.stamps = w.stat()
	var err error
	w.config, err = w.load()
	return w, err
}

// current returns the configuration for the next connection.
func (w *watchedFiles) current() *tls.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.stat()
	if now == w.stamps {
		return w.config
	}
	cfg, err := w.load()
	if err != nil {
		// Between two renames the files may not belong together: the next
		// connection tries again.
		cmp.Or(w.files.Logger, slog.New(slog.DiscardHandler)).Warn("tso: reading TLS files again failed; the certificates read before stay in use", "error", err)
		return w.config
	}
	w.config, w.stamps = cfg, now
	return w.config
}

// stat returns no stamp for a file that is not there: then load fails.
func (w *watchedFiles) stat() (s [3]stamp) {
	for i, path := range []string{w.files.Cert, w.files.Key, w.files.CA} {
		if info, err := os.Stat(path); err == nil {
			s[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

func (w *watchedFiles) load() (*tls.Config, error) {
	var certs []tls.Certificate
	if w.files.Cert != "" {
		c, err := tls.LoadX509KeyPair(w.files.Cert, w.files.Key)
		if err != nil {
			return nil, fmt.Errorf("tso: TLS certificate %s with key %s: %w", w.files.Cert, w.files.Key, err)
		}
		certs = append(certs, c)
	}
	var pool *x509.CertPool
	if w.files.CA != "" {
		pem, err := os.ReadFile(w.files.CA)
		if err != nil {
			return nil, fmt.Errorf("tso: TLS CA certificates: %w", err)
		}
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tso: TLS CA certificates: no certificate in %s", w.files.CA)
		}
	}
	return w.build(certs, pool), nil
}
