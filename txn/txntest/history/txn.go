package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A Txn is one transaction of a history: its Invoke and its end.
type Txn struct {
	Process int
	// Outcome is OK, Fail or Info. It is Info if the transaction has no end.
	Outcome Type
	// Begun and Ended are times. Ended is math.MaxInt64 unless the outcome is
	// known.
	Begun, Ended      int64
	StartTS, CommitTS int64
	// Ops are the operations of the end, with what they read. If the end has none,
	// they are those of the Invoke.
	Ops []Op
	// Latest is that of the Invoke.
	Latest bool
	// Seen means that the outcome is unknown, but a read shows that the
	// transaction committed.
	Seen bool
}

// Committed reports whether the transaction is known to have committed.
func (t *Txn) Committed() bool { return t.Outcome == OK || t.Seen }

// String returns the transaction as one line.
func (t *Txn) String() string {
	s := fmt.Sprintf("process %d, %s, start_ts %d, commit_ts %d:", t.Process, t.Outcome, t.StartTS, t.CommitTS)
	for _, o := range t.Ops {
		s += " " + o.String()
	}
	return s
}

// writes reports whether the transaction changes or locks anything.
func (t *Txn) writes() bool {
	return slices.ContainsFunc(t.Ops, func(o Op) bool { return o.F != Read })
}

// known reports whether the results of the transaction's reads are recorded.
func (t *Txn) known() bool { return t.Outcome == OK || t.Outcome == Fail }

// appended returns the keys to which the transaction appended.
func (t *Txn) appended() []string {
	var keys []string
	for _, o := range t.Ops {
		if o.F == Append && !slices.Contains(keys, o.Key) {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// An origin is where a value of a key came from.
type origin struct {
	txn *Txn
	// last is set if the transaction wrote nothing to the key after it.
	last bool
}

type keyValue struct {
	key string
	n   int64
}

// transactions are those of a history, with an index from each value to the transaction
// that wrote it.
type transactions struct {
	all     []*Txn
	origins map[keyValue]origin
}

// pair matches each Invoke with its end.
func pair(records []Record, r *report) *transactions {
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.Time, b.Time) })
	ts := &transactions{origins: map[keyValue]origin{}}
	open := map[int]*Txn{}
	ended := map[int]bool{} // processes after an unknown outcome
	for _, rec := range records {
		t := open[rec.Process]
		if rec.Type == Invoke {
			if t != nil || ended[rec.Process] {
				r.add(Malformed, nil, "process %d invokes again at %d, before the end of a transaction or after an unknown one", rec.Process, rec.Time)
				continue
			}
			t = &Txn{Process: rec.Process, Outcome: Info, Begun: rec.Time, Ended: math.MaxInt64, StartTS: rec.StartTS, CommitTS: rec.CommitTS, Ops: rec.Value, Latest: rec.Latest}
			open[rec.Process] = t
			ts.all = append(ts.all, t)
			continue
		}
		if t == nil {
			r.add(Malformed, nil, "process %d ends a transaction at %d that it did not invoke", rec.Process, rec.Time)
			continue
		}
		delete(open, rec.Process)
		t.Outcome = rec.Type
		if rec.StartTS != 0 {
			t.StartTS = rec.StartTS
		}
		t.CommitTS = rec.CommitTS
		if len(rec.Value) > 0 {
			t.Ops = rec.Value
		}
		switch rec.Type {
		case OK, Fail:
			t.Ended = rec.Time
		case Info:
			ended[rec.Process] = true
		default:
			r.add(Malformed, nil, "record of type %q at %d", rec.Type, rec.Time)
		}
	}
	for _, t := range ts.all {
		ts.index(t, r)
	}
	ts.inferOutcomes()
	return ts
}

func (ts *transactions) index(t *Txn, r *report) {
	last := map[string]keyValue{}
	for _, o := range t.Ops {
		if o.F != Append && o.F != Write {
			continue
		}
		kv := keyValue{o.Key, o.N}
		if other, ok := ts.origins[kv]; ok {
			r.add(Malformed, []*Txn{other.txn, t}, "%d is written twice to %q; reads do not show which one they saw", o.N, o.Key)
		}
		if prev, ok := last[o.Key]; ok {
			ts.origins[prev] = origin{t, false}
		}
		last[o.Key] = kv
		ts.origins[kv] = origin{t, true}
	}
}

// inferOutcomes finds out which unknown transactions committed: those that another
// transaction saw. The last reads of a history show every list completely, so that an
// append that they do not show never took effect.
func (ts *transactions) inferOutcomes() {
	for _, t := range ts.all {
		if !t.known() {
			continue
		}
		for _, o := range t.Ops {
			if o.F != Read {
				continue
			}
			for _, n := range o.State.values() {
				if w := ts.origins[keyValue{o.Key, n}].txn; w != nil && w != t && w.Outcome == Info {
					w.Seen = true
				}
			}
		}
	}
}
