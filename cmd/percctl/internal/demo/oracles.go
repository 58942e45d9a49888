package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
)

const (
	// servers of timestamps, one of which leads.
	servers = 2
	// lease is how long timestamps are missing when the leader is killed.
	lease = time.Second
)

// oracles are the servers of timestamps of a demo that goes on. Only one
// goroutine at a time uses them.
type oracles struct {
	at       deployment
	conn     *connection
	stderr   io.Writer
	progress *progress
	// slot is the number of the first one among the children of the process.
	slot  int
	procs [servers]*child.Process

	killed, stopped int // leaders
}

// startOracles has the deployment served, and fills in its servers.
func startOracles(ctx context.Context, at *deployment, conn *connection, slot int, stderr io.Writer, p *progress) (*oracles, error) {
	o := &oracles{conn: conn, stderr: stderr, progress: p, slot: slot}
	if _, err := tso.SetMode(ctx, o.table(), tso.RowConfig{}, tso.ModeServed); err != nil {
		return nil, err
	}
	for range servers {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		at.oracles = append(at.oracles, lis.Addr().String())
		if err := lis.Close(); err != nil { // the server's from now on, and of those after it
			return nil, err
		}
	}
	o.at = *at
	for i := range o.procs {
		if err := o.start(i); err != nil {
			return nil, errors.Join(err, o.stop())
		}
	}
	return o, nil
}

func (o *oracles) table() bigtable.TableAPI {
	return o.conn.bigtable.OpenTable(txn.DefaultMetadataTable)
}

// start starts the i-th server, and returns when it listens.
func (o *oracles) start(i int) error {
	p, err := startChild(fmt.Sprintf("server %d of timestamps", i+1), o.slot+i, o.stderr, append([]string{"oracle", "--listen", o.at.oracles[i]}, o.at.args()...))
	if err != nil {
		return err
	}
	o.procs[i] = p
	_, err = p.Line()
	return err
}

// failOver ends the leader, and starts it again once it is gone: killed, or
// asked to stop, which hands over at once.
func (o *oracles) failOver(ctx context.Context, kill bool) error {
	state, err := tso.ReadRow(ctx, o.table(), tso.RowConfig{})
	if err != nil {
		return err
	}
	i := slices.Index(o.at.oracles, state.Address)
	if i < 0 || state.Released {
		return nil // nobody leads yet
	}
	p := o.procs[i]
	if kill {
		o.killed++
		o.progress.event("killed server %d of timestamps, which led in epoch %d", i+1, state.Epoch)
		p.Kill()
	} else {
		o.stopped++
		o.progress.event("stopped server %d of timestamps, which led in epoch %d", i+1, state.Epoch)
		p.CloseInput()
	}
	_ = p.Wait() // killed, or what it says on standard error
	return o.start(i)
}

// stop ends all of them.
func (o *oracles) stop() error {
	for _, p := range o.procs {
		if p != nil {
			p.CloseInput()
		}
	}
	var errs []error
	for _, p := range o.procs {
		if p != nil {
			errs = append(errs, p.End(leaving))
		}
	}
	return errors.Join(errs...)
}

// newOracleCmd is the command that the coordinator starts servers with.
func newOracleCmd(s *cli.Streams) *cobra.Command {
	var at deployment
	var listen string
	cmd := &cobra.Command{
		Use:    "oracle",
		Short:  "A server of timestamps of percctl demo",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return runOracle(cmd.Context(), at, listen, s) },
	}
	at.flags(cmd.Flags())
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on")
	return cmd
}

// runOracle serves until its input ends: the coordinator stops it, or is dead.
func runOracle(ctx context.Context, at deployment, listen string, s *cli.Streams) error {
	ctx, cancel := child.Attend(ctx, s.In, nil)
	defer cancel()
	conn, err := at.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.close()
	// Changes of leadership are told by the coordinator.
	log := slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: slog.LevelError}))
	srv, err := server.New(conn.bigtable.OpenTable(txn.DefaultMetadataTable), server.Config{Lease: lease, Logger: log})
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.Out, lis.Addr()); err != nil {
		return err
	}
	return srv.Serve(ctx, lis)
}
