package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// A role is what a process does.
type role string

const (
	emulatorRole role = "emulator"
	oracleRole   role = "oracle"
	clientRole   role = "client"
	burnerRole   role = "burner"
)

// A spec says what a process does. The process ends when its standard input does.
type spec struct {
	Role role
	// Listen is the address at which an emulator or oracle listens.
	Listen string
	// Emulator is the emulator's address; Project and Instance have the tables.
	Emulator, Project, Instance string
	// Oracles are the addresses of the served oracle. Without any, mode is direct.
	Oracles []string
	Seed    uint64
	// Clock makes the process's clock wrong by up to an hour, with jumps.
	Clock bool

	// The following fields are for clients.

	Workload string
	// Process is the first worker's process number in the history. The other workers
	// have the numbers after it.
	Process, Stride, Workers int
	// Groups is how many groups a client's workers form. Workers of one group, in
	// several processes, use the same keys. Began is when the history began.
	Groups int
	Began  time.Time
	// Collect makes the clients collect garbage, and requests later.
	Collect bool
	// Chaos is the share of requests that get a fault.
	Chaos float64
	// Net makes connections fail.
	Net bool
}

// run carries out the spec's role.
func (sp spec) run(ctx context.Context, s *cli.Streams) error {
	txntest.ShortenGC(gcFaster)
	ctx, cancel := child.Attend(ctx, s.In, nil)
	defer cancel()
	var mu sync.Mutex
	out := json.NewEncoder(s.Out)
	send := func(m message) {
		m.At = time.Now()
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(m) // fails if the parent is dead; then the input ends too
	}
	switch sp.Role {
	case emulatorRole:
		return sp.emulator(ctx, send)
	case oracleRole:
		return sp.oracle(ctx, send)
	case clientRole:
		return sp.client(ctx, send)
	case burnerRole:
		return burn(ctx, sp.Oracles, send)
	}
	return fmt.Errorf("unknown role %q", sp.Role)
}

// These are short, so that a history has many recoveries.
const (
	lockTTL  = time.Second
	tokenTTL = 500 * time.Millisecond
	lease    = 300 * time.Millisecond
	// longest is the longest pause of a request. It is longer than the locks' ttl.
	longest = 1500 * time.Millisecond
	// maxStep is the largest jump of a clock that the oracle accepts. After it, oracle
	// time stands still until real time has caught up, and so do the ttls of locks.
	maxStep = 500 * time.Millisecond
	// rotation is how long the workers of a group keep their keys.
	rotation = 2500 * time.Millisecond

	// gcFaster divides the times of garbage collection: the retention is 40 s, the fence 8 s.
	// It leaves 2 s for requests that are late and processes that stop.
	gcFaster  = 15
	retention = 10 * time.Minute / gcFaster
	// collecting is the least length of a history with garbage collection, and reuse the
	// number of rotations after which its groups return to their first keys. By then a
	// collection has removed old versions of these.
	collecting = 75 * time.Second
	reuse      = 20
)

// lateBound is how late a request of a history with garbage collection may be applied. It is
// well below what docs/guarantees.md allows (there 15 times as long).
func lateBound(c txntest.Call) time.Duration {
	if c.Method == "MutateRows" && c.Step != txntest.StepToken && c.Step != txntest.StepSafePoint {
		return 15 * time.Second // secondaries, collections
	}
	return 3500 * time.Millisecond
}

// spaceNow returns the number of the keys that the workers of a group use now.
func (sp spec) spaceNow() int {
	n := int(time.Since(sp.Began) / rotation)
	if sp.Collect {
		n %= reuse
	}
	return n
}

// spaces returns how many numbers there have been.
func (sp spec) spaces() int {
	n := int(time.Since(sp.Began)/rotation) + 1
	if sp.Collect {
		n = min(n, reuse)
	}
	return n
}

// space returns the prefix of a group's keys after a number of rotations.
func space(group, rotations int) string { return fmt.Sprintf("%d.%d/", group, rotations) }

func clientConfig() txn.Config {
	return txn.Config{LockTTL: lockTTL, TokenTTL: tokenTTL, RPCTimeout: 3 * time.Second, Backoff: txn.Backoff{Max: 50 * time.Millisecond}}
}

// drawnConfig chooses options that must not change what clients see. Each client of a
// history has other ones.
func drawnConfig(rnd *rand.Rand) txn.Config {
	cfg := clientConfig()
	cfg.PassLocks = rnd.IntN(2) == 0
	cfg.SyncSecondaries = rnd.IntN(4) == 0
	cfg.BackgroundBytes = []int{1, 10_000, 0, 0}[rnd.IntN(4)]
	cfg.BatchReads = []int{0, 1, 4}[rnd.IntN(3)]
	cfg.PrefetchBytes = []int{-1, 0}[rnd.IntN(2)]
	cfg.LatchWait = []time.Duration{-1, 10 * time.Millisecond, 0, 0}[rnd.IntN(4)]
	return cfg
}

func workerConfig() notify.Config {
	return notify.Config{
		Finder:  &notify.Scanner{MinInterval: 20 * time.Millisecond, MaxInterval: 200 * time.Millisecond},
		LockTTL: time.Second, Timeout: 5 * time.Second, DrainTimeout: 3 * time.Second,
		Backoff:     txn.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		MaxAttempts: 1 << 30, // no dead letters because of faults
	}
}

// emulator runs an emulator until ctx ends.
func (sp spec) emulator(ctx context.Context, send func(message)) error {
	e, err := txntest.StartEmulator(sp.Listen, txntest.Strict()...)
	if err != nil {
		return err
	}
	address := e.Addr()
	send(message{Ready: &address})
	<-ctx.Done()
	return nil // the process and its connections end
}

// clock returns the process's clock, which is right, or wrong by up to an hour with
// jumps. It counts the jumps.
func (sp spec) clock(jumps *atomic.Int64) func() time.Time {
	if !sp.Clock {
		return time.Now
	}
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(sp.Seed, 3))
	var offset time.Duration
	var until time.Time
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if now.After(until) {
			until = now.Add(time.Duration(rnd.Int64N(int64(500 * time.Millisecond))))
			offset = time.Duration(rnd.Int64N(int64(2*time.Hour))) - time.Hour
			if rnd.IntN(3) == 0 {
				offset /= 3600 // a second or less, which no check of steps refuses
			}
			jumps.Add(1)
		}
		return now.Add(offset)
	}
}

// open connects to the emulator.
func (sp spec) open(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, error) {
	conn, err := txntest.Dial(sp.Emulator, opts...)
	if err != nil {
		return nil, nil, err
	}
	return txntest.Open(ctx, conn, sp.Project, sp.Instance)
}

// oracle runs a server of the timestamp oracle until ctx ends.
func (sp spec) oracle(ctx context.Context, send func(message)) error {
	bt, _, err := sp.open(ctx)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", sp.Listen)
	if err != nil {
		return err
	}
	var jumps atomic.Int64
	s, err := server.New(bt.OpenTable(format.DefaultMetadataTable), server.Config{Lease: lease, Clock: sp.clock(&jumps), MaxStep: maxStep})
	if err != nil {
		return err
	}
	address := l.Addr().String()
	send(message{Ready: &address})
	go every(ctx, func() { send(message{Faults: count(faultClock, jumps.Swap(0))}) })
	return s.Serve(ctx, l)
}

func count(kind string, n int64) map[string]int {
	if n == 0 {
		return nil
	}
	return map[string]int{kind: int(n)}
}

// every calls f a few times a second until ctx ends.
func every(ctx context.Context, f func()) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// timestamps is an oracle, with the number of timestamps that it handed out.
type timestamps struct {
	tso.Oracle
	close func() error
	count func() uint64
}

// timestamps returns the oracle of a client, served or direct.
func (sp spec) timestamps(bt *bigtable.Client, jumps *atomic.Int64) (*timestamps, error) {
	if len(sp.Oracles) > 0 {
		c, err := tso.NewClient(tso.ClientConfig{Addresses: sp.Oracles, AttemptTimeout: 300 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		return &timestamps{c, c.Close, func() uint64 { return c.Stats().Timestamps }}, nil
	}
	d := tso.NewDirect(bt.OpenTable(format.DefaultMetadataTable), tso.DirectConfig{RPCTimeout: time.Second, Clock: sp.clock(jumps), MaxStep: maxStep})
	return &timestamps{d, d.Close, func() uint64 { return d.Stats().Timestamps }}, nil
}

// client runs workers, and observers if the workload has some.
func (sp spec) client(ctx context.Context, send func(message)) error {
	load := workload.Named(sp.Workload)
	if load == nil {
		return fmt.Errorf("no workload %q", sp.Workload)
	}
	chaos := workload.NewChaos(sp.Seed, sp.Chaos, longest)
	if sp.Collect {
		chaos.Late = lateBound
	}
	network := workload.NewNet(sp.Seed)
	bt, _, err := sp.open(ctx, append(chaos.DialOptions(), network.DialOption())...)
	if err != nil {
		return err
	}
	var jumps, deadlines atomic.Int64
	oracle, err := sp.timestamps(bt, &jumps)
	if err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(sp.Seed, 4))
	cfg := drawnConfig(rnd)
	cfg.Oracle = oracle
	client, err := newClient(ctx, bt, cfg)
	switch {
	case ctx.Err() != nil:
		return nil // the history ended before it began to work
	case err != nil:
		return err
	}
	if load.Keep != nil {
		load.Keep(client)
	}
	admin.OnResolve(client, func(r format.Resolution) { send(message{Settled: r.Lock.Owner}) })
	owner := admin.Owner(client)
	send(message{Ready: &owner})
	if sp.Net {
		go network.Run(ctx, netPause, longest)
	}

	var observers *notify.Worker
	var observing sync.WaitGroup
	if load.Handle != nil {
		cfg := workerConfig()
		cfg.MaxAttempts = 2 // so that there are dead letters
		if observers, err = notify.NewWorker(client, cfg); err != nil {
			return err
		}
		load.Fail = func() bool { return rand.IntN(20) == 0 }
		if err := load.Handle(observers); err != nil {
			return err
		}
		observing.Go(func() { observe(ctx, observers, send) })
		observing.Go(func() {
			every(ctx, func() { send(message{Used: count(usedReplays, replayDead(ctx, client))}) })
		})
	}
	if sp.Collect {
		observing.Go(func() { every(ctx, func() { send(message{Used: collect(ctx, client)}) }) })
	}
	var before txn.Stats
	var given uint64
	var acknowledged int64
	var reporting sync.Mutex
	report := func() {
		reporting.Lock()
		defer reporting.Unlock()
		m := message{Faults: chaos.Fired()}
		maps.Copy(m.Faults, network.Fired())
		for kind, n := range map[string]int64{faultClock: jumps.Swap(0), faultDeadline: deadlines.Swap(0)} {
			if n > 0 {
				m.Faults[kind] += int(n)
			}
		}
		now := oracle.count()
		m.Timestamps, given = int64(now-given), now
		if observers != nil {
			s := observers.Stats()
			m.Observed, acknowledged = s.Committed+s.Collapsed-acknowledged, s.Committed+s.Collapsed
		}
		s := client.Stats()
		m.Used = map[string]int{
			usedBatches: int(s.BatchedReads - before.BatchedReads), usedStale: int(s.ReusedTimestamps - before.ReusedTimestamps),
			usedPasses: int(s.Raises - before.Raises),
			usedLatest: int(s.LatestReads - before.LatestReads),
		}
		before = s
		if load.Used != nil {
			maps.Copy(m.Used, load.Used())
		}
		send(m)
	}
	go every(ctx, report)

	var working sync.WaitGroup
	for i := range sp.Workers {
		w := &workload.Worker{
			Client: client, Rand: rand.New(rand.NewPCG(sp.Seed, uint64(10+i))),
			Record:  func(r history.Record) { send(message{Record: &r}) },
			Process: sp.Process + i, Stride: sp.Stride, Options: load.Options, Vary: true,
		}
		working.Go(func() { sp.work(ctx, load, w, i%sp.Groups, &deadlines, send) })
	}
	<-ctx.Done()
	network.Heal()
	working.Wait()
	observing.Wait()
	if load.Stop != nil {
		load.Stop()
	}
	chaos.Heal()
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = client.Close(cctx)
	report()
	return errors.Join(err, oracle.close())
}

// newClient makes a client. It tries again if a fault makes this fail.
func newClient(ctx context.Context, bt *bigtable.Client, cfg txn.Config) (*txn.Client, error) {
	for {
		c, err := txn.NewClient(ctx, bt, cfg)
		if err == nil || ctx.Err() != nil || errors.Is(err, txn.ErrInvalid) {
			return c, err
		}
	}
}

// observe runs the observers until ctx ends. A registration may fail because of faults.
func observe(ctx context.Context, w *notify.Worker, send func(message)) {
	for ctx.Err() == nil {
		err := w.Run(ctx)
		if errors.Is(err, txn.ErrInvalid) || errors.Is(err, changes.ErrRegistration) {
			send(message{Problem: fmt.Sprintf("observers: %v", err)})
			return
		}
	}
}

// work runs one worker until ctx ends. Some of its transactions have a short deadline.
func (sp spec) work(ctx context.Context, load *workload.Workload, w *workload.Worker, group int, deadlines *atomic.Int64, send func(message)) {
	for ctx.Err() == nil {
		w.Space = space(group, sp.spaceNow())
		// A transaction that is open when the history ends may continue.
		step, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		if sp.Chaos > 0 && w.Rand.IntN(16) == 0 {
			cancel()
			step, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Duration(1+w.Rand.IntN(20))*time.Millisecond)
			deadlines.Add(1)
		}
		err := load.Step(step, w)
		cancel()
		if err != nil {
			send(message{Problem: fmt.Sprintf("process %d: %v", w.Process, err)})
			<-time.After(100 * time.Millisecond)
		}
	}
}
