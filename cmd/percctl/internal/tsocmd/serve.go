package tsocmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
)

type serveOptions struct {
	bigtable   connect.Flags
	tls        tlsFlags
	names      []string
	listen     string
	health     string
	advertise  string
	name       string
	lease      time.Duration
	reflection bool
	profile    string
	format     cli.Format
}

func newServeCmd(s *cli.Streams) *cobra.Command {
	opts := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve timestamps",
		Long: `Serve timestamps over gRPC until interrupted. One server leads, the others stand by:
they take over when the leader's lease expires, or at once if the leader is stopped by
SIGTERM or SIGINT.

Set the oracle to served mode with percctl tso mode served: until then the server
stands by. The command prints the address on which it listens, and logs to standard
error. The gRPC health check answers SERVING while the server leads, and for the
service name "live" as long as the process works.`,
		Example: `  percctl tso serve --project p --instance i
  percctl tso serve --project p --instance i --listen :7070 --advertise tso-0.example.com:7070 \
      --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), s, opts) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.listen, "listen", "127.0.0.1:7070", "address to listen on, host:port (port 0: any free port)")
	f.StringVar(&opts.health, "health-listen", "", "address for health checks alone, without TLS, host:port (default: the one of --listen)")
	f.StringVar(&opts.advertise, "advertise", "", "address for clients to connect to, host:port (default: the one of --listen)")
	f.StringVar(&opts.name, "name", "", "name of this server in the row, status and logs (default: host/process)")
	f.DurationVar(&opts.lease, "lease", 3*time.Second, "how long the server leads without renewing its lease; if it dies, no timestamps are handed out for as long")
	f.BoolVar(&opts.reflection, "reflection", false, "offer gRPC reflection")
	f.StringVar(&opts.profile, "cpu-profile", "", "write a CPU profile to this file")
	cli.FormatFlag(cmd, &opts.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[serving]())
	opts.bigtable.Add(f)
	opts.tls.addServer(f)
	f.StringSliceVar(&opts.names, "tls-client-name", nil, "serve only certificates with one of these DNS names, URIs or common names (default: any certificate of --tls-client-ca)")
	return cmd
}

// A serving is what the command prints once it listens.
type serving struct {
	Address string `json:"address"` // address on which the server listens, host:port
}

func serve(ctx context.Context, s *cli.Streams, opts *serveOptions) error {
	if opts.advertise != "" {
		if host, port, err := net.SplitHostPort(opts.advertise); err != nil || host == "" || port == "" {
			return cli.Usagef("--advertise %s: it has to be host:port", opts.advertise)
		}
	}
	if opts.lease <= 0 {
		return cli.Usagef("--lease %v: it has to be positive", opts.lease)
	}
	log := txn.WithTraceIDs(slog.New(slog.NewTextHandler(s.Err, nil)))
	cfg := server.Config{
		Name: opts.name, Address: opts.advertise, Lease: opts.lease, Reflection: opts.reflection, Logger: log,
		ClientNames: opts.names,
	}
	switch files := opts.tls.TLSFiles; {
	case len(opts.names) > 0 && files.CA == "":
		return cli.Usagef("--tls-client-name needs --tls-client-ca: without it clients show no certificate")
	case files == (tso.TLSFiles{}):
	case files.Cert == "" || files.Key == "":
		return cli.Usagef("--tls-cert and --tls-key need each other; --tls-client-ca needs both")
	default:
		files.Logger = log
		creds, err := files.Server()
		if err != nil {
			return err
		}
		cfg.Credentials = creds
	}
	table, closeTable, err := opts.bigtable.OpenMetadata(ctx)
	if err != nil {
		return err
	}
	defer closeTable()
	srv, err := server.New(table, cfg)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", opts.listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", opts.listen, err)
	}
	if !loopback(lis.Addr()) {
		switch {
		case cfg.Credentials == nil:
			log.Warn("SERVING OTHER MACHINES WITHOUT TLS: anyone who can reach this address can use up timestamps, and read or forge them on the network; use --tls-cert, --tls-key and --tls-client-ca, or --listen 127.0.0.1:7070", "address", lis.Addr())
		case opts.tls.CA == "":
			log.Warn("serving other machines without --tls-client-ca: anyone who can reach this address can take timestamps", "address", lis.Addr())
		}
		if opts.advertise == "" {
			log.Warn("--advertise is not set: clients connect to the address of --listen", "address", lis.Addr())
		}
	}
	stop, err := cli.StartProfile(opts.profile)
	if err != nil {
		return err
	}
	defer stop()
	if err := cli.Print(s.Out, opts.format, serving{lis.Addr().String()}, cli.Textf("%s\n", lis.Addr())); err != nil {
		return err
	}
	if opts.health != "" {
		healthLis, err := lc.Listen(ctx, "tcp", opts.health)
		if err != nil {
			return errors.Join(fmt.Errorf("listening on %s: %w", opts.health, err), lis.Close())
		}
		log.Info("answering health checks", "address", healthLis.Addr())
		defer srv.ServeHealth(healthLis)()
	}
	return srv.Serve(ctx, lis)
}

// loopback reports whether only this machine reaches an address.
func loopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}
