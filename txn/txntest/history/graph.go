package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A dependency is the reason why one transaction must come before another.
type dependency byte

const (
	ww dependency = 1 << iota // the second transaction wrote the next version after the first one's
	wr                        // the second read what the first wrote
	rw                        // the second replaced what the first read
	rt                        // the first was acknowledged before the second began
)

func (d dependency) String() string {
	switch d {
	case ww:
		return "ww"
	case wr:
		return "wr"
	case rt:
		return "real time"
	}
	return "rw"
}

type edge struct {
	to  *Txn
	dep dependency
	key string
}

// A graph is Adya's direct serialization graph.
type graph struct {
	edges map[*Txn][]edge
	nodes []*Txn
}

func newGraph() *graph { return &graph{edges: map[*Txn][]edge{}} }

// edge adds a dependency between two committed transactions.
func (g *graph) edge(from, to *Txn, dep dependency, key string) {
	if from == nil || to == nil || from == to || !from.Committed() || !to.Committed() {
		return
	}
	for _, n := range []*Txn{from, to} {
		if _, ok := g.edges[n]; !ok {
			g.edges[n] = nil
			g.nodes = append(g.nodes, n)
		}
	}
	e := edge{to, dep, key}
	if !slices.Contains(g.edges[from], e) {
		g.edges[from] = append(g.edges[from], e)
	}
}

// realTime adds the order in real time. It adds no edge that follows from two others: of
// the transactions that ended before another began, it takes those that were under way
// when the last of them began.
func (g *graph) realTime(all []*Txn) {
	begun := slices.Clone(all)
	slices.SortStableFunc(begun, byBegin)
	ended := slices.Clone(all)
	slices.SortStableFunc(ended, func(a, b *Txn) int { return cmp.Compare(a.Ended, b.Ended) })
	var last []*Txn
	for _, t := range begun {
		for ; len(ended) > 0 && ended[0].Ended < t.Begun; ended = ended[1:] {
			switch e := ended[0]; {
			case e.Outcome == OK && e.Latest: // nothing that ended before it comes before it
				last = append(last, e)
			case e.Outcome == OK:
				last = append(slices.DeleteFunc(last, func(l *Txn) bool { return l.Ended < e.Begun }), e)
			}
		}
		for _, l := range last {
			if !t.Latest { // that may miss what was committed in other rows
				g.edge(l, t, rt, "")
			}
		}
	}
}

// A cycle of dependencies; steps[i] leads from txns[i] to the next.
type cycle struct {
	kind  Kind
	txns  []*Txn
	steps []edge
}

func (c cycle) describe() string {
	var b strings.Builder
	for i, s := range c.steps {
		if i > 0 {
			b.WriteString(", ")
		}
		name := s.dep.String()
		if s.dep != rt {
			name = fmt.Sprintf("%s %q", s.dep, s.key)
		}
		fmt.Fprintf(&b, "%d -%s-> %d", i+1, name, (i+1)%len(c.txns)+1)
	}
	return b.String()
}

// cycles returns one cycle for each strongly connected component: of the worst kind in
// it.
func (g *graph) cycles() []cycle {
	slices.SortStableFunc(g.nodes, byBegin)
	var found []cycle
	for _, comp := range g.components() {
		if c, ok := g.worst(comp); ok {
			found = append(found, c)
		}
	}
	return found
}

func (g *graph) worst(comp map[*Txn]bool) (cycle, bool) {
	var nodes []*Txn
	for n := range comp {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, byBegin)
	// A cycle consists of one edge of a kind in closing, and a path back along edges
	// of kinds in path. With apart, no two rw are adjacent.
	for _, search := range []struct {
		kind          Kind
		closing, path dependency
		apart         bool
	}{
		{G0, ww, ww, false},
		{G1c, wr, ww | wr, false},
		{GSingle, rw, ww | wr, false},
		{RealTime, rt, ww | wr | rt, false},
		{RealTime, rw, ww | wr | rt, false},
		{GNonadjacent, rw, ww | wr | rw, true},
		{RealTime, rw, ww | wr | rw | rt, true},
		{G2Item, rw, ww | wr | rw | rt, false},
	} {
		for _, from := range nodes {
			for _, e := range g.edges[from] {
				if e.dep != search.closing || !comp[e.to] {
					continue
				}
				if back, ok := g.path(comp, e.to, from, search.path, search.apart); ok {
					c := cycle{kind: search.kind, txns: []*Txn{from}, steps: []edge{e}}
					for _, s := range back {
						c.txns = append(c.txns, c.steps[len(c.steps)-1].to)
						c.steps = append(c.steps, s)
					}
					return c, true
				}
			}
		}
	}
	return cycle{}, false
}

// path finds a shortest path. With apart, it neither starts nor ends with rw, and no
// two rw are adjacent.
func (g *graph) path(comp map[*Txn]bool, from, to *Txn, deps dependency, apart bool) ([]edge, bool) {
	type state struct {
		at   *Txn
		last bool // the last edge was rw
	}
	type origin struct {
		from state
		by   edge
	}
	start := state{from, apart}
	came := map[state]origin{start: {}}
	for queue := []state{start}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if s.at == to && (!apart || !s.last) {
			var back []edge
			for s != start {
				back = append(back, came[s].by)
				s = came[s].from
			}
			slices.Reverse(back)
			return back, true
		}
		for _, e := range g.edges[s.at] {
			next := state{e.to, apart && e.dep == rw}
			if e.dep&deps == 0 || !comp[e.to] || (s.last && next.last) {
				continue
			}
			if _, ok := came[next]; !ok {
				came[next] = origin{s, e}
				queue = append(queue, next)
			}
		}
	}
	return nil, false
}

// components returns the strongly connected components with more than one node. It is
// Tarjan's algorithm without recursion, because histories are long.
func (g *graph) components() []map[*Txn]bool {
	type frame struct {
		node *Txn
		next int
	}
	index, low := map[*Txn]int{}, map[*Txn]int{}
	onStack := map[*Txn]bool{}
	var stack []*Txn
	var found []map[*Txn]bool
	enter := func(n *Txn) frame {
		index[n] = len(index) + 1
		low[n] = index[n]
		stack = append(stack, n)
		onStack[n] = true
		return frame{node: n}
	}
	for _, root := range g.nodes {
		if index[root] != 0 {
			continue
		}
		for calls := []frame{enter(root)}; len(calls) > 0; {
			f := &calls[len(calls)-1]
			if f.next < len(g.edges[f.node]) {
				to := g.edges[f.node][f.next].to
				f.next++
				if index[to] == 0 {
					calls = append(calls, enter(to))
				} else if onStack[to] {
					low[f.node] = min(low[f.node], index[to])
				}
				continue
			}
			done := f.node
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				parent := calls[len(calls)-1].node
				low[parent] = min(low[parent], low[done])
			}
			if low[done] != index[done] {
				continue
			}
			comp := map[*Txn]bool{}
			for {
				n := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				onStack[n] = false
				comp[n] = true
				if n == done {
					break
				}
			}
			if len(comp) > 1 {
				found = append(found, comp)
			}
		}
	}
	return found
}
