package history

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// A model is a store without faults, which makes clean histories.
type model struct {
	clock    int64
	versions map[string][]version
	records  []Record
}

type modelTxn struct {
	process int
	begun   int64
	start   int64
	ops     []Op
	own     map[string][]Op
}

func (m *model) tick() int64 { m.clock++; return m.clock }

func (m *model) read(key string, at int64, own []Op) State {
	c := &clock{versions: m.versions}
	return c.stateAt(key, at, own, &Txn{})
}

func (m *model) conflict(t *modelTxn) bool {
	for _, o := range t.ops {
		if vs := m.versions[o.Key]; o.F != Read && len(vs) > 0 && vs[len(vs)-1].commit > t.start {
			return true
		}
	}
	return false
}

func (m *model) commit(t *modelTxn, at int64) {
	for _, o := range t.ops {
		if o.F != Read {
			m.versions[o.Key] = append(m.versions[o.Key], version{commit: at, op: o})
		}
	}
}

// simulate interleaves random transactions on the model, kills some of them, and ends
// with reads of all keys.
func simulate(t *rapid.T) []Record {
	m := &model{versions: map[string][]version{}}
	seed := rapid.Uint64().Draw(t, "seed")
	rnd := rand.New(rand.NewPCG(seed, 0))
	keys := []string{"x", "y", "z"}
	registers := rnd.IntN(3) == 0
	open := make([]*modelTxn, 4)
	process, element := 0, int64(0)
	end := func(i int, ty Type) {
		x := open[i]
		open[i] = nil
		r := Record{Type: ty, Process: x.process, StartTS: x.start, Value: x.ops}
		if ty != Fail {
			if at := m.tick(); ty == OK || rnd.IntN(2) == 0 {
				m.commit(x, at)
				r.CommitTS = at
			}
		}
		if ty == Info {
			if rnd.IntN(2) == 0 {
				return // killed
			}
			if rnd.IntN(2) == 0 {
				r.CommitTS = 0
			}
			r.Value = nil
		}
		r.Time = m.tick()
		m.records = append(m.records, r)
	}
	for range 120 {
		i := rnd.IntN(len(open))
		x := open[i]
		if x == nil {
			process++
			x = &modelTxn{process: process, begun: m.tick(), own: map[string][]Op{}}
			x.start = m.tick()
			for range 1 + rnd.IntN(4) {
				key := keys[rnd.IntN(len(keys))]
				o := Op{F: Read, Key: key}
				if rnd.IntN(2) == 0 {
					element++
					o = Op{F: Append, Key: key, N: element}
					if registers {
						o.F = Write
					}
				} else {
					o.State = m.read(key, x.start, x.own[key])
				}
				x.own[key] = append(x.own[key], o)
				x.ops = append(x.ops, o)
			}
			invoke := Record{Type: Invoke, Process: process, Time: x.begun, StartTS: x.start}
			for _, o := range x.ops {
				o.State = State{}
				invoke.Value = append(invoke.Value, o)
			}
			m.records = append(m.records, invoke)
			open[i] = x
			continue
		}
		switch {
		case m.conflict(x):
			end(i, Fail)
		case rnd.IntN(6) == 0:
			end(i, Info)
		default:
			end(i, OK)
		}
	}
	for i := range open {
		if open[i] != nil {
			end(i, Fail)
		}
	}
	process++
	last := Record{Type: Invoke, Process: process, Time: m.tick()}
	m.records = append(m.records, last)
	last.Type, last.StartTS = OK, m.tick()
	for _, key := range keys {
		last.Value = append(last.Value, Op{F: Read, Key: key, State: m.read(key, last.StartTS, nil)})
	}
	last.Time = m.tick()
	m.records = append(m.records, last)
	return m.records
}

// TestCleanHistories: no checker finds an anomaly in the histories of a correct store.
func TestCleanHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := simulate(t)
		if found := SnapshotIsolation.Check(h); len(found) > 0 {
			t.Fatalf("found in a clean history:\n%s", describe(found))
		}
	})
}

// TestTamperedHistories changes one read of a clean history. The timestamp checker
// knows what each read must return, and has to find the change every time.
func TestTamperedHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := simulate(t)
		var reads []*Op
		for i := range h {
			if h[i].Type != OK {
				continue
			}
			for j := range h[i].Value {
				if h[i].Value[j].F == Read && len(h[i].Value[j].State.values()) > 0 {
					reads = append(reads, &h[i].Value[j])
				}
			}
		}
		if len(reads) == 0 {
			return
		}
		o := reads[rapid.IntRange(0, len(reads)-1).Draw(t, "read")]
		was := *o
		if o.State.kind == 'n' {
			o.State = State{}
		} else {
			o.State = List(o.State.list[:len(o.State.list)-1]...)
		}
		if found := CheckTimestamps(h); len(found) == 0 {
			// The last write of an unknown transaction, which no read has shown.
			w := map[int64]Type{}
			for _, r := range h {
				for _, op := range r.Value {
					if op.F != Read && op.Key == was.Key && (r.Type != Invoke || w[op.N] == "") {
						w[op.N] = r.Type
					}
				}
			}
			vs := was.State.values()
			if w[vs[len(vs)-1]] != Invoke {
				t.Fatalf("%v in place of %v was not found", *o, was)
			}
		}
	})
}
