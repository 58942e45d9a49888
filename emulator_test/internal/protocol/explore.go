package protocol

import (
	"fmt"
	"hash/maphash"
	"strings"
	"unsafe"
)

// A Result is what Explore found.
type Result struct {
	States    int
	Complete  bool // all states were visited
	Committed int  // states in which all transactions are committed
	// Violation says what is broken; "" if nothing is. Trace has the steps that lead there, as
	// few as possible.
	Violation string
	Trace     []string
}

func (r Result) String() string {
	switch {
	case r.Violation != "":
		return fmt.Sprintf("%s, after %d states:\n  %s", r.Violation, r.States, strings.Join(r.Trace, "\n  "))
	case !r.Complete:
		return fmt.Sprintf("no violation in %d states, not complete", r.States)
	}
	return fmt.Sprintf("no violation in %d states, complete; %d with everything committed", r.States, r.Committed)
}

// Explore visits the states of a scenario, those with the shortest way first, at most limit of
// them. It remembers 64 bits of each: that two of ten million states share them, so that one is
// overlooked, has a probability of 3 in a million, and another one in each run.
func Explore(sc Scenario, bug Bug, limit int) Result {
	m := newMachine(sc, bug)
	first := initial(m)
	seen := newVisited()
	seen.add(&first, 0)
	level := []state{first}
	var r Result
	o := steps{m: m}
	for number := 0; len(level) > 0; {
		var next []state
		for i := range level {
			s := &level[i]
			if r.States++; allCommitted(m, s) {
				r.Committed++
			}
			if r.Violation = violation(m, s); r.Violation != "" {
				r.Trace = seen.trace(m, &first, number)
				return r
			}
			for _, st := range successors(&o, s) {
				if seen.add(&st.to, number) {
					next = append(next, st.to)
				}
			}
			if number++; number >= limit {
				return r
			}
		}
		level = next
	}
	r.Complete = true
	return r
}

func initial(m *machine) state {
	s := state{duplicates: m.Duplicates, timeouts: m.Timeouts, claimed: m.Claimed}
	for t := range m.Before {
		start, commit := s.clock+1, s.clock+2
		s.clock = commit
		s.txns[t] = txnState{start: start, commit: commit, phase: committed, committed: commit, known: knownCommitted}
		for row, cells := range m.txns[t].rows {
			lockCells(m, &s, t, cells)
			commitCells(&s, t, m.txns[t].rows[row], commit)
		}
	}
	return s
}

func allCommitted(m *machine, s *state) bool {
	for t := range m.txns {
		if s.txns[t].committed == 0 {
			return false
		}
	}
	return true
}

// successors returns the steps from a state. They are valid until the next call.
func successors(o *steps, s *state) []step {
	o.from, o.next = s, o.next[:0]
	for t := range o.m.txns {
		owner(o, t)
		resolve(o, t)
	}
	for r := range o.m.Readers {
		read(o, r)
	}
	if o.m.Collect || o.m.Follow {
		collect(o)
	}
	if o.m.Retry != Never {
		for i := range o.next {
			private(o.m, &o.next[i].to)
			renumber(&o.next[i].to)
		}
	}
	return o.next
}

// visited is a set of states, in the order in which they were found.
type visited struct {
	seed    maphash.Seed
	hashes  []uint64
	parents []int32
	table   []int32 // 1 + index, by hash; its length is a power of two
}

func newVisited() *visited { return &visited{seed: maphash.MakeSeed(), table: make([]int32, 1<<16)} }

func (v *visited) hash(s *state) uint64 {
	return maphash.Bytes(v.seed, unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
}

// add adds a state, and reports whether it is new.
func (v *visited) add(s *state, parent int) bool {
	_, added := v.number(s, parent)
	return added
}

// number is add, and also returns the state's number.
func (v *visited) number(s *state, parent int) (number int32, added bool) {
	if 2*len(v.hashes) >= len(v.table) {
		v.table = make([]int32, 2*len(v.table))
		for i, h := range v.hashes {
			v.table[v.place(h)] = int32(i + 1)
		}
	}
	h := v.hash(s)
	at := v.place(h)
	if i := v.table[at]; i != 0 {
		return i - 1, false
	}
	v.hashes = append(v.hashes, h)
	v.parents = append(v.parents, int32(parent))
	v.table[at] = int32(len(v.hashes))
	return int32(len(v.hashes) - 1), true
}

// place returns where a hash is, or belongs.
func (v *visited) place(h uint64) uint64 {
	mask := uint64(len(v.table) - 1)
	for at := h & mask; ; at = (at + 1) & mask {
		if i := v.table[at]; i == 0 || v.hashes[i-1] == h {
			return at
		}
	}
}

// trace returns the steps from a state to another one, to which it sets the first. It makes the
// states on the way again, because only their hashes are known.
func (v *visited) trace(m *machine, s *state, number int) (trace []string) {
	var way []int
	for ; number != 0; number = int(v.parents[number]) {
		way = append(way, number)
	}
	for i := len(way) - 1; i >= 0; i-- {
		trace = append(trace, v.follow(m, s, way[i]))
	}
	return trace
}

// follow returns the step from a state to the next one, to which it sets the first.
func (v *visited) follow(m *machine, s *state, number int) string {
	o := steps{m: m}
	for _, st := range successors(&o, s) {
		if v.hash(&st.to) == v.hashes[number] {
			*s = st.to
			return m.describe(&st)
		}
	}
	return "" // two states share a hash
}

// describe returns what a step does. Transactions are T1, T2, …; all else counts from 0.
func (m *machine) describe(st *step) string {
	a := st.a
	if strings.Contains(st.what, "T%d") && !strings.HasPrefix(st.what, "reader") {
		a++
	}
	switch strings.Count(st.what, "%d") {
	case 0:
		return st.what
	case 1:
		return fmt.Sprintf(st.what, a)
	}
	return fmt.Sprintf(st.what, a, st.b)
}
