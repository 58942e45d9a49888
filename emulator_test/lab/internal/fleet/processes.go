package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// These are short, so that the locks of a killed client expire soon.
const (
	lockTTL  = 3 * time.Second
	tokenTTL = 1500 * time.Millisecond
)

const (
	// killsEvery is the time from one worker's end to the next one's.
	killsEvery = 3 * time.Second
	// leaving is how long a process may take to end.
	leaving = 5 * time.Second
)

// killedAt are the requests before which workers are killed, in turn: before the first
// write, after and before the commit point, and before the notification is removed.
var killedAt = []txntest.Step{txntest.StepPrewrite, txntest.StepSecondaries, txntest.StepCommit, txntest.StepClear}

// A place is where the tables and the timestamps are.
type place struct {
	Emulator string
	Oracles  []string // addresses of the servers of timestamps
}

// A spec says what a process does. The process ends when its standard input does.
type spec struct {
	place
	// Listen is the address of a server of timestamps; empty for a worker.
	Listen string
	// KillAfter is when a worker is killed, at the next request of the kind KillAt.
	KillAfter time.Duration
	KillAt    txntest.Step
}

// open connects to the tables.
func (p place) open(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
	conn, err := txntest.Dial(p.Emulator, opts...)
	if err != nil {
		return nil, nil, nil, err
	}
	bt, admin, err := txntest.Open(ctx, conn, "lab", "fleet")
	if err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	return bt, admin, func() { _, _, _ = bt.Close(), admin.Close(), conn.Close() }, nil
}

// clientConfig is the configuration of every client. Call the function that it
// returns once the client is closed.
func (p place) clientConfig() (txn.Config, func(), error) {
	txntest.ShortenGC(shorterGC) // in every process the same
	oracle, err := tso.NewClient(tso.ClientConfig{Addresses: p.Oracles})
	if err != nil {
		return txn.Config{}, nil, err
	}
	return txn.Config{LockTTL: lockTTL, TokenTTL: tokenTTL, BatchReads: 1, Oracle: oracle}, func() { _ = oracle.Close() }, nil
}

// newProcessCmd is the command that a fleet starts its processes with.
func newProcessCmd(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "process SPEC",
		Short:  "A process of lab fleet",
		Hidden: true,
		Args:   cli.ExactArgs(1, "what it is to do"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var sp spec
			if err := json.Unmarshal([]byte(args[0]), &sp); err != nil {
				return cli.Usagef("%w", err)
			}
			ctx, cancel := child.Attend(cmd.Context(), s.In, nil)
			defer cancel()
			if sp.Listen != "" {
				return sp.serve(ctx, s)
			}
			return sp.work(ctx)
		},
	}
}

// work runs the observers until ctx ends.
func (sp spec) work(ctx context.Context) error {
	victim := &victim{at: sp.KillAt, after: time.Now().Add(sp.KillAfter), die: killSelf}
	bt, _, closeAll, err := sp.open(ctx, append(victim.dialOptions(), new(losses).dialOption())...)
	if err != nil {
		return err
	}
	defer closeAll()
	config, closeOracle, err := sp.clientConfig()
	if err != nil {
		return err
	}
	defer closeOracle()
	client, err := txn.NewClient(ctx, bt, config)
	if err != nil {
		return err
	}
	err = runObservers(ctx, client)
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving/2) // for the secondaries
	defer cancel()
	return errors.Join(err, client.Close(cctx))
}

// serve serves timestamps until ctx ends.
func (sp spec) serve(ctx context.Context, s *cli.Streams) error {
	bt, _, closeAll, err := sp.open(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	// The coordinator reports changes of the leader.
	log := slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: slog.LevelError}))
	srv, err := server.New(bt.OpenTable(format.DefaultMetadataTable), server.Config{Lease: lease, Logger: log})
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", sp.Listen)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.Out, lis.Addr()); err != nil {
		return err
	}
	return srv.Serve(ctx, lis)
}

func runObservers(ctx context.Context, client *txn.Client) error {
	worker, err := notify.NewWorker(client, notify.Config{
		Finder:       &notify.Scanner{MinInterval: time.Second, MaxInterval: 2 * time.Second},
		LockTTL:      lockTTL,
		Backoff:      txn.Backoff{Min: 20 * time.Millisecond, Max: time.Second},
		DrainTimeout: leaving / 2,
	})
	if err != nil {
		return err
	}
	if err := index.Handle(worker); err != nil {
		return err
	}
	table, column := criticColumn()
	if err := worker.Handle(criticID, table, column, notify.ObserverFunc(criticize), notify.MaxAttempts(2)); err != nil {
		return err
	}
	return worker.Run(ctx)
}

// killSelf ends this process like a crash.
func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil && p.Kill() == nil {
		select {} // until it is dead
	}
	panic("the process cannot kill itself")
}

// A victim is a client that dies: from its first request of a kind on, none of its
// requests arrives.
type victim struct {
	at    txntest.Step
	after time.Time // no earlier than this
	die   func()

	mu   sync.Mutex
	dead bool
}

func (v *victim) dialOptions() []grpc.DialOption { return txntest.ChooseFaults(v.choose).DialOptions() }

func (v *victim) choose(call txntest.Call) (txntest.Action, time.Duration, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.dead && time.Now().After(v.after) && txntest.Classify(call.Method, call.Request).Step == v.at {
		v.dead = true
		v.die()
	}
	return txntest.Crash, 0, v.dead
}

// workers are the processes that run observers.
type workers struct {
	*fleet
	started, killed atomic.Int64
}

// keep keeps a worker running until ctx ends, and starts another one in place of one
// that was killed.
func (w *workers) keep(ctx context.Context, slot int) error {
	for life := 1; ; life++ {
		n := w.started.Add(1)
		// The first lives have different lengths, so that the kills are spread evenly.
		length := killsEvery * time.Duration(w.opts.workers)
		if life == 1 {
			length = killsEvery * time.Duration(slot)
		}
		at := killedAt[n%int64(len(killedAt))]
		p, err := w.start(fmt.Sprint("worker ", n), slot, spec{KillAfter: length, KillAt: at})
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		select {
		case err = <-ended:
			if !p.Killed() {
				return fmt.Errorf("a worker ended too early: %w", err)
			}
			w.killed.Add(1)
			w.event("worker %d was killed before a request of the kind %q", n, at)
		case <-ctx.Done():
			if err := p.End(leaving); err != nil && !p.Killed() {
				return err
			}
			return nil
		}
	}
}
