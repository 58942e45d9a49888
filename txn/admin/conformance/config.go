package conformance

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
)

// Connect opens clients over a connection of their own, with these options. The caller calls
// end when done.
type Connect func(ctx context.Context, opts ...grpc.DialOption) (bt *bigtable.Client, admin *bigtable.AdminClient, end func(), err error)

// Config says what Run tests, and how much it may send. The zero value tests everything.
type Config struct {
	// Only are the ids of the assumptions to test. Defaults to all.
	Only []string
	// Dial opens further connections to the service. Without it, the tests that look at single
	// messages are left out.
	Dial Connect
	// Denied opens connections with an account that has no permission on the service. Without
	// it, the test of permission-code is left out.
	Denied Connect
	// Table is the name of the scratch table. It must not exist. Defaults to a random name
	// with [TablePrefix].
	Table string
	// Concurrency is how many requests a concurrent test sends at once. Defaults to 8.
	Concurrency int
	// Duration is how long a concurrent test repeats. Tests of what happens rarely may take up
	// to 20 times as long. Defaults to 3 s.
	Duration time.Duration
	// Requests is the maximum number of requests of one concurrent test. Tests of what happens
	// rarely send up to 10 times as many. Defaults to 4,000.
	Requests int
	// Progress is called before each test. Defaults to nothing.
	Progress func(done, all int, id string)
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = ScratchName()
	}
	if c.Concurrency == 0 {
		c.Concurrency = 8
	}
	if c.Duration == 0 {
		c.Duration = 3 * time.Second
	}
	if c.Requests == 0 {
		c.Requests = 4000
	}
	if c.Progress == nil {
		c.Progress = func(int, int, string) {}
	}
	return c
}

// costOf returns what a test sends at most.
func (c Config) costOf(a Assumption) cost {
	k := a.cost
	if k.loops {
		k.requests = c.Requests * max(k.times, 1)
	}
	return k
}

// durationOf returns how long a concurrent test takes at most.
func (c Config) durationOf(a Assumption) time.Duration {
	return c.Duration * time.Duration(max(a.cost.patience, 1))
}

// lacks returns which field of the Config the test of an assumption needs and lacks.
func (c Config) lacks(a Assumption) string {
	switch {
	case a.needsDial && c.Dial == nil:
		return "Config.Dial"
	case a.needsDenied && c.Denied == nil:
		return "Config.Denied"
	}
	return ""
}
