//go:build unix

package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// oracleModel is what an oracle promises: its state is the last timestamp, and
// the next is larger.
var oracleModel = porcupine.Model{
	Init: func() any { return tso.Timestamp(0) },
	Step: func(state, _, output any) (bool, any) {
		ts := output.(tso.Timestamp)
		return ts > state.(tso.Timestamp), ts
	},
	DescribeOperation: func(_, output any) string { return fmt.Sprint(output) },
}

// operations is the history of several callers. A request that failed has no
// visible effect, and so is no part of it.
type operations struct {
	mu    sync.Mutex
	start time.Time
	all   []porcupine.Operation
}

func (o *operations) ask(ctx context.Context, caller int, oracle tso.Oracle) error {
	call := time.Since(o.start)
	ts, err := oracle.Timestamp(ctx)
	back := time.Since(o.start)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, porcupine.Operation{ClientId: caller, Call: int64(call), Return: int64(back), Output: ts})
	return nil
}

func (o *operations) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

func (o *operations) check(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := porcupine.CheckOperationsTimeout(oracleModel, o.all, time.Minute); r != porcupine.Ok {
		t.Errorf("%d operations: linearizable: %s", len(o.all), r)
	}
}

// TestModelRefuses: the model would notice a step back and a repetition, and
// lets concurrent requests finish in any order.
func TestModelRefuses(t *testing.T) {
	op := func(call, back int64, ts tso.Timestamp) porcupine.Operation {
		return porcupine.Operation{Call: call, Return: back, Output: ts}
	}
	for _, test := range []struct {
		ok  bool
		ops []porcupine.Operation
	}{
		{true, []porcupine.Operation{op(1, 2, 10), op(3, 4, 11)}},
		{false, []porcupine.Operation{op(1, 2, 10), op(3, 4, 9)}},
		{false, []porcupine.Operation{op(1, 2, 10), op(3, 4, 10)}},
		{true, []porcupine.Operation{op(1, 9, 12), op(2, 4, 11), op(5, 6, 13)}},
		{false, []porcupine.Operation{op(1, 9, 12), op(1, 9, 12)}},
	} {
		if got := porcupine.CheckOperations(oracleModel, test.ops); got != test.ok {
			t.Errorf("%v: %t", test.ops, got)
		}
	}
}

// nemesis is the trouble that servers have with Bigtable.
type nemesis struct {
	mu      sync.Mutex
	cut     string  // the server that does not reach it
	unknown float64 // how often a conditional write is answered "unavailable"
	rnd     *rand.Rand
	cuts    int // requests of a server that was cut off
	before  int // writes lost before they were applied
	after   int // writes whose answer was lost
}

func (n *nemesis) hook(ctx context.Context, method string, call func() (any, error)) (any, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_, server, ok := strings.Cut(strings.Join(md.Get("user-agent"), " "), serverAgent+"/")
	if !ok {
		return call()
	}
	server, _, _ = strings.Cut(server, " ")
	n.mu.Lock()
	cut := n.cut == server
	var lose, applied bool
	switch {
	case cut:
		n.cuts++
	case method == tsotest.CheckAndMutate && n.rnd.Float64() < n.unknown:
		lose, applied = true, n.rnd.IntN(2) == 0
		if applied {
			n.after++
		} else {
			n.before++
		}
	}
	n.mu.Unlock()
	switch {
	case cut || lose && !applied:
		return nil, status.Error(codes.Unavailable, "injected: not applied")
	case lose:
		_, _ = call()
		return nil, status.Error(codes.Unavailable, "injected: applied, answer lost")
	}
	return call()
}

func (n *nemesis) set(f func(*nemesis)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

// wait lets real time pass: what is waited for is other processes.
func wait(d time.Duration) { <-time.After(d) }

// TestLinearizableUnderFaults runs three server processes, callers, and bank
// transactions above them, until leadership has changed 50 times. Meanwhile leaders
// are killed, stopped past their lease and continued, handed over, or cut off from
// Bigtable, do not learn the outcome of their writes, or have wrong clocks.
func TestLinearizableUnderFaults(t *testing.T) {
	long.RacedAtNight(t)
	long.Judged(t)
	const length = 150 * time.Millisecond
	// A busy machine may be slow; only one on which nothing happens any more is at fault.
	const limit, stall = 5 * time.Minute, 30 * time.Second
	changes := uint64(50)
	if long.Reduced() {
		changes = 12
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := tsotest.NewEmulatorOn(t, lis)
	e.CreateTable("percolator", "tso")
	e.SetMode(tso.ModeServed)
	seed := uint64(1)
	if !long.Reduced() {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	faults := &nemesis{rnd: rand.New(rand.NewPCG(seed, 1))}
	e.On(faults.hook)

	var servers []*process
	var addresses []string
	for i := range 3 {
		p := newProcess(t, e, fmt.Sprint("s", i), length)
		servers, addresses = append(servers, p), append(addresses, p.address)
	}
	cfg := tso.ClientConfig{Addresses: addresses, AttemptTimeout: length, Timeout: 30 * time.Second}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ops := &operations{start: time.Now()}
	var load sync.WaitGroup

	// Callers: two clients that stay, and callers that connect anew each time.
	const callers = 6
	for i := range callers {
		stays := i < 4
		client := newClient(t, cfg)
		load.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-pace.C:
				}
				if !stays {
					fresh := newClient(t, cfg)
					client.Close()
					client = fresh
				}
				if err := ops.ask(ctx, i, client); err != nil && ctx.Err() == nil {
					t.Errorf("caller %d: %v", i, err)
				}
			}
		})
	}
	bank := newBank(t, e, newClient(t, cfg))
	for i := range 2 {
		load.Go(func() { bank.transfers(ctx, i) })
	}

	done := map[string]int{}
	epoch := func() uint64 { return e.State().Epoch }
	leader := func() *process {
		name := e.State().Leader
		for _, p := range servers {
			if p.name == name {
				return p
			}
		}
		return servers[0]
	}
	// until waits for something that happens, unless nothing happens any more.
	until := func(what func() bool) {
		for start := time.Now(); !what() && time.Since(start) < stall; {
			wait(5 * time.Millisecond)
		}
	}
	lost := func() (n int) {
		faults.set(func(f *nemesis) { n = f.before + f.after })
		return n
	}
	// change waits until leadership has changed.
	change := func(from uint64) {
		for start := time.Now(); epoch() == from && time.Since(start) < 5*time.Second; {
			wait(5 * time.Millisecond)
		}
	}
	first := epoch()
	began := time.Now()
	last, progress := first, began
	kinds := []string{"kill", "stop", "hand over", "cut off", "unknown results", "clock back", "clock ahead", "race"}
	for step := 0; (last-first < changes || step < len(kinds)) && time.Since(began) < limit && time.Since(progress) < stall; step++ {
		kind := kinds[rnd.IntN(len(kinds))]
		if step < len(kinds) {
			kind = kinds[step]
		}
		done[kind]++
		from, p, answered := epoch(), leader(), ops.count()
		switch kind {
		case "kill":
			p.kill()
			change(from)
			p.start()
		case "stop":
			p.signal(syscall.SIGSTOP)
			change(from)
			wait(length / 2)
			p.signal(syscall.SIGCONT)
		case "hand over":
			p.terminate()
			change(from)
			p.start()
		case "cut off":
			faults.set(func(n *nemesis) { n.cut = p.name })
			change(from)
			faults.set(func(n *nemesis) { n.cut = "" })
		case "unknown results":
			before := lost()
			faults.set(func(n *nemesis) { n.unknown = .4 })
			p.kill()
			change(from)
			p.start()
			until(func() bool { return lost() > before })
			faults.set(func(n *nemesis) { n.unknown = 0 })
		case "clock back":
			p.clock(-time.Hour)
			wait(length)
			p.terminate() // the next one has the right clock
			change(from)
			p.start()
		case "clock ahead":
			p.clock(time.Hour)
			wait(length)
			p.clock(0)
		case "race":
			// Nobody leads, and all come at once to take a lease that has run out.
			for _, s := range servers {
				s.kill()
			}
			wait(length)
			for _, s := range servers {
				s.start()
			}
			change(from)
		}
		until(func() bool { return ops.count() >= answered+10 }) // between two faults the oracle serves
		if now := epoch(); now != last {
			last, progress = now, time.Now()
		}
	}
	faults.set(func(n *nemesis) { n.cut, n.unknown = "", 0 })
	end := epoch()
	until(func() bool { return bank.committed.Load() > 0 && uint64(ops.count()) >= 10*changes })
	stop()
	load.Wait()
	bank.verify()

	t.Logf("%d leadership changes in %s: %v; %d timestamps, %d transfers; %d requests of cut off servers, %d writes lost before and %d after being applied",
		end-first, time.Since(began).Round(time.Second), done, len(ops.all), bank.committed.Load(), faults.cuts, faults.before, faults.after)
	if end-first < changes {
		t.Errorf("only %d leadership changes in %s, the last one %s ago", end-first, time.Since(began), time.Since(progress))
	}
	for _, k := range kinds {
		if done[k] == 0 {
			t.Errorf("%q was never done", k)
		}
	}
	if faults.cuts == 0 || faults.before+faults.after == 0 {
		t.Errorf("faults did not fire: %d cut, %d lost before, %d after", faults.cuts, faults.before, faults.after)
	}
	if uint64(len(ops.all)) < 10*changes || bank.committed.Load() == 0 {
		t.Errorf("only %d timestamps and %d transfers", len(ops.all), bank.committed.Load())
	}
	ops.check(t)
	high := tso.Timestamp(0)
	for _, op := range ops.all {
		high = max(high, op.Output.(tso.Timestamp))
	}
	if s := e.State(); s.Limit < high {
		t.Errorf("limit %d below %d", s.Limit, high)
	}
	if ahead := high - tsotest.Now(); ahead > 5e6 {
		t.Errorf("oracle time is %d µs ahead of the clock", ahead)
	}
}

// TestStoppedLeaderDoesNotAnswerOldRequests: a request lies in the socket of a
// stopped leader while another takes over; it must not be answered below what
// that one handed out.
func TestStoppedLeaderDoesNotAnswerOldRequests(t *testing.T) {
	long.RacedAtNight(t)
	const length = 200 * time.Millisecond
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := tsotest.NewEmulatorOn(t, lis)
	e.CreateTable("percolator", "tso")
	e.SetMode(tso.ModeServed)
	ops := &operations{start: time.Now()}
	a := newProcess(t, e, "a", length)
	old := newClient(t, tso.ClientConfig{Addresses: []string{a.address}, AttemptTimeout: 30 * time.Second, Timeout: 30 * time.Second})
	if err := ops.ask(t.Context(), 0, old); err != nil {
		t.Fatal(err)
	}
	b := newProcess(t, e, "b", length)
	fresh := newClient(t, tso.ClientConfig{Addresses: []string{b.address}, Timeout: 30 * time.Second})
	a.signal(syscall.SIGSTOP)
	if err := ops.ask(t.Context(), 1, fresh); err != nil { // b leads
		t.Fatal(err)
	}
	// Asked after b has answered, while a is stopped: a finds the request when it continues.
	answered := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() { answered <- ops.ask(ctx, 2, old) }()
	wait(length)
	a.signal(syscall.SIGCONT)
	for old.Stats().Failures == 0 && len(answered) == 0 {
		wait(time.Millisecond)
	}
	cancel()
	// On a busy machine b may lose its lease, and a may answer after it has refused.
	err = <-answered
	if err != nil && strings.Contains(err.Error(), "last error") && !strings.Contains(err.Error(), "not the leader") || old.Stats().Failures == 0 {
		t.Errorf("a stopped leader: %v, after %d failed attempts", err, old.Stats().Failures)
	}
	ops.check(t)
}

// bank is accounts with a constant sum.
type bank struct {
	t         *testing.T
	client    *txn.Client
	committed counter
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Add()      { c.mu.Lock(); c.n++; c.mu.Unlock() }
func (c *counter) Load() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

const (
	accounts = 5
	opening  = 100
)

func newBank(t *testing.T, e *tsotest.Emulator, oracle tso.Oracle) *bank {
	t.Helper()
	bt, btAdmin, err := txntest.Open(t.Context(), e.Dial(), "p", "i")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = bt.Close(), btAdmin.Close() })
	if err := admin.InitTable(t.Context(), btAdmin, bt, "", admin.TableSpec{Name: "bank", Families: []string{"f"}}); err != nil {
		t.Fatal(err)
	}
	c, err := txn.NewClient(t.Context(), bt, txn.Config{Oracle: oracle, Admin: btAdmin, LockTTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	b := &bank{t: t, client: c}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for i := range accounts {
			tx.Table("bank").Set(fmt.Sprint(i), "f", "bal", []byte(strconv.Itoa(opening)))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

func balance(ctx context.Context, v *txn.View, account int) (int, error) {
	raw, ok, err := v.Get(ctx, fmt.Sprint(account), "f", "bal")
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("account %d is missing", account)
	}
	return strconv.Atoi(string(raw))
}

func (b *bank) transfers(ctx context.Context, seed int) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 2))
	for ctx.Err() == nil {
		from, to, amount := rnd.IntN(accounts), rnd.IntN(accounts), rnd.IntN(10)
		if from == to {
			continue
		}
		_, err := b.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			t := tx.Table("bank")
			x, err := balance(ctx, &t.View, from)
			if err != nil {
				return err
			}
			y, err := balance(ctx, &t.View, to)
			if err != nil {
				return err
			}
			t.Set(fmt.Sprint(from), "f", "bal", []byte(strconv.Itoa(x-amount)))
			t.Set(fmt.Sprint(to), "f", "bal", []byte(strconv.Itoa(y+amount)))
			return nil
		})
		switch {
		case err == nil:
			b.committed.Add()
		case ctx.Err() == nil:
			b.t.Errorf("transfer: %v", err)
		}
	}
}

// verify runs when nothing is wrong any more.
func (b *bank) verify() {
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	snap, err := b.client.Snapshot(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	sum := 0
	for i := range accounts {
		x, err := balance(ctx, snap.Table("bank"), i)
		if err != nil {
			b.t.Fatal(err)
		}
		sum += x
	}
	if sum != accounts*opening {
		b.t.Errorf("the sum is %d, want %d", sum, accounts*opening)
	}
	for v, err := range admin.Check(ctx, b.client, "bank", nil) {
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Errorf("consistency check: %v", v)
	}
}

func newClient(t *testing.T, cfg tso.ClientConfig) *tso.Client {
	t.Helper()
	c, err := tso.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
