package soak

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
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

	faultDeadline   = "deadline" // callers that give up
	faultOracleKill = "oracle-kill"
	faultOracleStop = "oracle-stop"
)

var faultGroups = []string{faultKill, faultStop, faultServer, faultRPC, faultOracle, faultClock}

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
		pause := time.NewTimer(time.Duration(20+e.rnd.IntN(380)) * time.Millisecond)
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
			e.violation("a client process ended: %v\n%s", p.cmd.Wait(), p.stderr)
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
	case n < 50 && e.opts.faults.has(faultKill):
		return e.killClient(ctx)
	case n >= 50 && n < 65 && e.opts.faults.has(faultStop):
		p := e.clients[e.rnd.IntN(len(e.clients))]
		e.stopFor(p, faultStop, length(2*lockTTL))
	case n >= 65 && n < 75 && e.opts.faults.has(faultServer):
		e.stopFor(e.emulator, faultServer, length(500*time.Millisecond))
	case n >= 75 && e.opts.faults.has(faultOracle) && len(e.oracles) > 0:
		return e.strikeOracle(ctx, length)
	}
	return nil
}

func (e *episode) stopFor(p *process, kind string, d time.Duration) {
	if p.suspend() {
		e.fired(kind)
		time.AfterFunc(d, p.resume)
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
	p.resume()
	e.mu.Lock()
	e.deaths[owner] = time.Now()
	e.kills++
	e.faults[faultKill]++
	e.mu.Unlock()
	p.kill()
	e.died(p)
	e.clients = slices.Delete(slices.Clone(e.clients), i, i+1)
	return e.startClient(ctx)
}

// strikeOracle kills one of the servers and starts it again, or stops it past
// its lease.
func (e *episode) strikeOracle(ctx context.Context, length func(time.Duration) time.Duration) error {
	i := e.rnd.IntN(len(e.oracles))
	p := e.oracles[i]
	e.mu.Lock()
	e.failovers++
	e.mu.Unlock()
	if e.rnd.IntN(2) == 0 {
		e.stopFor(p, faultOracleStop, lease+length(2*lease))
		return nil
	}
	e.fired(faultOracleKill)
	p.resume()
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
	for _, p := range append(append(slices.Clone(e.clients), e.oracles...), e.emulator) {
		p.resume()
	}
}
