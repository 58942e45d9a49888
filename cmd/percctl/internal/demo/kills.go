package demo

import "math/rand/v2"

// A killPlan says when workers are killed and where in a run of an observer,
// chosen by a seed. One worker at a time is told to stop at its next one.
type killPlan struct {
	kills  []plannedKill
	random *rand.Rand
	next   int      // the kill to come
	victim *process // is told to stop and has not yet
}

type plannedKill struct {
	after int64 // runs committed
	point crashPoint
}

// runsPerDocument is a little less than how many runs a document takes, so that
// the last kills come before the work is done.
const runsPerDocument = 4

// newKillPlan spreads kills evenly over the run, and takes the crash points in
// turn.
func newKillPlan(kills, documents int, seed uint64) *killPlan {
	p := &killPlan{random: rand.New(rand.NewPCG(seed, 0))}
	first := p.random.IntN(len(crashPoints))
	for i := range kills {
		share := (float64(i) + p.random.Float64()) / float64(kills)
		p.kills = append(p.kills, plannedKill{int64(share * float64(documents*runsPerDocument)), crashPoints[(first+i)%len(crashPoints)]})
	}
	return p
}

// left is how many workers are still to be killed.
func (p *killPlan) left() int { return len(p.kills) - p.next }

// due returns the kill to arm now, if there is one. hurry: there is nothing left
// to wait for.
func (p *killPlan) due(runs int64, hurry bool) (crashPoint, bool) {
	if p.left() == 0 || p.victim != nil {
		return "", false
	}
	k := p.kills[p.next]
	return k.point, runs >= k.after || hurry
}
