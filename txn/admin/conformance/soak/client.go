package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const (
	// lockTTL and tokenTTL are short, so that others soon resolve the locks of dead clients.
	lockTTL  = 2 * time.Second
	tokenTTL = 3 * time.Second
	// Clients of a history, and transactions at once of a client.
	workers = 2
	// stride is larger than the number of process numbers at the same time. After an unknown
	// outcome a worker continues with a number that is larger by it.
	stride = 10_000
	// values is how many values a process number has. None is written twice.
	values = 100_000
)

// A client runs transactions and an observer. Its requests have faults.
type client struct {
	faults *faults
	txn    *txn.Client
	end    func()
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// start starts a client. fail is called with errors that faults do not explain.
func start(ctx context.Context, s *soak, fail func(error)) (*client, error) {
	c := &client{faults: newFaults(s.random(), s.fault)}
	opts := append(s.meter.options(), c.faults.requests.DialOptions()...)
	bt, _, end, err := s.connect(ctx, opts...)
	if err != nil {
		return nil, err
	}
	var closeOracle func()
	// Its first requests may get a fault.
	for tries := 0; ; tries++ {
		if c.txn, closeOracle, err = s.open(ctx, bt); err == nil || ctx.Err() != nil || tries > 20 || expected(err) != nil {
			break
		}
	}
	if err != nil {
		end()
		return nil, err
	}
	c.end = func() { closeOracle(); end() }
	ctx, c.cancel = context.WithCancel(ctx)
	run := func(what string, f func() error) {
		c.ended.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	for range workers {
		w := &worker{soak: s, client: c.txn, rnd: s.random(), process: int(s.processes.Add(1))}
		run("transactions", func() error { return w.run(ctx) })
	}
	run("observer", func() error {
		for ctx.Err() == nil {
			if err := observe(ctx, s, c.txn); expected(err) != nil {
				return err
			}
		}
		return nil
	})
	return c, nil
}

// stop ends what the client does. Its connection stays for late requests.
func (c *client) stop() {
	c.cancel()
	c.ended.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), lockTTL)
	defer cancel()
	_ = c.txn.Close(ctx) // what it leaves, others resolve
}

// observe runs the observer until ctx ends.
func observe(ctx context.Context, s *soak, c *txn.Client) error {
	w, err := notify.NewWorker(c, notify.Config{
		Finder: &notify.Scanner{MinInterval: 300 * time.Millisecond, MaxInterval: time.Second}, Concurrency: workers, Timeout: 10 * time.Second,
		MaxAttempts: 1 << 20, Backoff: txn.Backoff{Min: 20 * time.Millisecond, Max: time.Second}, DrainTimeout: time.Second,
	})
	if err != nil {
		return err
	}
	if err := w.Handle(observer, s.docs, docIn, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		return see(ctx, tx.Table(s.docs), cell.Row)
	})); err != nil {
		return err
	}
	err = w.Run(ctx)
	s.observed.Add(w.Stats().Committed)
	return err
}

// see is the observer: it lists the changes for which it ran.
func see(ctx context.Context, t *txn.Table, row string) error {
	in, _, err := t.Get(ctx, row, docIn.Family, docIn.Qualifier)
	if err != nil {
		return err
	}
	list, _, err := t.Get(ctx, row, docSeen.Family, docSeen.Qualifier)
	if err != nil {
		return err
	}
	t.Set(row, docSeen.Family, docSeen.Qualifier, fmt.Appendf(list, "%d,", notify.TriggerOf(ctx).ChangeTS))
	t.Set(row, docOut.Family, docOut.Qualifier, in)
	return nil
}

// A worker runs one transaction after the other, and records them.
type worker struct {
	soak    *soak
	client  *txn.Client
	rnd     *rand.Rand
	process int
	value   int64
}

func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil && !w.soak.spent() {
		step := w.appendToLists
		switch w.rnd.IntN(10) {
		case 0, 1, 2:
			step = w.writeDocs
		case 3, 4:
			step = w.readAll
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) next() int64 {
	w.value++
	return int64(w.process)*values + w.value
}

// appendToLists reads lists of two tables, and appends to some of them.
func (w *worker) appendToLists(ctx context.Context) error {
	return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) (ops []history.Op, err error) {
		for range 1 + w.rnd.IntN(4) {
			key := w.soak.lists[w.rnd.IntN(len(w.soak.lists))]
			list, err := key.get(ctx, tx.Table(key.Table))
			if err != nil {
				return ops, err
			}
			op := history.Op{F: history.Read, Key: key.name(), State: history.List(list...)}
			if w.rnd.IntN(2) == 0 {
				op = history.Op{F: history.Append, Key: key.name(), N: w.next()}
				tx.Table(key.Table).Set(key.Row, key.Family, key.Qualifier, encode(append(list, op.N)))
			}
			ops = append(ops, op)
		}
		return ops, nil
	})
}

// writeDocs changes documents, which the observer observes. If there are three or more, a request
// locks all but the first.
func (w *worker) writeDocs(ctx context.Context) error {
	return w.attempt(ctx, func(_ context.Context, tx *txn.Txn) (ops []history.Op, err error) {
		for _, i := range w.rnd.Perm(documents)[:1+w.rnd.IntN(5)] {
			c := w.soak.doc(i)
			op := history.Op{F: history.Write, Key: c.name(), N: w.next()}
			tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, encode([]int64{op.N}))
			ops = append(ops, op)
		}
		return ops, nil
	})
}

// readAll reads everything.
func (w *worker) readAll(ctx context.Context) error {
	return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) (ops []history.Op, err error) {
		for _, c := range w.soak.lists {
			list, err := c.get(ctx, tx.Table(c.Table))
			if err != nil {
				return ops, err
			}
			ops = append(ops, history.Op{F: history.Read, Key: c.name(), State: history.List(list...)})
		}
		for i := range documents {
			c := w.soak.doc(i)
			n, err := c.get(ctx, tx.Table(c.Table))
			if err != nil {
				return ops, err
			}
			op := history.Op{F: history.Read, Key: c.name()}
			if len(n) == 1 {
				op.State = history.Number(n[0])
			}
			ops = append(ops, op)
		}
		return ops, nil
	})
}

// attempt runs and records one transaction. It returns only errors that faults do not explain.
func (w *worker) attempt(ctx context.Context, body func(context.Context, *txn.Txn) ([]history.Op, error)) error {
	r := history.Record{Type: history.Invoke, Process: w.process, Time: time.Now().UnixNano()}
	tx, err := w.client.Begin(ctx)
	if err != nil {
		return expected(err)
	}
	defer tx.Rollback()
	ops, err := body(ctx, tx)
	// No write is sent before Commit, so this is early enough.
	r.StartTS = int64(tx.StartTS())
	for _, o := range ops {
		o.State = history.State{}
		r.Value = append(r.Value, o)
	}
	w.soak.record(r)
	r.Type, r.Value = history.OK, ops
	if err == nil {
		ts, e := tx.Commit(ctx)
		r.CommitTS, err = int64(ts), e
	}
	var unknown *txn.UndeterminedError
	switch {
	case errors.As(err, &unknown):
		r.Type, r.CommitTS = history.Info, int64(unknown.CommitTS)
		w.process, w.value = w.process+stride, 0
	case err != nil:
		r.Type, r.CommitTS = history.Fail, 0
	}
	r.Time = time.Now().UnixNano()
	w.soak.record(r)
	return expected(err)
}

// expected returns nil for errors that faults may cause.
func expected(err error) error {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.ResourceExhausted:
		return nil
	}
	for _, e := range []error{txn.ErrConflict, txn.ErrUndetermined, txn.ErrTooOld, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// A cell holds numbers, separated by commas.
type cell txn.Cell

func (c cell) name() string { return c.Table + "/" + c.Row }

func (c cell) get(ctx context.Context, from txn.Reader) (list []int64, err error) {
	v, ok, err := from.Get(ctx, c.Row, c.Family, c.Qualifier)
	if err != nil || !ok {
		return nil, err
	}
	return decode(v)
}

func encode(list []int64) []byte {
	var out []byte
	for i, n := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, n, 10)
	}
	return out
}

func decode(v []byte) (list []int64, err error) {
	for s := range strings.SplitSeq(strings.TrimSuffix(string(v), ","), ",") {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("a list is %.100q, which no transaction wrote", v)
		}
		list = append(list, n)
	}
	return list, nil
}
