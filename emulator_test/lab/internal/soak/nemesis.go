package soak

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// The groups of faults that --faults chooses from, and the kinds of faults. Those of
// single requests are in emulator_test/workload.
const (
	faultKill   = "kill"   // SIGKILL of a client
	faultStop   = "stop"   // SIGSTOP and SIGCONT of a client
	faultServer = "server" // SIGSTOP and SIGCONT of the emulator
	faultRPC    = "rpc"    // single requests
	faultOracle = "oracle" // SIGKILL and SIGSTOP of the leader of the served oracle
	faultClock  = "clock"  // wrong clocks, which also jump
	faultNet    = "net"    // connections of clients

	faultDeadline   = "deadline" // callers that give up
	faultOracleKill = "oracle-kill"
	faultOracleStop = "oracle-stop"
)

var faultGroups = []string{faultKill, faultStop, faultServer, faultRPC, faultOracle, faultClock, faultNet}

const (
	// strikePause is the average time between faults of processes in one history,
	// and netPause the time between faults of one client's connections.
	strikePause = 700 * time.Millisecond
	netPause    = 3 * time.Second
	// A failover takes about two leases.
	askLeader = 200 * time.Millisecond
)

// A faultSet is a choice of --faults.
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
			return nil, cli.Usagef("--faults %s: no faults %q; use all, none, or a list of %s", s, g, strings.Join(faultGroups, ", "))
		}
	}
	return set, nil
}

// A nemesis makes the faults of an episode's processes.
type nemesis struct{ *episode }

// disturb makes a fault now and then while the clients work, until the history's time
// ends.
func (n *nemesis) disturb(ctx context.Context) error {
	end := time.NewTimer(n.length)
	defer end.Stop()
	for {
		pause := time.NewTimer(time.Duration(n.rnd.Int64N(int64(2 * strikePause))))
		select {
		case <-end.C:
			pause.Stop()
			return nil
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		case <-pause.C:
		}
		if err := n.reap(ctx); err != nil {
			return err
		}
		if err := n.strike(ctx); err != nil {
			return err
		}
	}
}

// reap replaces clients that ended by themselves, which is a violation.
func (n *nemesis) reap(ctx context.Context) error {
	for i, p := range n.clients {
		select {
		case <-p.ended:
			n.violation("a client process ended: %v", p.Wait())
			n.died(p)
			n.clients = slices.Delete(slices.Clone(n.clients), i, i+1)
			return n.startClient(ctx)
		default:
		}
	}
	return nil
}

func (n *nemesis) fired(kind string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[kind]++
}

// strike makes one random fault, if --faults allows it.
func (n *nemesis) strike(ctx context.Context) error {
	length := func(most time.Duration) time.Duration { return time.Duration(n.rnd.Int64N(int64(most))) }
	switch dice := n.rnd.IntN(100); {
	case dice < 40 && n.opts.faults.has(faultKill):
		return n.killClient(ctx)
	case dice >= 40 && dice < 55 && n.opts.faults.has(faultStop):
		p := n.clients[n.rnd.IntN(len(n.clients))]
		n.stopFor(p, faultStop, length(2*lockTTL))
	case dice >= 55 && dice < 65 && n.opts.faults.has(faultServer):
		n.stopFor(n.emulator, faultServer, length(500*time.Millisecond))
	case dice >= 65 && dice < 98 && n.opts.faults.has(faultOracle) && len(n.oracles) > 0:
		return n.strikeOracle(ctx, length)
	}
	return nil
}

func (n *nemesis) stopFor(p *process, kind string, d time.Duration) {
	if p.Suspend() {
		n.fired(kind)
		time.AfterFunc(d, p.Resume)
	}
}

// killClient kills a client and starts another one.
func (n *nemesis) killClient(ctx context.Context) error {
	i := n.rnd.IntN(len(n.clients))
	p := n.clients[i]
	p.mu.Lock()
	owner := p.owner
	p.mu.Unlock()
	if owner == "" {
		return nil // the client has not begun
	}
	p.Resume()
	died := time.Now()
	n.mu.Lock()
	n.deaths[owner] = died
	n.kills++
	n.faults[faultKill]++
	n.mu.Unlock()
	p.kill()
	probe(ctx, n.episode, died, n.died(p))
	n.clients = slices.Delete(slices.Clone(n.clients), i, i+1)
	return n.startClient(ctx)
}

// strikeOracle kills a server and starts it again, or stops it for longer than its
// lease. Mostly it chooses the leader.
func (n *nemesis) strikeOracle(ctx context.Context, length func(time.Duration) time.Duration) error {
	i, kill, any := n.rnd.IntN(len(n.oracles)), n.rnd.IntN(2) == 0, n.rnd.IntN(4) == 0
	stopped := lease + length(2*lease)
	if leader := n.leader(ctx); leader >= 0 && !any {
		i = leader
	}
	p := n.oracles[i]
	if !kill {
		n.stopFor(p, faultOracleStop, stopped)
		return nil
	}
	n.fired(faultOracleKill)
	p.Resume()
	p.kill()
	again, err := n.startOracle(ctx, n.at.Oracles[i])
	if err == nil {
		n.oracles[i] = again
	}
	return err
}
