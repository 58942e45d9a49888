package history

import (
	"cmp"
	"slices"
	"sort"
)

// CheckRegisters checks the registers of a history without looking at timestamps. A
// read shows which version it saw, because numbers are written once. The order of a
// register's versions is known only in part: nothing comes first; a transaction that
// read a version and replaced it comes after it; and a transaction that began after
// another was acknowledged comes after that one. The dependencies that follow must not
// form a cycle. Operations on lists are ignored.
func CheckRegisters(records []Record) []Anomaly {
	r := &report{}
	c := &registers{report: r, transactions: pair(records, r), keys: map[string][]*registerVersion{}, at: map[keyValue]*registerVersion{}}
	c.index()
	c.reads()
	c.order()
	c.replaced()
	c.stale()
	c.cycles()
	return r.found
}

// A registerVersion is a transaction's last write of a register.
type registerVersion struct {
	n   int64
	txn *Txn
	// next are the closest versions that are known to come later. first means that
	// no version is known to come before.
	next  []*registerVersion
	first bool
}

type registers struct {
	*report
	*transactions
	keys map[string][]*registerVersion // in the order in which their transactions began
	at   map[keyValue]*registerVersion
}

func (c *registers) index() {
	for _, t := range c.all {
		if !t.Committed() {
			continue
		}
		for _, o := range t.Ops {
			if kv := (keyValue{o.Key, o.N}); o.F == Write && c.origins[kv] == (origin{t, true}) {
				c.at[kv] = &registerVersion{n: o.N, txn: t, first: true}
				c.keys[o.Key] = append(c.keys[o.Key], c.at[kv])
			}
		}
	}
	for _, versions := range c.keys {
		slices.SortStableFunc(versions, func(a, b *registerVersion) int { return cmp.Compare(a.txn.Begun, b.txn.Begun) })
	}
}

// reads checks where each number comes from, and each transaction against its own
// operations.
func (c *registers) reads() {
	for _, t := range c.all {
		if !t.known() {
			continue
		}
		own := map[string]State{}
		for _, o := range t.Ops {
			if o.F == Write {
				own[o.Key] = Number(o.N)
			}
			if !c.isRead(o) {
				continue
			}
			was, seen := own[o.Key]
			own[o.Key] = o.State
			if seen && !was.equal(o.State) {
				c.add(Internal, []*Txn{t}, "%v, but the transaction's own operations make it %v", o, was)
				continue
			}
			n, ok := o.State.Int()
			if !ok {
				continue
			}
			switch w := c.origins[keyValue{o.Key, n}]; {
			case w.txn == nil:
				c.add(Garbage, []*Txn{t}, "%v shows %d, which nobody wrote", o, n)
			case w.txn == t:
			case w.txn.Outcome == Fail:
				c.add(G1a, []*Txn{t, w.txn}, "%v shows %d of a failed transaction", o, n)
			case !w.last:
				c.add(G1b, []*Txn{t, w.txn}, "%v shows %d, which its own transaction replaced", o, n)
			}
		}
	}
}

// isRead reports whether an operation reads a register. A read that saw nothing counts
// if a transaction has written a number to its key.
func (c *registers) isRead(o Op) bool {
	if _, ok := o.State.Int(); ok {
		return o.F == Read
	}
	return o.F == Read && len(o.State.Elements()) == 0 && len(c.keys[o.Key]) > 0
}

// seen returns the state of each register that a transaction read before it wrote to
// it.
func (c *registers) seen(t *Txn) map[string]State {
	seen, touched := map[string]State{}, map[string]bool{}
	for _, o := range t.Ops {
		if !touched[o.Key] && c.isRead(o) {
			seen[o.Key] = o.State
		}
		touched[o.Key] = true
	}
	return seen
}

// order finds out which versions come after which.
func (c *registers) order() {
	for key, versions := range c.keys {
		for _, v := range versions {
			if saw, ok := c.seen(v.txn)[key].Int(); ok {
				if before := c.at[keyValue{key, saw}]; before != nil && before != v {
					before.precede(v)
				}
			}
			// Of the transactions that began after this one ended, take those that
			// began before any of them had ended.
			i := sort.Search(len(versions), func(i int) bool { return versions[i].txn.Begun > v.txn.Ended })
			for end := int64(-1); i < len(versions); i++ {
				w := versions[i]
				if end >= 0 && w.txn.Begun > end {
					break
				}
				if end < 0 || w.txn.Ended < end {
					end = w.txn.Ended
				}
				v.precede(w)
			}
		}
	}
}

func (v *registerVersion) precede(w *registerVersion) {
	w.first = false
	if !slices.Contains(v.next, w) {
		v.next = append(v.next, w)
	}
}

// after returns the versions that directly follow the state that a read saw.
func (c *registers) after(key string, s State) []*registerVersion {
	if n, ok := s.Int(); ok {
		if v := c.at[keyValue{key, n}]; v != nil {
			return v.next
		}
		return nil
	}
	var first []*registerVersion
	for _, v := range c.keys[key] {
		if v.first {
			first = append(first, v)
		}
	}
	return first
}

// replaced finds two committed transactions that read the same version and both
// replaced it.
func (c *registers) replaced() {
	type place struct {
		key  string
		some bool
		n    int64
	}
	first := map[place]*Txn{}
	for _, t := range c.all {
		if t.Outcome != OK {
			continue
		}
		for key, saw := range c.seen(t) {
			if !slices.ContainsFunc(t.Ops, func(o Op) bool { return o.F == Write && o.Key == key }) {
				continue
			}
			n, some := saw.Int()
			p := place{key, some, n}
			if other, ok := first[p]; ok {
				c.add(LostUpdate, []*Txn{other, t}, "both read %v of %q and replaced it", saw, key)
			}
			first[p] = t
		}
	}
}

// stale finds reads that miss a commit that was acknowledged before they began.
func (c *registers) stale() {
	for _, t := range c.all {
		if !t.known() {
			continue
		}
		for key, saw := range c.seen(t) {
			for _, v := range c.after(key, saw) {
				if v.txn != t && v.txn.Outcome == OK && v.txn.Ended < t.Begun {
					c.add(StaleRead, []*Txn{t, v.txn}, "%q was %v, after %d had replaced it", key, saw, v.n)
				}
			}
		}
	}
}

func (c *registers) cycles() {
	g := newGraph()
	for key, versions := range c.keys {
		for _, v := range versions {
			for _, w := range v.next {
				g.edge(v.txn, w.txn, ww, key)
			}
		}
	}
	for _, t := range c.all {
		if t.Outcome != OK {
			continue
		}
		for key, saw := range c.seen(t) {
			if n, ok := saw.Int(); ok {
				g.edge(c.origins[keyValue{key, n}].txn, t, wr, key)
			}
			for _, v := range c.after(key, saw) {
				g.edge(t, v.txn, rw, key)
			}
		}
	}
	g.realTime(c.all)
	for _, found := range g.cycles() {
		c.add(found.kind, found.txns, "%s", found.describe())
	}
}
