package doctor

import (
	"fmt"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// An Outcome is the effect that resolving the locks of a transaction has now.
type Outcome string

// The outcomes.
const (
	Forward  Outcome = "roll forward"
	Back     Outcome = "roll back"
	Alive    Outcome = "leave" // the owner may be alive
	Unknown  Outcome = "unreadable"
	Finished Outcome = "finished" // no locks are left
)

// Judge says what the library would do about locks of a transaction whose
// primary and owner are as given, at oracle time now, and why, in words. It
// follows docs/protocol.md, "Resolving another transaction's lock".
func Judge(s txn.Status, err error, locks []format.Lock, owner admin.OwnerStatus, now tso.Timestamp) (Outcome, string) {
	switch {
	case err != nil:
		return Unknown, "the primary cannot be read: " + words.Line(err.Error())
	case s.State == txn.StateCommitted && len(locks) == 0:
		return Finished, "committed at " + words.Stamp(s.CommitTS)
	case s.State == txn.StateCommitted:
		return Forward, fmt.Sprintf("primary committed at %s: safe to roll forward", words.Stamp(s.CommitTS))
	case s.State == txn.StateRolledBack && len(locks) == 0:
		return Finished, "rolled back"
	case s.State == txn.StateRolledBack:
		return Back, "primary rolled back: safe to roll back"
	case s.State == format.StateLocked:
		return judgeLocked(s.Lock, owner, now)
	case len(locks) == 0:
		return Finished, "nothing at the primary: its prewrite may still arrive, its owner may have rolled back, or there was no such transaction"
	}
	// Nothing at the primary: the locks' own ttl counts. The first that is
	// resolved decides for all.
	first := &locks[0]
	for i := range locks {
		if locks[i].ExpiresTS() < first.ExpiresTS() {
			first = &locks[i]
		}
	}
	expires, dead := first.ExpiresTS(), deadOwner(owner, now)
	switch {
	case first.StartTS > now:
		return aboveOracle(first)
	case dead != "":
		return Back, "nothing at the primary, " + dead + ": will be rolled back"
	case now >= expires:
		return Back, fmt.Sprintf("nothing at the primary, ttl expired %s ago: will be rolled back", words.Between(expires, now))
	case first.Endless(now):
		return Back, "nothing at the primary, " + endless
	}
	return Alive, fmt.Sprintf("nothing at the primary: will be rolled back in %s", words.Between(now, expires))
}

// endless is what is said of a lock that is Endless.
const endless = "its ttl is longer than any client writes: will be rolled back"

func aboveOracle(l *format.Lock) (Outcome, string) {
	return Unknown, "it is above the oracle's time, so no transaction wrote it; percctl repair plan " + words.Line(l.Cell.Table) + " says what to do"
}

// deadOwner says why an owner is dead; empty: its token does not say so.
func deadOwner(owner admin.OwnerStatus, now tso.Timestamp) string {
	switch owner.State {
	case admin.OwnerStale:
		return fmt.Sprintf("owner dead (token stale for %s)", words.Between(owner.ExpiresTS, now))
	case admin.OwnerEnded:
		return "owner dead (token removed)"
	}
	return ""
}

func judgeLocked(l *format.Lock, owner admin.OwnerStatus, now tso.Timestamp) (Outcome, string) {
	expires, dead := l.ExpiresTS(), deadOwner(owner, now)
	switch {
	case l.StartTS > now:
		return aboveOracle(l)
	case dead != "":
		return Back, dead + ", not committed: will be rolled back"
	case now >= expires:
		return Back, fmt.Sprintf("ttl expired %s ago, not committed: will be rolled back", words.Between(expires, now))
	case l.Endless(now):
		return Back, "not committed, " + endless
	case owner.State == admin.OwnerFresh:
		return Alive, fmt.Sprintf("owner alive, ttl %s left", words.Between(now, expires))
	}
	return Alive, fmt.Sprintf("owner may be alive (no token), ttl %s left", words.Between(now, expires))
}
