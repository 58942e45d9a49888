package bench

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// A pairing compares operations with raw ones. In every round all of them run, one
// after the other, in a random order, so that other load of the machine affects
// all of them alike. A ratio compares rates of the same round.
type pairing struct {
	name        string
	wide        bool // of the table of rows of ten columns
	members     []member
	comparisons []comparison
}

// has reports whether the pairing has one of the figures; without any, it has.
func (p pairing) has(figures []string) bool {
	return len(figures) == 0 || slices.ContainsFunc(p.comparisons, func(c comparison) bool { return slices.Contains(figures, c.figure) })
}

// A member is one operation of a pairing.
type member struct {
	what string
	task rig.Task
}

// A comparison makes a figure of two members, given by their indexes.
type comparison struct {
	figure    string
	ours, raw int
	// floor is the member with the raw requests that the operation needs at least; 0 is none.
	floor int
	// halved means that one of our operations needs at least two of the raw ones,
	// and is compared with half of their rate.
	halved   bool
	versions int
}

// A figure compares transactions with raw Bigtable. Rates are medians over the rounds.
// The ratio is the median of the ratios of single rounds.
type figure struct {
	Name     string  `json:"name"`                     // of the figure
	What     string  `json:"what"`                     // our operation
	Against  string  `json:"against"`                  // the raw operation
	Ratio    float64 `json:"ratio"`                    // median over the rounds of the ratio of rates
	Low      float64 `json:"ratio_p25"`                // a quarter of the rounds is below
	High     float64 `json:"ratio_p75"`                // a quarter of the rounds is above
	Floor    float64 `json:"floor_ratio,omitempty"`    // the ratio of the raw requests that our operation needs at least, with the same data
	OfFloor  float64 `json:"of_floor_ratio,omitempty"` // ours over those
	FloorIs  string  `json:"floor,omitempty"`          // what they are
	CPURatio float64 `json:"cpu_ratio"`                // CPU time of client and emulator for the raw operation, over that of ours
	Raw      float64 `json:"raw_per_second"`           // operations
	Ours     float64 `json:"per_second"`               // of ours
	RawCPU   float64 `json:"raw_client_us"`            // CPU time of the client process for an operation, in microseconds
	RawEmu   float64 `json:"raw_emulator_us"`          // that of the emulator
	OursCPU  float64 `json:"client_us"`                // the same of ours
	OursEmu  float64 `json:"emulator_us"`              // the same of ours
	RawP50   float64 `json:"raw_p50_us"`               // latency
	OursP50  float64 `json:"p50_us"`                   // of ours
	Allocs   float64 `json:"allocations"`              // of the client process, for an operation
	RawAlloc float64 `json:"raw_allocations"`          // of the raw operation
	Reqs     float64 `json:"requests"`                 // to Bigtable, for an operation; in direct mode including the oracle's
	RawOps   int     `json:"raw_operations"`           // in all rounds
	Ops      int     `json:"operations"`               // of ours
	Rounds   int     `json:"rounds"`                   // without the first, which warms up
	Callers  int     `json:"callers"`                  // concurrent
	Rows     int     `json:"rows_per_operation"`       // that it reads or writes
	Columns  int     `json:"columns"`                  // of a row
	Bytes    int     `json:"value_bytes"`              // of a value
	Versions int     `json:"versions,omitempty"`       // of each cell, if there are several
	Goal     float64 `json:"goal,omitempty"`           // for the ratio
	Paper    float64 `json:"paper,omitempty"`          // the ratio in the paper
}

// comparePairs measures pairings in rounds of a length.
func comparePairs(ctx context.Context, r *rig.Run, p pairing, rounds int, length time.Duration) ([]figure, error) {
	all := make([][]rig.Measured, len(p.members))
	for n := range rounds + 1 {
		for _, i := range rand.Perm(len(p.members)) {
			t := p.members[i].task
			t.Duration = length
			for _, m := range all[i] {
				t.First += m.Ops * max(t.Batch, 1)
			}
			if n == 0 {
				t.Duration = length / 5 // the first round warms up
			}
			m, err := r.Measure(ctx, 0, t)
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], m)
		}
	}
	var figures []figure
	for _, c := range p.comparisons {
		f := newFigure(c, p.members[c.ours], all[c.ours][1:], all[c.raw][1:])
		if c.floor > 0 {
			floor := all[c.floor][1:]
			f.Floor, f.OfFloor, f.FloorIs = rig.Median(ratios(floor, all[c.raw][1:])), rig.Median(ratios(all[c.ours][1:], floor)), p.members[c.floor].what
		}
		f.Against = p.members[c.raw].what
		if c.halved {
			f.Against = "half the rate of " + f.Against
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// ratios returns the ratio of rates for each round.
func ratios(ours, theirs []rig.Measured) (all []float64) {
	for i := range ours {
		all = append(all, ours[i].PerSecond()/theirs[i].PerSecond())
	}
	return all
}

func newFigure(c comparison, m member, ours, theirs []rig.Measured) figure {
	of := func(rounds []rig.Measured, f func(rig.Measured) float64) float64 {
		var values []float64
		for _, r := range rounds {
			values = append(values, f(r))
		}
		return rig.Median(values)
	}
	ops := func(rounds []rig.Measured) (n int) {
		for _, r := range rounds {
			n += r.Ops
		}
		return n
	}
	floor, rates := 1.0, ratios(ours, theirs)
	if c.halved {
		floor = 2
	}
	var cpu []float64
	for i := range ours {
		rates[i] *= floor
		if used := ours[i].Micros(ours[i].CPU + ours[i].Emulator); used > 0 {
			cpu = append(cpu, floor*theirs[i].Micros(theirs[i].CPU+theirs[i].Emulator)/used)
		}
	}
	each := func(n uint64, r rig.Measured) float64 { return float64(n) / float64(max(r.Ops, 1)) }
	return figure{
		Name: c.figure, What: m.what, Versions: c.versions,
		Ratio: rig.Median(rates), Low: rig.Quantile(.25, rates), High: rig.Quantile(.75, rates), CPURatio: rig.Median(cpu),
		Raw: of(theirs, rig.Measured.PerSecond), Ours: of(ours, rig.Measured.PerSecond),
		RawCPU:  of(theirs, func(r rig.Measured) float64 { return r.Micros(r.CPU) }),
		RawEmu:  of(theirs, func(r rig.Measured) float64 { return r.Micros(r.Emulator) }),
		OursCPU: of(ours, func(r rig.Measured) float64 { return r.Micros(r.CPU) }),
		OursEmu: of(ours, func(r rig.Measured) float64 { return r.Micros(r.Emulator) }),
		RawP50:  of(theirs, func(r rig.Measured) float64 { return float64(r.P50.Nanoseconds()) / 1000 }),
		OursP50: of(ours, func(r rig.Measured) float64 { return float64(r.P50.Nanoseconds()) / 1000 }),
		Allocs:  of(ours, func(r rig.Measured) float64 { return each(r.Mallocs, r) }), RawAlloc: of(theirs, func(r rig.Measured) float64 { return each(r.Mallocs, r) }),
		Reqs: of(ours, func(r rig.Measured) float64 { return each(uint64(r.RPCs.All()), r) }),
		Ops:  ops(ours), RawOps: ops(theirs), Rounds: len(ours), Callers: m.task.Callers,
		Rows: max(m.task.Batch, 1), Columns: max(m.task.Columns, 1), Bytes: m.task.Bytes,
	}
}

// figureTable prints figures as a table.
func figureTable(w io.Writer, figures []figure) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "FIGURE", "RATIO", "SPREAD", "GOAL", "FLOOR", "OF FLOOR", "CPU", "REQUESTS", "ALLOCS", "RAW/s", "OURS/s", "CLIENT µs", "EMULATOR µs", "SAMPLES", "WHAT IS COMPARED")
	for _, f := range figures {
		cli.WriteRow(t, f.Name, cli.Fixed(f.Ratio, 2), cli.Fixed(f.Low, 2)+"-"+cli.Fixed(f.High, 2), orNone(f.Goal, 2), orNone(f.Floor, 2), orNone(f.OfFloor, 2), cli.Fixed(f.CPURatio, 2),
			cli.Fixed(f.Reqs, 1), cli.Fixed(f.Allocs, 0), cli.Fixed(f.Raw, 0), cli.Fixed(f.Ours, 0),
			cli.Fixed(f.RawCPU, 0)+", "+cli.Fixed(f.OursCPU, 0), cli.Fixed(f.RawEmu, 0)+", "+cli.Fixed(f.OursEmu, 0),
			strconv.Itoa(f.RawOps)+", "+strconv.Itoa(f.Ops), f.What+"; against "+f.Against)
	}
	return t.Flush()
}

// orNone writes nothing for 0.
func orNone(v float64, digits int) string {
	if v == 0 {
		return ""
	}
	return cli.Fixed(v, digits)
}
