package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
)

const (
	// landing is how long the last requests of a killed worker may take to arrive. Its locks are
	// counted after that, and long before its token is stale and other workers resolve them.
	landing = 250 * time.Millisecond
	// leaving is how long workers may take to end by themselves, a little longer than
	// their own timeouts.
	leaving = 5 * time.Second
	// maxDeaths is how many workers may be killed from outside.
	maxDeaths = 50
)

// A fleet is the workers. It kills some of them and replaces them. All of it happens
// in the goroutine of run, except the scans of strands.
type fleet struct {
	opts     *options
	at       deployment
	own      *txn.Client // finds the locks of killed workers
	strands  *strands
	progress *cli.Progress
	stderr   io.Writer
	// documents and loaded decide the progress and when to kill.
	documents int
	loaded    atomic.Int64
	stage     atomic.Value // what the demo does, a string, once the documents are loaded
	// hurry: everything is loaded, so the remaining kills are due now.
	hurry atomic.Bool
	// spared is closed when all kills have happened.
	spared chan struct{}

	began   time.Time
	workers []*process
	started int
	events  chan event
	plan    *killPlan
	scans   errgroup.Group

	killed map[crashPoint]int
	died   int   // workers killed from outside
	gone   stats // of workers that have ended
}

// run keeps the workers running until finish is closed. It returns when all of them
// have ended, also after an error.
func (f *fleet) run(ctx context.Context, finish <-chan struct{}) error {
	f.plan = newKillPlan(f.opts.kills, f.documents, f.opts.seed)
	f.began, f.events = time.Now(), make(chan event)
	f.killed = map[crashPoint]int{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := f.work(ctx, finish)
	if err != nil {
		cancel()
	}
	late := f.stop()
	scan := f.scans.Wait()
	if err != nil {
		return err
	}
	return errors.Join(late, scan)
}

func (f *fleet) work(ctx context.Context, finish <-chan struct{}) error {
	for range f.opts.workers {
		if err := f.start(); err != nil {
			return err
		}
	}
	show := time.NewTicker(reporting)
	defer show.Stop()
	spared := false
	for {
		if f.plan.left() == 0 && !spared {
			spared = true
			close(f.spared)
		}
		f.aim()
		select {
		case e := <-f.events:
			if err := f.handle(ctx, e); err != nil {
				return err
			}
		case <-show.C:
			f.show()
		case <-finish:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// show reports how far the fleet is.
func (f *fleet) show() {
	total := f.totals().Worker
	doing := fmt.Sprintf("%d of %d documents loaded", min(f.loaded.Load(), int64(f.documents)), f.documents)
	if stage, ok := f.stage.Load().(string); ok {
		doing = stage
	}
	f.progress.Set("%s; %d runs of observers, %.0f/s, %d conflicts, %d of %d kills", doing, total.Committed, float64(total.Committed)/time.Since(f.began).Seconds(), total.Conflicts, f.plan.next, f.opts.kills)
}

func (f *fleet) start() error {
	f.started++
	p, err := startProcess(f.started, f.slot(), f.at, f.stderr, f.events)
	if err != nil {
		return fmt.Errorf("starting worker %d: %w", f.started, err)
	}
	f.workers = append(f.workers, p)
	return nil
}

// slot is the smallest number that no worker has, so that the worker that replaces a
// dead one gets its slot.
func (f *fleet) slot() int {
	for slot := 1; ; slot++ {
		if !slices.ContainsFunc(f.workers, func(p *process) bool { return p.slot == slot }) {
			return slot
		}
	}
}

// aim orders a worker to stop when the next kill is due.
func (f *fleet) aim() {
	point, due := f.plan.due(f.totals().Worker.Committed, f.hurry.Load())
	if !due {
		return
	}
	ready := slices.DeleteFunc(slices.Clone(f.workers), func(p *process) bool { return !p.ready() })
	if len(ready) > 0 {
		f.plan.victim = ready[f.plan.random.IntN(len(ready))]
		// The few orders fit into a pipe. A dead worker does not get its order; its exit
		// is an event of its own.
		_ = f.plan.victim.Send(order{Crash: point})
	}
}

func (f *fleet) handle(ctx context.Context, e event) error {
	switch r := e.report; {
	case e.exited:
		return f.exited(ctx, e.process, e.err)
	case r.Ready != nil:
		e.process.owner = r.Ready.Owner
	case r.Stats != nil:
		e.process.stats = *r.Stats
	case r.Resolved != nil:
		return f.strands.reported(r.Resolved)
	case r.Stopped != nil:
		e.process.stopped = r.Stopped
		e.process.stats = r.Stopped.Stats
		e.process.Kill()
		f.plan.next++
		f.plan.victim = nil
	}
	return nil
}

// exited replaces a worker that was killed. The other workers find its unfinished work
// in the tables.
func (f *fleet) exited(ctx context.Context, p *process, err error) error {
	f.forget(p)
	if !p.Killed() {
		return fmt.Errorf("worker %d ended too early: %v", p.number, err)
	}
	at := time.Now()
	if s := p.stopped; s != nil {
		at = s.At
		f.killed[s.Point]++
		f.progress.Event("killed worker %d (pid %d) %s", p.number, p.PID(), s.Point)
	} else {
		if f.died++; f.died > maxDeaths {
			return fmt.Errorf("worker %d was killed from outside, like %d others before: giving up", p.number, maxDeaths)
		}
		f.progress.Event("worker %d (pid %d) was killed from outside", p.number, p.PID())
		if f.plan.victim == p {
			f.plan.victim = nil
		}
	}
	if p.owner != "" {
		f.strands.died(p.owner, at)
		f.scans.Go(func() error {
			select {
			case <-time.After(landing):
				return f.strands.find(ctx, f.own, p.owner)
			case <-ctx.Done():
				return nil
			}
		})
	}
	return f.start()
}

func (f *fleet) forget(p *process) {
	f.workers = slices.DeleteFunc(f.workers, func(other *process) bool { return other == p })
	f.gone = f.gone.plus(p.stats)
}

// stop ends the workers' input and waits until they have ended. It kills those that
// take too long, which is an error.
func (f *fleet) stop() error {
	for _, p := range f.workers {
		p.CloseInput()
	}
	var err error
	patience := time.After(leaving)
	for len(f.workers) > 0 {
		select {
		case e := <-f.events:
			if e.exited {
				f.forget(e.process)
				if e.err != nil {
					err = errors.Join(err, fmt.Errorf("worker %d did not end cleanly: %w", e.process.number, e.err))
				}
			} else if e.report.Stopped == nil {
				err = errors.Join(err, f.handle(context.Background(), e))
			}
		case <-patience:
			for _, p := range f.workers {
				p.Kill()
			}
		}
	}
	return err
}

// totals are what all workers have done, as far as they have reported it.
func (f *fleet) totals() stats {
	sum := f.gone
	for _, p := range f.workers {
		sum = sum.plus(p.stats)
	}
	return sum
}

// plus adds what the summary contains.
func (s stats) plus(o stats) stats {
	s.Worker.Runs += o.Worker.Runs
	s.Worker.Committed += o.Worker.Committed
	s.Worker.Collapsed += o.Worker.Collapsed
	s.Worker.Conflicts += o.Worker.Conflicts
	s.Worker.LostRaces += o.Worker.LostRaces
	s.Worker.Failed += o.Worker.Failed
	s.Worker.Found += o.Worker.Found
	s.Worker.Hinted += o.Worker.Hinted
	return s
}
