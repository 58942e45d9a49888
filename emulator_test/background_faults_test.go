package emulator_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestBackgroundRequestFaults loses, duplicates, delays and refuses requests that no commit waits for: those
// of the journal, of sweeps, and of the notes that collections follow. One client writes, runs the
// observers, and collects. Each change has exactly one effect. Once the late requests have arrived
// and the tables were swept, nothing pending is left, and what was overwritten is collected without
// reading every row.
func TestBackgroundRequestFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	one := []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate, txntest.Echo, txntest.Delay}
	bulk := append(one[:len(one):len(one)], txntest.Partial)
	for _, of := range []struct {
		step    txntest.Step
		actions []txntest.Action
		always  txntest.Action // a reduced test tries only this one
	}{
		{txntest.StepJournal, bulk, txntest.Partial}, {txntest.StepJournalClear, bulk, txntest.Delay},
		{txntest.StepJournalRead, one[:2], txntest.DropResponse}, {txntest.StepSweep, one, txntest.Duplicate},
		{txntest.StepChanged, bulk, txntest.Echo}, {txntest.StepToken, one, txntest.DropRequest}, {txntest.StepSafePoint, one, txntest.DropResponse},
	} {
		for _, action := range of.actions {
			if long.Reduced() && action != of.always {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", of.step, action), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { faultyBackground(t, of.step, action, 2) })
			})
		}
		switch of.step {
		case txntest.StepJournalClear, txntest.StepSweep, txntest.StepChanged, txntest.StepToken: // a commit does without these
			if long.Reduced() {
				continue
			}
			t.Run(fmt.Sprintf("%s/down", of.step), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { faultyBackground(t, of.step, txntest.DropRequest, 0) })
			})
		}
	}
}

// faultyBackground applies an action to requests of a step: as many as times says, or all while the
// documents are written and the observers run if it is 0.

func faultyBackground(t *testing.T, step txntest.Step, action txntest.Action, times int) {
	env := newObserved(t)
	advance(retention)
	follow := gc.Config{Retention: retention, FullEvery: 24 * time.Hour}
	runGC(t, env.Client, follow) // the next ones follow changes
	advance(time.Minute)
	faults := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: time.Minute, RPCTimeout: 2 * time.Second}, faults.DialOptions()...)
	runChain(t, c, notify.Config{})
	advance(time.Minute)
	var over atomic.Bool
	rule := faults.On(string(step), func(c txntest.Call) bool { return c.Step == step && !over.Load() }, action, times)
	documents := []string{"a", "b", "c", "d"}
	for _, d := range documents {
		load(t, c, d)
		advance(20 * time.Second)
	}
	over.Store(times == 0)
	chainDone(t.Context(), t, env.Client, documents)
	sweep(t, env.Client, "docs")
	advance(retention)
	for range 3 { // a fault may end one
		_, err := gc.Run(t.Context(), c, follow)
		t.Log(err)
		advance(time.Minute)
	}
	select {
	case <-rule.Fired():
	default:
		t.Fatal("the fault did not fire")
	}
	rule.Release()
	synctest.Wait()
	chainDone(t.Context(), t, env.Client, documents)
	sweep(t, env.Client, "docs")
	cleaned(t, env.Client)
	advance(retention)
	if r := runGC(t, env.Client, follow); !r.Changes {
		t.Errorf("it read every row: %+v", r)
	}
	advance(time.Minute)
	if step == txntest.StepJournalClear {
		advance(2 * time.Hour) // an entry without proof stays for one
	}
	if n := metadataRows(t, env, "journal/"); n > 0 {
		t.Errorf("%d entries of pending work are left", n)
	}
	if r := runGC(t, env.Client, gc.Config{}); r.Changes || r.Total.Versions > 0 {
		t.Errorf("a collection that reads every row found what those before did not: %+v", r)
	}
}
