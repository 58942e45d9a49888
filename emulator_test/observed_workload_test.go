package emulator_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// TestObservers runs the workload of observers while documents change: two workers
// without advisory locks, over connections that lose, duplicate and delay requests.
func TestObservers(t *testing.T) {
	seed := workloadSeed(t)
	load := workload.Observers()
	env := txntest.New(t, txntest.WithConfig(workloadConfig()))
	env.InitTable(load.Tables[0])
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // only against hanging
	defer cancel()
	rec := newRecorder()
	own := &workload.Worker{Client: env.Client, Rand: rand.New(rand.NewPCG(seed, 0)), Record: rec.record, Stride: 1000}
	if err := load.Setup(ctx, own); err != nil {
		t.Fatal(err)
	}
	observers := func(c *txn.Client, until context.Context) (w *notify.Worker, ended chan error) {
		w, err := notify.NewWorker(c, notify.Config{
			MaxAttempts: 1 << 30, DrainTimeout: 2 * time.Second,
			Finder:  &notify.Scanner{MinInterval: 5 * time.Millisecond, MaxInterval: 50 * time.Millisecond},
			Backoff: txn.Backoff{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		})
		if err == nil {
			err = load.Handle(w)
		}
		if err != nil {
			t.Fatal(err)
		}
		ended = make(chan error, 1)
		go func() {
			var err error
			for until.Err() == nil { // a registration may fail under faults
				err = w.Run(until)
			}
			ended <- err
		}()
		return w, ended
	}
	faulty, stop := context.WithCancel(ctx)
	defer stop()
	var working sync.WaitGroup
	var ended []chan error
	var chaos []*workload.Chaos
	fired := 0
	for i := range 2 {
		c := workload.NewChaos(seed+uint64(i), 0.02, 100*time.Millisecond)
		chaos = append(chaos, c)
		client := env.NewClient(workloadConfig(), c.DialOptions()...)
		_, e := observers(client, faulty)
		ended = append(ended, e)
		w := &workload.Worker{Client: client, Rand: rand.New(rand.NewPCG(seed, uint64(1+i))), Record: rec.record, Process: 1 + i, Stride: 1000}
		working.Go(func() {
			for range 60 {
				if err := load.Step(ctx, w); err != nil {
					t.Error(err)
				}
			}
		})
	}
	working.Wait()
	stop()
	for i, e := range ended {
		<-e // a drain may fail because of the faults
		chaos[i].Heal()
		for _, n := range chaos[i].Fired() {
			fired += n
		}
	}
	if fired == 0 {
		t.Error("no fault fired")
	}
	healthy, end := context.WithCancel(ctx)
	defer end()
	w, done := observers(env.Client, healthy)
	if _, err := notify.Wait(ctx, env.Client, notify.WaitConfig{}); err != nil {
		t.Fatal(err)
	}
	end()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	t.Logf("%d faults; %d committed; the last worker: %+v", fired, rec.total(history.OK), w.Stats())
	endWorkload(ctx, t, env, load, own, rec)
	wrong, err := load.Verify(ctx, env.Client)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}
