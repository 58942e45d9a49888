package notify

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

func notificationOf(row string, triggers ...tso.Timestamp) changes.Notification {
	n := changes.Notification{Cell: txn.Cell{Table: "t", Row: row, Family: "f", Qualifier: "q"}}
	for _, ts := range triggers {
		n.Triggers = append(n.Triggers, format.NotifyCell{TS: ts})
	}
	return n
}

// TestOffersOfAJournal: each notification waits until the worker takes it, once. What does not fit is
// not known, so the next turn offers it again.
func TestOffersOfAJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		free, takes := make(chan struct{}), true
		var offered []string
		j := newJournal(&Scanner{}, Search{Logger: slog.New(slog.DiscardHandler), Offer: func(_ context.Context, n changes.Notification, _ func()) bool {
			<-free
			offered = append(offered, fmt.Sprint(n.Cell.Row, newestOf(n)))
			return takes
		}}, time.Second, time.Minute, 1, 1)
		j.previous = time.Now() // there was a turn before this one
		offer := func(n changes.Notification) {
			j.offer(ctx, n)
			synctest.Wait()
		}
		offer(notificationOf("first", 5, 7))
		for i := range maxOffers {
			offer(notificationOf(fmt.Sprint(i), 3))
		}
		offer(notificationOf("first", 7)) // the worker is taking it
		offer(notificationOf("0", 2, 3))  // it waits
		offer(notificationOf("full", 1))
		if j.known(notificationOf("full", 1)) || !j.known(notificationOf("first", 7)) || !j.known(notificationOf("0", 3)) {
			t.Errorf("the one that does not fit is known: %t", j.known(notificationOf("full", 1)))
		}
		close(free)
		synctest.Wait()
		if len(offered) != 1+maxOffers || offered[0] != "first7" || offered[maxOffers] != fmt.Sprintf("%d3", maxOffers-1) {
			t.Errorf("%d offered: %v", len(offered), offered[:2])
		}
		takes, offered = false, nil
		offer(notificationOf("first", 7)) // it was taken a moment ago
		offer(notificationOf("first", 8))
		offer(notificationOf("full", 1))
		if !slices.Equal(offered, []string{"first8", "full1"}) {
			t.Errorf("offered %v", offered)
		}
		j.search.lane = func(txn.Cell) target { return target{table: "pattern"} }
		for _, q := range []string{"a", "b"} {
			n := notificationOf("of a pattern", 1)
			n.Cell.Qualifier = q
			offer(n)
		}
		if len(j.offers) != 2 {
			t.Errorf("offers for %d lanes, want 2", len(j.offers))
		}
		cancel()
		j.offering.Wait()
	})
}

// TestKnownNotifications: a notification is known while it waits, until the turn after the one in which
// it was taken, and for two of the shortest intervals, unless it is newer.
func TestKnownNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		ago := func(d time.Duration) time.Time { return now.Add(-d) }
		for name, tt := range map[string]struct {
			offered  *offered
			previous time.Time
			newest   tso.Timestamp
			want     bool
		}{
			"never offered":                 {nil, time.Time{}, 7, false},
			"waits":                         {&offered{7, time.Time{}}, now, 7, true},
			"waits, and is older":           {&offered{7, time.Time{}}, now, 6, true},
			"waits, and is newer":           {&offered{7, time.Time{}}, now, 8, false},
			"taken in the turn before":      {&offered{7, ago(time.Minute)}, ago(time.Minute), 7, true},
			"taken before that":             {&offered{7, ago(time.Minute + 1)}, ago(time.Minute), 7, false},
			"taken before that, lately":     {&offered{7, ago(2*time.Second - 1)}, now, 7, true},
			"taken before that, not lately": {&offered{7, ago(2 * time.Second)}, now, 7, false},
		} {
			j := newJournal(&Scanner{}, Search{}, time.Second, time.Minute, 1, 1)
			n := notificationOf("r", 3, tt.newest, 1)
			j.previous = tt.previous
			if tt.offered != nil {
				j.offered[n.Cell] = *tt.offered
			}
			if got := j.known(n); got != tt.want {
				t.Errorf("%s: %t", name, got)
			}
		}
	})
}

// TestPartsOfAJournal: a long journal is read in one part for each second, up to eight for each
// thread.
func TestPartsOfAJournal(t *testing.T) {
	for cost, want := range map[time.Duration]int{0: 1, time.Second - 1: 1, time.Second: 1, 2*time.Second - 1: 1, 2 * time.Second: 2, 24 * time.Second: 24, 25 * time.Second: 24} {
		if got := (&journal{cost: cost, threads: 3}).parts(); got != want {
			t.Errorf("%v: %d parts, want %d", cost, got, want)
		}
	}
	j := newJournal(&Scanner{}, Search{}, time.Second, time.Minute, 3, 2)
	if j.most != 12*time.Second || j.least != time.Second || !j.busy || j.pieces != 3 || j.threads != 2 {
		t.Errorf("%+v", j)
	}
	if j := newJournal(&Scanner{}, Search{}, time.Second, 2*time.Second, 3, 2); j.most != time.Second {
		t.Errorf("the longest interval is %v", j.most)
	}
}

// waits calls wait often, and returns the shortest and the longest time that it took.
func waits(t *testing.T, wait func()) (least, most time.Duration) {
	t.Helper()
	least = time.Hour
	for range 100 {
		began := time.Now()
		wait()
		least, most = min(least, time.Since(began)), max(most, time.Since(began))
	}
	return least, most
}

// TestWaitsBetweenReads: while a worker has more to do than it can take, it waits for an interval, or three
// times as long as a turn took. Otherwise n workers wait for a half to all of n intervals, or eight times
// less than n of the longest ones if one of them reads a long journal for all. An interval is ten times
// as long as a read, within its bounds.
func TestWaitsBetweenReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleetOf := func(n int) fleet { return fleet{share: n} }
		full := map[target]chan changes.Notification{{table: "a"}: nil, {table: "b"}: make(chan changes.Notification, 1)}
		full[target{table: "b"}] <- changes.Notification{}
		for _, tt := range []struct {
			j        *journal
			from, to time.Duration
		}{
			{&journal{offers: full, took: time.Second / 4, fleet: fleetOf(3)}, time.Second, time.Second},
			{&journal{offers: full, took: time.Second, fleet: fleetOf(3)}, 3 * time.Second, 3 * time.Second},
			{&journal{search: Search{behind: func() bool { return true }}, fleet: fleetOf(3)}, time.Second, time.Second},
			{&journal{search: Search{behind: func() bool { return false }}, fleet: fleetOf(10)}, 5 * time.Second, 10 * time.Second},
			{&journal{took: time.Minute, fleet: fleetOf(1)}, time.Second, time.Second},
			{&journal{fleet: fleetOf(10)}, 5 * time.Second, 10 * time.Second},
			{&journal{cost: longRead - 1, fleet: fleetOf(10)}, 5 * longRead * 10, 10 * longRead * 10},
			{&journal{cost: longRead, fleet: fleetOf(10)}, 12 * time.Second * 5 / 8, 12 * time.Second * 10 / 8},
			{&journal{rest: 5 * time.Second, fleet: fleetOf(1)}, 5 * time.Second, 5 * time.Second},
		} {
			tt.j.least, tt.j.most = time.Second, 12*time.Second
			busy := tt.j.behind()
			least, most := waits(t, func() {
				tt.j.busy = false
				if err := tt.j.wait(t.Context()); err != nil || tt.j.busy != busy {
					t.Errorf("busy %t, %v", tt.j.busy, err)
				}
			})
			spread := tt.to - tt.from
			if least < tt.from || most > tt.to || least > tt.from+spread/4 || most < tt.to-spread/4 {
				t.Errorf("rest %v, cost %v, %d workers: waits of %v to %v, want %v to %v", tt.j.rest, tt.j.cost, tt.j.fleet.share, least, most, tt.from, tt.to)
			}
		}
		for cost, want := range map[time.Duration]time.Duration{0: time.Second, 100 * time.Millisecond: time.Second, 200 * time.Millisecond: 2 * time.Second, time.Minute: 12 * time.Second} {
			if got := (&journal{least: time.Second, most: 12 * time.Second, cost: cost}).every(); got != want {
				t.Errorf("a read of %v each %v, want each %v", cost, got, want)
			}
		}
	})
}

// TestWaitsBetweenSweeps: a worker waits for its part of an interval for each worker, and for the others,
// a half to all of it, from the begin of its last turn on.
func TestWaitsBetweenSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			s        *sweeper
			began    time.Duration // ago
			want     time.Duration
			from, to time.Duration
		}{
			{&sweeper{part: 1, interval: 4 * time.Second, fleet: fleet{share: 1}, took: time.Minute}, 0, 4 * time.Second, 2 * time.Second, 4 * time.Second},
			{&sweeper{part: 0.25, interval: 4 * time.Second, fleet: fleet{share: 3}}, 0, 3 * time.Second, 1500 * time.Millisecond, 3 * time.Second},
			{&sweeper{part: 0.25, interval: 4 * time.Second, fleet: fleet{share: 3}, took: 3 * time.Second}, 0, 8 * time.Second, 4 * time.Second, 8 * time.Second},
			{&sweeper{part: 1, interval: 4 * time.Minute, most: time.Minute, fleet: fleet{share: 1}}, time.Minute, 4 * time.Minute, time.Minute, 3 * time.Minute},
			{&sweeper{part: 1, interval: 4 * time.Second, fleet: fleet{share: 1}}, time.Minute, 4 * time.Second, 0, 0},
		} {
			if got := tt.s.pause(); got != tt.want {
				t.Errorf("%+v: pause %v, want %v", tt.s.fleet, got, tt.want)
			}
			least, most := waits(t, func() {
				if err := tt.s.wait(t.Context(), time.Now().Add(-tt.began)); err != nil {
					t.Error(err)
				}
			})
			spread := tt.to - tt.from
			if least < tt.from || most > tt.to || least > tt.from+spread/4 || most < tt.to-spread/4 {
				t.Errorf("interval %v, %d workers: waits of %v to %v, want %v to %v", tt.s.interval, tt.s.fleet.share, least, most, tt.from, tt.to)
			}
		}
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&sweeper{fleet: fleet{share: 1}}).wait(ended, time.Now()); err == nil {
		t.Error("a wait that has ended hides that the context has, too")
	}
}

// TestCutTableExactly: pieces begin and end at keys, as evenly as these allow.
func TestCutTableExactly(t *testing.T) {
	for _, tt := range []struct {
		keys []string
		most int
		want string
	}{
		{nil, 4, "[..]"},
		{[]string{"a", "b", "c"}, 1, "[..]"},
		{[]string{"a", "b", "c"}, 2, "[..b] [b..]"},
		{[]string{"a", "b", "c"}, 4, "[..a] [a..b] [b..c] [c..]"},
		{[]string{"a", "b", "c"}, 9, "[..a] [a..b] [b..c] [c..]"},
		{[]string{"a", "b", "c", "d", "e"}, 3, "[..b] [b..d] [d..]"},
		{[]string{"a", "b", "c", "d", "e"}, 4, "[..a] [a..c] [c..d] [d..]"},
		{[]string{"b", "b"}, 3, "[..b] [b..]"},
	} {
		got := ""
		for _, p := range cutTable("t", tt.keys, tt.most) {
			got += fmt.Sprintf(" [%s..%s]", p.start, p.end)
			if p.table != "t" || p.resumed {
				t.Errorf("%+v", p)
			}
		}
		if got != " "+tt.want {
			t.Errorf("%q in %d: %s, want %s", tt.keys, tt.most, got, tt.want)
		}
	}
}

// TestTurnsOfAPiece: a piece is read from a key in it, which the bytes after the common prefix choose.
// The rest of a piece that a scan left, and a piece without a key in between, stay whole.
func TestTurnsOfAPiece(t *testing.T) {
	for name, p := range map[string]piece{"resumed": {"t", "a", "z", true}, "no key": {"t", "a", "a\x00", false}, "reversed": {"t", "b", "a", false}} {
		if got := p.turn(); len(got) != 1 || got[0] != p {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var all atomic.Int64
	for range 100 {
		p := piece{"t", "user1", "user2", false}
		got := p.turn()
		if at := got[0].start; len(got) != 2 || at[:4] != "user" || len(at) != len("user")+8 || got[0] != (piece{"t", at, "user2", false}) || got[1] != (piece{"t", "user1", at, false}) {
			t.Fatalf("%+v", got)
		}
		if got[0].start[4] == '1' {
			all.Add(1)
		}
	}
	if all.Load() != 100 {
		t.Errorf("%d of 100 keys begin with user1", all.Load())
	}
	if at := randomKey("", "\x00\x00\x00\x00\x00\x00\x00\x01"); at != "\x00\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("%q", at)
	}
}

// TestTurnsOfAJournal: what the next turn of a journal follows from this one. Its intervals are 1 s to 12 s.
func TestTurnsOfAJournal(t *testing.T) {
	const long = 20 * time.Second
	for name, tt := range map[string]struct {
		cost, took, sum time.Duration
		parts, of       int
		nothing, early  bool
		want            *journal
	}{
		"idle":                          {0, 10, 5, 1, 1, true, false, &journal{cost: 5, rest: 30}},
		"found":                         {9, 10, 5, 1, 1, false, false, &journal{cost: 5, rest: 30}},
		"a failure":                     {9, 10, 5, 1, 1, true, true, &journal{cost: 9, rest: 30}},
		"a part without any":            {9, 10, 5, 1, 3, true, false, &journal{cost: 15, rest: 30}},
		"a shorter part without any":    {30, 10, 5, 1, 3, true, false, &journal{cost: 30, rest: 30}},
		"a part with some":              {9, 10, 5, 1, 3, false, false, &journal{cost: 9, rest: 30}},
		"the whole, which is long":      {0, 5 * time.Second, long, 4, 4, true, false, &journal{cost: long, rest: 15 * time.Second}},
		"the whole, which is just long": {0, time.Second, longRead, 1, 1, true, false, &journal{cost: longRead, rest: 10*longRead - time.Second}},
		"the whole, which is not long":  {0, time.Second, longRead - 1, 1, 1, true, false, &journal{cost: longRead - 1, rest: 3 * time.Second}},
		"the whole, which is very long": {0, time.Second, time.Hour, 4, 4, true, false, &journal{cost: time.Hour, rest: 35 * time.Second}},
		"a part of a long one":          {long, time.Second, time.Second, 1, 4, false, false, &journal{cost: long, rest: 3 * time.Second}},
	} {
		j := newJournal(&Scanner{}, Search{}, time.Second, time.Minute, 1, 1)
		j.cost = tt.cost
		j.ends(tt.took, tt.sum, tt.parts, tt.of, tt.nothing, tt.early)
		if j.cost != tt.want.cost || j.rest != tt.want.rest || j.busy || j.took != tt.took {
			t.Errorf("%s: cost %v, rest %v, busy %t; want %v, %v", name, j.cost, j.rest, j.busy, tt.want.cost, tt.want.rest)
		}
	}
}

// TestForgottenOffers: at its begin a turn forgets what was taken before the last one, unless the worker is busy with
// it, and keeps what waits.
func TestForgottenOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		j := newJournal(&Scanner{}, Search{}, time.Second, time.Minute, 1, 1)
		j.journaled, j.fleet, j.began = []string{"t"}, fleet{share: 3, old: true}, now.Add(-time.Minute)
		cell := func(row string) txn.Cell { return notificationOf(row).Cell }
		was := map[txn.Cell]offered{
			cell("waits"): {1, time.Time{}}, cell("waits, busy"): {2, time.Time{}}, cell("taken"): {3, now.Add(-2 * time.Minute)},
			cell("taken, busy"): {4, now.Add(-2 * time.Minute)}, cell("taken lately"): {5, now.Add(-time.Minute)},
		}
		for c, o := range was {
			j.offered[c] = o
		}
		j.search.busy = func(c txn.Cell) bool { return c == cell("waits, busy") || c == cell("taken, busy") }
		tables := j.starts(now)
		delete(was, cell("taken"))
		was[cell("taken, busy")] = offered{4, now}
		if !maps.Equal(j.offered, was) || !slices.Equal(tables, []string{"t"}) || j.previous != now.Add(-time.Minute) || j.began != now || j.share != 3 || !j.old {
			t.Errorf("%v of %v, after %v: %+v", tables, j.share, j.previous, j.offered)
		}
		j.search.busy = nil
		j.starts(now)
		j.starts(now.Add(time.Hour))
		<-time.After(time.Minute)
		j.starts(now.Add(2 * time.Hour))
		if len(j.offered) != 2 {
			t.Errorf("later: %+v", j.offered)
		}
	})
}

// TestTurnsOfASweep: a turn reads the worker's share of the pieces, rounded up, and the interval grows while turns find
// nothing.
func TestTurnsOfASweep(t *testing.T) {
	for _, tt := range []struct{ all, todo, share, want int }{{10, 10, 1, 10}, {10, 10, 3, 4}, {9, 9, 3, 3}, {10, 2, 3, 2}, {10, 0, 3, 0}, {1, 1, 9, 1}} {
		s := &sweeper{all: tt.all, todo: make([]piece, tt.todo), fleet: fleet{share: tt.share}}
		if got := s.due(); got != tt.want {
			t.Errorf("%+v: %d pieces", tt, got)
		}
	}
	for _, tt := range []struct {
		pieces         int
		found          bool
		interval, took time.Duration
		want           *sweeper
	}{
		{2, false, time.Second, time.Minute, &sweeper{part: 0.5, interval: 2 * time.Second, took: maxTurn}},
		{0, false, 40 * time.Second, time.Second, &sweeper{part: 0.25, interval: time.Minute, took: time.Second}},
		{4, true, 40 * time.Second, time.Second, &sweeper{part: 1, interval: time.Second}},
	} {
		s := &sweeper{all: 4, least: time.Second, most: time.Minute, interval: tt.interval, took: time.Hour}
		s.read(tt.pieces, tt.found, tt.took)
		if s.part != tt.want.part || s.interval != tt.want.interval || s.took != tt.want.took {
			t.Errorf("%d pieces, found: %t: part %v, interval %v, took %v", tt.pieces, tt.found, s.part, s.interval, s.took)
		}
	}
}

// TestTargets: a pattern contains the columns with its prefix, in its own table.
func TestTargets(t *testing.T) {
	of := func(table, family, qualifier string) target {
		return target{table, txn.Column{Family: family, Qualifier: qualifier}}
	}
	pattern := target{"t", format.Pattern("f", "p")}
	for to, want := range map[target]bool{of("t", "f", "px"): true, of("t", "f", "q"): false, of("t", "g", "px"): false, of("u", "f", "px"): false, pattern: true} {
		if pattern.contains(to) != want {
			t.Errorf("%s contains %s: %t", pattern, to, !want)
		}
	}
	if c := of("t", "f", "q"); !c.contains(c) || c.contains(of("u", "f", "q")) || c.contains(of("t", "f", "qq")) {
		t.Error("a column contains another one than itself")
	}
}
