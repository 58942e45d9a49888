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
// What the model has, and what it leaves out: docs/design/models-and-tests.md.
package model

import (
	"cmp"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Config configures a [Cluster]. The zero value is a cluster of one node.
type Config struct {
	// Nodes is the number of nodes. Defaults to 1.
	Nodes int
	// Tables are the tables that have a nominal size. Scans of other tables pass only the bytes
	// that they return, and removed cells.
	Tables map[string]Table
	// Costs are what requests take of a node and of a row. Each zero field has a default.
	Costs Costs
	// RoundTrip is the time of a request without waiting and scanning; each takes up to a
	// tenth more or less. Defaults to 5 ms, assumed: Google documents "single-digit
	// milliseconds".
	RoundTrip time.Duration
	// Tail is the part of requests that take 50 to 500 ms longer, half of them before they
	// arrive. Defaults to none.
	Tail float64
	// LastScanned is how often a scan that finds nothing sends last_scanned_row_key.
	// Defaults to 1 s, assumed: the protocol says "optionally". Negative: never.
	LastScanned time.Duration
	// MaxQueue is how long requests may wait for a node until it answers
	// RESOURCE_EXHAUSTED with RetryInfo. Defaults to 2 s, assumed.
	MaxQueue time.Duration
	// Compaction is the time between two compactions of a row. Until then, reads pass its
	// removed cells. Defaults to 24 h, assumed.
	Compaction time.Duration
}

// Costs are what requests take of a node and of a row.
type Costs struct {
	// Read is the time of a row of up to 1 KB, Write that of each KB of a row. They default to
	// a 17,000th and a 14,000th of a second, as documented.
	Read, Write time.Duration
	// Conditional is what a conditional mutation takes beside its read and its write.
	// Defaults to 0, assumed.
	Conditional time.Duration
	// Row is the time between two mutations of one row. Defaults to 1 ms, assumed.
	Row time.Duration
	// Scan is how many bytes a node passes in a second. Defaults to 220 MB, as documented.
	Scan float64
	// Removed is how many bytes a removed cell counts for in a read that passes it. Defaults
	// to 100, assumed.
	Removed float64
}

// A Cluster is a model of a cluster. Its methods may be called concurrently.
type Cluster struct {
	cfg Config

	mu        sync.Mutex
	tables    map[string]*table
	nodes     []node
	counts    map[Key]Count
	outages   []outage
	throttled time.Time // until then every request is refused
	retry     time.Duration
}

// An outage is a tablet that does not answer.
type outage struct {
	table string
	at    string // a row of the tablet
	until time.Time
	hangs bool // requests wait, instead of UNAVAILABLE
}

// New returns a cluster.
func New(cfg Config) *Cluster {
	cfg.Nodes = max(cfg.Nodes, 1)
	cfg.RoundTrip = cmp.Or(cfg.RoundTrip, 5*time.Millisecond)
	cfg.LastScanned = cmp.Or(cfg.LastScanned, time.Second)
	cfg.MaxQueue = cmp.Or(cfg.MaxQueue, 2*time.Second)
	cfg.Compaction = cmp.Or(cfg.Compaction, 24*time.Hour)
	cfg.Costs = Costs{
		Read: cmp.Or(cfg.Costs.Read, time.Second/17_000), Write: cmp.Or(cfg.Costs.Write, time.Second/14_000), Conditional: cfg.Costs.Conditional,
		Row: cmp.Or(cfg.Costs.Row, time.Millisecond), Scan: cmp.Or(cfg.Costs.Scan, 220e6), Removed: cmp.Or(cfg.Costs.Removed, 100),
	}
	c := &Cluster{cfg: cfg, tables: map[string]*table{}, nodes: make([]node, cfg.Nodes), counts: map[Key]Count{}}
	for name, t := range cfg.Tables {
		c.tables[name] = newTable(t, firstNode(name))
	}
	return c
}

// firstNode is the number of the node that serves the first tablet of a table, modulo the nodes.
func firstNode(table string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(table))
	return int(h.Sum32() >> 1)
}

// Unavailable makes the tablet of a row answer UNAVAILABLE for some time.
func (c *Cluster) Unavailable(table, row string, d time.Duration) {
	c.outage(outage{table, row, time.Now().Add(d), false})
}

// Away makes requests to the tablet of a row wait for some time.
func (c *Cluster) Away(table, row string, d time.Duration) {
	c.outage(outage{table, row, time.Now().Add(d), true})
}

func (c *Cluster) outage(o outage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outages = append(c.outages, o)
}

// moving is how long requests wait for a tablet that moves to another node; assumed.
const moving = time.Second

// Move moves the tablet of a row to another node. Requests to it wait for a second.
func (c *Cluster) Move(table, row string) {
	c.mu.Lock()
	t := c.table(table)
	t.replace(t.tablet(row), func(old tablet) []*tablet { old.node++; return []*tablet{&old} })
	c.mu.Unlock()
	c.Away(table, row, moving)
}

// Split splits the tablet of a row: the row becomes the first one of a new tablet, which moves to
// another node.
func (c *Cluster) Split(table, row string) {
	c.mu.Lock()
	t := c.table(table)
	t.replace(t.tablet(row), func(old tablet) []*tablet {
		left, right := old, old
		left.end, left.size = row, old.position(row, false)
		right.start, right.size, right.node = row, old.size-left.size, old.node+1
		return []*tablet{&left, &right}
	})
	c.mu.Unlock()
	c.Away(table, row, moving)
}

// Throttle makes the cluster answer RESOURCE_EXHAUSTED for some time, with the advice to
// try again after retry.
func (c *Cluster) Throttle(d, retry time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.throttled, c.retry = time.Now().Add(d), retry
}

// Removed adds removed cells to a column, as if they had been written and removed.
func (c *Cluster) Removed(table, row, family, qualifier string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.row(c.table(table), row)
	r.column(family, []byte(qualifier)).removed += n
	r.removed += n
}

// trip is the time of one round trip, and how much longer it takes before and after the request.
func (c *Cluster) trip() (trip, before, after time.Duration) {
	trip = time.Duration(float64(c.cfg.RoundTrip) * (0.9 + 0.2*rand.Float64()))
	if c.cfg.Tail > 0 && rand.Float64() < c.cfg.Tail {
		late := 50*time.Millisecond + rand.N(450*time.Millisecond)
		if rand.IntN(2) == 0 {
			return trip, late, 0
		}
		return trip, 0, late
	}
	return trip, 0, 0
}

// table returns the nominal table, which has one tablet without bytes if none is configured.
func (c *Cluster) table(name string) *table {
	t := c.tables[name]
	if t == nil {
		t = newTable(Table{}, firstNode(name))
		c.tables[name] = t
	}
	return t
}

// node returns the node that serves a tablet.
func (c *Cluster) node(t *tablet) *node { return &c.nodes[t.node%len(c.nodes)] }

// out returns the outage of a tablet at a time; nil: it answers.
func (c *Cluster) out(table string, t *tablet, at time.Time) *outage {
	c.outages = slices.DeleteFunc(c.outages, func(o outage) bool { return !at.Before(o.until) })
	for i, o := range c.outages {
		if o.table == table && t.has(o.at) {
			return &c.outages[i]
		}
	}
	return nil
}

// away returns until when a request for a row has to wait for its tablet.
func (c *Cluster) away(table, row string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.outages) == 0 {
		return time.Time{}
	}
	if o := c.out(table, c.table(table).tablet(row), time.Now()); o != nil && o.hangs {
		return o.until
	}
	return time.Time{}
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
func (c *Cluster) HottestRow() (table, key string, mutations int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, t := range c.tables {
		t.rows.Ascend(func(r *row) bool {
			if r.mutations > mutations {
				table, key, mutations = name, r.key, r.mutations
			}
			return true
		})
	}
	return table, key, mutations
}

// Busy returns for how long nodes worked on requests for single rows, and on scans: the
// sum of all nodes.
func (c *Cluster) Busy() (points, scans time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		points, scans = points+n.points, scans+n.scans
	}
	return points, scans
}

// Reset sets all counts to zero.
func (c *Cluster) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
	for _, t := range c.tables {
		t.rows.Ascend(func(r *row) bool { r.mutations = 0; return true })
	}
	for i := range c.nodes {
		c.nodes[i].points, c.nodes[i].scans = 0, 0
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
		nodes[i] = c.node(tablet)
		switch queue := nodes[i].until.Sub(at); {
		case at.Before(c.throttled):
			refused[i] = exhausted(c.retry)
		case len(c.outages) > 0 && c.out(table, tablet, at) != nil:
			refused[i] = unavailable(table)
		case queue > c.cfg.MaxQueue:
			refused[i] = exhausted(queue)
		}
	}
	for i, w := range parts {
		if refused[i] != nil {
			continue
		}
		points := w.points
		if w.reads {
			if r, ok := t.rows.Get(&row{key: w.row}); ok {
				points += seconds(float64(c.current(r).passed(w.filter))*c.cfg.Costs.Removed, c.cfg.Costs.Scan)
			}
		}
		end := nodes[i].point(at, points)
		if w.mutate {
			r := c.row(t, w.row)
			r.mutations++
			if e := take(&r.until, at, max(c.cfg.Costs.Row, points)); e.After(end) {
				end = e
			}
		}
		if end.After(done) {
			done = end
		}
	}
	return done, refused
}

// extra reserves what a row of an answer takes beyond 1 KB.
func (c *Cluster) extra(table, row string, bytes int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node(c.table(table).tablet(row)).point(time.Now(), seconds(float64(bytes), c.cfg.Costs.Scan))
}

// write is the time that a node takes for the write of a row.
func (c *Cluster) write(bytes int) time.Duration {
	return time.Duration(max(1, float64(bytes)/1024) * float64(c.cfg.Costs.Write))
}

// workOf returns the work of a mutation of one row.
func (c *Cluster) workOf(req proto.Message) (work, bool) {
	conditional := c.cfg.Costs.Read + c.cfg.Costs.Conditional
	switch r := req.(type) {
	case *btpb.MutateRowRequest:
		return work{row: string(r.RowKey), points: c.write(size(r.Mutations)), mutate: true}, true
	case *btpb.CheckAndMutateRowRequest:
		bytes := max(size(r.TrueMutations), size(r.FalseMutations))
		return work{row: string(r.RowKey), points: c.write(bytes) + conditional, mutate: true, reads: true, filter: r.PredicateFilter}, true
	case *btpb.ReadModifyWriteRowRequest:
		return work{row: string(r.RowKey), points: c.write(proto.Size(r)) + conditional, mutate: true}, true
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
