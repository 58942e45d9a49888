package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
)

// oracleFunc is an oracle.
type oracleFunc func() (tso.Timestamp, error)

func (f oracleFunc) Timestamp(context.Context) (tso.Timestamp, error) { return f() }

// TestOrder: the check finds each answer of an oracle that breaks its promise.
func TestOrder(t *testing.T) {
	type answer struct {
		ts     tso.Timestamp
		err    error
		before func(*order) // happens between the call and its answer
	}
	another := func(ts tso.Timestamp) func(*order) {
		return func(o *order) {
			_, _ = o.watch(oracleFunc(func() (tso.Timestamp, error) { return ts, nil })).Timestamp(context.Background())
		}
	}
	for _, c := range []struct {
		name    string
		answers []answer
		want    string
	}{
		{name: "in order", answers: []answer{{ts: 5}, {ts: 6}, {ts: 9}}},
		{name: "below one of a call at the same time", answers: []answer{{ts: 5}, {ts: 6, before: another(7)}}},
		{name: "back", answers: []answer{{ts: 5}, {ts: 4}}, want: "received timestamp 4 after another had received 5"},
		{name: "twice", answers: []answer{{ts: 5}, {ts: 5}}, want: "received timestamp 5 after another had received 5"},
		{name: "twice at the same time", answers: []answer{{ts: 5, before: another(5)}}, want: "two clients received timestamp 5"},
		{name: "noticed by the client", answers: []answer{{ts: 5}, {err: fmt.Errorf("oracle: %w", tso.ErrCorrupt)}}, want: "corrupt"},
		{name: "no answer", answers: []answer{{ts: 5}, {err: errors.New("unavailable")}, {ts: 6}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o order
			var next answer
			oracle := o.watch(oracleFunc(func() (tso.Timestamp, error) {
				if next.before != nil {
					next.before(&o)
				}
				return next.ts, next.err
			}))
			for _, next = range c.answers {
				if ts, err := oracle.Timestamp(t.Context()); ts != next.ts || !errors.Is(err, next.err) {
					t.Errorf("%d, %v", ts, err)
				}
			}
			if got := strings.Join(o.anomalies(), "\n"); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("found %q", got)
			}
		})
	}
}
