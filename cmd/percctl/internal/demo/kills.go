package demo

import "math/rand/v2"

// A killPlan says when a worker is killed, and where in a run of an observer. A seed
// decides both. One worker at a time has the order to stop.
type killPlan struct {
	kills  []plannedKill
	random *rand.Rand
	next   int      // index of the next kill
	victim *process // has the order to stop, and has not stopped yet
}

type plannedKill struct {
	after int64 // committed runs
	point crashPoint
}

// runsPerDocument is a little less than the number of runs that a document causes, so
// that the last kills come before the work ends.
const runsPerDocument = 4

// newKillPlan spreads the kills evenly over the run, and takes the crash points in turn.
func newKillPlan(kills, documents int, seed uint64) *killPlan {
	p := &killPlan{random: rand.New(rand.NewPCG(seed, 0))}
	first := p.random.IntN(len(crashPoints))
	for i := range kills {
		share := (float64(i) + p.random.Float64()) / float64(kills)
		p.kills = append(p.kills, plannedKill{int64(share * float64(documents*runsPerDocument)), crashPoints[(first+i)%len(crashPoints)]})
	}
	return p
}

// left is the number of kills that have not happened.
func (p *killPlan) left() int { return len(p.kills) - p.next }

// due returns the kill that is due now, if there is one. With hurry every kill is due.
func (p *killPlan) due(runs int64, hurry bool) (crashPoint, bool) {
	if p.left() == 0 || p.victim != nil {
		return "", false
	}
	k := p.kills[p.next]
	return k.point, runs >= k.after || hurry
}
