// Package combination draws the histories of TestRandomHistories: which features meet in them. It depends
// on nothing that it is about, so it also says what any number of histories covers. A feature is one name
// here, and one case in the test.
package combination

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Sessions are the features that one session of a client uses: a transaction, and reads beside it.
var Sessions = []string{
	"Get", "ReadRow", "ReadRows", "several tables", "page", "Latest", "Snapshot", "index read",
	"Columns", "Families", "Qualifiers", "KeysOnly", "CellsPerRow", "Limit", "Reverse",
	"GetForUpdate", "Serializable", "Observe", "Lock", "Delete", "DeleteRow", "indexed write", "many rows",
	"idempotency", "Named",
}

// Histories are the features that happen beside the sessions.
var Histories = []string{
	"expiry", "expiry changed", "PassLocks", "adopted", "leave",
	"collection", "collection of changes", "slow collection", "index build", "job", "worker",
	"lost answers", "doubled requests", "late requests", "deaths",
}

// Faults are the features that disturb the requests of clients.
var Faults = []string{"lost answers", "doubled requests", "late requests", "deaths"}

// Operations are what a session does, one after the other.
var Operations = []string{
	"Get", "ReadRow", "ReadRows", "several tables", "page", "Latest", "Snapshot", "index read",
	"GetForUpdate", "Observe", "Lock", "Delete", "DeleteRow", "indexed write", "many rows", "Set", "Set in b",
}

// chances says of each option of a session in how many sessions it is drawn once.
var chances = map[string]int{
	"Columns": 3, "Families": 5, "Qualifiers": 5, "KeysOnly": 5, "CellsPerRow": 5, "Limit": 5, "Reverse": 5,
	"Serializable": 4, "idempotency": 6, "Named": 2,
}

// The operations that the options of reads belong to.
var (
	choosing = []string{"ReadRow", "ReadRows", "page", "Latest", "Snapshot"}
	scanning = []string{"ReadRows", "Snapshot"}
	readers  = map[string][]string{
		"Columns": choosing, "Families": choosing, "Qualifiers": choosing, "KeysOnly": choosing, "CellsPerRow": choosing,
		"Limit": scanning, "Reverse": scanning,
	}
)

// What the sizes of a history are.
const (
	Phases           = 4
	Clients          = 3
	SessionsOfClient = 3 // in a phase
)

var (
	features     = slices.Concat(Sessions, Histories)
	pairs        = pairsOf(features)
	sessionPairs = pairsOf(Sessions)
	number       = map[string]int{}
)

func init() {
	for i, f := range features {
		number[f] = i
	}
}

func pairsOf(features []string) (all [][2]string) {
	for i, a := range features {
		for _, b := range features[:i] {
			all = append(all, [2]string{b, a})
		}
	}
	return all
}

// A Set is a set of features.
type Set uint64

// Of returns the set of some features. Other names count as none.
func Of(names ...string) (s Set) {
	for _, name := range names {
		if i, ok := number[name]; ok {
			s |= 1 << i
		}
	}
	return s
}

// Has reports whether the set has a feature.
func (s Set) Has(name string) bool { return s&Of(name) != 0 }

// String lists the features.
func (s Set) String() string {
	var names []string
	for _, f := range features {
		if s.Has(f) {
			names = append(names, f)
		}
	}
	return fmt.Sprintf("%q", names)
}

// A Session says what one session of a client does.
type Session struct {
	Options Set
	Ops     []string
	// Uses are the features that it has used when all its operations have run.
	Uses Set
}

// A History says which features meet.
type History struct {
	Target [3]string // features that it has to have
	On     Set       // the features that may occur: any subset
	// Between says what an operator does before a phase.
	Between [Phases][]string
	// Acted are the features of the history that have happened at the end of a phase.
	Acted    [Phases]Set
	Sessions [Phases][Clients][SessionsOfClient]Session
}

// Draw draws the history of a seed. Each pair of features is in the target of one of so many seeds in a
// row as there are pairs, and with each third feature in as many times more.
func Draw(seed uint64) *History {
	h, rnd := &History{}, rand.New(rand.NewPCG(seed, 1))
	n := uint64(len(pairs))
	p := pairs[seed%n]
	third := slices.DeleteFunc(slices.Clone(features), func(f string) bool { return f == p[0] || f == p[1] })
	h.Target = [3]string{p[0], p[1], third[(seed/n+seed)%uint64(len(third))]}
	target := Of(h.Target[:]...)
	h.On = target
	share := []int{0, 2, 5, 10, 10}[rnd.IntN(5)] // of ten features
	for _, f := range Sessions {
		if rnd.IntN(10) < share {
			h.On |= Of(f)
		}
	}
	for _, f := range Histories {
		if rnd.IntN(25) < share {
			h.On |= Of(f)
		}
	}
	h.drawOperator(rnd, target)
	// Half of the sessions have to use the target; each of the others uses another pair.
	others := seed * (Phases * Clients * SessionsOfClient / 2)
	for p := range Phases {
		for c := range Clients {
			for s := range SessionsOfClient {
				wants := target & Of(Sessions...)
				if (p+c+s)%2 > 0 {
					other := sessionPairs[others%uint64(len(sessionPairs))]
					wants = Of(other[:]...) & h.On
					others++
				}
				h.Sessions[p][c][s] = drawSession(rnd, wants, h.On)
			}
		}
	}
	return h
}

func (h *History) drawOperator(rnd *rand.Rand, target Set) {
	acted := h.On & Of("expiry", "PassLocks", "adopted", "job", "worker")
	for p := range Phases {
		if p > 0 {
			things := []string{"time", "time", "repair"}
			for _, f := range []string{"collection", "collection of changes", "slow collection", "expiry changed", "expiry changed", "leave"} {
				if h.On.Has(f) && (target.Has(f) || rnd.IntN(2) == 0) {
					things = append(things, f)
				}
			}
			rnd.Shuffle(len(things), func(i, j int) { things[i], things[j] = things[j], things[i] })
			h.Between[p] = things
			acted |= Of(things...) | h.On&Of("index build")
		}
		h.Acted[p] = acted
	}
	h.Acted[Phases-1] |= h.On & Of(Faults...)
}

func drawSession(rnd *rand.Rand, wants, on Set) (s Session) {
	may := func(name string) bool { return Of(name)&^on == 0 } // also what is no feature
	operations := slices.DeleteFunc(slices.Clone(Operations), func(op string) bool { return !may(op) })
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	for _, op := range Operations {
		if wants.Has(op) {
			s.Ops = append(s.Ops, op)
		}
	}
	few := append(slices.Clone(s.Ops), pick(operations), pick(operations))
	for range 1 + rnd.IntN(4) {
		s.Ops = append(s.Ops, pick(few))
	}
	if rnd.IntN(4) > 0 {
		s.Ops = append(s.Ops, "Set")
	}
	for _, f := range Sessions {
		chance, ok := chances[f]
		if !ok || !may(f) || !wants.Has(f) && rnd.IntN(chance) > 0 {
			continue
		}
		if of := readers[f]; of != nil && !slices.ContainsFunc(s.Ops, func(op string) bool { return slices.Contains(of, op) }) {
			if !wants.Has(f) {
				continue
			}
			s.Ops = append(s.Ops, pick(of))
		}
		s.Options |= Of(f)
	}
	rnd.Shuffle(len(s.Ops), func(i, j int) { s.Ops[i], s.Ops[j] = s.Ops[j], s.Ops[i] })
	s.Uses = s.Options | Of(s.Ops...)
	if s.Uses&Of("GetForUpdate", "Observe") != 0 {
		s.Uses |= Of("Get")
	}
	return s
}
