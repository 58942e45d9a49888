package doctor_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A busy row in direct mode whose timestamps are behind the clock is a finding that says what to
// do.
func TestOracleAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: env.Bigtable, Admin: env.Admin, Emulator: true, Rows: 100}
		for _, lag := range []time.Duration{0, time.Second} {
			// A clock that is late makes timestamps that are behind, as a row at its limit does.
			busy := tso.NewDirect(env.Bigtable.Open("percolator"), tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(-lag) }})
			if lag > 0 {
				<-time.After(time.Minute) // since the row was last at the clock
			}
			var stop atomic.Bool
			var asking sync.WaitGroup
			asking.Go(func() {
				for !stop.Load() {
					if _, err := busy.Timestamp(t.Context()); err != nil {
						t.Error(err)
					}
					<-time.After(10 * time.Millisecond)
				}
			})
			<-time.After(time.Second)
			end, err := d.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var found []doctor.Finding
			for _, r := range doctor.Run(t.Context(), d, doctor.All(), nil) {
				if r.Check == "oracle" {
					found = r.Findings
				}
			}
			end()
			if limit := len(found) == 1 && strings.Contains(found[0].What, "behind the clock") && strings.Contains(found[0].Fix, "docs/oracle.md"); limit != (lag > 0) {
				t.Errorf("%v behind: %+v", lag, found)
			}
			stop.Store(true)
			asking.Wait()
			_ = busy.Close()
		}
	})
}
