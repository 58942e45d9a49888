package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/combination"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A randomHistory is a history in which features meet. Table a has everything; b is another one, x has
// the entries of indexes, p the progress of the job and idempotency records.
//
// In each of some phases, clients run sessions at the same time, beside collections, the job, a worker and the
// creation of indexes. Requests get lost, or arrive twice or late, and clients die. Between phases, when no
// transaction runs, an operator changes expiries, lets the table leave and adopts it again, and hours may pass.
type randomHistory struct {
	t      *testing.T
	ctx    context.Context
	env    *txntest.Env
	rnd    *rand.Rand // of the operator
	seed   uint64
	plan   *combination.History
	counts *tally
	met    *combination.Coverage
	oracle tso.Oracle
	unique *index.Indexes // index n of table a, entries in x/e
	other  *index.Indexes // another index n of table a, entries in x/e2
	slow   chan error     // the end of a slow collection; nil: there is none
	jobs   int
	job    *historyJob

	observing bool
	declared  bool             // indexes may exist
	indexes   []*index.Indexes // unique, and perhaps other

	disturbed atomic.Bool // requests may get lost, and so on
	unbuilt   atomic.Bool // the creator of an index died

	mu        sync.Mutex
	clients   []*historyProcess
	processes uint64
	open      []*historyTxn     // transactions whose outcomes are unknown
	lastLate  time.Time         // when the last late request is applied
	acted     combination.Set   // what has happened beside sessions
	sessions  []combination.Set // what those of this phase have used
	gens      []*generation
	epochs    []epoch
	ready     tso.Timestamp // when the unique index was ready; 0: it is not
	values    int
	kept      []keptSnapshot
	outcomes  map[string][]idempotency.Outcome
}

var historyTables = []string{"a", "b", "x", "p"}

// A keptSnapshot is read again later.
type keptSnapshot struct {
	*txn.Snapshot
	by *historyProcess
}

// A historyJob is a job over table a that stops now and then.
type historyJob struct {
	jobs.Job
	began, ended tso.Timestamp
	mu           sync.Mutex
	tries        map[tso.Timestamp][]string // rows by start_ts of the transactions of a run
}

func newRandomHistory(t *testing.T, seed uint64, plan *combination.History, counts *tally, met *combination.Coverage) *randomHistory {
	return &randomHistory{
		t: t, seed: seed, plan: plan, rnd: rand.New(rand.NewPCG(seed, 0)), counts: counts, met: met,
		outcomes: map[string][]idempotency.Outcome{}, gens: []*generation{{}},
	}
}

func (h *randomHistory) must(err error) {
	if err != nil {
		h.t.Helper()
		h.t.Fatal(err)
	}
}

func (h *randomHistory) check(f func(*historyModel) error) {
	g := h.generation()
	h.mu.Lock()
	defer h.mu.Unlock()
	g.checks = append(g.checks, f)
}

func (h *randomHistory) generation() *generation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gens[len(h.gens)-1]
}

func (h *randomHistory) commit(x *historyTxn) {
	g := h.generation()
	h.mu.Lock()
	defer h.mu.Unlock()
	g.commits = append(g.commits, x)
}

func (h *randomHistory) epochNow() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.epochs) - 1
}

func (h *randomHistory) indexReady() tso.Timestamp {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

func (h *randomHistory) value() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.values++
	return fmt.Sprint("v", h.values)
}

func (h *randomHistory) keep(s *txn.Snapshot, by *historyProcess) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, keptSnapshot{s, by})
}

func (h *randomHistory) outcome(id string, o idempotency.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes[id] = append(h.outcomes[id], o)
}

func (h *randomHistory) sessionEnded(used combination.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions = append(h.sessions, used)
}

func (h *randomHistory) act(feature string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acted |= combination.Of(feature)
}

func (h *randomHistory) now() tso.Timestamp {
	ts, err := h.oracle.Timestamp(h.ctx)
	h.must(err)
	return ts
}

func (h *randomHistory) age(ts tso.Timestamp) time.Duration {
	return h.now().Sub(ts)
}

// moments are the timestamps at which a read of the latest state of a row may be, between two others.
func (m *historyModel) moments(table, row string, from, to tso.Timestamp, in int) []tso.Timestamp {
	all := []tso.Timestamp{from, to}
	for c, versions := range m.tables[table][row] {
		for _, v := range versions {
			ends := tso.Timestamp(int64(v.shown) + m.epochs[in].lasts[table+"/"+c.Family].Microseconds())
			for _, ts := range []tso.Timestamp{v.at, ends} {
				if ts > from && ts < to {
					all = append(all, ts)
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

func (h *randomHistory) run() {
	ctx, cancel := context.WithTimeout(h.t.Context(), 1000*time.Hour)
	defer cancel()
	h.ctx = ctx
	h.setUp()
	for p := range combination.Phases {
		if !h.t.Failed() {
			h.between(h.plan.Between[p])
			h.phase(p)
		}
	}
	if !h.t.Failed() {
		h.finish()
	}
	h.counts.add("histories", 1)
}

var expiryChoices = []time.Duration{20 * time.Second, 20 * time.Second, 5 * time.Minute, time.Hour}

func (h *randomHistory) setUp() {
	local := tso.NewLocal(tso.LocalConfig{})
	h.oracle = local
	h.env = txntest.New(h.t, txntest.WithoutTransport(), txntest.WithoutCheck(), txntest.WithConfig(txn.Config{Oracle: local, TokenTTL: -1}))
	lasts := map[string]time.Duration{}
	expiry := expiryChoices[h.rnd.IntN(len(expiryChoices))]
	if h.plan.On.Has("adopted") {
		h.must(h.env.Admin.CreateTable(h.ctx, "a"))
		for _, f := range []string{"f", "g", "z"} {
			h.must(h.env.Admin.CreateColumnFamily(h.ctx, "a", f))
		}
		if h.plan.On.Has("expiry") {
			h.must(h.env.Admin.SetGCPolicy(h.ctx, "a", "f", bigtable.MaxAgePolicy(expiry)))
			lasts["a/f"] = expiry
		}
		for _, row := range historyRows[:4] {
			m := bigtable.NewMutation()
			m.Set("f", "q", bigtable.Now().TruncateToMilliseconds(), []byte("plain "+row))
			m.Set("g", "unique", bigtable.Now().TruncateToMilliseconds(), []byte("plain "+row))
			h.must(h.env.Bigtable.Open("a").Apply(h.ctx, row, m))
		}
		h.act("adopted")
	} else {
		h.env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f", "g", "z"}, Observed: []txn.Column{observedColumn}})
	}
	h.env.InitTable(admin.TableSpec{Name: "b", Families: []string{"f"}})
	h.env.InitTable(admin.TableSpec{Name: "x", Families: []string{"e", "e2"}})
	h.env.InitTable(admin.TableSpec{Name: "p", Families: []string{"job", "id"}})
	if h.plan.On.Has("adopted") {
		h.adopt(0, 0)
	} else if h.plan.On.Has("expiry") {
		h.must(admin.SetExpiry(h.ctx, h.env.Client, "a", "f", expiry))
		lasts["a/f"] = expiry
	}
	if h.plan.On.Has("expiry") {
		h.act("expiry")
		if h.rnd.IntN(2) == 0 { // of the job's progress
			h.must(admin.SetExpiry(h.ctx, h.env.Client, "p", "job", expiry))
		}
	}
	h.epochs = []epoch{{lasts: lasts, ended: forever}}
	var err error
	h.unique, err = index.New("x", "e", index.Index{Name: "n", Table: "a", Columns: []txn.Column{uniqueColumn}, Unique: true})
	h.must(err)
	h.other, err = index.New("x", "e2", index.Index{Name: "n", Table: "a", Columns: []txn.Column{cityColumn}})
	h.must(err)
	if h.indexes = []*index.Indexes{h.unique}; h.rnd.IntN(2) == 0 {
		h.indexes = append(h.indexes, h.other)
	}
	if h.plan.On.Has("PassLocks") {
		h.act("PassLocks")
	}
	for i := range combination.Clients {
		h.clients = append(h.clients, h.newProcess(i))
	}
	h.register()
	<-time.After(61 * time.Second)
}

func (h *randomHistory) register() {
	h.must(changes.RegisterObserver(h.ctx, h.env.Client, "a", observedColumn, "observer", false))
	h.observing = true
}

// adopt adopts table a: what is in it begins a generation.
func (h *randomHistory) adopt(epochs int, left tso.Timestamp) {
	plain := map[string]bigtable.Row{}
	h.must(h.env.Bigtable.Open("a").ReadRows(h.ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		plain[r.Key()] = r
		return true
	}))
	g := &generation{first: epochs, left: left, began: h.now(), plain: plain}
	if len(h.gens[0].commits)+len(h.gens[0].checks)+epochs == 0 {
		h.gens = nil
	}
	h.gens = append(h.gens, g)
	cfg := admin.AdoptConfig{Table: "a", Oracle: h.oracle, ClearPolicies: true, Observed: []txn.Column{observedColumn}, Instance: fmt.Sprintf("projects/%s/instances/%s", h.env.Project, h.env.Instance)}
	plan, err := admin.PlanAdoption(h.ctx, h.env.Admin, h.env.Bigtable, cfg)
	h.must(err)
	h.must(admin.Adopt(h.ctx, h.env.Admin, h.env.Bigtable, cfg, plan))
}

// phase lets all clients work at the same time.
func (h *randomHistory) phase(p int) {
	var working sync.WaitGroup
	rnd := func(n int) *rand.Rand { return rand.New(rand.NewPCG(h.seed, uint64(100*(p+1)+n))) }
	h.disturbed.Store(true)
	for i := range combination.Clients {
		r := rnd(i)
		working.Go(func() {
			for n, plan := range h.plan.Sessions[p][i] {
				<-time.After(time.Duration(r.Int64N(int64(10 * time.Second))))
				s := &historySession{randomHistory: h, name: fmt.Sprintf("session %d.%d.%d", p, i, n), client: i, rnd: r, plan: plan, p: h.alive(i)}
				if h.plan.On.Has("deaths") && r.IntN(6) == 0 {
					s.p.net.dies()
				}
				if err := s.run(s.p.ctx); err != nil && !s.p.net.isDead() {
					h.t.Errorf("%s: %v", s.name, err)
				}
			}
		})
	}
	stop, worker := make(chan struct{}), make(chan struct{})
	close(worker)
	if r := rnd(14); h.plan.On.Has("worker") {
		worker = make(chan struct{})
		dies := h.plan.On.Has("deaths") && r.IntN(3) == 0
		go func() { defer close(worker); h.observe(stop, dies) }()
	}
	if r := rnd(10); h.plan.On.Has("job") {
		working.Go(func() { h.runJob(r, 1+r.IntN(6)) })
	}
	if r := rnd(11); h.plan.On.Has("index build") && h.ready == 0 && (p > 0 || r.IntN(2) == 0) {
		working.Go(func() { h.createIndexes(r) })
	}
	if r := rnd(12); h.plan.On.Has("collection") && r.IntN(2) == 0 {
		working.Go(func() { h.collect(h.alive(1), gc.Config{}, "collection") })
	}
	working.Wait()
	close(stop)
	<-worker
	h.disturbed.Store(false)
	for i := range combination.Clients {
		h.alive(i)
	}
	h.settleRecorded(rnd(15).IntN(2) == 0)
	if missing := h.plan.Acted[p] &^ h.acted; missing != 0 && !h.t.Failed() {
		h.t.Errorf("until the end of phase %d, %v have not happened", p, missing)
	}
	for _, used := range h.takeSessions() {
		h.met.Add(used | h.acted)
	}
	h.rereadSnapshots(rnd(13))
}

func (h *randomHistory) takeSessions() []combination.Set {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.sessions
	h.sessions = nil
	return all
}

// rereadSnapshots reads what a snapshot has shown in an earlier phase.
func (h *randomHistory) rereadSnapshots(rnd *rand.Rand) {
	kept := slices.Clone(h.kept)
	rnd.Shuffle(len(kept), func(i, j int) { kept[i], kept[j] = kept[j], kept[i] })
	for i := range min(4, len(kept)) {
		s := &historySession{randomHistory: h, name: fmt.Sprintf("snapshot %d again", i), rnd: rnd}
		s.p = kept[i].by
		if err := s.readSnapshot(h.ctx, kept[i].Snapshot); err != nil {
			h.t.Errorf("%s: %v", s.name, err)
		}
	}
	if len(h.kept) > 12 {
		h.kept = h.kept[len(h.kept)-12:]
	}
}

// collect collects, in a process, or undisturbed.
func (h *randomHistory) collect(p *historyProcess, cfg gc.Config, feature string) {
	cfg.Retention = retention
	ctx, c := h.ctx, h.env.Client
	if p != nil {
		ctx, c = p.ctx, p.Client
	}
	report, err := gc.Run(ctx, c, cfg)
	if report != nil {
		h.counts.add("versions collected", int(report.Total.Versions))
	}
	var busy *gc.BusyError
	var blocked *gc.BlockedError
	switch {
	case errors.As(err, &busy), errors.As(err, &blocked):
		return
	case p != nil && p.net.isDead():
		h.counts.add("collectors died", 1)
		return
	case err != nil:
		h.t.Errorf("%s: %v", feature, err)
	}
	h.act(feature)
	h.counts.add(feature, 1)
}

// collectSlowly begins a collection that takes some time for each row.
func (h *randomHistory) collectSlowly(row time.Duration) {
	if h.slow != nil {
		return
	}
	h.collect(nil, gc.Config{}, "collection")
	<-time.After(retention + time.Minute) // so it removes what has expired since the last phase
	h.slow = make(chan error, 1)
	c := h.env.NewClient(txn.Config{Oracle: h.oracle, TokenTTL: -1})
	go func() {
		_, err := gc.Run(h.ctx, c, gc.Config{Retention: retention, Rate: 1 / row.Seconds()})
		h.slow <- err
	}()
	h.act("slow collection")
	h.counts.add("slow collection", 1)
}

// readAll reads table a, and lets its snapshot be read again.
func (h *randomHistory) readAll() {
	shot, err := h.process(0).Snapshot(h.ctx)
	h.must(err)
	rows, err := collectRows(shot.Table("a").ReadRows(h.ctx, nil))
	h.must(err)
	s := &historySession{randomHistory: h, name: "beside a slow collection", p: h.process(0)}
	s.saw("snapshot", "a", "", shot.ReadTS(), nil, query{contains: func(string) bool { return true }, text: "all rows"}, rows)
	h.keep(shot, h.process(0))
}

func (h *randomHistory) endSlow() {
	if h.slow == nil {
		return
	}
	if err := <-h.slow; err != nil && !errors.As(err, new(*gc.BlockedError)) {
		h.t.Errorf("a slow collection: %v", err)
	}
	h.slow = nil
}

// endSlowBefore waits for a slow collection if a feature has not happened yet that cannot happen beside it.
func (h *randomHistory) endSlowBefore(feature string) {
	if !h.acted.Has(feature) {
		h.endSlow()
	}
}

// between is what an operator does while no transaction runs.
func (h *randomHistory) between(things []string) {
	for _, what := range things {
		h.settleRecorded(what != "time")
		switch what {
		case "time":
			times := []time.Duration{time.Second, 30 * time.Second, 6 * time.Minute, 12 * time.Minute, 70 * time.Minute}
			<-time.After(times[h.rnd.IntN(len(times))])
		case "collection":
			h.endSlowBefore(what)
			if h.slow == nil {
				h.collect(nil, gc.Config{}, what)
			}
		case "collection of changes":
			h.endSlowBefore(what)
			if h.slow == nil {
				h.collect(nil, gc.Config{FullEvery: 24 * time.Hour}, what)
				<-time.After(time.Duration(h.rnd.IntN(15)) * time.Minute)
				h.collect(nil, gc.Config{FullEvery: 24 * time.Hour}, what)
			}
		case "slow collection":
			if h.slow != nil || !h.plan.On.Has("expiry changed") || h.rnd.IntN(3) == 0 {
				h.collectSlowly(time.Minute)
				<-time.After(time.Duration(1+h.rnd.IntN(40)) * time.Minute)
				continue
			}
			// While it is at work, the expiry is taken back that it relies on.
			h.changeExpiry(20 * time.Second)
			h.collectSlowly(5 * time.Minute)
			<-time.After(time.Duration(3+h.rnd.IntN(15)) * time.Minute)
			h.changeExpiry(0, 100*time.Hour)
			h.readAll()
			if h.rnd.IntN(2) == 0 {
				h.endSlow()
				h.readAll()
			}
		case "expiry changed":
			h.changeExpiry(append([]time.Duration{0, 0, 100 * time.Hour}, expiryChoices...)...)
		case "leave":
			h.leave()
		case "repair":
			h.repairDuplicates()
		}
		if h.t.Failed() {
			return
		}
	}
	h.settleRecorded(false)
}

// changeExpiry sets, changes or removes the expiry of family f, and waits until every client knows.
func (h *randomHistory) changeExpiry(to ...time.Duration) {
	last := h.epochs[len(h.epochs)-1].lasts["a/f"]
	to = slices.DeleteFunc(to, func(after time.Duration) bool { return after == last })
	if len(to) == 0 {
		return
	}
	after := to[h.rnd.IntN(len(to))]
	if last > 0 && after > last || last > 0 && after == 0 {
		h.counts.add("longer expiries", 1)
	}
	h.must(admin.SetExpiry(h.ctx, h.env.Client, "a", "f", after))
	h.mu.Lock()
	h.epochs[len(h.epochs)-1].ended = h.now()
	h.epochs = append(h.epochs, epoch{lasts: map[string]time.Duration{"a/f": after}, ended: forever})
	h.mu.Unlock()
	<-time.After(61 * time.Second)
	h.act("expiry changed")
}

// leave makes table a a plain one, and adopts it again.
func (h *randomHistory) leave() {
	h.endSlow()
	h.awaitLate()
	<-time.After(time.Minute) // clients end what they do in the background
	if h.declared {
		for _, x := range h.indexes {
			h.must(x.Drop(h.ctx, h.process(1).Client, "n"))
		}
		h.ready, h.declared = 0, false
	}
	h.drain()
	_, err := changes.UnregisterObserver(h.ctx, h.env.Client, "a", "observer")
	h.must(err)
	h.kept = nil
	h.finishJob()
	c, left := h.env.NewClient(txn.Config{Oracle: h.oracle, TokenTTL: -1}), h.now()
	if _, err := admin.Leave(h.ctx, h.env.Admin, h.env.Bigtable, c, admin.LeaveConfig{Table: "a", ClientsStopped: true}); err != nil {
		h.t.Fatalf("leave: %v", err)
	}
	info, err := h.env.Admin.TableInfo(h.ctx, "a")
	h.must(err)
	lasts, want := h.epochs[len(h.epochs)-1].lasts["a/f"], ""
	if lasts > 0 {
		want = bigtable.MaxAgePolicy(lasts).String()
	}
	for _, f := range info.FamilyInfos {
		if f.Name == "f" && strings.TrimPrefix(f.GCPolicy, "<never>") != want {
			h.t.Errorf("after the table has left, family f has policy %q, want %q", f.GCPolicy, want)
		}
	}
	h.adopt(len(h.epochs)-1, left)
	h.register()
	<-time.After(2 * time.Minute)
	h.act("leave")
	h.counts.add("leave", 1)
}

// runJob runs the job until it has handled n rows.
func (h *randomHistory) runJob(rnd *rand.Rand, n int) {
	if h.job == nil {
		h.jobs++
		h.job = &historyJob{Job: jobs.Job{Name: fmt.Sprint("job", h.jobs), Table: "a", Progress: "p", Family: "job", BatchRows: 2, Parallel: 1}, tries: map[tso.Timestamp][]string{}}
	}
	j := h.job
	<-time.After(time.Duration(rnd.Int64N(int64(10 * time.Second))))
	if j.began == 0 {
		j.began = h.now()
	}
	stop, p := errors.New("the job's process ends"), h.alive(2)
	_, err := j.Run(p.ctx, p.Client, func(_ context.Context, tx *txn.Txn, row bigtable.Row) error {
		j.mu.Lock()
		defer j.mu.Unlock()
		if n--; n < 0 {
			return stop
		}
		j.tries[tx.StartTS()] = append(j.tries[tx.StartTS()], row.Key())
		tx.Table("a").Set(row.Key(), jobColumn.Family, jobColumn.Qualifier, []byte(j.Name))
		return nil
	})
	h.noteJob(j)
	switch {
	case errors.Is(err, stop), err != nil && p.net.isDead():
	case err == nil:
		j.ended = h.now()
		h.job = nil
		h.act("job")
		h.counts.add("jobs", 1)
		h.checkJob(j)
	case errors.Is(err, txn.ErrSchema):
		h.job = nil
		h.counts.add("jobs refused", 1)
	default:
		h.t.Errorf("job: %v", err)
	}
	h.act("job")
}

// noteJob notes which of the job's transactions have committed, when none is under way.
func (h *randomHistory) noteJob(j *historyJob) {
	shot, err := h.env.Client.Snapshot(h.ctx)
	h.must(err)
	for start, rows := range j.tries {
		x := &historyTxn{name: j.Name, start: start, ended: h.now(), own: map[string]modelTable{}, job: true}
		for _, row := range rows {
			_, err := shot.Table("a").ReadRow(h.ctx, row) // resolves locks
			h.must(err)
			versions, err := admin.History(h.ctx, h.env.Client, "a", row)
			h.must(err)
			for _, v := range versions {
				if v.Cell.Column() == jobColumn && v.StartTS == start && v.CommitTS > 0 {
					x.commit = v.CommitTS
					x.put("a", row, jobColumn, modelVersion{value: []byte(j.Name)})
				}
			}
		}
		if x.commit > 0 {
			h.commit(x)
		}
	}
	clear(j.tries)
}

// checkJob: the job has handled each row once that was there all the time, and none twice.
func (h *randomHistory) checkJob(j *historyJob) {
	g := h.generation()
	in := h.epochNow()
	h.check(func(m *historyModel) error {
		for _, row := range historyRows {
			n, there := 0, true
			for _, x := range g.commits {
				if x.name == j.Name && len(x.own["a"][row]) > 0 {
					n++
				}
				if !x.job && (x.commit > j.began && x.commit < j.ended) {
					for _, versions := range x.own["a"][row] {
						there = there && !versions[0].gone
					}
				}
			}
			// Cells of family f may expire meanwhile.
			view := m.look(in).view("a", j.began, j.began, nil)
			there = there && view.readRow(row, query{families: []string{"g"}}) != ""
			if n > 1 || n == 0 && there {
				return fmt.Errorf("%s has handled row %s %d times (it was there from the beginning: %v)", j.Name, row, n, there)
			}
		}
		return nil
	})
}

func (h *randomHistory) finishJob() {
	for range 3 {
		if h.job == nil {
			return
		}
		h.runJob(h.rnd, 1000)
	}
}

// createIndexes creates both indexes.
func (h *randomHistory) createIndexes(rnd *rand.Rand) {
	h.declared = true
	h.unbuilt.Store(false)
	var creating sync.WaitGroup
	for _, x := range h.indexes {
		p, wait := h.alive(rnd.IntN(3)), time.Duration(rnd.Int64N(int64(3*time.Second)))
		creating.Go(func() {
			<-time.After(wait)
			from := h.now()
			err := x.Create(p.ctx, p.Client, "n", nil)
			h.counts.add("index builds", 1)
			switch {
			case err != nil && p.net.isDead():
				h.unbuilt.Store(true)
			case x == h.unique && errors.Is(err, index.ErrUnique):
				h.counts.add("duplicates in a build", 1)
				h.duplicates(from, err)
			case err != nil:
				h.t.Errorf("creating an index: %v", err)
			case x == h.unique:
				now := h.now()
				h.mu.Lock()
				h.ready = now
				h.mu.Unlock()
			}
		})
	}
	creating.Wait()
	h.act("index build")
}

// duplicates checks that two rows had one key at some time since from.
func (h *randomHistory) duplicates(from tso.Timestamp, refused error) {
	to := h.now()
	g := h.generation()
	h.check(func(m *historyModel) error {
		at := []tso.Timestamp{from, to}
		for _, x := range g.commits {
			if x.commit > from && x.commit < to {
				at = append(at, x.commit)
			}
		}
		for _, ts := range at {
			for _, rows := range m.keyOwners(uniqueColumn, ts, nil) {
				if len(rows) > 1 {
					return nil
				}
			}
		}
		return fmt.Errorf("no two rows had one key from %d to %d: %w", from, to, refused)
	})
}

// repairDuplicates lets rows have different keys, as the operator of an index does whose creation has
// failed: it changes one of two rows, or both, and may give the key to a third row.
func (h *randomHistory) repairDuplicates() {
	h.write("a repair", func(s *historySession) error {
		owners := map[string][]string{}
		for r, err := range s.tx.Table("a").ReadRows(h.ctx, nil, txn.Columns(uniqueColumn)) {
			if err != nil {
				return err
			}
			key := string(r[uniqueColumn.Family][0].Value)
			owners[key] = append(owners[key], r.Key())
		}
		for _, key := range slices.Sorted(maps.Keys(owners)) {
			rows := owners[key]
			if len(rows) < 2 {
				continue
			}
			if h.rnd.IntN(3) == 0 {
				rows = rows[1:]
			}
			for _, row := range rows {
				s.putKey(row, h.value())
			}
			if len(rows) == len(owners[key]) && h.rnd.IntN(2) == 0 {
				s.putKey("third", key)
			}
		}
		return nil
	})
}

func (s *historySession) putKey(row, key string) {
	s.x.put("a", row, uniqueColumn, modelVersion{value: []byte(key)})
	s.tx.Table("a").Set(row, uniqueColumn.Family, uniqueColumn.Qualifier, []byte(key))
}

// write runs an operator's transaction until it has no conflict.
func (h *randomHistory) write(name string, f func(*historySession) error) {
	s := &historySession{randomHistory: h, name: name, rnd: h.rnd, p: h.process(0)}
	ts, err := h.process(0).Update(h.ctx, func(_ context.Context, tx *txn.Txn) error {
		s.begin(tx)
		return f(s)
	})
	if err := s.committed(ts, err); err != nil {
		h.t.Errorf("%s: %v", name, err)
	}
}

// drain runs the observer until nothing is left to do.
func (h *randomHistory) drain() {
	for range 3 {
		var cells []txn.Cell
		for n, err := range changes.Notifications(h.ctx, h.process(0).Client, "a", nil) {
			h.must(err)
			cells = append(cells, n.Cell)
		}
		for _, row := range append(historyRows, "third", "probe") { // values of a plain table have no notification
			cells = append(cells, historyCell("a", row, observedColumn))
		}
		for _, cell := range cells {
			h.write("the last run for "+cell.String(), func(s *historySession) error {
				o, err := changes.Observe(h.ctx, s.tx, cell)
				if err == nil && o.Pending("observer") {
					changes.Acknowledge(s.tx, o, "observer")
					s.x.acks[cell] = true
				}
				return err
			})
		}
	}
}

// finish ends everything, and checks it.
func (h *randomHistory) finish() {
	h.awaitLate()
	h.settleRecorded(true)
	h.finishJob()
	if h.job != nil {
		h.t.Error("the job does not end")
	}
	if h.plan.On.Has("index build") {
		for i := 0; (h.ready == 0 || h.unbuilt.Load()) && i < 8 && !h.t.Failed(); i++ {
			for range len(historyRows) {
				h.repairDuplicates()
			}
			h.createIndexes(h.rnd)
		}
		if h.ready == 0 {
			h.t.Error("the index does not become ready")
			return
		}
		for _, x := range h.indexes {
			h.must(x.Verify(h.ctx, h.process(0).Client, "n", func(p index.Problem) { h.t.Errorf("index: %v", p) }))
		}
		h.probeKeys()
	}
	if h.plan.On.Has("worker") {
		h.awaitWorker()
	}
	h.drain()
	h.endSlow()
	h.checkOutcomes()
	<-time.After(2 * time.Minute)
	synctest.Wait()
	if h.plan.On&combination.Of(combination.Faults...) != 0 { // otherwise no lock may be left
		h.counts.add("locks left to the end", h.resolveAll())
	}
	for _, table := range historyTables {
		for v, err := range admin.Check(h.ctx, h.env.Client, table, nil) {
			if err != nil {
				h.t.Fatal(err)
			}
			h.t.Errorf("consistency check: %v", v)
		}
		for l, err := range admin.Locks(h.ctx, h.env.Client, table, nil) {
			if err != nil {
				h.t.Fatal(err)
			}
			h.t.Errorf("a lock is left: %+v", l)
		}
	}
	if err := h.replay(); err != nil {
		h.t.Errorf("features %q, then %v: %v", h.plan.Target, h.acted, err)
	}
}

// probeKeys: a key that no row has is free.
func (h *randomHistory) probeKeys() {
	for i := range historyKeys {
		key := fmt.Sprint("k", i)
		h.write("the key "+key, func(s *historySession) error {
			for r, err := range s.tx.Table("a").ReadRows(h.ctx, nil, txn.Columns(uniqueColumn)) {
				if err != nil {
					return err
				}
				if string(r[uniqueColumn.Family][0].Value) == key {
					return nil
				}
			}
			s.putKey("probe", key)
			return nil
		})
	}
}

// checkOutcomes: each idempotency key has one transaction, and all its callers get the outcome of that.
func (h *randomHistory) checkOutcomes() {
	for id, all := range h.outcomes {
		firsts := 0
		for _, o := range all {
			if !o.Repeated {
				firsts++
			}
			if o.CommitTS != all[0].CommitTS || string(o.Result) != string(all[0].Result) {
				h.t.Errorf("idempotency key %s has two outcomes: %+v and %+v", id, all[0], o)
			}
		}
		if firsts != 1 {
			h.t.Errorf("%d transactions of idempotency key %s have committed", firsts, id)
		}
	}
}
