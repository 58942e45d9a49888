package inspect

import (
	"fmt"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
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

// judge says what the library would do about locks of a transaction whose
// primary and owner are as given, at oracle time now, and why, in words. It
// follows docs/protocol.md, "Resolving another transaction's lock".
func judge(s txn.Status, err error, locks []format.Lock, owner admin.OwnerStatus, now tso.Timestamp) (Outcome, string) {
	switch {
	case err != nil:
		return Unknown, "the primary cannot be read: " + cli.Line(err.Error())
	case s.State == txn.StateCommitted && len(locks) == 0:
		return Finished, "committed at " + cli.Stamp(s.CommitTS)
	case s.State == txn.StateCommitted:
		return Forward, fmt.Sprintf("primary committed at %s: safe to roll forward", cli.Stamp(s.CommitTS))
	case s.State == txn.StateRolledBack && len(locks) == 0:
		return Finished, "rolled back"
	case s.State == txn.StateRolledBack:
		return Back, "primary rolled back: safe to roll back"
	case s.State == format.StateLocked:
		return judgeLocked(s.Lock.ExpiresTS(), owner, now)
	case len(locks) == 0:
		return Finished, "nothing at the primary: its prewrite may still arrive, its owner may have rolled back, or there was no such transaction"
	}
	// Nothing at the primary: the locks' own ttl counts. The first that is
	// resolved decides for all.
	expires := locks[0].ExpiresTS()
	for _, l := range locks {
		expires = min(expires, l.ExpiresTS())
	}
	switch {
	case owner.State == admin.OwnerStale:
		return Back, fmt.Sprintf("nothing at the primary, owner dead (token stale for %s): will be rolled back", cli.Between(owner.ExpiresTS, now))
	case now >= expires:
		return Back, fmt.Sprintf("nothing at the primary, ttl expired %s ago: will be rolled back", cli.Between(expires, now))
	}
	return Alive, fmt.Sprintf("nothing at the primary: will be rolled back in %s", cli.Between(now, expires))
}

func judgeLocked(expires tso.Timestamp, owner admin.OwnerStatus, now tso.Timestamp) (Outcome, string) {
	switch {
	case owner.State == admin.OwnerStale:
		return Back, fmt.Sprintf("owner dead (token stale for %s), not committed: will be rolled back", cli.Between(owner.ExpiresTS, now))
	case now >= expires:
		return Back, fmt.Sprintf("ttl expired %s ago, not committed: will be rolled back", cli.Between(expires, now))
	case owner.State == admin.OwnerFresh:
		return Alive, fmt.Sprintf("owner alive, ttl %s left", cli.Between(now, expires))
	}
	return Alive, fmt.Sprintf("owner may be alive (no token), ttl %s left", cli.Between(now, expires))
}
