// Package tsocmd is percctl tso: the timestamp oracle's server, and what an
// operator asks an oracle.
//
// Each command is in a file of its own.
package tsocmd

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"

	"github.com/percolator-bigtable/percolator/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
)

// NewCommand returns the tso command.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.Group("tso", "Run and operate the timestamp oracle", `Run and operate the timestamp oracle.

In direct mode, the default, clients take timestamps directly from the oracle's row in
Bigtable, and there is nothing to run. In served mode, they take them from servers
(percctl tso serve), which reserve ranges of timestamps in the row. Run two or more
servers: one leads, the others stand by. percctl tso mode shows and changes the mode.
percctl tso advance repairs a row that was lost or restored from a backup.

docs/oracle.md says what the oracle guarantees, what can fail, and what to do then.`,
		newServeCmd(s), newStatusCmd(s), newNowCmd(s), newDecodeCmd(s), newModeCmd(s), newAdvanceCmd(s))
}

// tlsFlags secure connections.
type tlsFlags struct {
	tso.TLSFiles
	on bool // a client without any file: TLS with the system's CAs
}

func (f *tlsFlags) addServer(flags *pflag.FlagSet) {
	flags.StringVar(&f.Cert, "tls-cert", "", "PEM file with the certificate chain; the server reads it again when it changes")
	flags.StringVar(&f.Key, "tls-key", "", "PEM file with the key of --tls-cert")
	flags.StringVar(&f.CA, "tls-client-ca", "", "PEM file with the CAs of clients; refuse clients without a certificate of one of them")
}

func (f *tlsFlags) addClient(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "tls", false, "connect to servers with TLS; the other --tls flags turn it on, too")
	flags.StringVar(&f.CA, "tls-ca", "", "PEM file with the CAs of servers (default: those of the system)")
	flags.StringVar(&f.Cert, "tls-cert", "", "PEM file with the client certificate")
	flags.StringVar(&f.Key, "tls-key", "", "PEM file with the key of --tls-cert")
	flags.StringVar(&f.ServerName, "tls-server-name", "", "name expected in the certificates of servers (default: the host of the address)")
}

func (f *tlsFlags) client() (credentials.TransportCredentials, error) {
	if !f.on && f.TLSFiles == (tso.TLSFiles{}) {
		return nil, nil
	}
	c, err := f.Client()
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	return c, nil
}

// clientFlags say which servers to ask.
type clientFlags struct {
	servers []string
	timeout time.Duration
	tls     tlsFlags
}

func (f *clientFlags) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.servers, "server", nil, "addresses of servers, host:port, separated by commas (default: the leader that the oracle's row names)")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	f.tls.addClient(flags)
}

func (f *clientFlags) check() error {
	if f.timeout <= 0 {
		return cli.Usagef("--timeout %s: it has to be positive", f.timeout)
	}
	for _, s := range f.servers {
		if !strings.Contains(s, ":") {
			return cli.Usagef("--server %s: it has to be host:port", s)
		}
	}
	return nil
}

// open returns a client of the servers. It has to be closed.
func (f *clientFlags) open(servers []string) (*tso.Client, error) {
	creds, err := f.tls.client()
	if err != nil {
		return nil, err
	}
	return tso.NewClient(tso.ClientConfig{Addresses: servers, Credentials: creds, Timeout: f.timeout})
}

// coded gives errors of the oracle the exit code that fits.
func coded(err error) error {
	var has *cli.Error
	switch {
	case err == nil || errors.As(err, &has):
		return err
	case errors.Is(err, tso.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return &cli.Error{Code: cli.ExitUnavailable, Err: err}
	case errors.Is(err, tso.ErrNotInitialized):
		return &cli.Error{Code: cli.ExitNotFound, Err: err}
	}
	return err
}
