package notify_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestJournalAfterMassDeath: most idle workers of an observer die at once. The one that is left does not
// keep its small share: it finds a change without a hint within about a minute after the tokens of the
// dead ones are stale. While all are idle, they count each other once for each read of the journal, and
// each looks at one other worker about once a minute.
func TestJournalAfterMassDeath(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	const workers, ttl, minutes = 20, 10 * time.Second, 4
	const stale = ttl + 30*time.Second // an idle client renews its token every 30 seconds
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		all, stops := make([]*txntest.Faults, workers), make([]func() error, workers)
		found := make(chan time.Time, 1)
		for i := range all {
			all[i] = txntest.NewFaults(t)
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: ttl}, all[i].DialOptions()...), notify.Config{NoHints: true, Finder: &notify.Scanner{MinInterval: 12 * time.Second}})
			handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error {
				found <- time.Now()
				return nil
			})
			stops[i] = start(t, w)
		}
		pass(time.Minute) // until they are idle, and know each other
		for _, f := range all {
			f.Reset()
		}
		pass(minutes * time.Minute)
		reads, counts, looks := 0, 0, 0
		for _, f := range all {
			reads += f.Count()[txntest.StepJournalRead]
			for _, c := range f.Calls() {
				switch {
				case c.Step != txntest.StepToken || c.Method != "ReadRows":
				case c.Row == "":
					counts++
				default:
					looks++
				}
			}
		}
		if reads < minutes || reads > minutes*60/6 || counts > reads+workers || looks > minutes*workers {
			t.Errorf("in %d idle minutes %d workers read the journal %d times, counted the workers %d times, and looked at one %d times", minutes, workers, reads, counts, looks)
		}

		// Without another count, the next read would be ten intervals later, or more.
		read := all[0].OnStep(txntest.StepJournalRead, txntest.Hold)
		<-read.Fired()
		read.Release()
		synctest.Wait()
		for _, f := range all[1:] {
			f.Kill()
		}
		died := time.Now()
		put(t, env.Client, input, "row", "v")
		if d := (<-found).Sub(died); d > stale+75*time.Second {
			t.Errorf("found %v after %d of %d workers had died", d, workers-1, workers)
		}
		for _, stop := range stops[1:] {
			_ = stop()
		}
		for v, err := range admin.Check(t.Context(), env.Client, "docs", nil) {
			t.Error(v, err)
		}
	})
}
