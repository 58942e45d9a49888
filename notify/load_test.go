package notify_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// numbers yields 0 to n-1, and then err if it is not nil.
func numbers(n int, err error) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := range n {
			if !yield(i, nil) {
				return
			}
		}
		if err != nil {
			yield(0, err)
		}
	}
}

func loadRow(_ context.Context, tx *txn.Txn, i int) error {
	tx.Table("docs").Set(fmt.Sprintf("row%d", i), "d", "in", []byte("v"))
	return nil
}

func TestLoad(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var progress []int
		n, err := notify.Load(t.Context(), env.Client, numbers(50, nil), loadRow, notify.LoadConfig{Concurrency: 4, Progress: func(n int) { progress = append(progress, n) }})
		if err != nil || n != 50 || len(progress) != 50 || progress[49] != 50 {
			t.Errorf("loaded %d, progress %v, %v", n, progress, err)
		}
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		wait(t, env.Client)
		if got := effects(t, env.Client); len(got) != 50 {
			t.Errorf("%d effects", len(got))
		}
	})
}

// TestLoadAtATime: unless it is configured, 16 loads are under way at the same time.
func TestLoadAtATime(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		held, at := make(chan struct{}), atomic.Int32{}
		done := make(chan error, 1)
		go func() {
			n, err := notify.Load(t.Context(), env.Client, numbers(40, nil), func(context.Context, *txn.Txn, int) error {
				at.Add(1)
				<-held
				return nil
			}, notify.LoadConfig{})
			if n != 40 {
				t.Errorf("%d loaded", n)
			}
			done <- err
		}()
		pass(time.Second)
		if n := at.Load(); n != 16 {
			t.Errorf("%d loads at the same time, want 16", n)
		}
		close(held)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestLoadStops: after an error Load begins no other transaction, and the error names the
// document.
func TestLoadStops(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		var begun atomic.Int32
		n, err := notify.Load(t.Context(), env.Client, numbers(1000, nil), func(ctx context.Context, tx *txn.Txn, i int) error {
			begun.Add(1)
			switch {
			case i == 10:
				return errBroken
			case i > 10:
				<-time.After(time.Second) // of virtual time: by then, Load has seen the error
			}
			return loadRow(ctx, tx, i)
		}, notify.LoadConfig{Concurrency: 3})
		var le *notify.LoadError[int]
		if !errors.As(err, &le) || le.Document != 10 || !errors.Is(err, errBroken) {
			t.Errorf("error %v", err)
		}
		if b := int(begun.Load()); b > 13 || n != b-1 { // at the same time as document 10, two others
			t.Errorf("%d begun, %d loaded", b, n)
		}
		n, err = notify.Load(t.Context(), env.Client, numbers(5, errBroken), loadRow, notify.LoadConfig{})
		if n != 5 || !errors.Is(err, errBroken) || errors.As(err, &le) {
			t.Errorf("an error of the documents: %d, %v", n, err)
		}
		if _, err := notify.Load(t.Context(), env.Client, numbers(1, nil), loadRow, notify.LoadConfig{Concurrency: -1}); !errors.Is(err, txn.ErrInvalid) {
			t.Error(err)
		}
	})
}

// TestLoadCancelled: Load ends with its context. If the context ends after the last
// document, Load succeeds.
func TestLoadCancelled(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		ctx, cancel := context.WithCancel(t.Context())
		var once sync.Once
		n, err := notify.Load(ctx, env.Client, numbers(1000, nil), func(ctx context.Context, tx *txn.Txn, i int) error {
			switch {
			case i == 20:
				once.Do(cancel)
			case i > 20:
				<-time.After(time.Second) // of virtual time: by then, the context has ended
			}
			return loadRow(ctx, tx, i)
		}, notify.LoadConfig{Concurrency: 2})
		if !errors.Is(err, context.Canceled) || n > 21 {
			t.Errorf("loaded %d, %v", n, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		n, err = notify.Load(ctx, env.Client, numbers(3, nil), loadRow, notify.LoadConfig{Progress: func(n int) {
			if n == 3 {
				cancel()
			}
		}})
		if err != nil || n != 3 {
			t.Errorf("loaded %d, %v", n, err)
		}
	})
}

// TestSlowObserverLeavesRoom: an observer that takes all the slots it may take leaves room for the
// other observers of the worker.
func TestSlowObserverLeavesRoom(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.Client, notify.Config{Concurrency: 4})
		begun, release := make(chan struct{}, 10), make(chan struct{})
		handle(t, w, "slow", middle, func(context.Context, *txn.Txn, txn.Cell) error {
			begun <- struct{}{}
			<-release
			return nil
		})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(time.Minute)
		for i := range 10 {
			put(t, env.Client, middle, fmt.Sprint(i), "v")
		}
		pass(time.Second)
		if n := len(begun); n != 3 {
			t.Errorf("%d runs of the slow observer, want 3: its own slot and the two shared ones", n)
		}
		put(t, env.Client, input, "row", "v")
		pass(time.Second)
		wantEffects(t, env, "row", 1)
		close(release)
	})
}

// TestBacklogIsTakenOnce: while a worker works off what it found in the journal, it finds the same
// cells again, and takes none of them twice. A cell that had waited long in the worker's queue was
// taken again if it was done just before the journal offered what it had read.
func TestBacklogIsTakenOnce(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range 300 {
				tx.Table("docs").Set(fmt.Sprint(i), input.Family, input.Qualifier, nil)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		var looks atomic.Int64
		c := env.NewClient(txn.Config{TokenTTL: time.Minute}, slow(50*time.Millisecond))
		w := newWorker(t, c, notify.Config{NoHints: true, OnEvent: func(notify.Event) { looks.Add(1) }})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(2 * time.Minute)
		if n := len(effects(t, env.Client)); n != 300 || looks.Load() != 300 {
			t.Errorf("%d checks, and %d of 300 changes handled", looks.Load(), n)
		}
	})
}
