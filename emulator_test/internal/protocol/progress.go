package protocol

import (
	"fmt"
	"math/bits"
	"strings"
)

// Progress checks that some client always commits, if each client begins again when its transaction
// has ended, and the schedule is fair: a step that is possible again and again happens again and
// again. It looks for a cycle of states in which nobody commits, and which takes each step that is
// possible in it; or for a state without a next step.
//
// A client that waits for a lock reads its row again and again. If the row is free again and again,
// a fair schedule lets one of these reads find that, and lets the prewrite after it succeed: the model
// has both in one step. So in a livelock that Progress finds, a row is never free. It does not say how
// likely a schedule is.

// A ProgressResult is what Progress found.
type ProgressResult struct {
	States   int
	Complete bool // all states were visited
	// Farthest is how many steps the next commit is away at most, if all of them are chosen well.
	Farthest int
	// Stuck says how clients stop; "" if they do not. Trace leads there, and the steps of Cycle come
	// again and again.
	Stuck        string
	Trace, Cycle []string
}

func (r ProgressResult) String() string {
	switch {
	case r.Stuck != "" && len(r.Cycle) == 0:
		return fmt.Sprintf("%s, in %d states:\n  %s", r.Stuck, r.States, strings.Join(r.Trace, "\n  "))
	case r.Stuck != "":
		return fmt.Sprintf("%s, in %d states:\n  %s\nand then, again and again:\n  %s", r.Stuck, r.States, strings.Join(r.Trace, "\n  "), strings.Join(r.Cycle, "\n  "))
	case !r.Complete:
		return fmt.Sprintf("not complete after %d states", r.States)
	}
	return fmt.Sprintf("some client always commits; %d states, at most %d steps from a commit", r.States, r.Farthest)
}

// Progress visits the states of a scenario with Retry, at most limit of them.
func Progress(sc Scenario, bug Bug, limit int) (r ProgressResult) {
	m := newMachine(sc, bug)
	first := initial(m)
	seen := newVisited()
	seen.add(&first, 0)
	g := &graph{keys: map[fairKey]uint16{}, start: []int32{0}}
	o := steps{m: m}
	number := 0
	for level := []state{first}; len(level) > 0; {
		var next []state
		for i := range level {
			s := &level[i]
			if number >= limit {
				r.States = number
				return r
			}
			for _, st := range successors(&o, s) {
				to, added := seen.number(&st.to, number)
				if added {
					next = append(next, st.to)
				}
				g.add(m, s, &st, to)
			}
			number++
			g.start = append(g.start, int32(len(g.edges)))
		}
		level = next
	}
	r.States, r.Complete = number, true
	cycle, stuck := g.fairCycle()
	if stuck == "" {
		r.Farthest = g.farthest()
		return r
	}
	r.Stuck = stuck
	at := first
	r.Trace = seen.trace(m, &at, int(cycle[0]))
	for _, to := range cycle[1:] {
		r.Cycle = append(r.Cycle, seen.follow(m, &at, int(to)))
	}
	return r
}

// graph has the steps between states, by number. A commit is a step to none.
type graph struct {
	keys  map[fairKey]uint16
	start []int32 // of each state's edges
	edges []edge
}

type edge struct {
	to  int32 // -1: a commit
	key uint16
}

// A fairKey distinguishes steps that a fair schedule does not leave out: what happens, to whom, and
// with which result, for example whether a prewrite succeeds.
type fairKey struct {
	what          string
	a, b          int
	phase, status uint8
}

func (g *graph) add(m *machine, from *state, st *step, to int32) {
	k := fairKey{what: st.what, a: st.a, b: st.b, phase: st.to.txns[st.a].phase}
	if st.b < len(m.txns[st.a].rows) {
		k.status = st.to.txns[st.a].rows[st.b].status
	}
	if _, ok := g.keys[k]; !ok {
		g.keys[k] = uint16(len(g.keys))
	}
	for t := range m.txns {
		if from.txns[t].committed == 0 && st.to.txns[t].committed != 0 {
			to = -1
		}
	}
	g.edges = append(g.edges, edge{to, g.keys[k]})
}

func (g *graph) of(s int32) []edge { return g.edges[g.start[s]:g.start[s+1]] }

// fairCycle finds states from which nobody commits though the schedule is fair, and returns a way
// through them that takes each step that is possible there. Of the states of a strongly connected
// part, it removes those in which a step is possible that the part does not contain, and looks again.
func (g *graph) fairCycle() (cycle []int32, stuck string) {
	n := len(g.start) - 1
	region := make([]int32, n) // -1: not in a cycle that may be fair
	all := make([]int32, n)
	for s := range all {
		if all[s] = int32(s); len(g.of(int32(s))) == 0 {
			return []int32{int32(s)}, "deadlock"
		}
	}
	regions := int32(0)
	for work := [][]int32{all}; len(work) > 0; {
		part := work[len(work)-1]
		work = work[:len(work)-1]
		for _, scc := range g.components(part, region) {
			regions++
			for _, s := range scc {
				region[s] = regions
			}
			taken, possible := make([]bool, len(g.keys)), make([]bool, len(g.keys))
			cycles := false
			for _, s := range scc {
				for _, e := range g.of(s) {
					possible[e.key] = true
					if e.to >= 0 && region[e.to] == regions {
						taken[e.key], cycles = true, true
					}
				}
			}
			var rest []int32
			for _, s := range scc {
				unfair := !cycles
				for _, e := range g.of(s) {
					unfair = unfair || possible[e.key] && !taken[e.key]
				}
				if unfair {
					region[s] = -1
				} else {
					rest = append(rest, s)
				}
			}
			switch {
			case len(rest) == len(scc):
				return g.tour(scc[0], regions, region, taken), "livelock"
			case len(rest) > 0:
				work = append(work, rest)
			}
		}
	}
	return nil, ""
}

// components returns the strongly connected parts of some states of one region (Tarjan's algorithm).
func (g *graph) components(part, region []int32) (sccs [][]int32) {
	type frame struct {
		s, edge int32
	}
	index, low := map[int32]int32{}, map[int32]int32{}
	onStack := map[int32]bool{}
	var stack []int32
	for _, root := range part {
		if index[root] != 0 {
			continue
		}
		calls := []frame{{s: root}}
		for len(calls) > 0 {
			f := &calls[len(calls)-1]
			s := f.s
			if f.edge == 0 {
				index[s] = int32(len(index) + 1)
				low[s] = index[s]
				stack, onStack[s] = append(stack, s), true
			}
			edges, deeper := g.of(s), false
			for int(f.edge) < len(edges) {
				to := edges[f.edge].to
				f.edge++
				if to < 0 || region[to] != region[s] {
					continue
				}
				if index[to] == 0 {
					calls, deeper = append(calls, frame{s: to}), true
					break
				}
				if onStack[to] {
					low[s] = min(low[s], index[to])
				}
			}
			if deeper {
				continue
			}
			if low[s] == index[s] {
				var scc []int32
				for {
					top := stack[len(stack)-1]
					stack, onStack[top] = stack[:len(stack)-1], false
					if scc = append(scc, top); top == s {
						break
					}
				}
				sccs = append(sccs, scc)
			}
			if calls = calls[:len(calls)-1]; len(calls) > 0 {
				above := calls[len(calls)-1].s
				low[above] = min(low[above], low[s])
			}
		}
	}
	return sccs
}

// tour returns the numbers of states on a way from a state through its region and back, which
// takes each step that is to be taken.
func (g *graph) tour(from, in int32, region []int32, take []bool) []int32 {
	way := []int32{from}
	left := 0
	for _, t := range take {
		if t {
			left++
		}
	}
	walk := func(goal func(s int32, e edge) bool) {
		at := way[len(way)-1]
		came := map[int32]int32{at: at}
		for queue := []int32{at}; len(queue) > 0; queue = queue[1:] {
			s := queue[0]
			for _, e := range g.of(s) {
				if e.to < 0 || region[e.to] != in {
					continue
				}
				if goal(s, e) {
					var back []int32
					for ; s != at; s = came[s] {
						back = append(back, s)
					}
					for i := len(back) - 1; i >= 0; i-- {
						way = append(way, back[i])
					}
					way = append(way, e.to)
					return
				}
				if _, ok := came[e.to]; !ok {
					came[e.to] = s
					queue = append(queue, e.to)
				}
			}
		}
	}
	for ; left > 0; left-- {
		walk(func(_ int32, e edge) bool {
			found := take[e.key]
			if found {
				take[e.key] = false
			}
			return found
		})
	}
	walk(func(_ int32, e edge) bool { return e.to == from })
	return way
}

// farthest returns how far the next commit is away at most.
func (g *graph) farthest() (steps int) {
	n := len(g.start) - 1
	into := make([][]int32, n)
	var level []int32
	reached := make([]bool, n)
	for s := range int32(n) {
		for _, e := range g.of(s) {
			if e.to >= 0 {
				into[e.to] = append(into[e.to], s)
			} else if !reached[s] {
				reached[s], level = true, append(level, s)
			}
		}
	}
	for len(level) > 0 {
		steps++
		var next []int32
		for _, s := range level {
			for _, from := range into[s] {
				if !reached[from] {
					reached[from], next = true, append(next, from)
				}
			}
		}
		level = next
	}
	return steps
}

// ended reports whether the owner has nothing to do any more, so that other clients may resolve
// its locks.
func (y *txnState) ended() bool {
	return y.phase == aborted || y.phase == failed || y.phase == undetermined || y.phase == committed
}

// dead reports whether other clients may resolve the transaction's locks. While the owner removes
// them itself, they are younger than their ttl.
func (y *txnState) dead(rows [][]int) bool {
	for row := range rows {
		if y.rows[row].sent&reqAbort != 0 {
			return false
		}
	}
	return y.ended()
}

// waits reports whether a transaction that finds locks of other transactions waits (recovery.ResolveForWrite):
// if the transactions of all these locks are younger or have ended. Without Retry, an owner may wait or
// give up as it likes.
func waits(m *machine, s *state, t int, cells []int) bool {
	if m.Retry == Never {
		return false
	}
	for _, cell := range cells {
		for i := range m.txns {
			if i == t || !s.lockOf(cell, i) || s.txns[i].ended() {
				continue
			}
			if older := s.txns[i].start < s.txns[t].start; older && !m.is(EverybodyWaits) || m.is(NobodyWaits) {
				return false
			}
		}
	}
	return true
}

// beginAgain adds the begin of a client's next transaction, once all requests of the last one have
// arrived and its locks are resolved. Its records and markers stay.
func beginAgain(o *steps, t int) {
	m, s := o.m, o.from
	y := &s.txns[t]
	if !y.ended() || y.sent != 0 {
		return
	}
	for row := range m.txns[t].rows {
		if y.rows[row].sent != 0 {
			return
		}
	}
	for cell := range m.Rows {
		if s.lockOf(cell, t) {
			return
		}
	}
	o.add("T%d begins again", t, 0, func(n *state) {
		for cell := range m.Rows {
			c := &n.cells[cell]
			n.marks[cell] = max(n.marks[cell], c.records[t])
			if n.markerOf(cell, t) {
				n.marks[cell] = max(n.marks[cell], y.start)
			}
			c.data &^= bit(t)
			c.markers &^= bit(t)
			c.records[t] = 0
		}
		n.txns[t] = txnState{}
	})
}

// private takes the steps that no other transaction notices and that decide nothing: requests
// about rows that nobody else writes arrive, and clients begin again. That saves most states.
func private(m *machine, s *state) {
	o := steps{m: m}
	for again := true; again; {
		again = false
		for t := range m.txns {
			o.from, o.next = s, o.next[:0]
			if s.txns[t].phase == failing {
				abort(m, s, t)
			}
			for row, cells := range m.txns[t].rows {
				if m.Timeouts == 0 && m.private(t, cells) {
					rowRequests(&o, t, row)
				}
			}
			beginAgain(&o, t)
			if len(o.next) > 0 {
				*s, again = o.next[0].to, true
			}
		}
	}
}

// private reports whether no other transaction writes these cells.
func (m *machine) private(t int, cells []int) bool {
	for i := range m.txns {
		for _, cell := range cells {
			if i != t && m.txns[i].writes&bit(cell) != 0 {
				return false
			}
		}
	}
	return true
}

// renumber makes timestamps as small as their order allows, so that clients that begin again and
// again return to the same states. It forgets marks that no transaction can conflict with, and the
// commit_ts of a transaction that never used it.
func renumber(s *state) {
	oldest := uint8(255)
	for t := range s.txns {
		if y := &s.txns[t]; y.start != 0 {
			oldest = min(oldest, y.start)
		}
		if s.txns[t].phase == aborted {
			s.txns[t].commit = 0
		}
	}
	var all [maxCells*(1+maxTxns) + 4*maxTxns]*uint8
	some := all[:0]
	for cell := range s.cells {
		if s.marks[cell] < oldest {
			s.marks[cell] = 0
		}
		some = append(some, &s.marks[cell])
		for t := range s.txns {
			some = append(some, &s.cells[cell].records[t])
		}
	}
	for t := range s.txns {
		y := &s.txns[t]
		some = append(some, &y.start, &y.commit, &y.oldCommit, &y.committed)
	}
	var used uint64
	for _, ts := range some {
		used |= 1 << *ts
	}
	used &^= 1
	for _, ts := range some {
		if *ts != 0 {
			*ts = uint8(bits.OnesCount64(used & (1<<(*ts+1) - 1)))
		}
	}
	s.clock = uint8(bits.OnesCount64(used))
}
