package notify_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// simulated is how many histories TestSimulation makes, unless they are reduced.
const simulated = 24

var (
	simulations    = flag.Int("simulations", simulated, "how many histories TestSimulation makes")
	simulationSeed = flag.Uint64("simulation-seed", 0, "seed of the first of them; 0: by chance")
)

const (
	simulatedTTL    = 2 * time.Second // of locks
	simulatedSchema = 2 * time.Second // Config.SchemaMaxAge
	// simulatedCommit is longer than any transaction of a history takes.
	simulatedCommit = 10 * time.Second
	// noticed is how long after a registration every commit notifies the observer.
	noticed    = simulatedSchema + simulatedCommit
	collection = 10 * time.Minute // retention
)

var hot, adopted, second = columnOf("docs", "d", "hot"), columnOf("old", "d", "in"), columnOf("docs", "d", "in/2")

// watched are the observers of a history. Two watch the same column, one is fed by one of
// them, one is for weak notifications, one is for a table that is adopted on the way, and one
// watches a prefix that the column of two others is in.
var watched = map[string]column{"a": input, "b": input, "m": middle, "w": hot, "o": adopted, "p": patternOf("in")}

// observerIDs are the keys of watched, in a fixed order.
var observerIDs = []string{"a", "b", "m", "w", "o", "p"}

// columnsOf are the columns that an observer watches.
func columnsOf(id string) []column {
	if watched[id].IsPattern() {
		return []column{input, second}
	}
	return []column{watched[id]}
}

// A simulation is one short history of observers: writers, workers, operators and a
// collector, whose requests get lost, late and doubled, and most of which die. It keeps
// what they were promised.
type simulation struct {
	t      *testing.T
	env    *txntest.Env
	oracle tso.Oracle
	seed   uint64
	ended  atomic.Bool // the chaotic part
	// bursts are when writers and operators are active. Between them hours may pass.
	bursts []burst
	mix    mix

	// registry has room for one change of the registry, or one adoption, at a time. Time
	// would stand still while a goroutine waits for a mutex.
	registry chan struct{}

	mu      sync.Mutex
	rnd     *rand.Rand
	clients uint64
	chaos   []*workload.Chaos
	delays  []*workload.Delays
	adopted bool
	since   map[string]time.Time         // since when an observer is registered without a gap
	written map[txn.Cell][]tso.Timestamp // commits that were reported as committed
	asked   []request                    // notifications by Notify, Backfill and Replay
	dropped map[promise]request          // the last dead letter that was dropped
	// drops is what runs have seen that dropped their change, by start_ts.
	drops map[promise]map[tso.Timestamp]string

	counts map[string]int
	story  []string // what happened, to be printed after a failure
}

type burst struct{ from, to time.Time }

// A mix is what differs between histories. Each draws how often everything happens in it,
// and some things do not happen at all: many writes, for example, hide lost replays.
type mix struct {
	rows             []string
	writes, operates time.Duration  // longest pause between two
	life             time.Duration  // longest life of a client
	actions          [9]int         // weights of what operators do
	failing          map[string]int // percent of an observer's runs
	faults           float64        // share of requests
	repeats          int            // one of so many workers has a repeater
	collects         bool
}

func drawMix(rnd *rand.Rand) mix {
	between := func(least, most time.Duration) time.Duration {
		for range rnd.IntN(8) {
			least = min(2*least, most)
		}
		return least
	}
	m := mix{
		writes: between(250*time.Millisecond, 16*time.Second), operates: between(250*time.Millisecond, 4*time.Second), life: between(10*time.Second, time.Hour),
		failing: map[string]int{}, faults: rnd.Float64() / 10, repeats: 1 + rnd.IntN(3), collects: rnd.IntN(3) == 0,
	}
	for i := range 1 + rnd.IntN(10) {
		m.rows = append(m.rows, fmt.Sprintf("r%d", i))
	}
	for _, id := range observerIDs {
		m.failing[id] = max(0, rnd.IntN(160)-80)
	}
	for i := range m.actions {
		m.actions[i] = max(0, rnd.IntN(8)-2)
	}
	return m
}

// A promise is what one observer is owed for one cell.
type promise struct {
	observer string
	cell     txn.Cell
}

// A request is a notification without a change.
type request struct {
	cell  txn.Cell // empty: the whole column of a Backfill
	of    column
	began time.Time
	ts    tso.Timestamp // from before the request
	// A replay names the observer, and the change that it has to see.
	observer string
	change   tso.Timestamp
}

// tell adds to the story.
func (s *simulation) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.story = append(s.story, fmt.Sprintf("%d ", time.Now().UnixMicro())+fmt.Sprintf(format, args...))
}

func (s *simulation) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// intn and upTo draw from the seed.
func (s *simulation) intn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

func (s *simulation) upTo(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rnd.Int64N(int64(d)))
}

func cellIn(c column, row string) txn.Cell {
	return txn.Cell{Table: c.table, Row: row, Family: c.Family, Qualifier: c.Qualifier}
}

// row draws a row.
func (s *simulation) row() string { return s.mix.rows[s.intn(len(s.mix.rows))] }

// client returns a client with faults, and a function that kills it. One of at least near
// requests is slow.
func (s *simulation) client(near int) (c *txn.Client, die func()) {
	s.mu.Lock()
	slow := near + s.rnd.IntN(1<<s.rnd.IntN(6))
	n := s.clients
	s.clients++
	chaos := workload.NewChaos(s.seed+1000*n, s.mix.faults, 2*simulatedTTL)
	delays := workload.NewDelays(s.seed, 200+n, slow, 2*simulatedTTL)
	s.chaos, s.delays = append(s.chaos, chaos), append(s.delays, delays)
	s.mu.Unlock()
	faults := txntest.NewFaults(s.t)
	opts := append(faults.DialOptions(), append(chaos.DialOptions(), delays.DialOptions()...)...)
	return s.env.NewClient(s.config(delays.Oracle(s.oracle)), opts...), faults.Kill
}

func (s *simulation) config(o tso.Oracle) txn.Config {
	return txn.Config{Oracle: o, LockTTL: simulatedTTL, TokenTTL: -1, SchemaMaxAge: simulatedSchema}
}

// live makes clients, one after the other, and calls f with each until it dies or closes.
// Operators are often far away: near is small for them.
func (s *simulation) live(ctx context.Context, near int, f func(context.Context, *txn.Client)) {
	for !s.ended.Load() {
		c, kill := s.client(near)
		cctx, cancel := context.WithCancel(ctx)
		end := time.AfterFunc(s.upTo(s.mix.life), func() {
			if s.intn(2) == 0 {
				kill()
			}
			cancel()
		})
		f(cctx, c)
		end.Stop()
		cancel()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		_ = c.Close(closing) // fails if it is dead
		cancel()
	}
}

// next pauses between two actions. It returns false if ctx or the history ends.
func (s *simulation) next(ctx context.Context, longest time.Duration) bool {
	at := time.Now().Add(s.upTo(longest))
	for _, b := range s.bursts {
		if at.Before(b.from) {
			at = b.from
		}
		if at.Before(b.to) {
			select {
			case <-time.After(time.Until(at)):
				return true
			case <-ctx.Done():
				return false
			}
		}
	}
	select {
	case <-time.After(time.Until(s.bursts[len(s.bursts)-1].to)):
		s.ended.Store(true)
	case <-ctx.Done():
	}
	return false
}

func (s *simulation) write(ctx context.Context, c *txn.Client) {
	for s.next(ctx, s.mix.writes) {
		uctx, cancel := context.WithTimeout(ctx, simulatedCommit/2)
		var cells []txn.Cell
		ts, err := c.Update(uctx, func(_ context.Context, tx *txn.Txn) error {
			cells = nil
			for range 1 + s.intn(2) {
				row, col := s.row(), input
				s.mu.Lock()
				if s.rnd.IntN(4) == 0 {
					col = second
				}
				if s.adopted && s.rnd.IntN(4) == 0 {
					col = adopted
				}
				s.mu.Unlock()
				switch table := tx.Table(col.table); s.intn(5) {
				case 0:
					col = hot
					tx.Table(hot.table).Notify(row, hot.Family, hot.Qualifier)
				case 1:
					table.Delete(row, col.Family, col.Qualifier)
				default:
					table.Set(row, col.Family, col.Qualifier, fmt.Appendf(nil, "v%d", tx.StartTS()))
				}
				cells = append(cells, cellIn(col, row))
			}
			return nil
		}, txn.MaxAttempts(3))
		cancel()
		s.tell("committed %v at %d (error: %v)", cells, ts, err)
		if err == nil {
			s.mu.Lock()
			for _, cell := range cells {
				s.written[cell] = append(s.written[cell], ts)
			}
			s.counts["commits"]++
			s.mu.Unlock()
		}
	}
}

func (s *simulation) collect(ctx context.Context, c *txn.Client) {
	for {
		select {
		case <-time.After(s.upTo(collection)):
		case <-ctx.Done():
			return
		}
		if s.ended.Load() {
			return
		}
		if _, err := gc.Run(ctx, c, gc.Config{Retention: collection}); err == nil {
			s.count("collections")
		}
	}
}

// simulate makes one history in virtual time. The seed decides what happens in it.
func simulate(t *testing.T, seed uint64) (counts map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 100)), oracle: tso.NewLocal(tso.LocalConfig{}),
			since: map[string]time.Time{}, written: map[txn.Cell][]tso.Timestamp{}, dropped: map[promise]request{},
			drops: map[promise]map[tso.Timestamp]string{}, counts: map[string]int{}, registry: make(chan struct{}, 1),
		}
		counts = s.counts
		s.mix = drawMix(s.rnd)
		s.env = txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(s.config(s.oracle)))
		s.env.CreateTable("docs", "d")
		s.env.CreateTable("effects", "e")
		s.plainTable()
		ctx, cancel := context.WithTimeout(t.Context(), 72*time.Hour)
		defer cancel()
		for _, id := range []string{"a", "b", "m", "w", "p"} {
			if s.intn(4) > 0 {
				if err := s.register(ctx, id); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-time.After(noticed + time.Second)
		at := time.Now()
		for range 1 + s.intn(2) {
			end := at.Add(10*time.Second + s.upTo(30*time.Second))
			s.bursts = append(s.bursts, burst{at, end})
			if at = end.Add(s.upTo(time.Minute)); s.mix.collects {
				at = end.Add(s.upTo(3 * collection))
			}
		}
		var acting sync.WaitGroup
		acting.Go(func() { s.live(ctx, 8, s.write) })
		for range 2 {
			acting.Go(func() { s.live(ctx, 8, s.work) })
		}
		for range 4 {
			acting.Go(func() { s.live(ctx, 1, s.operate) })
		}
		if s.intn(2) == 0 {
			acting.Go(func() { s.live(ctx, 8, s.work) })
		}
		if s.mix.collects {
			acting.Go(func() { s.live(ctx, 8, s.collect) })
		}
		acting.Wait()
		for i, c := range s.chaos {
			c.Heal()
			s.delays[i].End()
		}
		synctest.Wait()
		s.tell("settling")
		s.settle(ctx)
		s.check(ctx)
		if t.Failed() {
			t.Log(strings.Join(s.story, "\n"))
		}
	})
	return counts
}

// plainTable makes the table that is adopted later.
func (s *simulation) plainTable() {
	s.t.Helper()
	if err := s.env.Admin.CreateTable(s.t.Context(), adopted.table); err != nil {
		s.t.Fatal(err)
	}
	if err := s.env.Admin.CreateColumnFamily(s.t.Context(), adopted.table, adopted.Family); err != nil {
		s.t.Fatal(err)
	}
	for _, row := range s.mix.rows {
		m := bigtable.NewMutation()
		m.Set(adopted.Family, adopted.Qualifier, bigtable.Now(), []byte("plain"))
		if err := s.env.Bigtable.Open(adopted.table).Apply(s.t.Context(), row, m); err != nil {
			s.t.Fatal(err)
		}
	}
}

// settle lets two healthy workers work until nothing is left. Some histories collect
// garbage before that.
func (s *simulation) settle(ctx context.Context) {
	if s.mix.collects {
		for range 4 {
			<-time.After(collection)
			if _, err := gc.Run(ctx, s.env.Client, gc.Config{Retention: collection}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	var ids []string
	for _, id := range observerIDs {
		if s.exists(watched[id]) {
			ids = append(ids, id)
		}
	}
	work := func() (stop func()) {
		wctx, cancel := context.WithCancel(ctx)
		var working sync.WaitGroup
		for range 2 {
			working.Go(func() { s.run(wctx, s.env.NewClient(s.config(s.oracle)), notify.Config{OnEvent: s.event}, ids) })
		}
		return func() { cancel(); working.Wait() }
	}
	stop := work()
	<-time.After(2 * time.Minute)
	for range 2 {
		for _, d := range s.letters(ctx, s.env.Client) {
			if err := s.replay(ctx, s.env.Client, d); err != nil {
				s.t.Error(err)
			}
		}
		<-time.After(time.Minute)
	}
	wctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	if _, err := notify.Wait(wctx, s.env.Client, notify.WaitConfig{}); err != nil {
		s.t.Errorf("something stays pending: %v", err)
	}
	stop()
	// What late requests have left, and nobody waits for, is removed by the next sweep.
	for range 3 { // a table has up to two pieces
		<-time.After(13 * time.Hour)
		stop = work()
		<-time.After(time.Minute)
		stop()
	}
}

// TestSimulation makes short histories of observers in virtual time, each from its own
// seed: go test ./notify -run TestSimulation -simulations 5000. A seed decides everything
// but the jitter of the library's pauses, and which goroutine runs first. So a failure may
// need some repetitions to come again.
func TestSimulation(t *testing.T) {
	long.Judged(t)
	first := *simulationSeed
	switch {
	case first == 0 && long.Reduced():
		first = 1
	case first == 0:
		first = rand.Uint64N(1_000_000_000) + 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // otherwise Go's garbage collector takes a third of the time
	histories := int64(*simulations)
	if long.Reduced() && histories == simulated {
		histories = 6
		if testing.Short() {
			histories = 2
		}
	}
	began := time.Now()
	var next, made atomic.Int64
	var mu sync.Mutex
	total := map[string]int{}
	var making sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		making.Go(func() {
			for i := next.Add(1) - 1; i < histories && !t.Failed(); i = next.Add(1) - 1 {
				seed := first + uint64(i)
				if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
					counts := simulate(t, seed)
					made.Add(1)
					mu.Lock()
					defer mu.Unlock()
					for what, n := range counts {
						total[what] += n
					}
				}) {
					t.Errorf("history %d; to repeat: go test ./notify -run TestSimulation -simulations 1 -count 30 -simulation-seed %d", i+1, seed)
				}
			}
		})
	}
	making.Wait()
	t.Logf("%d histories from seed %d, %.0f a minute: %v", made.Load(), first, float64(made.Load())/time.Since(began).Minutes(), total)
}
