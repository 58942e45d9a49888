// Package scale is the command lab scale: it measures on a model of a Bigtable cluster
// (txn/txntest/model) what a deployment of production size needs, and compares it with
// goals.
package scale

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// A Size is a deployment to measure.
type Size struct {
	Clients int           `json:"clients"`            // client processes
	Tables  int           `json:"tables"`             // transactional tables
	Workers int           `json:"workers"`            // processes that run observers
	Fleet   int           `json:"fleet"`              // workers of the idle fleet
	Bytes   float64       `json:"bytes"`              // nominal size of all tables
	Rate    float64       `json:"commits_per_second"` // of the deployment under load
	Load    time.Duration `json:"-"`                  // how long, in virtual time
	Steady  time.Duration `json:"-"`                  // how long at a hundredth of the rate
	Each    time.Duration `json:"-"`                  // how long each load of the other measurements lasts
	Oracle  int           `json:"oracle_processes"`   // busy processes with the direct oracle
	Locks   int           `json:"locks"`              // of one transaction
	Busy    int           `json:"busy_goroutines"`    // that want one hot cell
	Fight   int           `json:"busy_processes"`     // that want ten hot cells
}

// The deployment that the project must be good for, and a small one for tests.
var (
	Full  = Size{Clients: 500, Tables: 200, Workers: 100, Fleet: 48, Bytes: 10e12, Rate: 10_000, Load: time.Minute, Steady: time.Hour, Each: 20 * time.Second, Oracle: 64, Locks: 10_000, Busy: 1000, Fight: 48}
	Small = Size{Clients: 50, Tables: 20, Workers: 10, Fleet: 12, Bytes: 1e12, Rate: 1000, Load: 5 * time.Second, Steady: 5 * time.Minute, Each: 5 * time.Second, Oracle: 16, Locks: 1000, Busy: 200, Fight: 16}
)

// A Row is one measured number with its goal.
type Row struct {
	Row      string  `json:"row"`      // which measurement, and what of it
	Measured float64 `json:"measured"` // on the model
	Goal     float64 `json:"goal"`     // at most; at least if at_least is set
	AtLeast  bool    `json:"at_least"` // which side of the goal is good
	Unit     string  `json:"unit"`     // of both
	Met      bool    `json:"met"`      // whether the goal is met
	Note     string  `json:"note"`     // what else the measurement found
}

// A Ran is a measurement that was run.
type Ran struct {
	Name    string  `json:"name"`            // of the measurement
	Virtual float64 `json:"virtual_seconds"` // how long it lasted in virtual time
	CPU     float64 `json:"cpu_seconds"`     // processor time that it took
}

// Results are what Measure returns.
type Results struct {
	Ran  []Ran `json:"ran"`  // which measurements were run
	Rows []Row `json:"rows"` // what was measured
}

// A run is one measurement under way.
type run struct {
	*testing.T
	Size

	name  string
	costs model.Costs // of worlds
	tail  float64     // of worlds
	mu    sync.Mutex
	Results
}

// atMost notes a number that must not be above its goal.
func (r *run) atMost(what string, measured, goal float64, unit, note string, args ...any) {
	r.note(Row{Row: what, Measured: measured, Goal: goal, Unit: unit, Met: measured <= goal, Note: fmt.Sprintf(note, args...)})
}

// atLeast notes a number that must not be below its goal.
func (r *run) atLeast(what string, measured, goal float64, unit, note string, args ...any) {
	r.note(Row{Row: what, Measured: measured, Goal: goal, AtLeast: true, Unit: unit, Met: measured >= goal, Note: fmt.Sprintf(note, args...)})
}

func (r *run) note(row Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row.Row = r.name + ": " + row.Row
	row.Measured, row.Goal = math.Round(row.Measured*1000)/1000, math.Round(row.Goal*1000)/1000
	r.Rows = append(r.Rows, row)
}

// A scenario measures rows that belong together.
type scenario struct {
	name    string
	measure func(r *run)
}

var scenarios = []scenario{
	{"empty range", emptyRange},
	{"direct oracle", directOracle},
	{"busy processes", oracles},
	{"idle clients", idleClients},
	{"schema checks", schemaChecks},
	{"stranded locks", strandedLocks},
	{"outcome", outcomes},
	{"hot cell", hotCell},
	{"hot keys", hotKeys},
	{"removed cells", removedCells},
	{"idle fleet", idleFleet},
	{"other process", otherProcess},
	{"garbage collection", garbageCollection},
	{"large row", largeRow},
	{"slow observer", slowObserver},
	{"more workers", moreWorkers},
	{"large transaction", largeTransaction},
	{"deployment", deployment},
	{"busy deployment", busyDeployment},
	{"outage", outage},
	{"steady hours", steadyHours},
	{"plan", plan},
}

// Measure runs the scenarios whose names match, each in a bubble of virtual time.
func Measure(t *testing.T, size Size, only *regexp.Regexp) (all Results) {
	for _, s := range scenarios {
		if !only.MatchString(s.name) {
			continue
		}
		r := &run{Size: size, name: s.name, tail: tail}
		used := cputime.Used()
		var virtual time.Duration
		ok := t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r.T = t
				began := time.Now()
				s.measure(r)
				virtual = time.Since(began)
			})
		})
		if !ok {
			r.Rows = append(r.Rows, Row{Row: s.name + ": the measurement failed", Measured: 1, Unit: "failures"})
		}
		ran := Ran{s.name, virtual.Seconds(), (cputime.Used() - used).Seconds()}
		t.Logf("%s: %.0f s of virtual time, %.1f s of processor time", ran.Name, ran.Virtual, ran.CPU)
		all.Ran, all.Rows = append(all.Ran, ran), append(all.Rows, r.Rows...)
	}
	return all
}

// tail is the part of requests that take 50 to 500 ms longer; assumed.
const tail = 1.0 / 500

// A world is a cluster with tables.
type world struct {
	*run
	tables   int
	observed int // how many of them have observers
	rows     int // that each client of load overwrites in turn; 0: random ones
	cluster  *model.Cluster
	env      *txntest.Env
	served   served            // without a local oracle, clients use the direct one
	server   *bufconn.Listener // of the oracle, after serve
}

// tableName is the name of the n-th table.
func tableName(n int) string { return fmt.Sprintf("table-%03d", n) }

// world makes a cluster of nodes with n tables with family f, of some bytes each, cut into
// tablets for keys that begin with hexadecimal digits. Its oracle is a served one.
func (r *run) world(nodes, n int, bytes float64, tablets int) *world {
	return r.worldWith(served{tso.NewLocal(tso.LocalConfig{})}, nodes, n, bytes, tablets, nil)
}

// directWorld makes a world with the direct oracle.
func (r *run) directWorld(nodes, n, tablets int) *world {
	return r.worldWith(served{}, nodes, n, 0, tablets, nil)
}

// worldWith makes a world, with more tables that have a nominal size.
func (r *run) worldWith(oracle served, nodes, n int, bytes float64, tablets int, more map[string]model.Table, opts ...txntest.Option) *world {
	cfg := model.Config{Nodes: nodes, Tables: map[string]model.Table{}, Tail: r.tail, Costs: r.costs}
	maps.Copy(cfg.Tables, more)
	for i := range n {
		cfg.Tables[tableName(i)] = model.Table{Bytes: bytes, Splits: model.HexSplits("", tablets)}
	}
	w := &world{run: r, tables: n, observed: n, cluster: model.New(cfg), served: oracle}
	own := txn.Config{TokenTTL: -1}
	if oracle.local != nil {
		own.Oracle = oracle.local
	}
	w.env = txntest.New(r.T, append(opts, txntest.WithoutTransport(), txntest.WithoutQuota(), txntest.WithConfig(own))...)
	for i := range n {
		w.env.InitTable(admin.TableSpec{Name: tableName(i), Families: []string{"f"}})
	}
	return w
}

// client makes a client whose requests pass the model. It checks tables with Config.Admin
// only if check is set.
func (w *world) client(name string, cfg txn.Config, check bool, opts ...grpc.DialOption) *txn.Client {
	w.Helper()
	bt, btAdmin := w.env.Open(append(opts, w.cluster.Client(name)...)...)
	if check {
		cfg.Admin = btAdmin
	}
	switch {
	case cfg.Oracle != nil:
	case w.server != nil:
		cfg.Oracle = w.connect()
	case w.served.local != nil:
		cfg.Oracle = w.served
	}
	c, err := txn.NewClient(w.Context(), bt, cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// clients makes n clients.
func (w *world) clients(n int, cfg txn.Config, check bool) (all []*txn.Client) {
	for i := range n {
		all = append(all, w.client(fmt.Sprintf("client-%03d", i), cfg, check))
	}
	return all
}

// key is the key of the n-th row: they are spread evenly over a table.
func key(n int) string { return fmt.Sprintf("%08x", uint32(n)*2654435769) }

// set writes one cell in a transaction of its own.
func set(ctx context.Context, c *txn.Client, table, row, value string) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte(value))
		return nil
	})
	return err
}

// fill commits n rows of a table without the model.
func (w *world) fill(table string, n int) {
	w.Helper()
	w.fillBy(w.env.Client, table, n)
}

// fillBy is fill by a client.
func (w *world) fillBy(c *txn.Client, table string, n int) {
	w.Helper()
	w.fillWith(c, table, n, "value")
}

// fillWith is fillBy with a value.
func (w *world) fillWith(c *txn.Client, table string, n int, value string) {
	w.Helper()
	for first := 0; first < n; first += 1000 {
		if _, err := c.Update(w.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := first; i < min(first+1000, n); i++ {
				tx.Table(table).Set(key(i), "f", "q", []byte(value))
			}
			return nil
		}); err != nil {
			w.Fatal(err)
		}
	}
}

// strand leaves n locks of a transaction whose client is dead, on the rows of a table from
// the first one on.
func (w *world) strand(table string, first, n int) {
	w.Helper()
	w.strandAt(txntest.StepCommit, func(tx *txn.Txn) {
		for i := range n {
			tx.Table(table).Set(key(first+i), "f", "q", []byte("stranded"))
		}
	})
}

// strandAt lets a client die at a step of a transaction.
func (w *world) strandAt(step txntest.Step, write func(*txn.Txn)) {
	w.Helper()
	faults := txntest.NewFaults(w.T)
	dies := faults.OnStep(step, txntest.Crash)
	c := w.client("dead", txn.Config{LockTTL: 10 * time.Second}, false, faults.DialOptions()...)
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error)
	go func() {
		_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error { write(tx); return nil })
		done <- err
	}()
	<-dies.Fired()
	faults.Kill()
	cancel()
	<-done
}

// busy runs f in n goroutines for each client until the time has passed, and returns how often
// it succeeded for each client, and how long each success took.
func busy(clients []*txn.Client, n int, d time.Duration, f func(c *txn.Client, rnd *rand.Rand) error) (done []int, took []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	done = make([]int, len(clients))
	end := time.Now().Add(d)
	for i, c := range clients {
		for j := range n {
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for time.Now().Before(end) {
					began := time.Now()
					err := f(c, rnd)
					mu.Lock()
					if now := time.Now(); err == nil && !now.After(end) {
						done[i]++
						took = append(took, now.Sub(began))
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	slices.Sort(took)
	return done, took
}

// quantile returns a quantile of sorted durations in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return math.Inf(1)
	}
	return ms(sorted[int(q*float64(len(sorted)-1))])
}

// bytesText is a number of bytes for people.
func bytesText(b float64) string { return fmt.Sprintf("%.3g GB", b/1e9) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func total(done []int) (sum int) {
	for _, n := range done {
		sum += n
	}
	return sum
}

// kinds lists how many requests of each kind there were.
func (w *world) kinds() string {
	n := map[string]int64{}
	for k, c := range w.cluster.Counts() {
		n[k.Kind] += c.Requests
	}
	return strings.TrimPrefix(fmt.Sprint(n), "map")
}

// kind matches requests of a kind.
func kind(k string) func(model.Key) bool { return func(key model.Key) bool { return key.Kind == k } }
