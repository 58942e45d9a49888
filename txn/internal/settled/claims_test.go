package settled

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A claim is below every commit that is not settled, and never covers one that registers later.
func TestClaimsCoverSettledCommits(t *testing.T) {
	c := NewClaims()
	claim := func(held, want tso.Timestamp) {
		t.Helper()
		if _, ts := c.Next(held); ts != want {
			t.Errorf("claims %d, want %d", ts, want)
		}
	}
	begin := func(startTS tso.Timestamp, rows int) *Commit {
		t.Helper()
		k, number := c.Begin(startTS, rows)
		if k == nil || number <= format.Alone {
			t.Fatalf("a commit at %d has number %d", startTS, number)
		}
		return k
	}
	claim(0, 0)
	if k, by := c.Begin(5, 1); k != nil || by != format.Alone {
		t.Errorf("a commit of one row is settled by %d", by)
	}
	a, b := begin(10, 2), begin(20, 3)
	claim(0, 9)
	a.Applied()
	claim(0, 19)
	b.Applied() // one of two rows
	claim(0, 19)
	b.Applied()
	claim(15, 19) // it never decreases
	claim(0, 20)
	if k, by := c.Begin(20, 2); k != nil || by != 0 {
		t.Errorf("a commit below the claim is settled by %d", by)
	}
	k := begin(30, 2)
	if again, by := c.Begin(30, 2); again != nil || by != 0 {
		t.Errorf("a second commit at the same start_ts is settled by %d", by)
	}
	k.Ended()
	claim(25, 24) // below an open transaction
	claim(0, 30)
	var none *Claims
	if k, by := none.Begin(40, 2); k != nil || by != 0 {
		t.Errorf("without claims, a commit is settled by %d", by)
	}
	if n, ts := none.Next(0); n != 0 || ts != 0 {
		t.Errorf("without claims, %d claims %d", n, ts)
	}
}

// A commit that never settles stops the claim of its number, and not of later commits.
func TestClaimsAfterAStuckCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClaims()
		lost, first := c.Begin(10, 2)
		<-time.After(stuck - time.Second)
		fresh, _ := c.Begin(20, 2)
		if n, ts := c.Next(0); n != first || ts != 9 {
			t.Errorf("number %d claims %d, want %d and 9", n, ts, first)
		}
		<-time.After(time.Second)
		if _, ts := c.Next(0); ts != 0 {
			t.Errorf("while it changes the number, the client claims %d", ts)
		}
		k, second := c.Begin(30, 2)
		if second == first {
			t.Fatal("the number has not changed")
		}
		fresh.Applied()
		lost.Applied()
		if n, ts := c.Next(0); n != second || ts != 29 {
			t.Errorf("number %d claims %d, want %d and 29", n, ts, second)
		}
		k.Applied()
		if n, ts := c.Next(0); n != second || ts != 30 {
			t.Errorf("number %d claims %d, want %d and 30", n, ts, second)
		}
	})
}
