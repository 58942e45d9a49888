package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// stride is the distance between process numbers that a worker uses after unknown
// outcomes.
const stride = 100_000

// An episode makes one history.
type episode struct {
	*result
	opts   *options
	load   *workload.Workload
	rnd    *rand.Rand
	at     spec // the addresses of emulator and oracles
	length time.Duration

	emulator *process
	oracles  []*process
	clients  []*process
	burners  []*process
	client   *txn.Client
	next     int // the next process number
	probes   sync.WaitGroup
}

// runEpisode makes one history and checks it. The error is one of the soak itself;
// findings are in the result.
func runEpisode(ctx context.Context, opts *options, load *workload.Workload, served, collects bool, seed uint64, length time.Duration) (*result, error) {
	if collects {
		length = max(length, collecting)
	}
	length = max(length, load.Least)
	e := &episode{
		result: &result{workload: load.Name, oracle: "direct", seed: seed, open: map[int]history.Record{}, count: map[history.Type]int{}, faults: map[string]int{}, used: map[string]int{}, deaths: map[string]time.Time{}},
		opts:   opts, load: load, rnd: rand.New(rand.NewPCG(seed, 0)), length: length, next: 1,
	}
	defer e.end()
	sctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the setup of the history took longer than a minute"))
	defer cancel()
	e.collects = collects
	own, err := e.setUp(sctx, served)
	if err != nil {
		return e.result, err
	}
	if err := (&nemesis{e}).disturb(ctx); err != nil {
		return e.result, err
	}
	hctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	e.heal()
	if err := e.finish(hctx, own); err != nil {
		if ctx.Err() != nil {
			return e.result, err
		}
		e.violation("at the end, without faults: %v", err)
	}
	return e.result, nil
}

func (e *episode) violation(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.violations = append(e.violations, fmt.Sprintf(format, args...))
}

func (e *episode) setUp(ctx context.Context, served bool) (*workload.Worker, error) {
	var err error
	if e.emulator, err = start(spec{Role: emulatorRole, Listen: "127.0.0.1:0"}, e.handle); err != nil {
		return nil, err
	}
	e.at = spec{Project: "soak", Instance: fmt.Sprintf("history-%d", e.seed), Workload: e.load.Name, Stride: stride, Workers: e.opts.workers,
		// A group has two workers of each client.
		Groups: max(1, e.opts.workers/2), Began: time.Now(), Collect: e.collects, Clock: e.opts.faults.has(faultClock), Net: e.opts.faults.has(faultNet)}
	if e.at.Emulator, err = e.emulator.await(ctx); err != nil {
		return nil, err
	}
	bt, adminClient, err := e.at.open(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range e.load.Tables {
		if err := admin.InitTable(ctx, adminClient, bt, "", t); err != nil {
			return nil, err
		}
	}
	if served {
		if err := e.serve(ctx, bt); err != nil {
			return nil, err
		}
	}
	var jumps atomic.Int64
	right := e.at
	right.Clock = false
	oracle, err := right.timestamps(bt, &jumps)
	if err != nil {
		return nil, err
	}
	cfg := clientConfig()
	cfg.Oracle, cfg.Admin = oracle, adminClient
	if e.client, err = txn.NewClient(ctx, bt, cfg); err != nil {
		return nil, err
	}
	if e.load.Keep != nil {
		e.load.Keep(e.client)
	}
	own := &workload.Worker{Client: e.client, Rand: rand.New(rand.NewPCG(e.seed, 1)), Record: e.record, Stride: stride, Options: e.load.Options}
	if err := e.load.Setup(ctx, own); err != nil {
		return nil, err
	}
	for range e.opts.clients {
		if err := e.startClient(ctx); err != nil {
			return nil, err
		}
	}
	e.leader(ctx)
	return own, nil
}

// serve starts two servers of the timestamp oracle, and two burners.
func (e *episode) serve(ctx context.Context, bt *bigtable.Client) error {
	e.oracle = "served"
	if _, err := tso.SetMode(ctx, bt.OpenTable(format.DefaultMetadataTable), tso.RowConfig{}, tso.ModeServed); err != nil {
		return err
	}
	for range 2 {
		p, err := e.startOracle(ctx, "127.0.0.1:0")
		if err != nil {
			return err
		}
		e.oracles = append(e.oracles, p)
		e.at.Oracles = append(e.at.Oracles, p.owner)
	}
	for range 2 {
		sp := e.at
		sp.Role = burnerRole
		p, err := start(sp, e.handle)
		if err != nil {
			return err
		}
		e.burners = append(e.burners, p)
	}
	return nil
}

func (e *episode) startOracle(ctx context.Context, listen string) (*process, error) {
	sp := e.at
	sp.Role, sp.Listen, sp.Seed, sp.Oracles = oracleRole, listen, e.rnd.Uint64(), nil
	p, err := start(sp, e.handle)
	if err != nil {
		return nil, err
	}
	_, err = p.await(ctx)
	return p, err
}

func (e *episode) startClient(ctx context.Context) error {
	sp := e.at
	sp.Role, sp.Process, sp.Seed = clientRole, e.next, e.rnd.Uint64()
	if e.opts.faults.has(faultRPC) {
		sp.Chaos = e.opts.share
	}
	e.next += e.opts.workers
	if e.next >= stride {
		return fmt.Errorf("more than %d clients in one history", stride/e.opts.workers)
	}
	p, err := start(sp, e.handle)
	if err != nil {
		return err
	}
	e.clients = append(e.clients, p)
	return nil
}

// handle processes a message of a process.
func (e *episode) handle(p *process, m message) {
	if m.Record != nil {
		e.record(*m.Record)
		return
	}
	e.use(m.Used)
	e.mu.Lock()
	defer e.mu.Unlock()
	for kind, n := range m.Faults {
		e.faults[kind] += n
	}
	e.timestamps += m.Timestamps
	if m.Batch != nil {
		e.batches = append(e.batches, *m.Batch)
	}
	e.observed += m.Observed
	if died, ok := e.deaths[m.Settled]; ok && m.Settled != "" {
		if m.At.After(died) {
			e.settled++
		}
	}
	if m.Problem != "" {
		e.violations = append(e.violations, m.Problem)
	}
}

func (e *episode) record(r history.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records = append(e.records, r)
	e.count[r.Type]++
	if r.Type == history.Invoke {
		e.open[r.Process] = r
	} else {
		delete(e.open, r.Process)
	}
}

// died ends the transactions of a killed client as unknown, and returns them.
func (e *episode) died(p *process) (open []history.Record) {
	e.mu.Lock()
	var left []history.Record
	for number, invoke := range e.open {
		if base := number % stride; base >= p.spec.Process && base < p.spec.Process+p.spec.Workers {
			open = append(open, invoke)
			left = append(left, history.Record{Type: history.Info, Process: number, Time: time.Now().UnixNano(), StartTS: invoke.StartTS})
		}
	}
	e.mu.Unlock()
	for _, r := range left {
		e.record(r)
	}
	return open
}

// finish resolves all locks, reads all keys a last time, and checks the history.
func (e *episode) finish(ctx context.Context, own *workload.Worker) error {
	e.probes.Wait()
	var ending sync.WaitGroup
	for _, p := range slices.Concat(e.clients, e.burners) {
		ending.Go(func() {
			if err := p.End(30 * time.Second); err != nil {
				e.violation("%v", err)
			}
			if p.spec.Role == clientRole {
				e.died(p) // in case the client had to be killed
			}
		})
	}
	ending.Wait()
	e.clients, e.burners = nil, nil
	e.leader(ctx)
	if err := e.observeRest(ctx); err != nil {
		return fmt.Errorf("observers: %w", err)
	}
	for _, t := range e.load.Tables {
		n, err := workload.ResolveAll(ctx, e.client, t.Name)
		if err != nil {
			return fmt.Errorf("resolving the locks of table %s: %w", t.Name, err)
		}
		e.stranded += n
	}
	if err := e.collectLast(ctx); err != nil {
		return err
	}
	for group := range e.at.Groups {
		for n := range e.at.spaces() {
			own.Space = space(group, n)
			if err := e.load.ReadAll(ctx, own); err != nil {
				return fmt.Errorf("reading all keys: %w", err)
			}
		}
	}
	for _, t := range e.load.Tables {
		for v, err := range admin.Check(ctx, e.client, t.Name, nil) {
			if err != nil {
				return fmt.Errorf("consistency check of table %s: %w", t.Name, err)
			}
			e.violation("consistency check: %v", v)
		}
		for l, err := range admin.Locks(ctx, e.client, t.Name, nil) {
			if err != nil {
				return err
			}
			e.violation("a lock is left on %s, of the transaction that started at %d", l.Cell, l.StartTS)
		}
	}
	if e.load.Verify != nil {
		wrong, err := e.load.Verify(ctx, e.client)
		if err != nil {
			return fmt.Errorf("verifying: %w", err)
		}
		for _, w := range wrong {
			e.violation("%s", w)
		}
	}
	for _, a := range e.load.Level.Check(e.records) {
		e.anomalies = append(e.anomalies, a.String())
	}
	if len(e.at.Oracles) > 0 {
		for _, w := range checkTimestamps(append(batchesOf(e.records), e.batches...)) {
			e.violation("%s", w)
		}
	}
	return e.client.Close(ctx)
}

// observeRest runs the observers until no change is pending.
func (e *episode) observeRest(ctx context.Context) error {
	if e.load.Handle == nil {
		return nil
	}
	w, err := notify.NewWorker(e.client, workerConfig())
	if err != nil {
		return err
	}
	if err := e.load.Handle(w); err != nil {
		return err
	}
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Run(rctx) }()
	for left := int64(1); err == nil && left > 0; { // dead letters
		left = replayDead(ctx, e.client)
		e.use(count(usedReplays, left))
		_, err = notify.Wait(ctx, e.client, notify.WaitConfig{})
	}
	cancel()
	s := w.Stats()
	e.observed += s.Committed + s.Collapsed
	return errors.Join(err, <-done)
}

// end kills the processes that still run.
func (e *episode) end() {
	for _, p := range slices.Concat(e.clients, e.burners, e.oracles, []*process{e.emulator}) {
		if p != nil {
			p.Resume()
			p.kill()
		}
	}
}

// leader asks the servers which of them leads, and in which epoch, and counts the
// changes. It returns -1 if none leads.
func (e *episode) leader(ctx context.Context) (leader int) {
	leader = -1
	for i, address := range e.at.Oracles {
		actx, cancel := context.WithTimeout(ctx, askLeader)
		s, err := tso.ServerStatus(actx, tso.ClientConfig{Addresses: []string{address}})
		cancel()
		if err != nil || !s.Leading {
			continue
		}
		leader = i
		e.mu.Lock()
		if e.epoch > 0 && s.Epoch > e.epoch {
			e.failovers += int(s.Epoch - e.epoch)
		}
		e.epoch = max(e.epoch, s.Epoch)
		e.mu.Unlock()
	}
	return leader
}

// heal ends the faults of processes: stopped ones continue. Clients end their own
// faults when their input ends.
func (e *episode) heal() {
	for _, p := range slices.Concat(e.clients, e.oracles, e.burners, []*process{e.emulator}) {
		p.Resume()
	}
}
