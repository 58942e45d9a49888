package picture

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
)

// A Fact is a name and what is to be said of it for people.
type Fact struct {
	Name  string `json:"name"`
	Words string `json:"words"`
	Bad   bool   `json:"bad"` // it needs attention
}

// directTolerance is how many seconds timestamps of direct mode may be behind the clock.
const directTolerance = .1

// Facts are what is said of a picture beside its lists.
func (p *Picture) Facts() []Fact {
	return []Fact{p.ratesFact(), p.oracleFact(), p.locksFact(), p.oldestFact(), p.conflictsFact(), p.pendingFact(), p.workersFact(), p.gcFact(), p.scanFact()}
}

// ratesFact is how fast things change; what is not visible is left out.
func (p *Picture) ratesFact() Fact {
	f := Fact{Name: "rates", Words: "from the second frame on"}
	r := p.Rates
	if r == nil {
		return f
	}
	var words []string
	for _, one := range []struct {
		v  *float64
		of string
	}{
		{r.Timestamps, "timestamps/s"}, {r.LocksSeen, "new locks/s"}, {r.LocksGone, "locks gone/s"}, {r.PendingChange, "pending/s"},
		{r.Requests, "oracle requests/s"}, {r.Writes, "oracle writes/s"},
	} {
		if one.v != nil {
			words = append(words, strconv.FormatFloat(*one.v, 'f', 1, 64)+" "+one.of)
		}
	}
	f.Words = strings.Join(words, ", ")
	return f
}

func (p *Picture) oracleFact() Fact {
	f := Fact{Name: "oracle"}
	leader := p.Leader()
	switch {
	case leader != nil:
		f.Words = fmt.Sprintf("served by %s at %s, epoch %d: %s behind the clock, lease left %s", leader.Server, leader.Address, leader.Epoch,
			cli.Seconds(leader.Lag), cli.Seconds(leader.LeaseLeft))
	case p.Oracle.Row.Mode == string(tso.ModeServed):
		f.Words, f.Bad = "served mode, no server leads", true
		for _, s := range p.Oracle.Servers {
			if s.Error != "" {
				f.Words += "; " + s.Address + ": " + cli.Plain(s.Error)
			}
		}
	default:
		f.Words = p.Oracle.Row.Mode + " mode, from its row"
		if lag := p.Oracle.Row.Lag; lag > 0 {
			f.Words += ", " + cli.Seconds(lag) + " behind the clock"
			if f.Bad = lag > directTolerance; f.Bad {
				f.Words += ": run servers (docs/oracle.md)"
			}
		}
	}
	return f
}

func (p *Picture) locksFact() Fact {
	l := p.Locks
	words := fmt.Sprintf("%s of %s", cli.Count(l.Locks, "lock"), cli.Count(l.Transactions, "transaction"))
	if l.More {
		words = "at least " + words
	}
	if len(l.Listed) > 0 {
		of := ""
		if len(l.Listed) < l.Transactions {
			of = fmt.Sprintf(" (of the %d oldest)", len(l.Listed))
		}
		words += fmt.Sprintf(": %d to roll forward, %d to roll back, %d to leave%s", l.Forward, l.Back, l.Alive, of)
	}
	if l.Unreadable > 0 {
		words += fmt.Sprintf("; %s cannot be read", cli.Count(l.Unreadable, "lock record"))
	}
	return Fact{"locks", words, l.Unreadable > 0}
}

func (p *Picture) oldestFact() Fact {
	f := Fact{Name: "oldest lock", Words: "none"}
	if p.Locks.More {
		f.Words = "unknown so far"
	}
	if len(p.Locks.Listed) > 0 {
		t := p.Locks.Listed[0]
		f.Words = fmt.Sprintf("%s old, of %s %d: %s", cli.Seconds(p.Locks.OldestAge), t.Primary, t.StartTS, t.Verdict)
		if p.Locks.More {
			f.Words = "at least " + f.Words
		}
	}
	return f
}

func (p *Picture) conflictsFact() Fact {
	n := p.Notifications
	return Fact{Name: "conflicts", Words: fmt.Sprintf("%s lost one in the last run and will be retried; %s locked; conflicts of other transactions are not visible", cli.Count(n.Conflicting, "notification"), cli.Count(n.Locked, "notified cell"))}
}

func (p *Picture) pendingFact() Fact {
	n := p.Notifications
	more := ""
	if n.More {
		more = "at least "
	}
	return Fact{"pending", fmt.Sprintf("%s%s in %s, %d failing; %s", more, cli.Count(n.Pending, "run"), cli.Count(n.Cells, "cell"), n.Failing, cli.Count(n.Dead, "dead letter")), n.Dead > 0}
}

func (p *Picture) workersFact() Fact {
	w := p.Workers
	return Fact{Name: "clients", Words: fmt.Sprintf("%d alive, %d of them with observers; %d died in the last hour", w.Fresh, w.Observing, w.Stale)}
}

func (p *Picture) gcFact() Fact {
	f := Fact{Name: "gc", Bad: p.GC.Interrupted()}
	var words []string
	for _, fact := range p.GC.Facts() {
		switch fact[0] {
		case "safe point", "age", "last run", "leader", "held by":
			if fact[0] == "held by" && len(words) > 4 {
				continue // the oldest alone
			}
			words = append(words, fact[0]+" "+fact[1])
		}
	}
	f.Words = strings.Join(words, "; ")
	return f
}

// scanFact is how old the picture is, and what it costs.
func (p *Picture) scanFact() Fact {
	c := p.Scan
	age := "all rows were read within " + cli.Seconds(c.Oldest)
	if !c.Complete {
		age = "the first pass over all rows is under way"
	}
	if c.MaxRequests == 0 {
		return Fact{Name: "scan", Words: fmt.Sprintf("%s in %s, %s", cli.Count(c.Rows, "row"), cli.Seconds(p.Took), age)}
	}
	return Fact{Name: "scan", Words: fmt.Sprintf("%s, %s; %.1f of at most %d requests/s, %.1f of at most %.0f kB/s",
		cli.Count(c.Rows, "row"), age, c.Requests, c.MaxRequests, c.Bytes/1000, float64(c.MaxBytes)/1000)}
}
