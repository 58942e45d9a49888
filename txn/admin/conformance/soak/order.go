package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
)

// order checks every timestamp that the clients of a run receive, as [tso.Oracle] promises it: a
// caller's timestamp is above each one that some client received before the call, and no two are
// equal. Observers, tokens and the safe point ask for timestamps too. They are in no history, and
// nobody else sees their errors.
type order struct {
	mu    sync.Mutex
	high  tso.Timestamp // the highest that a caller received
	taken map[tso.Timestamp]bool
	wrong []string
}

// maxWrong bounds what a report lists: a broken oracle is wrong again and again.
const maxWrong = 10

// watch returns oracle, with its answers checked.
func (o *order) watch(oracle tso.Oracle) tso.Oracle { return watched{oracle, o} }

type watched struct {
	oracle tso.Oracle
	order  *order
}

func (w watched) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	before := w.order.highest()
	ts, err := w.oracle.Timestamp(ctx)
	w.order.check(before, ts, err)
	return ts, err
}

func (o *order) highest() tso.Timestamp {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.high
}

// check judges an answer to a call before which the highest timestamp was before.
func (o *order) check(before, ts tso.Timestamp, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case errors.Is(err, tso.ErrCorrupt):
		o.add(err.Error())
		return
	case err != nil:
		return
	case ts <= before:
		o.add(fmt.Sprintf("timestamp oracle: a client received timestamp %d after another had received %d", ts, before))
	case o.taken[ts]:
		o.add(fmt.Sprintf("timestamp oracle: two clients received timestamp %d", ts))
	}
	if o.taken == nil {
		o.taken = map[tso.Timestamp]bool{}
	}
	o.taken[ts], o.high = true, max(o.high, ts)
}

func (o *order) add(wrong string) {
	if len(o.wrong) < maxWrong {
		o.wrong = append(o.wrong, wrong)
	}
}

// anomalies returns what was wrong so far.
func (o *order) anomalies() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.wrong...)
}
