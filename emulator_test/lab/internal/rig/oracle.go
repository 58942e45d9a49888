package rig

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// newOracleCmd makes the command of a served oracle's process. It prints its address,
// and ends when its standard input does.
func newOracleCmd(s *cli.Streams) *cobra.Command {
	var emulator string
	cmd := ProcessCmd("oracle", "The oracle process of a measurement", func(ctx context.Context) error {
		return serveOracle(ctx, s, emulator)
	})
	cmd.Flags().StringVar(&emulator, "emulator", "", "address of the emulator")
	return cmd
}

func serveOracle(ctx context.Context, s *cli.Streams, emulator string) error {
	conn, err := txntest.Dial(emulator)
	if err != nil {
		return err
	}
	bt, adminClient, err := txntest.Open(ctx, conn, Project, Instance)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { _, _, _ = bt.Close(), adminClient.Close(), conn.Close() }()
	table := bt.OpenTable(format.DefaultMetadataTable)
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
	err = answerCPU(s)
	stop()
	return errors.Join(err, <-ended)
}
