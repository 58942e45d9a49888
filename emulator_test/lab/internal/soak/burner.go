package soak

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// This file requests more timestamps of a served oracle than transactions do. It
// checks all of them, including those of the history, against the promises of an
// oracle: no timestamp is handed out twice, and a timestamp that was requested after
// another one was received is larger.

const (
	// A burner requests burst timestamps at the same time, every burstPause.
	burst      = 3000
	burstPause = 50 * time.Millisecond
)

// A span is a range of consecutive timestamps, including Last.
type span struct{ First, Last int64 }

// A batch is the timestamps of concurrent callers. Its times are of one clock for the
// whole history: before the first request, and after the last answer.
type batch struct {
	Begun, Ended int64
	Runs         []span
}

// batchOf makes a batch of timestamps in any order. A timestamp that appears twice
// makes two runs that overlap.
func batchOf(begun, ended int64, all []int64) batch {
	slices.Sort(all)
	b := batch{Begun: begun, Ended: ended}
	for _, ts := range all {
		if n := len(b.Runs); n > 0 && b.Runs[n-1].Last == ts-1 {
			b.Runs[n-1].Last = ts
			continue
		}
		b.Runs = append(b.Runs, span{ts, ts})
	}
	return b
}

func (b batch) count() (n int64) {
	for _, r := range b.Runs {
		n += r.Last - r.First + 1
	}
	return n
}

// batchesOf returns the timestamps of a history's transactions that write. Those that only
// read may share theirs (txn.MaxStaleness).
func batchesOf(records []history.Record) (batches []batch) {
	begun := map[int]history.Record{}
	for _, r := range records {
		if r.Type == history.Invoke {
			begun[r.Process] = r
			continue
		}
		writes := slices.ContainsFunc(begun[r.Process].Value, func(o history.Op) bool { return o.F != history.Read })
		if r.StartTS == 0 || !writes {
			continue
		}
		b := batch{Begun: begun[r.Process].Time, Ended: r.Time, Runs: []span{{r.StartTS, r.StartTS}}}
		if r.Type == history.Info {
			b.Ended = math.MaxInt64 // the client is dead, or the request still under way
		}
		if r.CommitTS > r.StartTS {
			b.Runs = append(b.Runs, span{r.CommitTS, r.CommitTS})
		}
		batches = append(batches, b)
	}
	return batches
}

// checkTimestamps returns what is wrong with a history's timestamps.
func checkTimestamps(batches []batch) (wrong []string) {
	var runs []span
	for _, b := range batches {
		runs = append(runs, b.Runs...)
	}
	slices.SortFunc(runs, func(a, b span) int { return cmp.Compare(a.First, b.First) })
	for i := 1; i < len(runs); i++ {
		if runs[i].First <= runs[i-1].Last {
			wrong = append(wrong, fmt.Sprintf("timestamp %d was handed out twice", runs[i].First))
		}
	}
	ended := slices.Clone(batches)
	slices.SortFunc(ended, func(a, b batch) int { return cmp.Compare(a.Ended, b.Ended) })
	// highest[i] is the highest timestamp of the first i batches to end.
	highest := make([]int64, len(ended)+1)
	for i, b := range ended {
		highest[i+1] = max(highest[i], b.Runs[len(b.Runs)-1].Last)
	}
	for _, b := range batches {
		n := sort.Search(len(ended), func(i int) bool { return ended[i].Ended >= b.Begun })
		if first := b.Runs[0].First; first <= highest[n] {
			wrong = append(wrong, fmt.Sprintf("timestamp %d was requested after %d was received", first, highest[n]))
		}
	}
	return wrong
}

// burn requests timestamps until ctx ends. Each round becomes a batch of its own.
func burn(ctx context.Context, oracles []string, send func(message)) error {
	c, err := tso.NewClient(tso.ClientConfig{Addresses: oracles, AttemptTimeout: 300 * time.Millisecond})
	if err != nil {
		return err
	}
	ready := ""
	send(message{Ready: &ready})
	tick := time.NewTicker(burstPause)
	defer tick.Stop()
	for ctx.Err() == nil {
		b := askAtOnce(ctx, c)
		if len(b.Runs) > 0 {
			send(message{Batch: &b, Timestamps: b.count()})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return c.Close()
}

// askAtOnce requests burst timestamps at the same time.
func askAtOnce(ctx context.Context, c *tso.Client) batch {
	given := make([]int64, burst)
	begun := time.Now()
	var asking sync.WaitGroup
	for i := range given {
		asking.Go(func() {
			if ts, err := c.Timestamp(ctx); err == nil {
				given[i] = int64(ts)
			}
		})
	}
	asking.Wait()
	return batchOf(begun.UnixNano(), time.Now().UnixNano(), slices.DeleteFunc(given, func(ts int64) bool { return ts == 0 }))
}
