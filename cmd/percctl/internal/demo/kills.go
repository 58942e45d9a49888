package demo

import "math/rand/v2"

// A killPlan says when clients are killed and where in their commits, chosen
// by a seed. One client at a time is told to stop at its next commit.
type killPlan struct {
	kills  []plannedKill
	random *rand.Rand
	next   int     // the kill to come
	victim *client // is told to stop and has not yet
}

type plannedKill struct {
	after int // documents done
	point crashPoint
}

// newKillPlan spreads kills evenly over the first nine tenths of the run, so
// that the others can meet what a killed client left, and takes the two crash
// points in turn.
func newKillPlan(kills, documents int, seed uint64) *killPlan {
	p := &killPlan{random: rand.New(rand.NewPCG(seed, 0))}
	points := []crashPoint{beforeCommit, afterCommit}
	first := p.random.IntN(2)
	for i := range kills {
		share := (float64(i) + p.random.Float64()) / float64(kills)
		p.kills = append(p.kills, plannedKill{int(0.9 * share * float64(documents)), points[(first+i)%2]})
	}
	return p
}

// left is how many clients are still to be killed.
func (p *killPlan) left() int { return len(p.kills) - p.next }

// due returns the kill to arm now, if there is one: it is time for it, or there
// are just enough documents left for the kills to come.
func (p *killPlan) due(done, queued int) (crashPoint, bool) {
	if p.left() == 0 || p.victim != nil {
		return "", false
	}
	k := p.kills[p.next]
	return k.point, done >= k.after || queued <= p.left()
}

// mayTake reports whether a client may take another document from the queue.
// The last ones are kept for those that are still to be killed, one at a time:
// only a document that is not in the tables yet has a commit to be killed in.
func (p *killPlan) mayTake(c *client, queued int) bool {
	return queued > p.left() || queued > 0 && c == p.victim && len(c.working) == 0
}
