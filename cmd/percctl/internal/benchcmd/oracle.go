package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// serve starts a served oracle for the workers that are added from now on. The
// metadata table has to be there.
func (r *run) serve(ctx context.Context) error {
	p, err := r.spawn(ctx, "oracle", "oracle", "--emulator", r.address)
	if err != nil {
		return err
	}
	r.oracle = p
	if r.served, err = p.line(); err != nil {
		return err
	}
	// Until somebody leads.
	c, err := tso.NewClient(tso.ClientConfig{Addresses: []string{r.served}})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = c.Timestamp(ctx)
	return err
}

// newOracleCmd is the process of a served oracle: it prints its address, and
// ends with its standard input.
func newOracleCmd(s *cli.Streams) *cobra.Command {
	var emulator, profile string
	cmd := &cobra.Command{
		Use:    "oracle",
		Short:  "The oracle process of a measurement",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, err := cli.StartProfile(profile)
			if err != nil {
				return err
			}
			defer stop()
			return serveOracle(cmd.Context(), s, emulator)
		},
	}
	cmd.Flags().StringVar(&emulator, "emulator", "", "address of the emulator")
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	return cmd
}

func serveOracle(ctx context.Context, s *cli.Streams, emulator string) error {
	conn, err := txntest.Dial(emulator)
	if err != nil {
		return err
	}
	bt, admin, err := txntest.Open(ctx, conn, benchProject, benchInstance)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { _, _, _ = bt.Close(), admin.Close(), conn.Close() }()
	table := bt.OpenTable(txn.DefaultMetadataTable)
	if _, err := tso.SetMode(ctx, table, tso.RowConfig{}, tso.ModeServed); err != nil {
		return err
	}
	srv, err := server.New(table, server.Config{})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(s.Out, lis.Addr())
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, lis) }()
	err = tellCPU(s)
	stop()
	return errors.Join(err, <-ended)
}
