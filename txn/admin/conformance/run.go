package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
)

// chosen returns the assumptions to test: those of Only and what they need.
func chosen(c Config) ([]Assumption, error) {
	all := All()
	if len(c.Only) == 0 {
		return slices.DeleteFunc(all, func(a Assumption) bool { return c.lacks(a) != "" }), nil
	}
	wanted := map[string]bool{}
	for _, id := range c.Only {
		i := slices.IndexFunc(all, func(a Assumption) bool { return a.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("conformance: there is no assumption %q", id)
		}
		if field := c.lacks(all[i]); field != "" {
			return nil, fmt.Errorf("conformance: the test of %s needs %s", id, field)
		}
		wanted[id], wanted[all[i].needs] = true, true
	}
	return slices.DeleteFunc(all, func(a Assumption) bool { return !wanted[a.ID] }), nil
}

// An Estimate is what Run sends and takes at most.
type Estimate struct {
	Table       string  `json:"table"`                      // name of the scratch table; it must not exist
	Assumptions int     `json:"assumptions"`                // number of tests
	Requests    int     `json:"requests"`                   // maximum number of requests; Bigtable's client may repeat some after network errors
	Bytes       int64   `json:"bytes" unit:"bytes"`         // maximum size of keys and cells that are sent and received
	Seconds     float64 `json:"seconds" unit:"seconds"`     // time that the concurrent tests take; all other tests take seconds
	NodeSeconds float64 `json:"node_seconds" unit:"node-s"` // time of a node of Cloud Bigtable that this keeps busy
	Dollars     float64 `json:"dollars" unit:"USD"`         // price of that time; nodes are paid whether they are busy or not
}

// EstimateFor returns what Run sends at most. It fails if Only has an unknown id.
func EstimateFor(c Config) (Estimate, error) {
	c = c.withDefaults()
	all, err := chosen(c)
	if err != nil {
		return Estimate{}, err
	}
	e := Estimate{Table: c.Table, Assumptions: len(all), Requests: setUpRequests}
	for _, a := range all {
		k := c.costOf(a)
		e.Requests += k.requests
		e.Bytes += k.bytes
		if k.loops {
			e.Seconds += c.durationOf(a).Seconds()
		}
		e.Seconds += float64(k.waits) * c.Duration.Seconds()
	}
	e.NodeSeconds, e.Dollars = Price(e.Requests, e.Bytes)
	return e, nil
}

// Plus returns the estimate of two parts that follow each other.
func (e Estimate) Plus(other Estimate) Estimate {
	e.Assumptions += other.Assumptions
	e.Requests += other.Requests
	e.Bytes += other.Bytes
	e.Seconds += other.Seconds
	e.NodeSeconds += other.NodeSeconds
	e.Dollars += other.Dollars
	return e
}

// Price returns how long requests keep a node of Cloud Bigtable busy, and the price of that
// time, as if each request were a conditional mutation: one read and one write.
func Price(requests int, bytes int64) (nodeSeconds, dollars float64) {
	r := capacity.DefaultRates
	nodeSeconds = float64(requests)*(r.Conditional/r.Reads+1/r.Writes) + float64(bytes)/1024/r.Writes
	return nodeSeconds, nodeSeconds / 3600 * r.Node
}

// setUpRequests is how many requests make and remove the scratch table.
const setUpRequests = 6

// Run tests the assumptions in a table that it makes, and removes the table, also if the
// context ends. It returns a report unless the table cannot be made or the context ends. If
// only the removal fails, it returns the report and the error.
func Run(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient, cfg Config) (r *Report, err error) {
	cfg = cfg.withDefaults()
	all, err := chosen(cfg)
	if err != nil {
		return nil, err
	}
	if err := Create(ctx, bt, admin, cfg.Table); err != nil {
		return nil, err
	}
	defer func() {
		if e := removeScratch(ctx, bt, admin, cfg.Table); e != nil {
			err = errors.Join(err, fmt.Errorf("conformance: table %s is left: %w", cfg.Table, e))
		}
	}()
	begun := time.Now()
	times := &latencies{all: map[string]*sample{}}
	r = newReport(cfg.Table)
	for i, a := range all {
		cfg.Progress(i, len(all), a.ID)
		result := try(ctx, cfg, bt, admin, a, r, times)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("conformance: %d of %d assumptions tested: %w", i, len(all), context.Cause(ctx))
		}
		r.Add(result)
	}
	r.Seconds = time.Since(begun).Seconds()
	r.Latencies = times.summary()
	return r, nil
}

// try tests one assumption.
func try(ctx context.Context, c Config, bt *bigtable.Client, admin *bigtable.AdminClient, a Assumption, r *Report, times *latencies) Result {
	result := Result{Assumption: a, State: Kept}
	if a.needs != "" && !slices.Contains(r.Kept, a.needs) {
		result.State, result.Detail = Untested, "it needs "+a.needs
		return result
	}
	t := &trial{cfg: c, bt: bt, admin: admin, name: c.Table, table: bt.Open(c.Table), prefix: a.ID + "/", times: times, duration: c.durationOf(a), spending: &spending{left: c.costOf(a)}}
	begun := time.Now()
	err := a.test(ctx, t)
	result.Requests, result.Bytes, result.Seconds, result.removed = t.requests, t.bytes, time.Since(begun).Seconds(), t.removed
	if err == nil {
		return result
	}
	result.Detail = err.Error()
	var is broken
	switch {
	case !errors.As(err, &is) && unavailable(err):
		result.State = Untested
	case a.Class == Optional:
		result.State = Limit
	default:
		result.State = Broken
	}
	return result
}
