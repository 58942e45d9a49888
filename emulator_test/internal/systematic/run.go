package systematic

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/mutant"
)

// A Verdict is the result for one mutant.
type Verdict string

// The verdicts.
const (
	// Killed: a test fails with the mutant, twice, and passes without it.
	Killed Verdict = "killed"
	// Timeout: twice, tests used far more processor time, memory or idle time than
	// without the mutant.
	Timeout Verdict = "timeout"
	// Survived: the tests pass.
	Survived Verdict = "survived"
	// Unreached: no test runs the code.
	Unreached Verdict = "unreached"
	// Explained: it survived or is unreached, and the list says why it may.
	Explained Verdict = "explained"
	// NotRun: it was not in the sample, or the run was interrupted.
	NotRun Verdict = "not run"
)

// A Result is the outcome of one mutant.
type Result struct {
	Mutant
	Verdict Verdict `json:"verdict"`
	// Test killed the mutant.
	Test string `json:"test,omitempty"`
	// Units is how many tests ran of those that reach the code, Of how many there are.
	Units int `json:"tests"`
	Of    int `json:"tests_in_reach"`
	// Why is why it hung, or why it may survive.
	Why string `json:"why,omitempty"`
}

// Options of a run.
type Options struct {
	// Sample is how many mutants run, or 0 for all. Seed chooses them.
	Sample int
	Seed   uint64
	// Only limits mutants by their keys. It may be nil.
	Only *regexp.Regexp
	// Limit is the processor time, as measured without a mutant, of the tests that one
	// mutant gets.
	Limit time.Duration
	// Done is called with each result. It may be nil.
	Done func(Result)
}

// Run runs the tests against the mutants. If ctx ends, the results so far are returned
// with its error.
func (s Suite) Run(ctx context.Context, explained List, o Options) ([]Result, error) {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b, err := s.build(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := explained.Check(b.mutants); err != nil {
		return nil, err
	}
	units, err := b.measure(ctx)
	if err != nil {
		return nil, err
	}
	j := newJudge(b, units, o.Limit)
	results := make([]Result, 0, len(b.mutants))
	for _, m := range b.mutants {
		if s.Selected(m) && (o.Only == nil || o.Only.MatchString(m.Key())) {
			results = append(results, Result{Mutant: m, Verdict: NotRun, Of: len(j.reach[m.ID])})
		}
	}
	order := rand.New(rand.NewPCG(o.Seed, 0)).Perm(len(results))
	if o.Sample > 0 && o.Sample < len(order) {
		order = order[:o.Sample]
	} else {
		slices.Sort(order)
	}
	s.logf("%d tests and subtests; running %d of %d mutants", len(units), len(order), len(results))
	var mu sync.Mutex
	err = each(ctx, s.Parallel, order, func(ctx context.Context, i int) error {
		r, err := j.judge(ctx, results[i].Mutant)
		if err != nil {
			return err
		}
		if why := explained.Why(r.Key()); why != "" && (r.Verdict == Survived || r.Verdict == Unreached) {
			r.Verdict, r.Why = Explained, why
		}
		mu.Lock()
		defer mu.Unlock()
		results[i] = r
		if o.Done != nil {
			o.Done(r)
		}
		return nil
	})
	return results, err
}

// A judge runs mutants.
type judge struct {
	*binaries
	limit time.Duration
	reach [][]*unit // by mutant
	// kills are how many mutants of a function a unit has killed.
	mu    sync.Mutex
	kills map[string]map[*unit]int
}

func newJudge(b *binaries, units []unit, limit time.Duration) *judge {
	j := &judge{binaries: b, limit: limit, reach: make([][]*unit, len(b.mutants)), kills: map[string]map[*unit]int{}}
	for i := range units {
		for _, n := range units[i].Reached {
			j.reach[n] = append(j.reach[n], &units[i])
		}
	}
	return j
}

// plan returns the units to run: those that killed mutants of the same function or file
// first, then the cheapest, and none that would exceed the limit.
func (j *judge) plan(m Mutant) []*unit {
	plan := slices.Clone(j.reach[m.ID])
	j.mu.Lock()
	kills := map[*unit]int{}
	for _, u := range plan {
		kills[u] = 10*j.kills[m.File+" "+m.Func][u] + j.kills[m.File][u]
	}
	j.mu.Unlock()
	worth := func(u *unit) float64 { return float64(1+kills[u]) / (u.CPU + 10*time.Millisecond).Seconds() }
	slices.SortStableFunc(plan, func(a, b *unit) int { return cmp.Compare(worth(b), worth(a)) })
	var used time.Duration
	return slices.DeleteFunc(plan, func(u *unit) bool {
		if used > 0 && used+u.CPU > j.limit {
			return true
		}
		used += u.CPU
		return false
	})
}

func (j *judge) credit(m Mutant, u *unit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, key := range []string{m.File + " " + m.Func, m.File} {
		if j.kills[key] == nil {
			j.kills[key] = map[*unit]int{}
		}
		j.kills[key][u]++
	}
}

// A process of tests costs this much besides the tests.
const processCost = 50 * time.Millisecond

func (j *judge) judge(ctx context.Context, m Mutant) (Result, error) {
	r := Result{Mutant: m, Verdict: Survived, Of: len(j.reach[m.ID])}
	if r.Of == 0 {
		r.Verdict = Unreached
		return r, nil
	}
	plan := j.plan(m)
	// The first units run in small batches, because most mutants are killed at once.
	for most := 4 * processCost; len(plan) > 0; most *= 2 {
		n, cost := 0, time.Duration(0)
		for n < len(plan) && (n == 0 || cost+plan[n].CPU < most) {
			cost += plan[n].CPU
			n++
		}
		for _, batch := range batches(plan[:n]) {
			r.Units += len(batch)
			verdict, test, why, err := j.run(ctx, m, batch)
			if err != nil {
				return r, err
			}
			if verdict != Survived {
				r.Verdict, r.Test, r.Why = verdict, test, why
				for _, u := range batch {
					if strings.HasPrefix(test, u.String()) {
						j.credit(m, u)
					}
				}
				return r, nil
			}
		}
		plan = plan[n:]
	}
	return r, nil
}

// batches puts units together that one process can run.
func batches(units []*unit) (all [][]*unit) {
	for _, u := range units {
		i := slices.IndexFunc(all, func(b []*unit) bool {
			return b[0].Package == u.Package && (b[0].Sub == "") == (u.Sub == "") && (u.Sub == "" || b[0].Test == u.Test)
		})
		if i < 0 {
			all = append(all, []*unit{u})
			continue
		}
		all[i] = append(all[i], u)
	}
	return all
}

// run runs units in one process. A failure counts if the failed test fails again with
// the mutant and passes without it: a test may also fail because the machine is busy. A
// test that chooses at random gets three tries to fail again.
func (j *judge) run(ctx context.Context, m Mutant, batch []*unit) (v Verdict, test, why string, err error) {
	var units []unit
	var cpu, wall time.Duration
	for _, u := range batch {
		units = append(units, *u)
		cpu, wall = cpu+u.CPU, max(wall, u.Wall)
	}
	l := j.limitFor(cpu, wall)
	pkg := batch[0].Package
	o, err := j.test(ctx, pkg, pattern(units...), m.ID, l)
	if err != nil || !o.failed {
		return Survived, "", "", err
	}
	if o.hung == "" {
		if failed := mutant.FailedTest(o.out); failed != "" {
			test, _, _ = strings.Cut(failed, "/")
			for _, u := range units {
				if failed == u.Test || u.Sub != "" && strings.HasPrefix(failed, u.Test+"/"+u.Sub) || u.Sub == "" && test == u.Test {
					units, test = []unit{u}, strings.TrimPrefix(pkg, "./")+" "+failed
					break
				}
			}
			if len(units) > 1 {
				test = strings.TrimPrefix(pkg, "./") + " " + failed
			}
		}
	}
	if o.hung != "" && len(units) > 1 {
		// Which of them hangs?
		for i := range units {
			if v, test, why, err := j.run(ctx, m, batch[i:i+1]); err != nil || v != Survived {
				return v, test, why, err
			}
		}
		return Survived, "", "", nil
	}
	first := o
	for range 3 {
		if o, err = j.test(ctx, pkg, pattern(units...), m.ID, l); err != nil {
			return "", "", "", err
		}
		if o.failed {
			break
		}
	}
	if !o.failed {
		return Survived, "", "", nil
	}
	if first.hung != "" && o.hung != "" {
		return Timeout, units[0].String(), o.hung, nil
	}
	without, err := j.test(ctx, pkg, pattern(units...), -1, most)
	if err != nil || without.failed {
		j.logf("%s fails without a mutant, too", cmp.Or(test, units[0].String()))
		return Survived, "", "", err
	}
	return Killed, cmp.Or(test, units[0].String()), "", nil
}
