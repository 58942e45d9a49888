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
	if first.StartTS > now {
		return aboveOracle(first)
	}
	if why := doomed(first, owner, now); why != "" {
		return Back, "nothing at the primary, " + why + ": will be rolled back"
	}
	return Alive, fmt.Sprintf("nothing at the primary: will be rolled back in %s", words.Between(now, first.ExpiresTS()))
}

func aboveOracle(l *format.Lock) (Outcome, string) {
	return Unknown, "it is above the oracle's time, so no transaction wrote it; percctl repair plan " + words.Line(l.Cell.Table) + " says what to do"
}

// doomed says why other clients may roll a lock back; empty: its owner may still commit.
func doomed(l *format.Lock, owner admin.OwnerStatus, now tso.Timestamp) string {
	switch {
	case owner.State == admin.OwnerStale:
		return fmt.Sprintf("owner dead (token stale for %s)", words.Between(owner.ExpiresTS, now))
	case owner.State == admin.OwnerEnded:
		return "owner dead (token removed)"
	case now >= l.ExpiresTS():
		return fmt.Sprintf("ttl expired %s ago", words.Between(l.ExpiresTS(), now))
	case l.Endless(now):
		return "its ttl is longer than any client writes"
	}
	return ""
}

func judgeLocked(l *format.Lock, owner admin.OwnerStatus, now tso.Timestamp) (Outcome, string) {
	left := words.Between(now, l.ExpiresTS())
	if l.StartTS > now {
		return aboveOracle(l)
	}
	if why := doomed(l, owner, now); why != "" {
		return Back, why + ", not committed: will be rolled back"
	}
	if owner.State == admin.OwnerFresh {
		return Alive, fmt.Sprintf("owner alive, ttl %s left", left)
	}
	return Alive, fmt.Sprintf("owner may be alive (no token), ttl %s left", left)
}
