package soak

import (
	"time"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
)

// Config says how long Run takes, and how much it may send.
type Config struct {
	// Prefix begins the names of the scratch tables.
	// Defaults to a random name with conformance.TablePrefix.
	Prefix string
	// Clients is how many clients run transactions at the same time.
	// Defaults to 4.
	Clients int
	// Duration is how long clients run transactions under faults. Measuring takes about half
	// as long again.
	// Defaults to 20 s.
	Duration time.Duration
	// Requests bounds the requests of each part: of the transactions under faults, and of
	// the measurement.
	// Defaults to 1,500 for each second of Duration, and 2,000.
	Requests int
	// Progress is called when another part begins.
	// Defaults to nothing.
	Progress func(part string)
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = conformance.ScratchName()
	}
	if c.Clients == 0 {
		c.Clients = 4
	}
	if c.Duration == 0 {
		c.Duration = 20 * time.Second
	}
	if c.Requests == 0 {
		c.Requests = 2_000 + int(1_500*c.Duration.Seconds())
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c
}

// most is after how many requests a part stops: what is under way then, observers, and
// resolving locks need some.
func (c Config) most() int64 { return int64(c.Requests) * 7 / 10 }

// setUp is how many requests make, check and remove the tables at most.
const setUp = 400

// bytesOfRequest is more than a request and its answer have on average: a row has one list
// that grows, or ten short values.
const bytesOfRequest = 4 << 10

// EstimateFor returns what Run sends at most.
func EstimateFor(c Config) conformance.Estimate {
	c = c.withDefaults()
	n := 2*c.Requests + setUp
	e := conformance.Estimate{Table: c.Prefix, Assumptions: 1, Requests: n, Bytes: int64(n) * bytesOfRequest, Seconds: 2 * c.Duration.Seconds()}
	e.NodeSeconds, e.Dollars = conformance.Price(e.Requests, e.Bytes)
	return e
}
