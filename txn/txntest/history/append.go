package history

import (
	"cmp"
	"slices"
)

// CheckAppend checks the lists of a history without looking at timestamps. The order of
// a list's elements is the order of its key's versions. The longest list that was read
// shows all of this order, so the last transactions of a history have to read every
// key. The dependencies that follow, and the order in real time, must not form a cycle.
// Operations on registers are ignored.
func CheckAppend(records []Record) []Anomaly {
	r := &report{}
	ts := pair(records, r)
	l := &lists{report: r, transactions: ts, order: map[string][]int64{}, position: map[keyValue]int{}, longest: map[string]*Txn{}}
	l.inferOrder()
	l.elements()
	l.intermediate()
	l.internal()
	l.lost()
	l.stale()
	l.lostUpdates()
	l.cycles()
	return r.found
}

// lists is the order of versions of each key.
type lists struct {
	*report
	*transactions
	order    map[string][]int64 // the longest list read of a key
	longest  map[string]*Txn    // the transaction that read it
	position map[keyValue]int   // of each element in order
}

// An observation is a read of a list by a transaction whose reads are known.
type observation struct {
	txn *Txn
	op  Op
}

func (l *lists) observations() []observation {
	var out []observation
	for _, t := range l.all {
		if !t.known() {
			continue
		}
		for _, o := range t.Ops {
			if _, register := o.State.Int(); o.F == Read && !register {
				out = append(out, observation{t, o})
			}
		}
	}
	return out
}

// shared returns the part of a read that other transactions can see too. Own appends at
// its end are left out, because they have no place in the order yet.
func (l *lists) shared(o observation) []int64 {
	list := o.op.State.Elements()
	n := len(list)
	for n > 0 && l.origins[keyValue{o.op.Key, list[n-1]}].txn == o.txn {
		n--
	}
	return list[:n]
}

func (l *lists) inferOrder() {
	all := l.observations()
	for _, o := range all {
		if list := l.shared(o); len(list) > len(l.order[o.op.Key]) {
			l.order[o.op.Key], l.longest[o.op.Key] = list, o.txn
		}
	}
	for _, o := range all {
		list, order := l.shared(o), l.order[o.op.Key]
		for i, n := range list {
			if order[i] != n {
				l.add(IncompatibleOrder, []*Txn{o.txn, l.longest[o.op.Key]}, "%v is not a prefix of %v", o.op, List(order...))
				break
			}
		}
	}
	for key, order := range l.order {
		for i, n := range order {
			l.position[keyValue{key, n}] = i
		}
	}
}

// elements checks where each element of a read comes from.
func (l *lists) elements() {
	for _, o := range l.observations() {
		seen := map[int64]bool{}
		for _, n := range o.op.State.Elements() {
			w := l.origins[keyValue{o.op.Key, n}].txn
			switch {
			case seen[n]:
				l.add(DuplicateElement, []*Txn{o.txn, w}, "%v shows %d twice", o.op, n)
			case w == nil:
				l.add(Garbage, []*Txn{o.txn}, "%v shows %d, which no transaction appended", o.op, n)
			case w.Outcome == Fail && w != o.txn:
				l.add(G1a, []*Txn{o.txn, w}, "%v shows %d of a failed transaction", o.op, n)
			}
			seen[n] = true
		}
	}
}

// intermediate finds reads of lists that show only some of a transaction's appends.
func (l *lists) intermediate() {
	for _, o := range l.observations() {
		list := l.shared(o)
		for i, n := range list {
			w := l.origins[keyValue{o.op.Key, n}]
			if w.txn == nil || w.last || w.txn == o.txn {
				continue
			}
			if i+1 == len(list) || l.origins[keyValue{o.op.Key, list[i+1]}].txn != w.txn {
				l.add(G1b, []*Txn{o.txn, w.txn}, "%v shows %d without what its transaction appended after it", o.op, n)
			}
		}
	}
}

// internal checks each transaction against itself.
func (l *lists) internal() {
	for _, t := range l.all {
		if !t.known() {
			continue
		}
		base := map[string][]int64{} // the result of the key's first read, and own appends since
		read := map[string]bool{}
		for _, o := range t.Ops {
			switch o.F {
			case Append:
				base[o.Key] = append(slices.Clone(base[o.Key]), o.N)
			case Read:
				if _, register := o.State.Int(); register {
					continue
				}
				got, want := o.State.Elements(), base[o.Key]
				if read[o.Key] && !slices.Equal(got, want) || len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
					l.add(Internal, []*Txn{t}, "%v does not follow from the transaction's own operations before it", o)
				}
				base[o.Key], read[o.Key] = got, true
			}
		}
	}
}

// lost finds commits that a later read does not show: acknowledged ones, and unknown
// ones that a read has shown.
func (l *lists) lost() {
	shown := map[*Txn]int64{} // when it became known that the transaction committed
	for _, t := range l.all {
		if t.Outcome == OK {
			shown[t] = t.Ended
		}
	}
	for _, o := range l.observations() {
		for _, n := range o.op.State.Elements() {
			w := l.origins[keyValue{o.op.Key, n}].txn
			if w == nil || w == o.txn || !w.Seen {
				continue
			}
			if at, ok := shown[w]; !ok || o.txn.Ended < at {
				shown[w] = o.txn.Ended
			}
		}
	}
	// Of each key's reads, it is enough to check the one that began last.
	final := map[string]observation{}
	for _, o := range l.observations() {
		if f, ok := final[o.op.Key]; !ok || o.txn.Begun > f.txn.Begun {
			final[o.op.Key] = o
		}
	}
	for t, at := range shown {
		for _, op := range t.Ops {
			f, ok := final[op.Key]
			if op.F != Append || !ok || f.txn.Begun <= at {
				continue
			}
			if !slices.Contains(f.op.State.Elements(), op.N) {
				l.add(LostElement, []*Txn{t, f.txn}, "%v was committed, and is not in the last read of its key", op)
			}
		}
	}
}

// stale finds reads that miss an append that was acknowledged before they began, and that
// another read shows.
func (l *lists) stale() {
	first := map[string][]*Txn{} // of the elements from each position on: who was acknowledged first
	for key, order := range l.order {
		w := make([]*Txn, len(order)+1)
		for i := len(order) - 1; i >= 0; i-- {
			w[i] = w[i+1]
			if t := l.origins[keyValue{key, order[i]}].txn; t != nil && t.Outcome == OK && (w[i] == nil || t.Ended < w[i].Ended) {
				w[i] = t
			}
		}
		first[key] = w
	}
	for _, o := range l.observations() {
		n := len(l.shared(o))
		if n >= len(first[o.op.Key]) {
			continue
		}
		if w := first[o.op.Key][n]; w != nil && w != o.txn && w.Ended < o.txn.Begun {
			l.add(StaleRead, []*Txn{o.txn, w}, "%v misses what was committed before it began", o.op)
		}
	}
}

// base returns which version of a key a transaction read before it appended to it: the
// number of elements, or -1 if it did not read the key.
func (l *lists) base(t *Txn, key string) int {
	for _, o := range t.Ops {
		if o.Key != key {
			continue
		}
		if o.F == Read {
			return len(o.State.Elements())
		}
		if o.F == Append {
			break
		}
	}
	return -1
}

// lostUpdates finds two committed transactions that read the same version of a
// key and both appended to it.
func (l *lists) lostUpdates() {
	type slot struct {
		key  string
		base int
	}
	first := map[slot]*Txn{}
	for _, t := range l.all {
		if t.Outcome != OK {
			continue
		}
		for _, key := range t.appended() {
			base := l.base(t, key)
			if base < 0 {
				continue
			}
			s := slot{key, base}
			if other, ok := first[s]; ok {
				l.add(LostUpdate, []*Txn{other, t}, "both read %d elements of %q and appended to them", base, key)
			}
			first[s] = t
		}
	}
}

// cycles builds the graph of dependencies between committed transactions, and reports
// its cycles.
func (l *lists) cycles() {
	g := newGraph()
	for key, order := range l.order {
		for i := 1; i < len(order); i++ {
			a, b := l.origins[keyValue{key, order[i-1]}].txn, l.origins[keyValue{key, order[i]}].txn
			g.edge(a, b, ww, key)
		}
	}
	for _, t := range l.all {
		if t.Outcome != OK {
			continue
		}
		counted := map[string]bool{}
		for _, o := range t.Ops {
			if counted[o.Key] {
				continue
			}
			counted[o.Key] = true // later reads show the same, or own appends
			if o.F != Read {
				continue
			}
			order, n := l.order[o.Key], len(o.State.Elements())
			if n > 0 {
				g.edge(l.origins[keyValue{o.Key, o.State.Elements()[n-1]}].txn, t, wr, o.Key)
			}
			if n < len(order) {
				// If the next version is the transaction's own, edge adds nothing.
				g.edge(t, l.origins[keyValue{o.Key, order[n]}].txn, rw, o.Key)
			}
		}
	}
	g.realTime(l.all)
	for _, c := range g.cycles() {
		l.add(c.kind, c.txns, "%s", c.describe())
	}
}

func byBegin(a, b *Txn) int { return cmp.Compare(a.Begun, b.Begun) }
