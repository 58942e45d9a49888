package soak

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
)

// The groups of faults that --faults chooses from, and the kinds of those that
// are not of single requests (emulator_test/workload names those).
const (
	faultKill   = "kill"   // SIGKILL of a client
	faultStop   = "stop"   // SIGSTOP and SIGCONT of a client
	faultServer = "server" // SIGSTOP and SIGCONT of the emulator
	faultRPC    = "rpc"    // single requests
	faultOracle = "oracle" // SIGKILL and SIGSTOP of the leader of the served oracle
	faultClock  = "clock"  // clocks of processes that are wrong and jump
	faultNet    = "net"    // connections of clients

	faultDeadline   = "deadline" // callers that give up
	faultOracleKill = "oracle-kill"
	faultOracleStop = "oracle-stop"
)

var faultGroups = []string{faultKill, faultStop, faultServer, faultRPC, faultOracle, faultClock, faultNet}

const (
	// strikePause is how far apart faults of processes are in one history, on
	// average, and netPause those of one client's connections.
	strikePause = 700 * time.Millisecond
	netPause    = 3 * time.Second
	// A failover takes about two leases.
	askLeader = 200 * time.Millisecond
)

// A faultSet is what --faults chooses.
type faultSet []string

func (f faultSet) has(group string) bool { return slices.Contains(f, group) }

func parseFaults(s string) (faultSet, error) {
	switch s {
	case "all":
		return faultGroups, nil
	case "none":
		return nil, nil
	}
	set := strings.Split(s, ",")
	for _, g := range set {
		if !slices.Contains(faultGroups, g) {
			return nil, cli.Usagef("--faults %s: %q is none of them; they are all, none, or a list of %s", s, g, strings.Join(faultGroups, ", "))
		}
	}
	return set, nil
}

// disturb lets the clients work and does something to the processes every now
// and then, until the history's time is over.
func (e *episode) disturb(ctx context.Context) error {
	over := time.NewTimer(e.length)
	defer over.Stop()
	for {
		pause := time.NewTimer(time.Duration(e.rnd.Int64N(int64(2 * strikePause))))
		select {
		case <-over.C:
			pause.Stop()
			return nil
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		case <-pause.C:
		}
		if err := e.reap(ctx); err != nil {
			return err
		}
		if err := e.strike(ctx); err != nil {
			return err
		}
	}
}

// reap replaces clients that ended by themselves, which none should.
func (e *episode) reap(ctx context.Context) error {
	for i, p := range e.clients {
		select {
		case <-p.ended:
			e.violation("a client process ended: %v", p.Wait())
			e.died(p)
			e.clients = slices.Delete(slices.Clone(e.clients), i, i+1)
			return e.startClient(ctx)
		default:
		}
	}
	return nil
}

func (e *episode) fired(kind string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults[kind]++
}

// strike makes one fault, if the dice choose one that is on.
func (e *episode) strike(ctx context.Context) error {
	length := func(most time.Duration) time.Duration { return time.Duration(e.rnd.Int64N(int64(most))) }
	switch n := e.rnd.IntN(100); {
	case n < 40 && e.opts.faults.has(faultKill):
		return e.killClient(ctx)
	case n >= 40 && n < 55 && e.opts.faults.has(faultStop):
		p := e.clients[e.rnd.IntN(len(e.clients))]
		e.stopFor(p, faultStop, length(2*lockTTL))
	case n >= 55 && n < 65 && e.opts.faults.has(faultServer):
		e.stopFor(e.emulator, faultServer, length(500*time.Millisecond))
	case n >= 65 && n < 98 && e.opts.faults.has(faultOracle) && len(e.oracles) > 0:
		return e.strikeOracle(ctx, length)
	}
	return nil
}

func (e *episode) stopFor(p *process, kind string, d time.Duration) {
	if p.Suspend() {
		e.fired(kind)
		time.AfterFunc(d, p.Resume)
	}
}

// killClient kills a client and starts another.
func (e *episode) killClient(ctx context.Context) error {
	i := e.rnd.IntN(len(e.clients))
	p := e.clients[i]
	p.mu.Lock()
	owner := p.owner
	p.mu.Unlock()
	if owner == "" {
		return nil // it has not begun
	}
	p.Resume()
	died := time.Now()
	e.mu.Lock()
	e.deaths[owner] = died
	e.kills++
	e.faults[faultKill]++
	e.mu.Unlock()
	p.kill()
	e.probe(ctx, died, e.died(p))
	e.clients = slices.Delete(slices.Clone(e.clients), i, i+1)
	return e.startClient(ctx)
}

// leader asks the servers which of them leads, and in which term, and counts the
// changes; -1: none says so.
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

// strikeOracle kills one of the servers and starts it again, or stops it past
// its lease: the leader, mostly.
func (e *episode) strikeOracle(ctx context.Context, length func(time.Duration) time.Duration) error {
	i, kill, any := e.rnd.IntN(len(e.oracles)), e.rnd.IntN(2) == 0, e.rnd.IntN(4) == 0
	stopped := lease + length(2*lease)
	if leader := e.leader(ctx); leader >= 0 && !any {
		i = leader
	}
	p := e.oracles[i]
	if !kill {
		e.stopFor(p, faultOracleStop, stopped)
		return nil
	}
	e.fired(faultOracleKill)
	p.Resume()
	p.kill()
	again, err := e.startOracle(ctx, e.at.Oracles[i])
	if err == nil {
		e.oracles[i] = again
	}
	return err
}

// heal ends the faults: everything that was stopped goes on, and the clients,
// once told to end, let the requests go that they have kept.
func (e *episode) heal() {
	for _, p := range slices.Concat(e.clients, e.oracles, e.burners, []*process{e.emulator}) {
		p.Resume()
	}
}
