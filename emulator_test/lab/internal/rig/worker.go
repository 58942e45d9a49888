package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// An Order is a line of json that a worker process reads; it answers each with
// a line of json.
type Order struct {
	// Do is run, load, status, stop, batch or measure.
	Do    string
	Run   RunOrder
	Load  LoadOrder
	Batch BatchOrder
	Task  Task
}

// A RunOrder starts a worker with one observer.
type RunOrder struct {
	Observer    string // copy or cluster
	Hints       bool
	Locks       bool // advisory locks in the metadata table
	NoTeleport  bool
	Work        time.Duration // how long a run takes beside its requests
	MinInterval time.Duration // of the scanner
	MaxInterval time.Duration
}

// An Answer is what a worker process says. Lists are in answers to stop only.
type Answer struct {
	Error     string
	Committed int // runs
	Loaded    int
	Done      []done
	Loads     []Loaded
	Worker    notify.Stats
	Scanner   notify.ScannerStats
	RPCs      rpcs
	// Useful is the time spent in runs that committed, Vain in those that did
	// not, and Looks in looks that found nothing to do.
	Useful, Vain, Looks time.Duration
	Batches             []Batch
	Measured            Measured
}

// done says when an observer's run for a row was committed, by the clock.
type done struct {
	Row string
	At  int64 // Unix nanoseconds
}

// A worker is the process's side of a measurement.
type worker struct {
	bt     *bigtable.Client
	client *txn.Client
	rpcs   *rpcCounter
	config txn.Config  // of client
	oracle *tso.Client // if it is a served one

	runner  *notify.Worker
	scanner *notify.Scanner
	stop    context.CancelFunc
	ended   chan error

	loading     sync.WaitGroup
	stopLoading context.CancelFunc
	mu          sync.Mutex
	failed      error // of loading
	answer      Answer
	snapshot    *txn.Snapshot // see shared
}

func newWorkerCmd(s *cli.Streams) *cobra.Command {
	var emulator, oracle string
	var delay time.Duration
	var noLatches bool
	cmd := ProcessCmd("worker", "A worker process of a measurement", func(ctx context.Context) error {
		return serveOrders(ctx, s, emulator, oracle, delay, noLatches)
	})
	cmd.Flags().StringVar(&emulator, "emulator", "", "address of the emulator")
	cmd.Flags().StringVar(&oracle, "oracle", "", "address of the oracle's server; direct mode if it is empty")
	cmd.Flags().DurationVar(&delay, "delay", 0, "how long each request takes, beside what it takes")
	cmd.Flags().BoolVar(&noLatches, "no-latches", false, "let transactions of one client not queue for cells, nor remember commits")
	return cmd
}

// serveOrders carries out orders until there are no more.
func serveOrders(ctx context.Context, s *cli.Streams, emulator, oracle string, delay time.Duration, noLatches bool) error {
	w := &worker{rpcs: &rpcCounter{table: documentsTable}}
	conn, err := txntest.Dial(emulator, append(lateDialer(delay), grpc.WithStatsHandler(w.rpcs))...)
	if err != nil {
		return err
	}
	bt, admin, err := txntest.Open(ctx, conn, Project, Instance)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { _, _, _ = bt.Close(), admin.Close(), conn.Close() }()
	w.bt = bt
	if noLatches {
		w.config.LatchWait = -1
	}
	switch oracle {
	case "":
	case LocalOracle:
		w.config.Oracle = tso.NewLocal(tso.LocalConfig{})
	default:
		if w.oracle, err = tso.NewClient(tso.ClientConfig{Addresses: []string{oracle}, DialOptions: lateDialer(delay)}); err != nil {
			return err
		}
		w.config.Oracle = w.oracle
		defer func() { _ = w.oracle.Close() }()
	}
	defer w.close(ctx)
	orders, answers := json.NewDecoder(s.In), json.NewEncoder(s.Out)
	for {
		var o Order
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		a, err := w.do(ctx, o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func (w *worker) do(ctx context.Context, o Order) (Answer, error) {
	if w.client == nil && o.Do != "batch" {
		c, err := txn.NewClient(ctx, w.bt, w.config)
		if err != nil {
			return Answer{}, err
		}
		w.client = c
	}
	switch o.Do {
	case "run":
		return Answer{}, w.run(ctx, o.Run)
	case "load":
		lctx, stop := context.WithCancel(ctx)
		w.stopLoading = stop
		w.loading.Go(func() {
			defer stop()
			if err := w.load(lctx, o.Load); err != nil && lctx.Err() == nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.failed = errors.Join(w.failed, err)
			}
		})
		return Answer{}, nil
	case "status":
		w.mu.Lock()
		defer w.mu.Unlock()
		return Answer{Committed: len(w.answer.Done), Loaded: len(w.answer.Loads)}, w.failed
	case "batch":
		batches, err := w.batches(ctx, o.Batch)
		return Answer{Batches: batches}, err
	case "measure":
		m, err := w.measure(ctx, o.Task)
		return Answer{Measured: m}, err
	case "stop":
		if w.stopLoading != nil {
			w.stopLoading() // what is late by now is left out
		}
		w.loading.Wait()
		err := w.end()
		w.mu.Lock()
		defer w.mu.Unlock()
		a := w.answer
		a.Committed, a.Loaded = len(a.Done), len(a.Loads)
		if w.runner != nil {
			a.Worker, a.Scanner = w.runner.Stats(), w.scanner.Stats()
		}
		a.RPCs = w.rpcs.take()
		w.answer = Answer{}
		return a, errors.Join(w.failed, err)
	}
	return Answer{}, fmt.Errorf("unknown order %q", o.Do)
}

// Run starts a worker in the background.
func (w *worker) run(ctx context.Context, o RunOrder) error {
	w.scanner = &notify.Scanner{MinInterval: o.MinInterval, MaxInterval: o.MaxInterval, NoTeleport: o.NoTeleport}
	cfg := notify.Config{Finder: w.scanner, NoHints: !o.Hints, OnEvent: w.event}
	if o.Locks {
		locks, _, err := changes.AdvisoryLocks(w.client)
		if err != nil {
			return err
		}
		cfg.Locks = locks
	}
	runner, err := notify.NewWorker(w.client, cfg)
	if err != nil {
		return err
	}
	column, id, observer := observerOf(o)
	if err := runner.Handle(id, documentsTable, column, observer); err != nil {
		return err
	}
	w.rpcs.take()
	rctx, stop := context.WithCancel(ctx)
	w.runner, w.stop, w.ended = runner, stop, make(chan error, 1)
	go func() { w.ended <- runner.Run(rctx) }()
	return nil
}

// end ends the worker.
func (w *worker) end() error {
	if w.stop == nil {
		return nil
	}
	w.stop()
	w.stop = nil
	return <-w.ended
}

func (w *worker) close(ctx context.Context) {
	w.loading.Wait()
	_ = w.end() // it was asked for by an order if anybody wants to know
	if w.client != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout/3)
		defer cancel()
		_ = w.client.Close(cctx)
	}
}

// event keeps account of runs.
func (w *worker) event(e notify.Event) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Outcome {
	case notify.Committed:
		w.answer.Done = append(w.answer.Done, done{e.Cell.Row, now.UnixNano()})
		w.answer.Useful += e.Duration
	case notify.Acknowledged, notify.Waiting:
		w.answer.Looks += e.Duration
	default:
		w.answer.Vain += e.Duration
	}
}

// LocalOracle stands for the address of an oracle: timestamps come from memory.
const LocalOracle = "local"
