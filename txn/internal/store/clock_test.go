package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestClock: what a client knows of the oracle's time, and which states it may show again.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Clock{}
		asked := time.Now()
		readable := func(d time.Duration, ts, readAt int64) {
			t.Helper()
			got, at, ok := c.ReadableWithin(d)
			if int64(got) != ts || int64(at) != readAt || ok != (ts != 0) {
				t.Errorf("within %v: %d, read at %d, %t; want %d, %d", d, got, at, ok, ts, readAt)
			}
		}
		readable(time.Hour, 0, 0)
		c.NoteLatest(90) // it is not known how old that is
		readable(time.Hour, 0, 0)
		c.NoteStart(100, asked)
		<-time.After(time.Second)
		readable(time.Second, 0, 0)
		readable(time.Second+1, 100, 99)
		c.NoteStart(90, time.Now()) // a late answer
		readable(time.Second, 0, 0)
		readable(time.Minute, 100, 99)
		if c.Newest() != 100 || !c.AboveCommits(1) {
			t.Errorf("newest %d", c.Newest())
		}
		c.NoteCommit(110, asked.Add(-time.Second))
		readable(time.Second+1, 110, 110)
		c.NoteCommit(105, time.Time{})
		for ts, above := range map[tso.Timestamp]bool{109: false, 110: false, 111: true} {
			if c.AboveCommits(ts) != above {
				t.Errorf("%d is above the commit at 110: %t", ts, !above)
			}
		}
		c.NoteLatest(120)
		readable(time.Second+1, 120, 120)
		c.NoteCommit(120, time.Now()) // the commit of this client that a read has shown
		readable(1, 120, 120)
		if Remaining(5, 7) != 2*time.Microsecond || Remaining(7, 5) != 0 {
			t.Error("the time between two timestamps")
		}
	})
}
