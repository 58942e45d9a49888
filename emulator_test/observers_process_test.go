package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// observerWorkload is the workload of a client process that runs the chain of
// observers_test.go.
const observerWorkload = "observers"

// workerConfig is the configuration of workers that are killed, and of those that
// replace them.
func workerConfig() notify.Config {
	return notify.Config{
		Concurrency: 4,
		LockTTL:     time.Second,
		Finder:      &notify.Scanner{MinInterval: 10 * time.Millisecond, MaxInterval: 100 * time.Millisecond},
		Backoff:     txn.Backoff{Min: 50 * time.Millisecond, Max: time.Second},
		MaxAttempts: 100,
	}
}

// runObservers runs observers in a client process until stop is closed.
func (s *clientSpec) runObservers(ctx context.Context, client *txn.Client, stop <-chan struct{}) error {
	cfg := workerConfig()
	cfg.Locks = changes.AdvisoryLocks(client) // which are not the default
	w, err := newChain(client, cfg)
	if err != nil {
		return err
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-stop
		cancel()
	}()
	err = w.Run(wctx)
	cctx, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	return errors.Join(err, client.Close(cctx))
}

// TestKilledWorkers runs the chain in several processes that compete for every change.
// It kills a process with SIGKILL when it reaches a chosen step, and starts another.
// Each document is parsed and indexed once, and counted.
func TestKilledWorkers(t *testing.T) {
	long.Test(t, "processes that are killed")
	long.NotUnderRace(t, "one fault after the other")
	const workers, batch = 3, 5
	seed := workloadSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	addr := os.Getenv("BIGTABLE_EMULATOR_HOST")
	if addr == "" {
		emulator, err := txntest.StartEmulator("127.0.0.1:0", txntest.Strict()...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(emulator.Close)
		addr = emulator.Addr()
		t.Setenv("BIGTABLE_EMULATOR_HOST", addr)
	}
	env := txntest.New(t, txntest.WithConfig(workloadConfig()))
	env.CreateTable("docs", "d")
	env.CreateTable("entries", "e")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // only against hanging
	defer cancel()
	if err := registerChain(ctx, env.Client); err != nil {
		t.Fatal(err)
	}
	rec := newRecorder()
	// The steps are: before the run, before and after its commit point, and
	// before the notification is removed.
	steps := []txntest.Step{
		txntest.StepRead, txntest.StepPrewrite, txntest.StepNotify, txntest.StepCommit, txntest.StepSecondaries, txntest.StepClear,
		txntest.StepLock, txntest.StepOracle,
	}
	rnd.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	kills := len(steps)
	start := func() *clientProcess {
		s := clientSpec{Addr: addr, Project: env.Project, Instance: env.Instance, Workload: observerWorkload, Stride: 1, Seed: rnd.Uint64()}
		if len(steps) > 0 {
			s.StopStep, s.StopAt = steps[0], 1+rnd.IntN(6)
			steps = steps[1:]
		}
		return startClient(t, s, rec)
	}
	var alive []*clientProcess
	defer func() {
		for _, p := range alive {
			p.kill(rec)
		}
	}()
	for range workers {
		alive = append(alive, start())
	}
	var documents []string
	killed := 0
	for killed < kills {
		for range batch {
			documents = append(documents, fmt.Sprintf("doc%03d", len(documents)))
		}
		load(t, env.Client, documents[len(documents)-batch:]...)
		select {
		case p := <-rec.stopped:
			killed++
			p.kill(rec)
			alive[slices.Index(alive, p)] = start()
		case p := <-rec.ended:
			if !p.killed {
				t.Fatalf("a worker ended: %v", p.Wait())
			}
		case <-ctx.Done():
			t.Fatalf("after %d kills and %d documents: %v", killed, len(documents), ctx.Err())
		case <-observedBy(ctx, env.Client):
		}
	}
	chainDone(ctx, t, env.Client, documents)
	for _, p := range alive {
		p.finish(t)
	}
	alive = nil
	t.Logf("%d documents, %d workers killed", len(documents), killed)
}

// observedBy returns a channel that is closed when no change is pending, or ctx has
// ended.
func observedBy(ctx context.Context, c *txn.Client) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = notify.Wait(ctx, c, notify.WaitConfig{}) // chainDone checks it again at the end
	}()
	return done
}
