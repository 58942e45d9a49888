package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// The chain of these tests: a document in docs/d:in runs "parse", which writes
// docs/d:mid of another row and notifies docs/d:sum weakly. "index" runs for d:mid
// and adds an entry for each of its runs. "count" runs for d:sum and counts the
// entries.
var (
	docIn  = txn.Column{Family: "d", Qualifier: "in"}
	docMid = txn.Column{Family: "d", Qualifier: "mid"}
	docSum = txn.Column{Family: "d", Qualifier: "sum"}
)

// newChain returns a worker that runs the chain.
func newChain(c *txn.Client, cfg notify.Config) (*notify.Worker, error) {
	w, err := notify.NewWorker(c, cfg)
	if err != nil {
		return nil, err
	}
	entry := func(tx *txn.Txn, id string, cell txn.Cell) {
		tx.Table("entries").Set(fmt.Sprintf("%s/%s/%d", id, cell.Row, tx.StartTS()), "e", "x", nil)
	}
	parse := func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		v, _, err := tx.Table("docs").Get(ctx, cell.Row, "d", "in")
		tx.Table("docs").Set("of-"+cell.Row, "d", "mid", v)
		tx.Table("docs").Notify("all", "d", "sum")
		entry(tx, "parse", cell)
		return err
	}
	index := func(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
		entry(tx, "index", cell)
		return nil
	}
	count := func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
		n := 0
		for row, err := range tx.Table("entries").ReadRows(ctx, nil) {
			if err != nil {
				return err
			}
			if strings.HasPrefix(row.Key(), "parse/") {
				n++
			}
		}
		tx.Table("docs").Set("all", "d", "out", fmt.Append(nil, n))
		return nil
	}
	return w, errors.Join(
		w.Handle("parse", "docs", docIn, notify.ObserverFunc(parse)),
		w.Handle("index", "docs", docMid, notify.ObserverFunc(index)),
		w.Handle("count", "docs", docSum, notify.ObserverFunc(count), notify.Weak()),
	)
}

func registerChain(ctx context.Context, c *txn.Client) error {
	return errors.Join(
		changes.RegisterObserver(ctx, c, "docs", txn.Column{Family: "d", Qualifier: "in"}, "parse", false),
		changes.RegisterObserver(ctx, c, "docs", txn.Column{Family: "d", Qualifier: "mid"}, "index", false),
		changes.RegisterObserver(ctx, c, "docs", txn.Column{Family: "d", Qualifier: "sum"}, "count", true),
	)
}

// chainDone waits until no change is pending. Then it verifies that each document was
// parsed and indexed exactly once, and that the count includes all of them.
func chainDone(ctx context.Context, t *testing.T, c *txn.Client, documents []string) {
	t.Helper()
	asOf, err := notify.Wait(ctx, c, notify.WaitConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Snapshot(ctx, txn.At(asOf))
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]int{}
	for row, err := range s.Table("entries").ReadRows(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		runs[row.Key()[:strings.LastIndexByte(row.Key(), '/')]]++
	}
	for _, d := range documents {
		for _, run := range []string{"parse/" + d, "index/of-" + d} {
			if runs[run] != 1 {
				t.Errorf("%s: %d runs committed, want 1", run, runs[run])
			}
		}
	}
	if len(runs) != 2*len(documents) {
		t.Errorf("runs for %d cells, want %d: %v", len(runs), 2*len(documents), runs)
	}
	v, _, err := s.Table("docs").Get(ctx, "all", "d", "out")
	if want := fmt.Sprint(len(documents)); err != nil || (len(documents) > 0 && string(v) != want) {
		t.Errorf("the count is %q, want %s; %v", v, want, err)
	}
	for d, err := range changes.DeadLetters(ctx, c) {
		t.Errorf("dead letter %+v, %v", d, err)
	}
}

func newObserved(t *testing.T) *txntest.Env {
	t.Helper()
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: time.Minute}))
	env.CreateTable("docs", "d")
	env.CreateTable("entries", "e")
	if err := registerChain(t.Context(), env.Client); err != nil {
		t.Fatal(err)
	}
	return env
}

func load(t *testing.T, c *txn.Client, documents ...string) {
	t.Helper()
	_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for _, d := range documents {
			tx.Table("docs").Set(d, "d", "in", []byte("text"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// runChain runs a worker with client c until the test ends.
func runChain(t *testing.T, c *txn.Client, cfg notify.Config) {
	t.Helper()
	w, err := newChain(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// cleaned gives the workers time to find the remaining notifications, and verifies that
// none is left.
func cleaned(t *testing.T, c *txn.Client) {
	t.Helper()
	advance(5 * time.Minute)
	synctest.Wait()
	for n, err := range changes.Notifications(t.Context(), c, "docs", nil) {
		t.Errorf("a notification is left: %+v, %v", n, err)
	}
}

// sweep lets the workers sweep a table with a journal at once, which they would do within a day.
func sweep(t *testing.T, c *txn.Client, table string) {
	t.Helper()
	begun := tso.Timestamp(0)
	for range 100 {
		all, err := changes.SweepPositions(t.Context(), c, nil, table)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if begun == 0 {
			begun = all[0].BegunTS
		}
		if all[0].BegunTS != begun {
			return
		}
		if _, _, err := changes.MoveSweep(t.Context(), c, all[0], all[0].Row, false, 0); err != nil {
			t.Fatal(err)
		}
		advance(5 * time.Minute)
	}
	t.Errorf("table %s is not swept", table)
}

// onData matches the requests that read or change data on which the protocol depends.
// Dying at another request has the same effect as dying before the next of these.
func onData(c txntest.Call) bool {
	switch c.Step {
	case txntest.StepOracle, txntest.StepSchema, txntest.StepToken, txntest.StepSafePoint, txntest.StepOther:
		return false
	}
	return true
}

// TestWorkerDiesAtEachRequest cuts a worker off at each of its requests, before the
// request is sent and after it was applied. Another worker takes over. Each change has
// exactly one effect.
func TestWorkerDiesAtEachRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	documents := []string{"a"}
	stride := shortStride()
	for i, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
		for k := 1 + i*stride/2; ; k += stride {
			over := false
			t.Run(fmt.Sprintf("%v/%d", action, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := newObserved(t)
					load(t, env.Client, documents...)
					faults := txntest.NewFaults(t)
					n := 0
					dies := faults.On("the k-th request", func(c txntest.Call) bool {
						if onData(c) {
							n++
						}
						return onData(c) && n == k
					}, action, 1).Optional()
					victim := env.NewClient(txn.Config{TokenTTL: -1, LockTTL: 2 * time.Second}, faults.DialOptions()...)
					w, err := newChain(victim, notify.Config{LockTTL: 5 * time.Second, DrainTimeout: time.Millisecond, Concurrency: 2})
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- w.Run(ctx) }()
					select {
					case <-dies.Fired():
					case <-time.After(3 * time.Second):
						over = true
					}
					synctest.Wait()
					faults.Kill()
					cancel()
					if err := <-done; err != nil && over {
						t.Error(err)
					}
					runChain(t, env.Client, notify.Config{})
					chainDone(t.Context(), t, env.Client, documents)
					cleaned(t, env.Client)
				})
			})
			if over || t.Failed() {
				if last := k - stride; last < 19 && !t.Failed() {
					t.Errorf("the chain took only %d requests", last)
				}
				break
			}
		}
	}
}

// TestWriterDiesAtEachRequest cuts a writer off at each of its requests. If it died
// after its commit point, the observers of all its cells run, including secondaries and
// weak notifications. If it died before, none run.
func TestWriterDiesAtEachRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	documents := []string{"a", "b", "c"}
	committed, died := 0, 0
	for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
		over := false
		for k := 1; !over && !t.Failed(); k++ {
			t.Run(fmt.Sprintf("%v/%d", action, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := newObserved(t)
					runChain(t, env.Client, notify.Config{})
					faults := txntest.NewFaults(t)
					n := 0
					dies := faults.On("the k-th request", func(c txntest.Call) bool {
						if onData(c) {
							n++
						}
						return onData(c) && n == k
					}, action, 1).Optional()
					victim := env.NewClient(txn.Config{TokenTTL: -1, LockTTL: 2 * time.Second}, faults.DialOptions()...)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					written := make(chan error, 1)
					go func() {
						_, err := victim.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
							tx.Table("entries").Set("primary", "e", "other", nil)
							for _, d := range documents {
								tx.Table("docs").Set(d, "d", "in", []byte("text"))
							}
							tx.Table("docs").Notify("all", "d", "sum")
							return nil
						})
						written <- err
					}()
					select {
					case <-dies.Fired():
					case <-time.After(time.Second):
						over = true
					}
					synctest.Wait() // the request is applied now, and its response held
					faults.Kill()
					cancel()
					<-written
					advance(10 * time.Second) // longer than the ttl
					s := takeSnapshot(t, env.Client)
					_, ok, err := s.Table("docs").Get(t.Context(), "c", "d", "in")
					if err != nil {
						t.Fatal(err)
					}
					// Then the table entries has one row more.
					var want []string
					if ok {
						want = documents
						committed++
					} else {
						died++
					}
					if err := deleteCell(t.Context(), env.Client, "entries", "primary", "e", "other"); err != nil {
						t.Fatal(err)
					}
					chainDone(t.Context(), t, env.Client, want)
					cleaned(t, env.Client)
				})
			})
		}
	}
	if committed < 5 || died < 9 {
		t.Errorf("%d writers died after their commit, %d before it; want more of both", committed, died)
	}
}

func deleteCell(ctx context.Context, c *txn.Client, table, row, family, qualifier string) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Delete(row, family, qualifier)
		return nil
	})
	return err
}

// TestObserverRequestFaults loses, duplicates and delays requests of each kind that a
// worker sends. Delayed ones arrive after all observers have run. Each change has
// exactly one effect, and no notification is left.
func TestObserverRequestFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	documents := []string{"a", "b", "c", "d"}
	steps := []txntest.Step{
		txntest.StepOracle, txntest.StepRead, txntest.StepLock, txntest.StepPrewrite, txntest.StepCommit, txntest.StepSecondaries,
		txntest.StepNotify, txntest.StepClear,
	}
	actions := []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate, txntest.Echo, txntest.Delay}
	n := 0
	for _, step := range steps {
		for _, action := range actions {
			if n++; long.Reduced() && n%3 != 0 { // every third still comes to each step and action
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", step, action), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := newObserved(t)
					load(t, env.Client, documents...)
					faults := txntest.NewFaults(t)
					rule := faults.On(string(step), func(c txntest.Call) bool { return c.Step == step }, action, 2)
					c := env.NewClient(txn.Config{TokenTTL: time.Minute, LockTTL: 5 * time.Second, RPCTimeout: 2 * time.Second}, faults.DialOptions()...)
					locks := changes.AdvisoryLocks(c) // advisory locks are not the default
					runChain(t, c, notify.Config{LockTTL: 5 * time.Second, Locks: locks})
					chainDone(t.Context(), t, env.Client, documents)
					<-rule.Fired()
					rule.Release()
					synctest.Wait()
					chainDone(t.Context(), t, env.Client, documents)
					cleaned(t, env.Client)
				})
			})
		}
	}
}

// TestFailureRequestFaults does the same with the stored failures: the document fails
// until it is a dead letter, and is then replayed.
func TestFailureRequestFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, step := range []txntest.Step{txntest.StepFailure, txntest.StepDeadLetter} {
		for _, action := range []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate, txntest.Echo, txntest.Delay} {
			t.Run(fmt.Sprintf("%s/%v", step, action), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := newObserved(t)
					faults := txntest.NewFaults(t)
					rule := faults.OnStep(step, action)
					c := env.NewClient(txn.Config{TokenTTL: time.Minute, RPCTimeout: 2 * time.Second}, faults.DialOptions()...)
					w, err := notify.NewWorker(c, notify.Config{MaxAttempts: 3})
					if err != nil {
						t.Fatal(err)
					}
					runs := 0
					broken := true
					err = w.Handle("parse", "docs", docIn, notify.ObserverFunc(func(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
						runs++
						if broken {
							return errors.New("broken on purpose")
						}
						tx.Table("entries").Set(cell.Row, "e", "x", nil)
						return nil
					}))
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- w.Run(ctx) }()
					load(t, env.Client, "row")
					advance(2 * time.Minute)
					if _, err := notify.Wait(t.Context(), env.Client, notify.WaitConfig{}); err != nil {
						t.Fatal(err)
					}
					if runs < 3 || runs > 6 {
						t.Errorf("%d runs, want 3 attempts", runs)
					}
					broken = false
					letters := 0
					for d, err := range changes.DeadLetters(t.Context(), env.Client) {
						if err != nil {
							t.Fatal(err)
						}
						letters++
						if err := changes.Replay(t.Context(), env.Client, d); err != nil {
							t.Fatal(err)
						}
					}
					if letters != 1 {
						t.Errorf("%d dead letters, want 1", letters)
					}
					if _, err := notify.Wait(t.Context(), env.Client, notify.WaitConfig{}); err != nil {
						t.Fatal(err)
					}
					rule.Release()
					s := takeSnapshot(t, env.Client)
					if _, ok, err := s.Table("entries").Get(t.Context(), "row", "e", "x"); err != nil || !ok {
						t.Errorf("no effect after the replay: %v", err)
					}
					if action == txntest.Echo || action == txntest.Delay {
						sweep(t, env.Client, "docs") // a late failure stays until then
					}
					cleaned(t, env.Client)
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}
