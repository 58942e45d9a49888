package tso

import (
	"context"
	"math"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// Status is the state of one server.
type Status struct {
	Server    string // its name
	Address   string // where clients reach it
	Leading   bool
	Leader    string // address of the leader, if this server knows it
	Reason    string // why it does not lead
	Epoch     uint64 // of its present or last term
	Next      Timestamp
	Limit     Timestamp // the end of the reserved range
	Clock     Timestamp // its clock
	Lease     time.Duration
	LeaseLeft time.Duration

	// Since it was started:

	Uptime         time.Duration
	Terms          uint64 // how often it came to lead
	Timestamps     uint64
	Requests       uint64
	BigtableRPCs   uint64
	BigtableWrites uint64
	Rate           float64 // timestamps per second, recently
}

// Lag is how far oracle time is behind the server's clock. It is negative when
// oracle time runs ahead: after a clock was set back, or at more than a million
// timestamps a second.
func (s Status) Lag() time.Duration {
	return s.Clock.Sub(s.Next)
}

// DirectLag watches a row in direct mode, for less than a second. busy says that processes take
// timestamps all the time. Then lag is how far these are behind this machine's clock, at least.
func DirectLag(ctx context.Context, table bigtable.TableAPI, cfg RowConfig) (lag time.Duration, busy bool, err error) {
	const (
		changes  = 3
		patience = 300 * time.Millisecond // for each change
		pause    = 25 * time.Millisecond
	)
	r := cfg.open(table)
	var last Timestamp
	lag = time.Duration(math.MaxInt64)
	for seen, since := -1, time.Now(); seen < changes; rest(ctx, pause) {
		asked := time.Now()
		s, err := readState(ctx, r)
		switch {
		case err != nil || s.Mode != ModeDirect:
			return 0, false, err
		case s.Limit == last && asked.Sub(since) > patience:
			return 0, false, nil
		case s.Limit == last:
			continue
		}
		if seen++; seen > 0 {
			lag = min(lag, asked.Sub(s.Limit.Time()))
		}
		last, since = s.Limit, asked
	}
	return max(lag, 0), true, nil
}

// ServerStatus returns the status of the first of the configured servers,
// whether it leads or not. It changes nothing. It fails when that server does
// not answer before ctx ends.
func ServerStatus(ctx context.Context, cfg ClientConfig) (Status, error) {
	c, err := NewClient(cfg)
	if err != nil {
		return Status{}, err
	}
	defer func() { _ = c.Close() }()
	r, err := c.servers.all[0].service().Status(ctx, &tsopb.StatusRequest{FormatVersion: FormatVersion})
	if err != nil {
		return Status{}, err
	}
	return Status{
		Server: r.Server, Address: r.Address, Leading: r.Leading, Leader: r.LeaderAddress, Reason: r.Reason,
		Epoch: r.Epoch, Next: Timestamp(r.Next), Limit: Timestamp(r.Limit), Clock: Timestamp(r.Clock),
		Lease: time.Duration(r.LeaseUs) * time.Microsecond, LeaseLeft: time.Duration(r.LeaseLeftUs) * time.Microsecond,
		Uptime: time.Duration(r.UptimeUs) * time.Microsecond, Terms: r.Terms, Timestamps: r.Timestamps, Requests: r.Requests,
		BigtableRPCs: r.BigtableRpcs, BigtableWrites: r.BigtableWrites, Rate: r.Rate,
	}, nil
}
