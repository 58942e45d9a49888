package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

const (
	// window is how many documents a client works on at a time.
	window = 4
	// landing is how long requests that a killed client had sent may take to
	// arrive. Its locks are counted after that, and long before its token is
	// stale and others roll them back.
	landing = 250 * time.Millisecond
	// leaving is how long clients may take to finish by themselves: a little
	// longer than they give themselves.
	leaving = 5 * time.Second
	// maxDeaths is how many clients may be killed by somebody else.
	maxDeaths = 50
)

// A coordinator hands documents to clients, kills some of the clients and
// starts others in their place, until every document is acknowledged. All of
// it happens in the goroutine of run, but for what strands does.
type coordinator struct {
	opts     *options
	at       deployment
	own      *txn.Client // looks for the locks of killed clients
	docs     []document
	strands  *strands
	progress *progress
	stderr   io.Writer

	queue   []int // documents to hand out; the first is next
	clients []*client
	started int
	events  chan event
	plan    *killPlan
	scans   errgroup.Group

	commits            map[int]tso.Timestamp // of acknowledged documents; 0 when found there
	killed             map[crashPoint]int
	died               int   // clients killed by somebody else
	conflicts, retries int64 // of clients that are gone
}

// run returns once every document is acknowledged and every client is gone;
// after an error, too, every client is gone.
func (c *coordinator) run(ctx context.Context) error {
	c.queue = rand.New(rand.NewPCG(c.opts.seed, 1)).Perm(len(c.docs))
	c.plan = newKillPlan(c.opts.kills, len(c.docs), c.opts.seed)
	c.events = make(chan event)
	c.commits = map[int]tso.Timestamp{}
	c.killed = map[crashPoint]int{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	err := c.work(ctx)
	if err != nil {
		cancel()
	}
	late := c.stop()
	scan := c.scans.Wait()
	switch left := c.plan.left(); {
	case err != nil:
		return err
	case left > 0:
		return fmt.Errorf("%d of %d kills found no commit to happen in", left, c.opts.kills)
	}
	return errors.Join(late, scan)
}

func (c *coordinator) work(ctx context.Context) error {
	for range c.opts.clients {
		if err := c.start(); err != nil {
			return err
		}
	}
	tick := time.NewTicker(c.progress.interval())
	defer tick.Stop()
	for len(c.commits) < len(c.docs) {
		c.dispatch()
		select {
		case e := <-c.events:
			if err := c.handle(ctx, e); err != nil {
				return err
			}
		case <-tick.C:
			c.progress.show(c)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *coordinator) start() error {
	c.started++
	cl, err := startClient(c.started, c.at, c.opts.dir, c.stderr, c.events)
	if err != nil {
		return fmt.Errorf("starting client %d: %w", c.started, err)
	}
	c.clients = append(c.clients, cl)
	return nil
}

// dispatch arms the next kill when it is due, and keeps every client busy.
func (c *coordinator) dispatch() {
	ready := slices.DeleteFunc(slices.Clone(c.clients), func(cl *client) bool { return !cl.ready() })
	if point, due := c.plan.due(len(c.commits), len(c.queue)); due && len(ready) > 0 {
		c.plan.victim = ready[c.plan.random.IntN(len(ready))]
		c.plan.victim.send(order{Crash: point})
	}
	for _, cl := range ready {
		for len(cl.working) < window && c.plan.mayTake(cl, len(c.queue)) {
			id := c.queue[0]
			c.queue = c.queue[1:]
			cl.working[id] = true
			cl.send(order{Document: &documentOrder{ID: id, Path: []byte(c.docs[id].path), Hash: c.docs[id].hash}})
		}
	}
}

func (c *coordinator) handle(ctx context.Context, e event) error {
	switch r := e.report; {
	case e.exited:
		return c.exited(ctx, e.client, e.err)
	case r.Ready != nil:
		e.client.owner = r.Ready.Owner
	case r.Done != nil:
		e.client.stats = r.Done.Stats
		delete(e.client.working, r.Done.ID)
		if _, again := c.commits[r.Done.ID]; !again {
			c.commits[r.Done.ID] = r.Done.CommitTS
		}
	case r.Resolved != nil:
		return c.strands.reported(r.Resolved)
	case r.Stopped != nil:
		e.client.stopped = r.Stopped
		e.client.kill()
		c.plan.next++
		c.plan.victim = nil
	case r.Failed != nil:
		return fmt.Errorf("client %d: %s", e.client.number, r.Failed.Error)
	}
	return nil
}

// exited replaces a client that was killed and hands its unacknowledged
// documents out again, first of all, so that the others meet its locks. Not
// all of them are uncommitted: the transaction has to find that out.
func (c *coordinator) exited(ctx context.Context, cl *client, err error) error {
	c.forget(cl)
	if !cl.killed() {
		return fmt.Errorf("client %d ended too early: %v", cl.number, err)
	}
	at := time.Now()
	if s := cl.stopped; s != nil {
		at = s.At
		c.killed[s.Point]++
		c.progress.event("killed client %d (pid %d) %s", cl.number, cl.cmd.Process.Pid, s.Point)
	} else {
		if c.died++; c.died > maxDeaths {
			return fmt.Errorf("client %d was killed by somebody else, the %dth one: giving up", cl.number, c.died)
		}
		c.progress.event("client %d (pid %d) was killed by somebody else", cl.number, cl.cmd.Process.Pid)
		if c.plan.victim == cl {
			c.plan.victim = nil
		}
	}
	if cl.owner != "" {
		c.strands.died(cl.owner, at)
		c.scans.Go(func() error {
			select {
			case <-time.After(landing):
				return c.strands.find(ctx, c.own, cl.owner)
			case <-ctx.Done():
				return nil
			}
		})
	}
	for id := range cl.working {
		if _, done := c.commits[id]; !done {
			c.queue = append([]int{id}, c.queue...)
		}
	}
	return c.start()
}

func (c *coordinator) forget(cl *client) {
	c.clients = slices.DeleteFunc(c.clients, func(other *client) bool { return other == cl })
	c.conflicts += cl.stats.Conflicts
	c.retries += cl.stats.Retries
}

// stop ends the clients' input and waits until they are gone. Those that take
// too long are killed, which is an error.
func (c *coordinator) stop() error {
	for _, cl := range c.clients {
		_ = cl.stdin.Close()
	}
	var err error
	patience := time.After(leaving)
	for len(c.clients) > 0 {
		select {
		case e := <-c.events:
			if e.exited {
				c.forget(e.client)
				if e.err != nil {
					err = errors.Join(err, fmt.Errorf("client %d did not end cleanly: %w", e.client.number, e.err))
				}
			} else if e.report.Stopped == nil {
				err = errors.Join(err, c.handle(context.Background(), e))
			}
		case <-patience:
			for _, cl := range c.clients {
				cl.kill()
			}
		}
	}
	return err
}

// totals are the conflicts and retries of all clients, as far as they told.
func (c *coordinator) totals() (conflicts, retries int64) {
	conflicts, retries = c.conflicts, c.retries
	for _, cl := range c.clients {
		conflicts += cl.stats.Conflicts
		retries += cl.stats.Retries
	}
	return conflicts, retries
}
