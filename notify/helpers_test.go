package notify_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	input  = columnOf("docs", "d", "in")
	middle = columnOf("docs", "d", "mid")
	output = columnOf("docs", "d", "out")
)

// A column is what an observer watches: a column of a table.
type column struct {
	table string
	txn.Column
}

func columnOf(table, family, qualifier string) column {
	return column{table, txn.Column{Family: family, Qualifier: qualifier}}
}

// virtual runs f in virtual time, with tables docs (family d) and effects
// (family e).
func virtual(t *testing.T, f func(t *testing.T, env *txntest.Env), opts ...txntest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// Rarely renewed tokens make long waits cheap.
		env := txntest.New(t, append(opts, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: time.Minute}))...)
		env.CreateTable("docs", "d")
		env.CreateTable("effects", "e")
		f(t, env)
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// sweepSoon lets the workers sweep the next piece of a table with a journal in a few seconds, not within a day.
func sweepSoon(t *testing.T, c *txn.Client, table string) {
	t.Helper()
	all, err := changes.SweepPositions(t.Context(), c, nil, table)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if _, ok, err := changes.MoveSweep(t.Context(), c, all[0], all[0].Row, false, 0); err != nil || !ok {
		t.Fatal(ok, err)
	}
}

func newWorker(t *testing.T, c *txn.Client, cfg notify.Config) *notify.Worker {
	t.Helper()
	w, err := notify.NewWorker(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func handle(t *testing.T, w *notify.Worker, id string, col column, f notify.ObserverFunc, opts ...notify.HandleOption) {
	t.Helper()
	if err := w.Handle(id, col.table, col.Column, f, opts...); err != nil {
		t.Fatal(err)
	}
}

// start runs a worker until the test ends.
func start(t *testing.T, w *notify.Worker) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return stop
}

// register registers an observer before its worker runs, so that what is
// committed from now on is notified.
func register(t *testing.T, c *txn.Client, col column, id string, weak bool) {
	t.Helper()
	if err := changes.RegisterObserver(t.Context(), c, col.table, col.Column, id, weak); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, c *txn.Client, col column, row, value string) {
	t.Helper()
	_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table(col.table).Set(row, col.Family, col.Qualifier, []byte(value))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// notifyWeakly commits a transaction that writes a row of effects and notifies
// a cell.
func notifyWeakly(ctx context.Context, c *txn.Client, col column, row, effect string) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("effects").Set(effect, "e", "x", nil)
		tx.Table(col.table).Notify(row, col.Family, col.Qualifier)
		return nil
	})
	return err
}

// value reads a cell now; "" is absent.
func value(t *testing.T, c *txn.Client, col column, row string) string {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := s.Table(col.table).Get(t.Context(), row, col.Family, col.Qualifier)
	if err != nil {
		t.Fatal(err)
	}
	return string(v)
}

// effect writes another row in each run that commits, so that two runs for one change
// show. They conflict only on their acknowledgments.
func effect(tx *txn.Txn, cell txn.Cell) {
	tx.Table("effects").Set(fmt.Sprintf("%s/%d", cell.Row, tx.StartTS()), "e", "x", nil)
}

func observeEffect(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
	effect(tx, cell)
	return nil
}

// effects counts what effect left, by row.
func effects(t *testing.T, c *txn.Client) map[string]int {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for row, err := range s.Table("effects").ReadRows(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(row.Key(), "/")
		n[name]++
	}
	return n
}

// left counts the notifications and failures in docs.
func left(t *testing.T, c *txn.Client) (triggers, failures int) {
	t.Helper()
	for n, err := range changes.Notifications(t.Context(), c, "docs", nil) {
		if err != nil {
			t.Fatal(err)
		}
		triggers += len(n.Triggers)
		failures += len(n.Failures)
	}
	return triggers, failures
}

func wantLeft(t *testing.T, c *txn.Client, triggers, failures int) {
	t.Helper()
	gotT, gotF := left(t, c)
	if gotT != triggers || gotF != failures {
		t.Errorf("%d notifications and %d failures are left, want %d and %d", gotT, gotF, triggers, failures)
	}
}

func deadLetters(t *testing.T, c *txn.Client) []changes.DeadLetter {
	t.Helper()
	var all []changes.DeadLetter
	for d, err := range changes.DeadLetters(t.Context(), c) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

func wait(t *testing.T, c *txn.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := notify.Wait(ctx, c, notify.WaitConfig{}); err != nil {
		t.Fatal(err)
	}
}

// events records the events of workers.
type events struct {
	mu  sync.Mutex
	all []notify.Event
	at  []time.Time
}

func (e *events) add(ev notify.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
	e.at = append(e.at, time.Now())
}

func (e *events) of(o notify.Outcome) (found []notify.Event, at []time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, ev := range e.all {
		if ev.Outcome == o {
			found, at = append(found, ev), append(at, e.at[i])
		}
	}
	return found, at
}

func (e *events) count(o notify.Outcome) int {
	found, _ := e.of(o)
	return len(found)
}

// A meeting holds n goroutines until all have come; later ones pass.
type meeting struct {
	mu   sync.Mutex
	left int
	all  chan struct{}
}

func newMeeting(n int) *meeting { return &meeting{left: n, all: make(chan struct{})} }

func (m *meeting) come(ctx context.Context) error {
	m.mu.Lock()
	if m.left--; m.left == 0 {
		close(m.all)
	}
	m.mu.Unlock()
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errBroken = errors.New("broken on purpose")

// slow adds a delay before each conditional mutation of a client.
func slow(d time.Duration) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		<-time.After(d)
		return invoke(ctx, method, req, reply, cc, opts...)
	})
}
