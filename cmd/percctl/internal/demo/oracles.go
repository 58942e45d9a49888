package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/telemetry"
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
	procs [servers]*oracleProcess

	killed, stopped int // leaders
}

type oracleProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"demo", "oracle", "--listen", o.at.oracles[i]}, o.at.args()...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = telemetry.ChildEnv(o.slot + i)
	cmd.Stderr = o.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	o.procs[i] = &oracleProcess{cmd, stdin}
	var ready string
	if err := json.NewDecoder(stdout).Decode(&ready); err != nil {
		return fmt.Errorf("server %d of timestamps ended before it listened: %w", i+1, cmd.Wait())
	}
	return nil
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
		_ = p.cmd.Process.Kill()
	} else {
		o.stopped++
		o.progress.event("stopped server %d of timestamps, which led in epoch %d", i+1, state.Epoch)
		_ = p.stdin.Close()
	}
	_ = p.cmd.Wait() // killed, or what it says on standard error
	return o.start(i)
}

// stop ends all of them.
func (o *oracles) stop() error {
	for _, p := range o.procs {
		if p != nil {
			_ = p.stdin.Close()
		}
	}
	var errs []error
	for _, p := range o.procs {
		if p == nil {
			continue
		}
		late := time.AfterFunc(leaving, func() { _ = p.cmd.Process.Kill() })
		errs = append(errs, p.cmd.Wait())
		late.Stop()
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
	signal.Ignore(os.Interrupt) // as a worker does
	signal.Reset(syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
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
	if err := json.NewEncoder(s.Out).Encode(lis.Addr().String()); err != nil {
		return err
	}
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, s.In)
	}()
	return srv.Serve(ctx, lis)
}
