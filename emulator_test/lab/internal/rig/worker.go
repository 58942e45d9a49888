package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A worker carries out orders in a worker process.
type worker struct {
	bt     *bigtable.Client
	client *txn.Client
	rpcs   *rpcCounter
	config txn.Config  // of client
	oracle *tso.Client // of a served oracle; nil in direct mode

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

// serveOrders carries out orders until its input ends.
func serveOrders(ctx context.Context, s *cli.Streams, emulator, oracle string, delay time.Duration, noLatches bool) error {
	w := &worker{rpcs: &rpcCounter{table: documentsTable}}
	conn, err := txntest.Dial(emulator, append(lateDialer(delay), grpc.WithStatsHandler(w.rpcs))...)
	if err != nil {
		return err
	}
	bt, adminClient, err := txntest.Open(ctx, conn, Project, Instance)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { _, _, _ = bt.Close(), adminClient.Close(), conn.Close() }()
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
			w.stopLoading() // documents that are late are not written any more
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

// run starts an observer in the background.
func (w *worker) run(ctx context.Context, o RunOrder) error {
	w.scanner = &notify.Scanner{MinInterval: o.MinInterval, MaxInterval: o.MaxInterval, NoTeleport: o.NoTeleport}
	cfg := notify.Config{Finder: w.scanner, NoHints: !o.Hints, OnEvent: w.event}
	if o.Locks {
		cfg.Locks = changes.AdvisoryLocks(w.client)
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

// loadCallers bounds the concurrent transactions of one process's load.
const loadCallers = 32

// load writes documents when they are due. A late document is written at once; its
// delay counts.
func (w *worker) load(ctx context.Context, o LoadOrder) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, loadCallers)
	for range loadCallers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)-1)*o.Of + o.Index
				if i >= o.Count {
					return
				}
				if err := w.loadOne(ctx, o, i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (w *worker) loadOne(ctx context.Context, o LoadOrder, i int) error {
	due := time.Now()
	if o.Rate > 0 {
		due = DueAt(o.Start, o.Rate, i)
		if err := Pause(ctx, time.Until(due)); err != nil {
			return err
		}
	}
	row, column, value := RowOf(o.Documents+i), keysColumn, []byte(nil)
	if o.What == "touch" {
		row, column, value = RowOf(i%o.Documents), bodyColumn, body(i)
	} else {
		value = []byte(strings.Join(keysOf(o.Documents+i, o.Documents), " "))
	}
	_, err := w.client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table(documentsTable).Set(row, Family, column, value)
		return nil
	})
	if err != nil {
		return fmt.Errorf("loading document %d: %w", i, err)
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer.Loads = append(w.answer.Loads, Loaded{row, due.UnixNano(), now.UnixNano()})
	return nil
}

// batches runs one batch after another until no more documents arrive.
func (w *worker) batches(ctx context.Context, o BatchOrder) ([]Batch, error) {
	table := w.bt.Open(documentsTable)
	var in arrivals
	begin := time.Now()
	crawled := make(chan error, 1)
	go func() { crawled <- in.crawl(ctx, table, o, begin) }()
	var all []Batch
	for len(all) < o.Runs || time.Since(begin) < o.Duration {
		b := Batch{Began: time.Now().UnixNano(), Dues: in.take()}
		n, err := recluster(ctx, table)
		if err != nil {
			return nil, errors.Join(err, <-crawled)
		}
		b.Ended, b.Documents = time.Now().UnixNano(), n
		all = append(all, b)
	}
	return all, <-crawled
}

// end stops the observer.
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
	_ = w.end() // an order to stop would have returned the error
	if w.client != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout/3)
		defer cancel()
		_ = w.client.Close(cctx)
	}
}

// event counts the runs of the observer.
func (w *worker) event(e notify.Event) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Outcome {
	case notify.Committed:
		w.answer.Done = append(w.answer.Done, done{e.Cell.Row, now.UnixNano()})
		w.answer.Useful += e.Duration
	case notify.Acknowledged, notify.Waiting:
		w.answer.Idle += e.Duration
	default:
		w.answer.Wasted += e.Duration
	}
}

// LocalOracle, in place of an oracle's address, means timestamps from memory.
const LocalOracle = "local"

// measure carries out a task.
func (w *worker) measure(ctx context.Context, t Task) (Measured, error) {
	op, ok := operations[t.Op]
	if !ok {
		return Measured{}, fmt.Errorf("unknown operation %q", t.Op)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w.snapshot = nil
	var before txn.Stats
	if w.client != nil {
		before = w.client.Stats()
	}
	profiled, err := cli.StartProfile(t.Profile)
	if err != nil {
		return Measured{}, err
	}
	defer profiled()
	runtime.GC()
	w.rpcs.take()
	oracle := w.oracleRequests()
	var memory, after runtime.MemStats
	runtime.ReadMemStats(&memory)
	var next atomic.Int64
	var wg sync.WaitGroup
	took, errs := make([][]time.Duration, t.Callers), make([]error, t.Callers)
	used, began := cputime.Used(), time.Now()
	end := began.Add(t.Duration)
	for c := range t.Callers {
		wg.Go(func() {
			for last := began; t.Duration == 0 || last.Before(end); {
				i := int(next.Add(1)) - 1
				if t.Duration == 0 && i >= t.Count {
					return
				}
				if errs[c] = op(ctx, w, &t, i); errs[c] != nil {
					stop() // stops the other callers too
					return
				}
				now := time.Now()
				took[c] = append(took[c], now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return Measured{}, err
	}
	// Background work belongs to the operations.
	if err := w.drain(ctx); err != nil {
		return Measured{}, err
	}
	m := Measured{Elapsed: time.Since(began), CPU: cputime.Used() - used}
	runtime.ReadMemStats(&after)
	m.Mallocs, m.Bytes = after.Mallocs-memory.Mallocs, after.TotalAlloc-memory.TotalAlloc
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	m.Ops = len(all)
	m.quantiles(all)
	if w.client != nil {
		m.Stats = w.client.Stats()
		m.Stats.Begun -= before.Begun
		m.Stats.Committed -= before.Committed
		m.Stats.Conflicts -= before.Conflicts
		m.Stats.Retries -= before.Retries
		m.Stats.Timestamps -= before.Timestamps
	}
	m.RPCs = w.rpcs.take()
	m.Oracle = w.oracleRequests() - oracle
	if t.Duration == 0 {
		m.Samples = all
	}
	return m, nil
}

// drain waits until the client's background has no work left.
func (w *worker) drain(ctx context.Context) error {
	for w.client != nil && w.client.Stats().BackgroundCells > 0 {
		if err := Pause(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) oracleRequests() uint64 {
	if w.oracle == nil {
		return 0
	}
	return w.oracle.Stats().Requests
}

// shared returns a snapshot for all reads of the round.
func (w *worker) shared(ctx context.Context) (*txn.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.snapshot == nil {
		s, err := w.client.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		w.snapshot = s
	}
	return w.snapshot, nil
}
