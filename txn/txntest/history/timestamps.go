package history

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// CheckTimestamps checks a history against its timestamps:
//
// A transaction with start_ts S sees exactly the commits with commit_ts at or below S
// (no two timestamps are equal, except those of transactions that only read), and its own writes. The intervals [start_ts,
// commit_ts] of two committed writers of one key do not overlap. A transaction that
// begins after another one was acknowledged has a larger start_ts than both timestamps
// of that one. Lists and registers may be mixed, but not in one key.
//
// A read of the latest state sees what its keys hold at its start_ts, and at least what any
// transaction has committed to or seen of them that was acknowledged before the read began.
//
// A transaction with an unknown outcome counts as committed if a transaction read from
// it. If its commit_ts is unknown, the checker takes the latest one that those reads
// allow.
func CheckTimestamps(records []Record) []Anomaly {
	r := &report{}
	ts := pair(records, r)
	c := &clock{report: r, transactions: ts, times: map[*Txn]interval{}, versions: map[string][]version{}}
	c.place()
	c.index()
	c.unique()
	c.overlaps()
	c.reads()
	c.realTime()
	c.latest()
	return r.found
}

// An interval is [start, commit] in half timestamps: a timestamp T is 2·T, so that an
// unknown commit fits between two.
type interval struct{ start, commit int64 }

// A version is one committed write of a key.
type version struct {
	commit int64
	op     Op
	txn    *Txn
}

type clock struct {
	*report
	*transactions
	times    map[*Txn]interval
	versions map[string][]version // by key, in order of commit
}

// place determines each committed transaction's interval.
func (c *clock) place() {
	var unknown []*Txn
	for _, t := range c.all {
		if !t.Committed() {
			continue
		}
		iv := interval{2 * t.StartTS, 2 * t.CommitTS}
		if t.CommitTS == 0 || !t.writes() {
			iv.commit = iv.start
		}
		if t.Seen && t.CommitTS == 0 {
			iv.commit = math.MaxInt64
			unknown = append(unknown, t)
		}
		c.times[t] = iv
	}
	if len(unknown) > 0 {
		c.placeUnknown(unknown)
	}
}

// placeUnknown puts each unknown commit at the latest possible place: below the start
// of each transaction that saw it, and of each that is known to have overwritten it.
func (c *clock) placeUnknown(unknown []*Txn) {
	before := func(t *Txn, limit int64) bool {
		iv := c.times[t]
		if limit-1 >= iv.commit {
			return false
		}
		iv.commit = limit - 1
		c.times[t] = iv
		return true
	}
	isUnknown := map[*Txn]bool{}
	for _, t := range unknown {
		isUnknown[t] = true
	}
	longest := map[string][]int64{}
	for _, t := range c.all {
		if !t.known() {
			continue
		}
		for _, o := range t.Ops {
			if o.F != Read {
				continue
			}
			for _, n := range o.State.values() {
				if w := c.origins[keyValue{o.Key, n}].txn; w != t && isUnknown[w] {
					before(w, 2*t.StartTS)
				}
			}
			if l := o.State.Elements(); len(l) > len(longest[o.Key]) {
				longest[o.Key] = l
			}
		}
	}
	// The known order of writers of each key. For lists it is known completely.
	type order struct{ first, second *Txn }
	var orders []order
	for key, l := range longest {
		for i := 1; i < len(l); i++ {
			a, b := c.origins[keyValue{key, l[i-1]}].txn, c.origins[keyValue{key, l[i]}].txn
			if a != b && isUnknown[a] && b != nil {
				orders = append(orders, order{a, b})
			}
		}
	}
	// For registers: intervals of writers do not overlap, so writers are in the
	// order of their starts. For a transaction without a start, those came later
	// that committed after the place that its readers alone allow.
	writers := map[string][]*Txn{}
	for _, t := range c.all {
		if !t.Committed() {
			continue
		}
		for _, o := range t.Ops {
			if o.F != Read {
				writers[o.Key] = append(writers[o.Key], t)
			}
		}
	}
	for _, u := range unknown {
		for _, o := range u.Ops {
			if o.F == Read {
				continue
			}
			for _, w := range writers[o.Key] {
				if u.StartTS != 0 && w.StartTS > u.StartTS || u.StartTS == 0 && !isUnknown[w] && c.times[w].commit > c.times[u].commit {
					orders = append(orders, order{u, w})
				}
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for _, o := range orders {
			limit := c.times[o.second].start
			if limit == 0 {
				limit = c.times[o.second].commit
			}
			// If the order has a cycle, the place becomes 0, and the transaction
			// shows up as an anomaly later.
			if limit > 0 && before(o.first, limit) {
				changed = true
			}
		}
	}
}

func (c *clock) index() {
	kinds := map[string]Func{}
	for _, t := range c.all {
		if !t.Committed() {
			continue
		}
		for _, o := range t.Ops {
			if o.F == Read {
				continue
			}
			if o.F != Lock {
				if k, ok := kinds[o.Key]; ok && k != o.F {
					c.add(Malformed, []*Txn{t}, "key %q is both a list and a register", o.Key)
				}
				kinds[o.Key] = o.F
			}
			c.versions[o.Key] = append(c.versions[o.Key], version{c.times[t].commit, o, t})
		}
	}
	for _, vs := range c.versions {
		slices.SortStableFunc(vs, func(a, b version) int { return cmp.Compare(a.commit, b.commit) })
	}
}

// unique checks that timestamps exist, differ and are in order.
func (c *clock) unique() {
	owner := map[int64]*Txn{}
	see := func(t *Txn, ts int64) {
		if ts == 0 {
			return
		}
		if other, ok := owner[ts]; ok && other != t {
			c.add(Timestamps, []*Txn{other, t}, "timestamp %d was handed out twice", ts)
		}
		owner[ts] = t
	}
	for _, t := range c.all {
		if t.writes() {
			see(t, t.StartTS)
		}
		if t.CommitTS != t.StartTS {
			see(t, t.CommitTS)
		}
		iv := c.times[t]
		switch {
		case t.Outcome == OK && t.StartTS == 0:
			c.add(Timestamps, []*Txn{t}, "a committed transaction without start_ts")
		case t.Committed() && t.writes() && iv.commit <= iv.start:
			c.add(Timestamps, []*Txn{t}, "commit_ts is not above start_ts, or others saw the commit before the start")
		}
	}
}

// overlaps checks that of two concurrent writers only one commits.
func (c *clock) overlaps() {
	for key, vs := range c.versions {
		for i := 1; i < len(vs); i++ {
			a, b := vs[i-1].txn, vs[i].txn
			if start := c.times[b].start; a != b && start != 0 && start < c.times[a].commit {
				c.add(Overlap, []*Txn{a, b}, "both wrote %q, and the second started before the first committed", key)
			}
		}
	}
}

// reads replays every transaction whose reads are known, including failed ones: these
// read a consistent snapshot too.
func (c *clock) reads() {
	for _, t := range c.all {
		if !t.known() || t.StartTS == 0 {
			continue
		}
		own := map[string][]Op{}
		for _, o := range t.Ops {
			if o.F != Read {
				own[o.Key] = append(own[o.Key], o)
				continue
			}
			if want := c.stateAt(o.Key, 2*t.StartTS, own[o.Key], t); !want.equal(o.State) {
				c.explain(t, o, want)
			}
		}
	}
}

// stateAt returns the correct result of a read of key at the half timestamp at.
func (c *clock) stateAt(key string, at int64, own []Op, reader *Txn) State {
	vs := c.versions[key]
	n := sort.Search(len(vs), func(i int) bool { return vs[i].commit > at })
	var s State
	apply := func(o Op) {
		switch o.F {
		case Append:
			s = List(append(s.list, o.N)...)
		case Write:
			s = Number(o.N)
		}
	}
	for _, v := range vs[:n] {
		if v.txn != reader {
			apply(v.op)
		}
	}
	for _, o := range own {
		apply(o)
	}
	return s
}

// explain reports what is wrong with a read.
func (c *clock) explain(t *Txn, o Op, want State) {
	expected := map[int64]bool{}
	for _, n := range want.values() {
		expected[n] = true
	}
	for _, n := range o.State.values() {
		if expected[n] {
			continue
		}
		w := c.origins[keyValue{o.Key, n}]
		switch {
		case w.txn == nil:
			c.add(Garbage, []*Txn{t}, "%v shows %d, which nobody wrote", o, n)
		case w.txn == t:
			c.add(Internal, []*Txn{t}, "%v, but the transaction's own writes make it %v", o, want)
		case w.txn.Outcome == Fail:
			c.add(G1a, []*Txn{t, w.txn}, "%v shows %d of a failed transaction", o, n)
		case c.times[w.txn].commit > 2*t.StartTS:
			c.add(FutureRead, []*Txn{t, w.txn}, "%v shows %d, committed later; at %d it is %v", o, n, t.StartTS, want)
		case !w.last:
			c.add(G1b, []*Txn{t, w.txn}, "%v shows %d, which its own transaction replaced; at %d it is %v", o, n, t.StartTS, want)
		default:
			txns := []*Txn{t, w.txn}
			for _, missed := range want.values() {
				if m := c.origins[keyValue{o.Key, missed}].txn; m != nil && !slices.Contains(o.State.values(), missed) {
					txns = append(txns, m)
				}
			}
			c.add(StaleRead, txns, "%v, but at %d it is %v", o, t.StartTS, want)
		}
		return
	}
	seen := map[int64]bool{}
	for _, n := range o.State.values() {
		if seen[n] {
			c.add(DuplicateElement, []*Txn{t, c.origins[keyValue{o.Key, n}].txn}, "%v shows %d twice", o, n)
			return
		}
		seen[n] = true
	}
	for _, n := range want.values() {
		if w := c.origins[keyValue{o.Key, n}].txn; !seen[n] {
			if w == t {
				c.add(Internal, []*Txn{t}, "%v misses the transaction's own %d; it is %v", o, n, want)
			} else {
				c.add(StaleRead, []*Txn{t, w}, "%v misses %d; at %d it is %v", o, n, t.StartTS, want)
			}
			return
		}
	}
	c.add(IncompatibleOrder, []*Txn{t}, "%v, but in order of commit_ts it is %v", o, want)
}

// realTime checks that timestamps follow the order of acknowledgments.
func (c *clock) realTime() {
	begun := slices.Clone(c.all)
	slices.SortStableFunc(begun, func(a, b *Txn) int { return cmp.Compare(a.Begun, b.Begun) })
	ended := slices.Clone(c.all)
	slices.SortStableFunc(ended, func(a, b *Txn) int { return cmp.Compare(a.Ended, b.Ended) })
	var latest *Txn
	newest := func(t *Txn) int64 {
		if t.Outcome == OK {
			return max(t.StartTS, t.CommitTS)
		}
		return t.StartTS
	}
	i := 0
	for _, t := range begun {
		for ; i < len(ended) && ended[i].Ended < t.Begun; i++ {
			if latest == nil || newest(ended[i]) > newest(latest) {
				latest = ended[i]
			}
		}
		if latest != nil && !t.Latest && t.StartTS != 0 && t.StartTS <= newest(latest) {
			c.add(RealTime, []*Txn{latest, t}, "the second began after the first had ended, with a start_ts that is not larger")
		}
	}
}

// latest checks that reads of the latest state are linearizable in each key.
func (c *clock) latest() {
	type sight struct {
		commit int64
		txn    *Txn
	}
	ended := slices.Clone(c.all)
	slices.SortStableFunc(ended, func(a, b *Txn) int { return cmp.Compare(a.Ended, b.Ended) })
	begun := slices.Clone(c.all)
	slices.SortStableFunc(begun, byBegin)
	newest := map[string]sight{} // by key, what transactions have shown that have ended
	i := 0
	for _, t := range begun {
		for ; i < len(ended) && ended[i].Ended < t.Begun; i++ {
			e := ended[i]
			if e.Outcome != OK {
				continue
			}
			for _, o := range e.Ops {
				at := 2 * e.StartTS
				if o.F != Read {
					at = c.times[e].commit
				}
				if shown := c.shown(o.Key, at); shown > newest[o.Key].commit {
					newest[o.Key] = sight{shown, e}
				}
			}
		}
		if !t.Latest || t.Outcome != OK {
			continue
		}
		for _, o := range t.Ops {
			if s := newest[o.Key]; c.shown(o.Key, 2*t.StartTS) < s.commit {
				c.add(StaleRead, []*Txn{s.txn, t}, "%v is not the latest state: the first transaction had shown a later one before the second began", o)
			}
		}
	}
}

// shown returns the half timestamp of the newest commit of a key that changed its state, at or
// below the half timestamp at.
func (c *clock) shown(key string, at int64) (commit int64) {
	for _, v := range c.versions[key] {
		if v.commit <= at && v.op.F != Lock {
			commit = v.commit
		}
	}
	return commit
}
