// Package model makes the emulator behave as Cloud Bigtable does where size matters. A
// [Cluster] has nodes and tablets. It delays requests, bounds what a row and a node take,
// and counts requests. A scan takes time in proportion to the bytes that it passes, also if
// its filter matches nothing. Tables have a nominal size: a few real rows can count as
// 10 TB.
//
// A cluster is between a client and the emulator, in virtual time:
//
//	synctest.Test(t, func(t *testing.T) {
//		cluster := model.New(model.Config{Nodes: 3, Tables: map[string]model.Table{"docs": {Bytes: 1e12}}})
//		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithDialOptions(cluster.Client("main")...))
//		other := env.NewClient(txn.Config{}, cluster.Client("other")...)
//		…
//		t.Log(cluster.Counts())
//	})
//
// Requests without the options of [Cluster.Client] reach the emulator at once, and are not counted.
// What the model leaves out: docs/design/2026-11-21-model.md.
package model

import (
	"cmp"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
)

// Config configures a [Cluster]. The zero value is a cluster of one node.
type Config struct {
	// Nodes is the number of nodes. Defaults to 1.
	Nodes int
	// Tables are the tables that have a nominal size. Scans of other tables take no time
	// beyond the round trip.
	Tables map[string]Table
	// Rates are what a node and a row take. Defaults to capacity.DefaultRates, whose
	// sources docs/performance.md names. The rate of one row is assumed.
	Rates capacity.Rates
	// RoundTrip is the time of a request without waiting and scanning; each takes up to a
	// tenth more or less. Defaults to 5 ms, assumed: Google documents "single-digit
	// milliseconds".
	RoundTrip time.Duration
	// LastScanned is how often a scan that finds nothing sends last_scanned_row_key.
	// Defaults to 1 s, assumed: the protocol says "optionally". Negative: never.
	LastScanned time.Duration
	// MaxQueue is how long requests may wait for a node until it answers
	// RESOURCE_EXHAUSTED with RetryInfo. Defaults to 2 s, assumed.
	MaxQueue time.Duration
}

// A Cluster is a model of a cluster. Its methods may be called concurrently.
type Cluster struct {
	cfg Config

	mu        sync.Mutex
	tables    map[string]*table
	nodes     []node
	rows      map[rowName]*row
	counts    map[Key]Count
	outages   []outage
	throttled time.Time // until then every request is refused
	retry     time.Duration
}

type rowName struct{ table, row string }

// A row takes one mutation after the other.
type row struct {
	until     time.Time
	mutations int64
}

// A node serves requests for single rows one after the other, and slices of scans one after
// the other. Neither waits for the other kind.
type node struct {
	points, scans       time.Time // until when it has work
	busyPoints, busyScn time.Duration
}

// An outage is a tablet that does not answer.
type outage struct {
	table string
	at    string // a row of the tablet
	until time.Time
}

// New returns a cluster.
func New(cfg Config) *Cluster {
	cfg.Nodes = max(cfg.Nodes, 1)
	cfg.RoundTrip = cmp.Or(cfg.RoundTrip, 5*time.Millisecond)
	cfg.LastScanned = cmp.Or(cfg.LastScanned, time.Second)
	cfg.MaxQueue = cmp.Or(cfg.MaxQueue, 2*time.Second)
	if cfg.Rates == (capacity.Rates{}) {
		cfg.Rates = capacity.DefaultRates
	}
	c := &Cluster{cfg: cfg, tables: map[string]*table{}, nodes: make([]node, cfg.Nodes), rows: map[rowName]*row{}, counts: map[Key]Count{}}
	for name, t := range cfg.Tables {
		c.tables[name] = newTable(t)
	}
	return c
}

// Unavailable makes the tablet of a row answer UNAVAILABLE for some time.
func (c *Cluster) Unavailable(table, row string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outages = append(c.outages, outage{table, row, time.Now().Add(d)})
}

// Throttle makes the cluster answer RESOURCE_EXHAUSTED for some time, with the advice to
// try again after retry.
func (c *Cluster) Throttle(d, retry time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.throttled, c.retry = time.Now().Add(d), retry
}

// trip is the time of one round trip.
func (c *Cluster) trip() time.Duration {
	return time.Duration(float64(c.cfg.RoundTrip) * (0.9 + 0.2*rand.Float64()))
}

// table returns the nominal table, which has one tablet without bytes if none is configured.
func (c *Cluster) table(name string) *table {
	t := c.tables[name]
	if t == nil {
		t = newTable(Table{})
		c.tables[name] = t
	}
	return t
}

// node returns the node that serves a tablet.
func (c *Cluster) node(table string, tablet int) *node {
	h := fnv.New32a()
	_, _ = h.Write([]byte(table))
	return &c.nodes[(int(h.Sum32()>>1)+tablet)%len(c.nodes)]
}

// out reports whether a tablet does not answer at a time.
func (c *Cluster) out(table string, tablet int, at time.Time) bool {
	for _, o := range c.outages {
		if o.table == table && at.Before(o.until) && c.table(table).tablet(o.at) == tablet {
			return true
		}
	}
	return false
}

// seconds is how long n units take at a rate in units a second.
func seconds(n, rate float64) time.Duration {
	return time.Duration(n / rate * float64(time.Second))
}

// take reserves work in a queue, from a time on, and returns when it is done.
func take(until *time.Time, from time.Time, work time.Duration) time.Time {
	if until.Before(from) {
		*until = from
	}
	*until = until.Add(work)
	return *until
}

// Counts returns the requests so far.
func (c *Cluster) Counts() map[Key]Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// Sum adds up the counts that match.
func (c *Cluster) Sum(match func(Key) bool) (sum Count) {
	for k, n := range c.Counts() {
		if match(k) {
			sum.Requests, sum.Rows, sum.Cells = sum.Requests+n.Requests, sum.Rows+n.Rows, sum.Cells+n.Cells
			sum.Bytes, sum.Refused, sum.Expired = sum.Bytes+n.Bytes, sum.Refused+n.Refused, sum.Expired+n.Expired
		}
	}
	return sum
}

// HottestRow returns the row that got most mutations.
func (c *Cluster) HottestRow() (table, row string, mutations int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, r := range c.rows {
		if r.mutations > mutations {
			table, row, mutations = name.table, name.row, r.mutations
		}
	}
	return table, row, mutations
}

// Busy returns for how long nodes worked on requests for single rows, and on scans: the
// sum of all nodes.
func (c *Cluster) Busy() (points, scans time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		points, scans = points+n.busyPoints, scans+n.busyScn
	}
	return points, scans
}

// Reset sets all counts to zero.
func (c *Cluster) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
	clear(c.rows)
	for i := range c.nodes {
		c.nodes[i].busyPoints, c.nodes[i].busyScn = 0, 0
	}
}

// count changes a count.
func (c *Cluster) count(k Key, change func(*Count)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.counts[k]
	change(&n)
	c.counts[k] = n
}

// Client returns options for the connection of a client, under whose name its requests are
// counted. Other interceptors that should see what the client sends belong before them.
func (c *Cluster) Client(name string) []grpc.DialOption {
	f := &front{cluster: c, client: name}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(f.unary), grpc.WithChainStreamInterceptor(f.stream)}
}

// admit reserves the work of a request that arrives at a time. It returns when the last
// part of it is done, and an error for each part that is refused.
func (c *Cluster) admit(table string, at time.Time, parts []work) (done time.Time, refused []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done, refused = at, make([]error, len(parts))
	t := c.table(table)
	nodes := make([]*node, len(parts))
	for i, w := range parts {
		tablet := t.tablet(w.row)
		nodes[i] = c.node(table, tablet)
		switch queue := nodes[i].points.Sub(at); {
		case at.Before(c.throttled):
			refused[i] = exhausted(c.retry)
		case c.out(table, tablet, at):
			refused[i] = unavailable(table)
		case queue > c.cfg.MaxQueue:
			refused[i] = exhausted(queue)
		}
	}
	for i, w := range parts {
		if refused[i] != nil {
			continue
		}
		n := nodes[i]
		n.busyPoints += w.points
		end := take(&n.points, at, w.points)
		if w.mutate {
			r := c.rows[rowName{table, w.row}]
			if r == nil {
				r = &row{}
				c.rows[rowName{table, w.row}] = r
			}
			r.mutations++
			if e := take(&r.until, at, seconds(1, c.cfg.Rates.HotRow)); e.After(end) {
				end = e
			}
		}
		if end.After(done) {
			done = end
		}
	}
	return done, refused
}

// write is the time that a node takes for the write of a row.
func (c *Cluster) write(bytes int) time.Duration {
	return seconds(max(1, float64(bytes)/1024), c.cfg.Rates.Writes)
}

// read is the time that a node takes for the read of n rows.
func (c *Cluster) read(n float64) time.Duration { return seconds(n, c.cfg.Rates.Reads) }

// workOf returns the work of a mutation of one row.
func (c *Cluster) workOf(req proto.Message) (work, bool) {
	switch r := req.(type) {
	case *btpb.MutateRowRequest:
		return work{row: string(r.RowKey), points: c.write(size(r.Mutations)), mutate: true}, true
	case *btpb.CheckAndMutateRowRequest:
		bytes := max(size(r.TrueMutations), size(r.FalseMutations))
		return work{row: string(r.RowKey), points: c.write(bytes) + c.read(c.cfg.Rates.Conditional), mutate: true}, true
	case *btpb.ReadModifyWriteRowRequest:
		return work{row: string(r.RowKey), points: c.write(proto.Size(r)) + c.read(c.cfg.Rates.Conditional), mutate: true}, true
	}
	return work{}, false
}

// size is the length of mutations in bytes.
func size(mutations []*btpb.Mutation) (n int) {
	for _, m := range mutations {
		n += proto.Size(m)
	}
	return n
}
