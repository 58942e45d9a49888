package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

var oracleMode = Check{Name: "oracle", Timeout: 20 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	const why = "no transaction can begin without a timestamp"
	switch err := d.oracleErr; {
	case errors.Is(err, tso.ErrNotInitialized):
		return skip("it needs the metadata table")
	case err != nil:
		r.find(Error, "oracle row", err.Error(), why, "percctl tso status; see docs/oracle.md")
		return nil
	}
	if d.oracle.Mode != tso.ModeServed {
		r.Detail = "direct mode"
		if d.busy {
			r.Detail += ", timestamps are " + words.Duration(d.lag) + " behind the clock"
		}
		if d.lag > directTolerance {
			r.find(Warning, "oracle row", "timestamps are "+words.Duration(d.lag)+" behind the clock: too many processes ask for timestamps, or Bigtable is slow",
				"transactions take longer, and locks of dead clients stay longer", "run servers: docs/oracle.md says how to change to them without downtime")
		}
		return nil
	}
	r.Detail = "served mode"
	if d.served == nil {
		return skip("it needs the metadata table")
	}
	if _, err := d.served.Timestamp(ctx); err != nil {
		return err
	}
	var none *admin.NoTimestampsError
	if errors.As(d.served.Missing(), &none) {
		subject, what, fix := "oracle", "it is in served mode and no server leads", "percctl tso serve, or percctl tso mode direct"
		if none.Err != nil {
			subject, what = cmp.Or(none.Address, "oracle"), "the leader does not answer: "+none.Err.Error()
			fix += "; with TLS, --oracle-ca and --oracle-cert"
		}
		r.find(Error, subject, what, why+"; the other checks use the latest state that is stored, and the clock of this machine", fix)
		return nil
	}
	row, err := tso.ReadRow(ctx, d.served.Table, tso.RowConfig{}) // it may have moved
	if err == nil {
		r.Detail = fmt.Sprintf("served mode, leader %s at %s", row.Leader, row.Address)
	}
	return nil
}}

// directTolerance is how far timestamps of direct mode may be behind the clock.
const directTolerance = 100 * time.Millisecond

// clockTolerance is how far oracle time and a clock may be apart before it is
// worth a word: what NTP keeps is a hundred times better.
const clockTolerance = 2 * time.Second

var clock = Check{Name: "clock", Client: true, Timeout: 20 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	// The first question may have to read the oracle's row.
	if _, err := d.Client.Timestamp(ctx); err != nil {
		return err
	}
	if d.served != nil && d.served.Missing() != nil {
		return skip("there are no timestamps: see the check of the oracle")
	}
	before := time.Now()
	ts, err := d.Client.Timestamp(ctx)
	if err != nil {
		return err
	}
	trip := time.Since(before)
	// Oracle time was read somewhere in between.
	offset := ts.Time().Sub(before.Add(trip / 2))
	r.Detail = fmt.Sprintf("oracle time is %s from this machine's clock, a round trip took %s", signed(offset), words.Duration(trip))
	if offset.Abs() > clockTolerance+trip {
		r.find(Warning, "clock", fmt.Sprintf("oracle time is %s from this machine's clock", signed(offset)),
			"transactions stay correct, but locks of dead clients expire that much later or earlier, and a time given with --at is off by as much", "check NTP on this machine and on the machines of clients and oracle servers; percctl tso status")
	}
	return nil
}}

func signed(d time.Duration) string {
	if d <= -time.Millisecond { // what is shown as 0 has no sign
		return words.Duration(d)
	}
	return "+" + words.Duration(max(d, 0))
}
