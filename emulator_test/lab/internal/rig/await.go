package rig

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollEvery is how often workers are asked how far they are.
const pollEvery = 100 * time.Millisecond

// Await asks the workers how far they are until done says so. It fails when
// nothing more was committed for stall.
func (r *Run) Await(ctx context.Context, stall time.Duration, done func(loaded, committed int) bool) error {
	most, since := -1, time.Now()
	for {
		loaded, committed, err := r.status()
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if done(loaded, committed) {
			return nil
		}
		if loaded+committed > most {
			most, since = loaded+committed, time.Now()
		}
		if time.Since(since) > stall {
			return fmt.Errorf("nothing was done for %v; %d changes were loaded and %d runs committed by then", stall, loaded, committed)
		}
		if err := Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// status sums up how far the workers are.
func (r *Run) status() (loaded, committed int, err error) {
	answers, err := r.All(func(int) Order { return Order{Do: "status"} })
	for _, a := range answers {
		loaded, committed = loaded+a.Loaded, committed+a.Committed
	}
	return loaded, committed, err
}

// StopAll ends what the workers do, and sums it up.
func (r *Run) StopAll() (Answer, error) {
	answers, err := r.All(func(int) Order { return Order{Do: "stop"} })
	var sum Answer
	for _, a := range answers {
		sum.add(a)
	}
	return sum, err
}

func (a *Answer) add(b Answer) {
	a.Committed += b.Committed
	a.Loaded += b.Loaded
	a.Done = append(a.Done, b.Done...)
	a.Loads = append(a.Loads, b.Loads...)
	a.RPCs.add(b.RPCs)
	a.Useful += b.Useful
	a.Vain += b.Vain
	a.Looks += b.Looks
	a.Scanner.Sweeps += b.Scanner.Sweeps
	a.Scanner.Pieces += b.Scanner.Pieces
	a.Scanner.Teleports += b.Scanner.Teleports
	for _, n := range []struct{ to, from *int64 }{
		{&a.Worker.Runs, &b.Worker.Runs}, {&a.Worker.Committed, &b.Worker.Committed}, {&a.Worker.Failed, &b.Worker.Failed},
		{&a.Worker.Conflicts, &b.Worker.Conflicts}, {&a.Worker.LostRaces, &b.Worker.LostRaces}, {&a.Worker.Acknowledged, &b.Worker.Acknowledged},
		{&a.Worker.Locked, &b.Worker.Locked}, {&a.Worker.Found, &b.Worker.Found}, {&a.Worker.Hinted, &b.Worker.Hinted},
		{&a.Worker.HintsDropped, &b.Worker.HintsDropped}, {&a.Worker.Cleared, &b.Worker.Cleared},
	} {
		*n.to += *n.from
	}
}
