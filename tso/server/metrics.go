package server

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
)

// observe reports the server's own counts at each collection of metrics, until
// stop is called.
func observe(meters metric.MeterProvider, s *service) (stop func(), err error) {
	in := instrument.New(meters, telemetry.Scope)
	timestamps := in.Observed("percolator.oracle.timestamps", "{timestamp}", "Timestamps that this server handed out.")
	answers := in.Observed("percolator.oracle.answers", "{request}", "Requests that this server answered with timestamps.")
	terms := in.Observed("percolator.oracle.terms", "{term}", "How often this server became the leader.")
	writes := in.Observed("percolator.oracle.reservations", "{write}", "Writes of this server to the oracle's row: reservations, renewals, takeovers.")
	leading := in.Gauge("percolator.oracle.leading", "{leader}", "1 while this server leads, else 0.")
	epoch := in.Gauge("percolator.oracle.epoch", "{epoch}", "The epoch of this server's present or last term.")
	lag := in.SecondsGauge("percolator.oracle.lag", "How far oracle time is behind the leader's clock; negative when it runs ahead.")
	left := in.SecondsGauge("percolator.oracle.reserved", "Oracle time that the leader may still hand out before it has to write again.")
	connections := in.Gauge("percolator.oracle.connections", "{connection}", "Connections of clients to this server.")
	streams := in.Gauge("percolator.oracle.streams", "{request}", "Requests of clients that run, streams included.")
	if err := in.Err(); err != nil {
		return func() {}, err
	}
	r, err := in.Meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := s.status()
		o.ObserveInt64(timestamps, int64(now.Timestamps))
		o.ObserveInt64(answers, int64(now.Requests))
		o.ObserveInt64(terms, int64(now.Terms))
		o.ObserveInt64(writes, int64(now.BigtableWrites))
		o.ObserveInt64(epoch, int64(now.Epoch))
		use := s.limit.present()
		o.ObserveInt64(connections, int64(use.connections))
		o.ObserveInt64(streams, int64(use.requests))
		var is int64
		if now.Leading {
			is = 1
			o.ObserveFloat64(lag, float64(now.Clock-now.Next)/1e6)
			o.ObserveFloat64(left, float64(now.Limit-now.Next)/1e6)
		}
		o.ObserveInt64(leading, is)
		return nil
	}, timestamps, answers, terms, writes, leading, epoch, lag, left, connections, streams)
	if err != nil {
		return func() {}, err
	}
	return func() { _ = r.Unregister() }, nil
}
