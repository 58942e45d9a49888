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

// An unknown outcome stops the claim until it is settled: at once if the commit was rolled back. If
// it took effect, or nobody settles it, the client takes another number.
func TestClaimsAfterAnUnknownOutcome(t *testing.T) {
	for _, tt := range []struct {
		name       string
		settle     func(c *Claims)
		after      time.Duration
		sameNumber bool
	}{
		{"rolled back", func(c *Claims) { c.Settled(10, false) }, 0, true},
		{"committed", func(c *Claims) { c.Settled(10, true) }, 0, false},
		{"never settled", func(*Claims) {}, unknownFor, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewClaims()
				k, first := c.Begin(10, 2)
				c.Settled(10, false) // a Settle of another caller says nothing while the commit is under way
				if n, ts := c.Next(0); n != first || ts != 9 {
					t.Errorf("number %d claims %d, want %d and 9", n, ts, first)
				}
				k.Unknown()
				<-time.After(unknownFor - time.Second)
				if n, ts := c.Next(0); n != first || ts != 9 {
					t.Errorf("number %d claims %d, want %d and 9", n, ts, first)
				}
				<-time.After(min(tt.after, time.Second))
				tt.settle(c)
				c.Next(0)
				next, second := c.Begin(20, 2)
				next.Applied()
				if n, ts := c.Next(0); n != second || ts != 20 || n == first != tt.sameNumber {
					t.Errorf("number %d claims %d, want %d and 20; the first was %d", n, ts, second, first)
				}
			})
		})
	}
}

// A process may be copied, so the number is drawn when the client needs it, and not from the
// process's memory.
func TestNumberIsDrawnLate(t *testing.T) {
	c := NewClaims()
	if k, by := c.Begin(10, 1); k != nil || by != format.Alone {
		t.Errorf("a commit of one row is settled by %d", by)
	}
	if n, ts := c.Next(0); n != 0 || ts != 0 || c.number != 0 {
		t.Errorf("before the first commit to several rows, number %d (%d) claims %d", n, c.number, ts)
	}
}
