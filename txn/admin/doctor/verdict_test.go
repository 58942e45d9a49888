package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestVerdictOnLiveLocks: before a lock's ttl ends, its owner's worker token decides.
func TestVerdictOnLiveLocks(t *testing.T) {
	const start, now = 1795152600000000, 1795152601000000
	l := format.Lock{StartTS: start, TTL: time.Minute}
	for state, want := range map[admin.OwnerState]struct {
		outcome doctor.Outcome
		why     string
	}{
		admin.OwnerFresh:   {doctor.Alive, "owner alive, ttl 59 s left"},
		admin.OwnerMissing: {doctor.Alive, "owner may be alive (no token), ttl 59 s left"},
		admin.OwnerStale:   {doctor.Back, "owner dead (token stale for 1.0 s), not committed"},
		admin.OwnerEnded:   {doctor.Back, "owner dead (token removed), not committed"},
	} {
		owner := admin.OwnerStatus{State: state, ExpiresTS: start}
		if o, why := doctor.Judge(txn.Status{State: format.StateLocked, Lock: &l}, nil, []format.Lock{l}, owner, now); o != want.outcome || !strings.HasPrefix(why, want.why) {
			t.Errorf("%s: %s, %s", state, o, why)
		}
		// The primary is empty: the found lock decides.
		dead := state == admin.OwnerStale || state == admin.OwnerEnded
		if o, why := doctor.Judge(txn.Status{}, nil, []format.Lock{l}, owner, now); (o == doctor.Back) != dead || dead != strings.Contains(why, "owner dead") {
			t.Errorf("%s, and nothing at the primary: %s, %s", state, o, why)
		}
	}
}
