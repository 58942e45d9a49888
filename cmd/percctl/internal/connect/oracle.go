package connect

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/embedded"
	"github.com/percolator-bigtable/percolator/tso"
)

// OracleFlags say how to reach a served oracle. The zero value asks, in plain
// text, the leader that the oracle's row names.
type OracleFlags struct {
	Servers, CA, Cert, Key string

	// Warn is called with a line of text before timestamps come in plain text from
	// another machine, perhaps more than once. nil: not at all.
	Warn func(string)
}

// PlainText is the warning for asking addresses in plain text, with the flag that
// turns TLS on. It is "" if all of them are on this machine.
func PlainText(addresses []string, flag string) string {
	for _, a := range addresses {
		host, _, err := net.SplitHostPort(a)
		if ip, ipErr := netip.ParseAddr(host); err != nil || host != "localhost" && (ipErr != nil || !ip.Unmap().IsLoopback()) {
			return fmt.Sprintf("warning: asking the oracle at %s in plain text: the network between can forge timestamps, which breaks isolation; %s turns TLS on\n", cli.Line(a), flag)
		}
	}
	return ""
}

// Add adds the flags to a command.
func (f *OracleFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Servers, "oracle", "", "addresses of oracle servers, host:port, separated by commas (PERCCTL_ORACLE; default: the leader that the oracle's row names)")
	flags.StringVar(&f.CA, "oracle-ca", "", "PEM file with the CAs of the oracle servers; turns TLS on (PERCCTL_ORACLE_CA)")
	flags.StringVar(&f.Cert, "oracle-cert", "", "PEM file with the client certificate for the oracle servers; turns TLS on (PERCCTL_ORACLE_CERT)")
	flags.StringVar(&f.Key, "oracle-key", "", "PEM file with the key of --oracle-cert (PERCCTL_ORACLE_KEY)")
}

// oraclePatience is how long commands look for a server that answers. People wait for them.
const oraclePatience = 2 * time.Second

// Client returns a client of the servers, or of the leader that the oracle's
// row names. It has to be closed.
func (f *OracleFlags) Client(leader string) (*tso.Client, error) {
	cfg, err := f.ClientConfig(leader)
	if err != nil {
		return nil, err
	}
	return tso.NewClient(cfg)
}

// ClientConfig is what Client makes its client of.
func (f *OracleFlags) ClientConfig(leader string) (tso.ClientConfig, error) {
	addresses := []string{leader}
	if f.Servers != "" {
		addresses = strings.Split(f.Servers, ",")
	}
	for i, a := range addresses {
		if addresses[i] = strings.TrimSpace(a); !strings.Contains(a, ":") {
			return tso.ClientConfig{}, cli.Usagef("--oracle %s: %q has no port; it has to be host:port", f.Servers, a)
		}
	}
	cfg := tso.ClientConfig{Addresses: addresses, Timeout: oraclePatience}
	if files := (tso.TLSFiles{CA: f.CA, Cert: f.Cert, Key: f.Key}); files != (tso.TLSFiles{}) {
		var err error
		if cfg.Credentials, err = files.Client(); err != nil {
			return cfg, cli.Usagef("--oracle-ca, --oracle-cert, --oracle-key: %w", err)
		}
	} else if warning := PlainText(addresses, "--oracle-ca"); warning != "" && f.Warn != nil {
		f.Warn(warning)
	}
	return cfg, nil
}

// AddEmbedded adds --embedded to a command.
func (f *Flags) AddEmbedded(flags *pflag.FlagSet) {
	flags.BoolVar(&f.Embedded, "embedded", false, "try the command without a Bigtable: use a new emulator inside the process, with "+strings.ReplaceAll(embedded.Contents, "\n", " "))
}
