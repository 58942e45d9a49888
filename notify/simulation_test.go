package notify_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
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
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	simulations    = flag.Int("simulations", 24, "how many histories TestSimulation makes")
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

// observe is every observer of a history. It leaves a row of effects for each run that
// commits.
func (s *simulation) observe(id string) notify.ObserverFunc {
	return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		value, ok, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
		if err != nil {
			return err
		}
		seen, previous := seenValue(value, ok), "unasked"
		if id != "w" && s.intn(2) == 0 {
			switch value, ok, err := notify.Previous(ctx, tx); {
			case errors.Is(err, txn.ErrTooOld):
				s.count("previous values that are too old")
			case err != nil:
				return err
			default:
				previous = seenValue(value, ok)
			}
		}
		if !s.ended.Load() { // later it succeeds
			if s.intn(100) < s.mix.failing[id] {
				s.count("failed runs")
				return errBroken
			}
			switch s.intn(15) {
			case 0:
				return notify.Snooze(s.upTo(3 * time.Second))
			case 1:
				s.mu.Lock()
				defer s.mu.Unlock()
				p := promise{id, cell}
				if s.drops[p] == nil {
					s.drops[p] = map[tso.Timestamp]string{}
				}
				s.drops[p][tx.StartTS()] = seen
				return notify.Drop()
			case 2:
				select {
				case <-time.After(s.upTo(2 * time.Second)):
				case <-ctx.Done():
				}
			}
		}
		trigger := notify.TriggerOf(ctx)
		change := trigger.ChangeTS
		tx.Table("effects").Set(fmt.Sprintf("%s/%s/%d/%d", id, cell, change, tx.StartTS()), "e", "x", fmt.Appendf(nil, "%s %s %s %d %d %s %d %s", id, cell.Row, cell.Qualifier, change, tx.StartTS(), seen, trigger.Acks[id], previous))
		switch {
		case id == "a":
			tx.Table("docs").Set(cell.Row, "d", "mid", nil)
		case id == "b" && s.intn(2) == 0:
			tx.Table("docs").Notify(cell.Row, "d", "hot")
		}
		return nil
	}
}

// seenValue formats what an observer has seen.
func seenValue(value []byte, ok bool) string { return fmt.Sprintf("%v,%s", ok, value) }

// A repeater is a finder that offers some notifications again later, when another worker
// may have handled them.
type repeater struct {
	notify.Scanner
	s *simulation
}

func (r *repeater) Find(ctx context.Context, search notify.Search) error {
	var late sync.WaitGroup
	defer late.Wait()
	offer := search.Offer
	search.Offer = func(ctx context.Context, n changes.Notification, contended func()) bool {
		for range r.s.intn(3) {
			pause := r.s.upTo(5 * time.Second)
			late.Go(func() {
				select {
				case <-time.After(pause):
					offer(ctx, n, func() {})
				case <-ctx.Done():
				}
			})
		}
		return offer(ctx, n, contended)
	}
	return r.Scanner.Find(ctx, search)
}

func (s *simulation) work(ctx context.Context, c *txn.Client) {
	cfg := notify.Config{
		MaxAttempts: 1 + s.intn(2), Backoff: txn.Backoff{Min: 100 * time.Millisecond, Max: 3 * time.Second},
		NoHints: s.intn(3) == 0, Timeout: 5 * time.Second, DrainTimeout: 5 * time.Second, ConflictAttempts: 3,
		OnEvent: s.event,
	}
	if s.intn(s.mix.repeats) == 0 {
		cfg.Finder = &repeater{s: s}
	}
	var ids []string
	for _, id := range observerIDs {
		// From here on the observer is owed something. Run registers it too, nobody knows when.
		if s.intn(4) > 0 && s.exists(watched[id]) && s.register(ctx, id) == nil {
			ids = append(ids, id)
		}
	}
	s.run(ctx, c, cfg, ids)
}

func (s *simulation) event(e notify.Event) {
	s.tell("%s of %v for %s: change %d, start %d, commit %d (error: %v)", e.Outcome, e.Cell, e.Observer, e.ChangeTS, e.StartTS, e.CommitTS, e.Err)
}

func (s *simulation) exists(c column) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.table != adopted.table || s.adopted
}

// run runs a worker with the observers until ctx ends.
func (s *simulation) run(ctx context.Context, c *txn.Client, cfg notify.Config, ids []string) {
	w := newWorker(s.t, c, cfg)
	for _, id := range ids {
		var opts []notify.HandleOption
		if id == "w" {
			opts = append(opts, notify.Weak())
		}
		if !s.ended.Load() && s.intn(2) == 0 {
			// Time passes between the reads of one check.
			opts = append(opts, notify.RateLimit(0.4, 1))
		}
		handle(s.t, w, id, watched[id], s.observe(id), opts...)
	}
	for len(ids) > 0 && ctx.Err() == nil {
		_ = w.Run(ctx) // it may find no schema record, or an observer that does not stop in time
	}
}

// register registers an observer or removes it. It uses a client without faults: what a
// late request changes cannot be promised.
func (s *simulation) register(ctx context.Context, id string) error {
	s.registry <- struct{}{}
	defer func() { <-s.registry }()
	col := watched[id]
	if err := changes.RegisterObserver(ctx, s.env.Client, col.table, col.Column, id, id == "w"); err != nil {
		return err
	}
	s.tell("registered %s", id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since[id].IsZero() {
		s.since[id] = time.Now()
	}
	return nil
}

func (s *simulation) unregister(ctx context.Context, id string) error {
	s.registry <- struct{}{}
	defer func() { <-s.registry }()
	s.mu.Lock()
	delete(s.since, id)
	s.mu.Unlock()
	s.tell("removing %s", id)
	_, err := changes.UnregisterObserver(ctx, s.env.Client, watched[id].table, id)
	return err
}

// adopt makes the table with plain values transactional.
func (s *simulation) adopt(ctx context.Context) error {
	s.registry <- struct{}{}
	defer func() { <-s.registry }()
	cfg := admin.AdoptConfig{Table: adopted.table, Instance: fmt.Sprintf("projects/%s/instances/%s", s.env.Project, s.env.Instance)}
	plan, err := admin.PlanAdoption(ctx, s.env.Admin, s.env.Bigtable, cfg)
	if err == nil {
		err = admin.Adopt(ctx, s.env.Admin, s.env.Bigtable, cfg, plan)
	}
	if err == nil {
		s.mu.Lock()
		s.adopted = true
		s.mu.Unlock()
	}
	return err
}

func (s *simulation) letters(ctx context.Context, c *txn.Client) (all []changes.DeadLetter) {
	for d, err := range changes.DeadLetters(ctx, c) {
		if err == nil {
			all = append(all, d)
		}
	}
	return all
}

// operate does what operators do.
func (s *simulation) operate(ctx context.Context, c *txn.Client) {
	for s.next(ctx, s.mix.operates) {
		octx, cancel := context.WithTimeout(ctx, time.Minute)
		id := observerIDs[s.intn(len(observerIDs))]
		cell := cellIn(columnsOf(id)[s.intn(len(columnsOf(id)))], s.row())
		var err error
		what := ""
		switch s.action() {
		case 0:
			what, err = "backfills", s.backfill(octx, c, watched[id])
		case 1:
			what, err = "notifications", s.notify(octx, c, cell)
		case 2:
			what, err = "parks", s.park(octx, c, id, cell)
		case 3:
			for _, d := range s.letters(octx, c) {
				if s.intn(2) == 0 {
					what, err = "drops", s.drop(octx, c, d)
				}
			}
		case 4:
			if !s.exists(adopted) {
				what, err = "adoptions", s.adopt(octx)
			}
		case 5:
			if s.intn(4) == 0 {
				what, err = "removals", s.unregister(octx, id)
			}
		case 6:
			if s.exists(watched[id]) {
				what, err = "registrations", s.register(octx, id)
			}
		default:
			for _, d := range s.letters(octx, c) {
				if s.intn(2) == 0 {
					what, err = "replays", s.replay(octx, c, d)
				}
			}
		}
		cancel()
		if err == nil && what != "" {
			s.count(what)
		}
	}
}

// action draws what an operator does.
func (s *simulation) action() int {
	total := 0
	for _, n := range s.mix.actions {
		total += n
	}
	n := s.intn(max(total, 1))
	for i, weight := range s.mix.actions {
		if n -= weight; n < 0 {
			return i
		}
	}
	return 0
}

// ask makes a request for a notification. If it succeeds, the observer has to run.
func (s *simulation) ask(ctx context.Context, r request, f func() error) (err error) {
	r.began = time.Now()
	if r.ts, err = s.oracle.Timestamp(ctx); err != nil {
		return err
	}
	err = f()
	s.tell("asked %+v (error: %v)", r, err)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	return nil
}

func (s *simulation) backfill(ctx context.Context, c *txn.Client, col column) error {
	return s.ask(ctx, request{of: col}, func() error {
		_, err := notify.Backfill(ctx, c, col.table, col.Column, nil, nil)
		return err
	})
}

func (s *simulation) notify(ctx context.Context, c *txn.Client, cell txn.Cell) error {
	return s.ask(ctx, request{cell: cell}, func() error { return changes.Notify(ctx, c, cell) })
}

func (s *simulation) replay(ctx context.Context, c *txn.Client, d changes.DeadLetter) error {
	return s.ask(ctx, request{cell: d.Cell, observer: d.Observer, change: d.ChangeTS}, func() error { return changes.Replay(ctx, c, d) })
}

func (s *simulation) drop(ctx context.Context, c *txn.Client, d changes.DeadLetter) error {
	s.mu.Lock()
	p := promise{d.Observer, d.Cell}
	s.dropped[p] = request{began: time.Now(), change: max(s.dropped[p].change, d.ChangeTS)}
	s.mu.Unlock()
	s.tell("dropping %+v", d)
	return changes.Drop(ctx, c, d)
}

// park makes a dead letter of a pending change, as operators do.
func (s *simulation) park(ctx context.Context, c *txn.Client, id string, cell txn.Cell) error {
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	seen, err := changes.Observe(ctx, tx, cell)
	if err != nil || !seen.Pending(id) || !slices.Contains(seen.Observers, id) {
		return err
	}
	s.tell("parking %v of %s, seen at %d", cell, id, seen.StartTS)
	if err := changes.Park(ctx, c, changes.DeadLetter{Cell: cell, Observer: id, ChangeTS: seen.ChangeTS, FirstTS: seen.StartTS}); err != nil {
		return err
	}
	return changes.SetFailure(ctx, c, cell, id, format.Failure{ChangeTS: seen.ChangeTS, NotBefore: format.Never, FirstTS: seen.StartTS, LastTS: seen.StartTS})
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

// effects returns what every run has seen that committed, by its start_ts. It checks what the runs
// were told about the runs before.
func (s *simulation) effects(ctx context.Context) map[promise]map[tso.Timestamp]string {
	snapshot, err := s.env.Client.Snapshot(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	type told struct {
		of       promise
		ack      tso.Timestamp
		previous string
	}
	var all []told
	runs := map[promise]map[tso.Timestamp]string{}
	changes := map[string]bool{}
	for row, err := range snapshot.Table("effects").ReadRows(ctx, nil) {
		if err != nil {
			s.t.Fatal(err)
		}
		var id, name, qualifier, seen, previous string
		var change, start, ack tso.Timestamp
		if _, err := fmt.Sscanf(string(row["e"][0].Value), "%s %s %s %d %d %s %d %s", &id, &name, &qualifier, &change, &start, &seen, &ack, &previous); err != nil {
			s.t.Fatal(err)
		}
		p := promise{id, cellIn(columnOf(watched[id].table, watched[id].RealFamily(), qualifier), name)}
		if key := fmt.Sprintf("%v %d", p, change); changes[key] {
			s.t.Errorf("observer %s committed two effects of change %d of %s", id, change, p.cell)
		} else {
			changes[key] = true
		}
		if runs[p] == nil {
			runs[p] = map[tso.Timestamp]string{}
		}
		runs[p][start] = seen
		if previous != "unasked" {
			all = append(all, told{p, ack, previous})
		}
		s.counts["effects"]++
	}
	for _, run := range all {
		want, ran := runs[run.of][run.ack]
		if !ran {
			want, ran = s.drops[run.of][run.ack]
		}
		if !ran {
			want = seenValue(nil, false)
		}
		if s.counts["previous values"]++; run.previous != want {
			s.t.Errorf("a run of %s for %s was told the previous value %s; the run at %d has seen %s", run.of.observer, run.of.cell, run.previous, run.ack, want)
		}
	}
	return runs
}

// check checks that everything promised was done, and that nothing is left.
func (s *simulation) check(ctx context.Context) {
	tables := []string{"docs", "effects"}
	if s.adopted {
		tables = append(tables, adopted.table)
	}
	runs := s.effects(ctx)
	tx, err := s.env.Client.Begin(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	defer tx.Rollback()
	for _, p := range s.promises() {
		id := p.observer
		o, err := changes.Observe(ctx, tx, p.cell)
		if err != nil {
			s.t.Fatal(err)
		}
		ack := o.Acks[id]
		_, ran := runs[p][ack]
		_, dropped := s.drops[p][ack]
		if ack > 0 && !ran && !dropped {
			s.t.Errorf("observer %s acknowledged %s at %d without a run", id, p.cell, ack)
		}
		if want, why := s.owed(p, o); want > ack {
			s.t.Errorf("LOST: observer %s has acknowledged %s up to %d, and not the change at %d (%s); the newest that is stored is %d", id, p.cell, ack, want, why, o.ChangeTS)
		}
	}
	for _, table := range tables {
		for n, err := range changes.Notifications(ctx, s.env.Client, table, nil) {
			s.t.Errorf("left: %+v (error: %v)", n, err)
		}
		if _, err := workload.ResolveAll(ctx, s.env.Client, table); err != nil {
			s.t.Error(err)
		}
		for v, err := range admin.Check(ctx, s.env.Client, table, nil) {
			s.t.Errorf("consistency check: %v (error: %v)", v, err)
		}
	}
	for _, d := range s.letters(ctx, s.env.Client) {
		s.t.Errorf("left: %+v", d)
	}
}

// promises are all that the registered observers are owed something for.
func (s *simulation) promises() (all []promise) {
	for _, id := range observerIDs {
		for _, col := range columnsOf(id) {
			for _, row := range s.mix.rows {
				if !s.since[id].IsZero() {
					all = append(all, promise{id, cellIn(col, row)})
				}
			}
		}
	}
	return all
}

// owed returns the newest change that an observer must have seen, and why.
func (s *simulation) owed(p promise, o *changes.Observation) (want tso.Timestamp, why string) {
	from := s.since[p.observer].Add(noticed)
	dropped := s.dropped[p]
	add := func(ts tso.Timestamp, at time.Time, because string) {
		// An operator who drops a dead letter gives up what was asked for before.
		if ts > want && (ts > dropped.change || at.After(dropped.began)) {
			want, why = ts, because
		}
	}
	newest := o.ChangeTS
	for _, ts := range s.written[p.cell] {
		newest = max(newest, ts)
		if at := time.UnixMicro(int64(ts)); at.After(from) {
			add(ts, at, "committed")
		}
	}
	if at := time.UnixMicro(int64(o.ChangeTS)); at.After(from) {
		add(o.ChangeTS, at, "stored")
	}
	for _, r := range s.asked {
		if r.began.Before(from) {
			continue
		}
		switch {
		case r.observer != "":
			if (promise{r.observer, r.cell}) == p {
				add(r.change, r.began, "replayed")
			}
		// Nothing shows that a delete is pending once it is collected. A Backfill
		// finds values only.
		case newest > r.ts || newest != o.ChangeTS || !s.present(p.cell):
		case r.cell == p.cell:
			add(newest, r.began, "notified")
		case r.of.table == p.cell.Table && r.of.Column.Matches(p.cell.Column()):
			add(newest, r.began, "backfilled")
		}
	}
	return want, why
}

func (s *simulation) present(cell txn.Cell) bool {
	return value(s.t, s.env.Client, column{cell.Table, cell.Column()}, cell.Row) != ""
}

// TestSimulation makes short histories of observers in virtual time, each from its own
// seed: go test ./notify -run TestSimulation -simulations 5000. A seed decides everything
// but the jitter of the library's pauses, and which goroutine runs first. So a failure may
// need some repetitions to come again.
func TestSimulation(t *testing.T) {
	first := *simulationSeed
	if first == 0 {
		first = rand.Uint64N(1_000_000_000) + 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // otherwise Go's garbage collector takes a third of the time
	histories := int64(*simulations)
	if testing.Short() {
		histories = min(histories, 6)
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
