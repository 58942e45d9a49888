package notify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestFleet: a fleet are the living workers with a common observer. After a client of an old release, it
// is old for an hour.
func TestFleet(t *testing.T) {
	long.NotUnderRace(t, "its processes are built without the detector")
	synctest.Test(t, func(t *testing.T) {
		worker := func(owner string, state admin.OwnerState, age time.Duration, observers ...string) admin.Worker {
			return admin.Worker{Owner: owner, OwnerStatus: admin.OwnerStatus{State: state}, SchemaMaxAge: age, Observers: observers}
		}
		a, b := worker("a", admin.OwnerFresh, 1, "o", "p"), worker("b", admin.OwnerFresh, 1, "p")
		c, d := worker("c", admin.OwnerFresh, 1, "o"), worker("d", admin.OwnerFresh, 1, "x", "o")
		dead, idle := worker("c", admin.OwnerStale, 0, "o"), worker("b", admin.OwnerFresh, 1)
		for _, tt := range []struct {
			workers []admin.Worker
			own     string
			want    fleet
		}{
			{nil, "c", fleet{share: 1}},
			{[]admin.Worker{c}, "c", fleet{share: 1}},
			{[]admin.Worker{a, b, c, d}, "a", fleet{share: 3, rank: 0, next: "c"}},
			{[]admin.Worker{a, b, c, d}, "c", fleet{share: 3, rank: 1, next: "d"}},
			{[]admin.Worker{a, b, c, d}, "d", fleet{share: 3, rank: 2, next: "a"}},
			{[]admin.Worker{a, idle, dead, d}, "d", fleet{share: 2, rank: 1, next: "a"}},
			{[]admin.Worker{a, d}, "z", fleet{share: 2, rank: 0, next: "d"}}, // its own token is not stored yet
			{[]admin.Worker{worker("y", admin.OwnerFresh, 0), c}, "c", fleet{share: 1, old: true, seenOld: time.Now()}},
			{[]admin.Worker{worker("y", admin.OwnerStale, 0), c}, "c", fleet{share: 1}},
		} {
			tt.want.counted = time.Now()
			var got fleet
			if got.learn(tt.workers, tt.own, []string{"o"}); got != tt.want {
				t.Errorf("%s of %v: %+v, want %+v", tt.own, tt.workers, got, tt.want)
			}
		}
		var f fleet
		f.learn([]admin.Worker{worker("y", admin.OwnerFresh, 0), c}, "c", []string{"o"})
		for _, want := range []bool{true, false} {
			if f.learn([]admin.Worker{c}, "c", []string{"o"}); f.old != want {
				t.Errorf("old: %t, want %t", f.old, want)
			}
			<-time.After(oldMaxAge)
		}
	})
}

// TestConclusions: what the outcome of a run says to the check, what the worker reports and counts, for outcomes that
// store nothing.
func TestConclusions(t *testing.T) {
	cell := txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	seen := func(failures map[string]format.Failure) *changes.Observation {
		return &changes.Observation{Cell: cell, StartTS: 100, ChangeTS: 7, Failures: failures, Acks: map[string]tso.Timestamp{"o": 3},
			Triggers: []format.NotifyCell{{TS: 2}, {TS: 4}, {TS: 5}, {TS: 7}, {TS: 9}}}
	}
	pause := func(until tso.Timestamp) map[string]format.Failure {
		return map[string]format.Failure{"o": {ChangeTS: 7, NotBefore: until, LastTS: 50}}
	}
	for _, tt := range []struct {
		outcome Outcome
		err     error
		seen    *changes.Observation
		attempt int
		want    result // without observer and seen
		retry   bool
		stats   Stats
		again   [2]time.Duration // between these, if set
		closed  bool
	}{
		{outcome: Committed, seen: seen(nil), want: result{upToDate: true}, stats: Stats{Committed: 1, Collapsed: 2}},
		{outcome: Acknowledged, seen: seen(nil), want: result{upToDate: true, elsewhere: true}, stats: Stats{Acknowledged: 1}},
		{outcome: LostRace, seen: seen(nil), attempt: 99, retry: true, stats: Stats{LostRaces: 1}},
		{outcome: Conflicted, seen: seen(nil), attempt: 7, retry: true, stats: Stats{Conflicts: 1}},
		{outcome: Waiting, seen: seen(pause(150)), want: result{again: 50 * time.Microsecond}},
		{outcome: Waiting, seen: seen(pause(never)), want: result{upToDate: true}},
		{outcome: Unknown, err: errors.New("x"), seen: seen(nil), again: [2]time.Duration{time.Second / 2, time.Second}},
		{outcome: Unknown, err: errors.New("x"), again: [2]time.Duration{time.Second / 2, time.Second}},
		{outcome: Unknown, err: txn.ErrCorrupt, again: [2]time.Duration{5 * time.Minute, 10 * time.Minute}, want: result{skip: 1}},
		{outcome: Unknown, err: txn.ErrFormatVersion, again: [2]time.Duration{5 * time.Minute, 10 * time.Minute}, want: result{skip: 1}},
		{outcome: Unknown, err: txn.ErrClosed, closed: true},
	} {
		t.Run(fmt.Sprint(tt.outcome, tt.err), func(t *testing.T) {
			var events []Event
			cfg, err := Config{OnEvent: func(e Event) { events = append(events, e) }}.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			w := &Worker{cfg: cfg, log: slog.New(slog.DiscardHandler)}
			if w.telemetry, err = newTelemetry(nil, nil); err != nil {
				t.Fatal(err)
			}
			var ctx context.Context
			ctx, w.stop = context.WithCancelCause(t.Context())
			r := &run{worker: w, handler: &handler{id: "o"}, cell: cell, began: time.Now(), startTS: 100, seen: tt.seen, commitTS: 110, outcome: tt.outcome, err: tt.err}
			got, retry := r.conclude(ctx, ctx, tt.attempt)
			if !tt.retry {
				tt.want.observer, tt.want.seen = "o", tt.seen
			}
			if tt.again[1] > 0 {
				if got.again < tt.again[0] || got.again > tt.again[1] || tt.want.skip > 0 && got.skip != got.again {
					t.Errorf("again after %v, skip for %v", got.again, got.skip)
				}
				tt.want.again, tt.want.skip = got.again, got.skip*min(tt.want.skip, 1)
			}
			if got != tt.want || retry != tt.retry {
				t.Errorf("%+v, retry: %t; want %+v, %t", got, retry, tt.want, tt.retry)
			}
			if d := cmp.Diff(tt.stats, w.Stats()); d != "" {
				t.Errorf("counts (-want +got):\n%s", d)
			}
			want := Event{Outcome: tt.outcome, Observer: "o", Cell: cell, CommitTS: 110, Err: tt.err}
			if tt.seen != nil {
				want.ChangeTS, want.StartTS, want.Collapsed = 7, 100, 2
			}
			if d := cmp.Diff([]Event{want}, events, cmpopts.IgnoreFields(Event{}, "Duration"), cmpopts.EquateErrors()); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
			var own *stopError
			if errors.As(context.Cause(ctx), &own) != tt.closed || tt.closed && !errors.Is(own.err, txn.ErrClosed) {
				t.Errorf("the worker was stopped by %v", context.Cause(ctx))
			}
		})
	}
}

// TestEarlierFailures: a failure of the same change counts on, and one of another change does not.
func TestEarlierFailures(t *testing.T) {
	for change, want := range map[tso.Timestamp]format.Failure{7: {ChangeTS: 7, Attempts: 3, FirstTS: 40}, 6: {ChangeTS: 7, FirstTS: 100}} {
		r := &run{handler: &handler{id: "o"}, seen: &changes.Observation{StartTS: 100, ChangeTS: 7, Failures: map[string]format.Failure{"o": {ChangeTS: change, Attempts: 3, FirstTS: 40}}}}
		if got := r.earlier(); got != want {
			t.Errorf("of change %d: %+v", change, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := &run{began: time.Now(), seen: &changes.Observation{StartTS: 100}}
		<-time.After(3 * time.Microsecond)
		if got := r.now(); got != 103 {
			t.Errorf("now is %d", got)
		}
	})
}

// recordedLocks are locks that answer in turn, and note what they are asked.
type recordedLocks struct {
	mu    sync.Mutex
	began time.Time
	asked []string
	free  bool
	err   error
	slow  time.Duration
}

func (l *recordedLocks) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, fmt.Sprintf("%v ", time.Since(l.began))+fmt.Sprintf(format, args...))
}

func (l *recordedLocks) Acquire(_ context.Context, name, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	<-time.After(l.slow)
	l.note("acquire %s %s %v", name, owner, ttl)
	return l.free, tso.Holder{}, l.err
}

func (l *recordedLocks) Release(ctx context.Context, name, owner string) error {
	_, limited := ctx.Deadline()
	l.note("release %s %s %t %v", name, owner, limited, ctx.Err())
	return nil
}

// TestAdvisoryLocks: a worker renews the lock of a cell three times before it would expire, and releases it, also if
// its context has ended. While another worker has the lock, it checks the cell soon again, or leaves it to the
// finder. Locks that do not answer keep it from nothing.
func TestAdvisoryLocks(t *testing.T) {
	cell := txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	synctest.Test(t, func(t *testing.T) {
		locks := &recordedLocks{began: time.Now(), free: true, slow: 3 * time.Second}
		l := locker{locks: locks, owner: "me", ttl: 30 * time.Second}
		release := l.hold(t.Context(), cell)
		<-time.After(11 * time.Second)
		release() // not before the renewal has ended
		if want := []string{"13s acquire run/t/r/f:q me 30s", "13s release run/t/r/f:q me true <nil>"}; !slices.Equal(locks.asked, want) {
			t.Errorf("asked %q, want %q", locks.asked, want)
		}
		locks = &recordedLocks{began: time.Now(), free: true}
		l.locks = locks
		ctx, cancel := context.WithCancel(t.Context())
		release = l.hold(ctx, cell)
		cancel()
		<-time.After(25 * time.Second)
		release()
		<-time.After(time.Minute)
		if want := []string{"10s acquire run/t/r/f:q me 30s", "20s acquire run/t/r/f:q me 30s", "25s release run/t/r/f:q me true <nil>"}; !slices.Equal(locks.asked, want) {
			t.Errorf("asked %q, want %q", locks.asked, want)
		}
		for _, tt := range []struct {
			free bool
			err  error
			want bool
		}{{true, nil, true}, {false, nil, false}, {false, errors.New("x"), true}} {
			locks.free, locks.err = tt.free, tt.err
			if got := l.acquire(t.Context(), cell); got != tt.want {
				t.Errorf("free: %t, %v: acquired %t", tt.free, tt.err, got)
			}
		}

		w := &Worker{locker: l, cleaner: newCleaner(nil, nil, nil)}
		check := func(contended func()) time.Duration {
			return (&check{w, newLane(nil, 1, 1, nil), task{cell, contended}}).do(t.Context(), t.Context())
		}
		locks.free, locks.err, locks.asked, locks.began = false, nil, nil, time.Now()
		met := 0
		if again := check(func() { met++ }); again != 0 || met != 1 || w.Stats().Locked != 1 {
			t.Errorf("of a finder: again after %v, %d notices, %d locked", again, met, w.Stats().Locked)
		}
		if again := check(nil); again < contendedPause/2 || again > contendedPause || w.Stats().Locked != 2 {
			t.Errorf("of a hint: again after %v, %d locked", again, w.Stats().Locked)
		}
		locks.free = true
		if again := check(func() { met++ }); again != 0 || met != 1 || w.Stats().Locked != 2 {
			t.Errorf("free: again after %v, %d notices, %d locked", again, met, w.Stats().Locked)
		}
		acquired := "0s acquire run/t/r/f:q me 30s"
		if want := []string{acquired, acquired, acquired, "0s release run/t/r/f:q me true <nil>"}; !slices.Equal(locks.asked, want) {
			t.Errorf("asked %q, want %q", locks.asked, want)
		}
	})
}

// TestLanesOfAWorker: each column and each pattern has a lane with the observers of all patterns that it is in, in order
// of their ids, and the longest patterns come first.
func TestLanesOfAWorker(t *testing.T) {
	w := &Worker{cfg: Config{Concurrency: 3, Queue: 5}, handlers: map[target][]*handler{}, cleaner: newCleaner(nil, nil, nil)}
	column := target{"t", txn.Column{Family: "f", Qualifier: "q"}}
	short, long := target{"t", format.Pattern("f", "")}, target{"t", format.Pattern("f", "q")}
	other := target{"u", txn.Column{Family: "f", Qualifier: "q"}}
	for id, to := range map[string]target{"d": column, "a": column, "c": short, "b": long, "e": other} {
		w.handlers[to] = append(w.handlers[to], &handler{id: id, target: to, concurrency: 2})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	in := w.start(ended, t.Context())
	w.lanes.Wait()
	w.cleaner.stop()
	got := map[target]string{}
	for to, l := range in.lanes {
		for _, h := range l.handlers {
			got[to] += h.id
		}
		if l.width != 2 || cap(l.queue) != 5 || cap(l.found) != 2 {
			t.Errorf("%s: %d at a time, room for %d and %d", to, l.width, cap(l.queue), cap(l.found))
		}
	}
	if d := cmp.Diff(map[target]string{column: "abcd", short: "c", long: "bc", other: "e"}, got, cmp.AllowUnexported(target{})); d != "" {
		t.Errorf("lanes (-want +got):\n%s", d)
	}
	for _, waits := range []chan task{in.lanes[long].queue, in.lanes[other].found} {
		if waits <- (task{}); !in.behind() {
			t.Error("a cell waits, and the worker is not behind")
		}
		if <-waits; in.behind() {
			t.Error("no cell waits, and the worker is behind")
		}
	}
	if !slices.Equal(in.patterns, []target{long, short}) {
		t.Errorf("patterns %v", in.patterns)
	}
	for cell, want := range map[txn.Cell]target{
		{Table: "t", Family: "f", Qualifier: "q"}: column, {Table: "t", Family: "f", Qualifier: "qq"}: long, {Table: "t", Family: "f", Qualifier: "x"}: short,
		{Table: "u", Family: "f", Qualifier: "q"}: other, {Table: "u", Family: "f", Qualifier: "x"}: {table: "u"},
	} {
		if to := in.target(cell); to != want || (in.lane(cell) == nil) != (want.column == txn.Column{}) || in.busy(cell) {
			t.Errorf("%s: %s", cell, to)
		}
	}
	if cap(w.shared) != 3 || !slices.Equal(w.ids(), []string{"c", "b", "a", "d", "e"}) || !slices.Equal(w.tables(), []string{"t", "u"}) || w.underWay() != 0 {
		t.Errorf("%d shared slots, observers %v of %v", cap(w.shared), w.ids(), w.tables())
	}
}

// TestShardsOfACounter: the number of shards is in its documented bounds.
func TestShardsOfACounter(t *testing.T) {
	for shards, want := range map[int]int{0: 16, 1: 1, 4096: 4096, 4097: 0, -1: 0} {
		got, err := Counter{Table: "t", Shards: shards}.shards()
		if got != want || (err == nil) != (want > 0) || err != nil && !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("%d: %d, %v", shards, got, err)
		}
	}
	for shard, want := range map[int]string{0: "k#shard-0000", 7: "k#shard-0007", 4095: "k#shard-4095"} {
		if got := shardRow("k", shard); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestUnknownFleet: a worker that cannot read how many there are takes itself for the only one, and asks again.
func TestUnknownFleet(t *testing.T) {
	env := txntest.New(t)
	c := env.NewClient(txn.Config{TokenTTL: -1})
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for was, want := range map[int]int{0: 1, 3: 3} {
		f := fleet{share: was}
		if f.count(t.Context(), Search{Client: c, Logger: slog.New(slog.DiscardHandler)}); f != (fleet{share: want}) {
			t.Errorf("%+v", f)
		}
	}
	f := fleet{next: "w"}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if f.recount(ended, Search{Client: env.Client, Logger: slog.New(slog.DiscardHandler)}); f != (fleet{next: "w"}) {
		t.Errorf("the next worker cannot be read, and it counts all: %+v", f)
	}
	if _, err := firstSweepAfter(t.Context(), c); !errors.Is(err, txn.ErrClosed) {
		t.Errorf("the client is closed: %v", err)
	}
}

// TestCountsOfAFleet: a worker counts the workers every ten seconds, and before that if the next one is gone. The first
// sweep waits for the client that reads schemas most rarely.
func TestCountsOfAFleet(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		others(t, env, 1)
		if err := changes.Announce(t.Context(), env.NewClient(txn.Config{TokenTTL: time.Hour, SchemaMaxAge: 3 * time.Hour}), []string{"o"}); err != nil {
			t.Fatal(err)
		}
		if after, err := firstSweepAfter(t.Context(), c); after != 7*time.Hour || err != nil {
			t.Errorf("the first sweep begins after %v, %v", after, err)
		}
		var f fleet
		s := Search{Client: c, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler)}
		for _, tt := range []struct {
			pause     time.Duration
			recount   bool
			next      string // if set, there is none with this name
			requests  int
			wantShare int
		}{{0, false, "", 1, 2}, {0, false, "", 0, 2}, {workersMaxAge - 1, true, "", 1, 2}, {1, false, "", 1, 2}, {workersMaxAge, true, "gone", 2, 2}, {workersMaxAge, true, "-", 0, 1}} {
			<-time.After(tt.pause)
			faults.Reset()
			switch tt.next {
			case "-":
				f = fleet{share: 1}
			case "gone":
				f.next = "gone"
			}
			if tt.recount {
				f.recount(t.Context(), s)
			} else {
				f.count(t.Context(), s)
			}
			if n := faults.Count()[txntest.StepToken]; n != tt.requests || f.share != tt.wantShare || (f.next == "") != (tt.next == "-") || f.next == "gone" {
				t.Errorf("%+v: %d requests, %+v", tt, n, f)
			}
		}
	})
}

// TestLockNames: a long name is replaced by its hash.
func TestLockNames(t *testing.T) {
	cell := txn.Cell{Table: "t", Family: "f", Qualifier: "q"}
	for _, n := range []int{1, maxLockName - len("run/t//f:q"), maxLockName - len("run/t//f:q") + 1} {
		cell.Row = strings.Repeat("r", n)
		want := "run/" + cell.String()
		if len(want) > maxLockName {
			want = fmt.Sprintf("run/t/%x", sha256.Sum256([]byte(want)))
		}
		if got := lockName(cell); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
	if o := TriggerOf(t.Context()); o != nil {
		t.Errorf("outside of a run: %+v", o)
	}
}

// TestOfferDuringACheck: a cell that is offered while it is checked is checked again, once, and then the lane has
// forgotten it.
func TestOfferDuringACheck(t *testing.T) {
	var later timers
	l := newLane(nil, 1, 4, &later)
	cell, checks, met := txn.Cell{Row: "r"}, 0, 0
	l.check = func(ctx, _ context.Context, _ *lane, task task) time.Duration {
		if checks++; checks == 1 {
			for range 3 {
				if !l.offer(ctx, task, false) || len(l.queue) > 0 {
					t.Errorf("the offer was refused, or queued: %d", len(l.queue))
				}
			}
		} else if task.contended != nil {
			t.Error("the second check is not for the finder that found the cell")
		}
		return 0
	}
	l.process(t.Context(), t.Context(), task{cell, func() { met++ }})
	if checks != 2 || met != 0 || l.busy(cell) || len(l.cells) != 0 {
		t.Errorf("%d checks, busy: %t", checks, l.busy(cell))
	}
	synctest.Test(t, func(t *testing.T) { // not if the worker stops meanwhile. If it has to be checked later, it joins the hints then
		later.open()
		defer later.close()
		ctx, cancel := context.WithCancel(t.Context())
		checks = 0
		l.check = func(ctx, _ context.Context, _ *lane, task task) time.Duration {
			checks++
			cancel()
			l.offer(ctx, task, false)
			return time.Second
		}
		l.process(ctx, ctx, task{cell, nil})
		clear(l.cells)
		<-time.After(time.Second - 1)
		if synctest.Wait(); checks != 1 || len(l.queue) != 0 {
			t.Errorf("%d checks, %d cells wait", checks, len(l.queue))
		}
		<-time.After(1)
		if synctest.Wait(); len(l.queue) != 1 || len(l.found) != 0 {
			t.Errorf("after the pause %d cells wait, %d are found", len(l.queue), len(l.found))
		}
	})
}

// TestMissingTables: a table is missing if it does not exist, or is not transactional. The worker says so once.
func TestMissingTables(t *testing.T) {
	var logged bytes.Buffer
	var missing sync.Map
	s := Search{Logger: slog.New(slog.NewTextHandler(&logged, nil))}
	for _, tt := range []struct {
		err   error
		want  bool
		lines int
	}{
		{nil, false, 0}, {status.Error(codes.Unavailable, "x"), false, 0}, {status.Error(codes.NotFound, "x"), true, 1},
		{fmt.Errorf("x: %w", txn.ErrNotInitialized), true, 1}, {status.Error(codes.NotFound, "x"), true, 1},
	} {
		if got := isMissing(t.Context(), s, &missing, "t", tt.err); got != tt.want || bytes.Count(logged.Bytes(), []byte("\n")) != tt.lines {
			t.Errorf("%v: %t, logged %s", tt.err, got, &logged)
		}
	}
}

// TestPausesOfWait: they double, from the shortest to the longest, after each check that found something.
func TestPausesOfWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ least, most, last time.Duration }{{time.Second, 5 * time.Second, 5 * time.Second}, {3 * time.Second, time.Second, 3 * time.Second}} {
			said := 0
			w := &waiter{cfg: WaitConfig{Backoff: txn.Backoff{Min: tt.least, Max: tt.most}, Progress: func(u changes.Unfinished) {
				if said++; !u.Ran {
					t.Errorf("said %+v", u)
				}
			}}, next: tt.least}
			for n, d := 1, tt.least; n < 6; n++ {
				began := time.Now()
				if err := w.pause(t.Context(), changes.Unfinished{Ran: true}); err != nil || said != n {
					t.Errorf("%v, said %d times", err, said)
				}
				if took := time.Since(began); took < d/2 || took > d {
					t.Errorf("pause %d took %v, want %v to %v", n, took, d/2, d)
				}
				d = min(2*d, tt.last)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (&waiter{next: time.Second}).pause(ended, changes.Unfinished{Ran: true}); !errors.Is(err, context.Canceled) {
			t.Errorf("its context has ended: %v", err)
		}
	})
}
