package bench

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/charts"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// A drawing is a chart, and the function that draws it.
type drawing struct {
	chart charts.Chart
	draw  func(charts.Chart) (*plot.Plot, error)
}

// markdown is a table under construction.
type markdown struct{ strings.Builder }

func (m *markdown) head(cells ...string) {
	m.row(cells...)
	m.row(slices.Repeat([]string{"---"}, len(cells))...)
}

func (m *markdown) row(cells ...string) { fmt.Fprintf(m, "| %s |\n", strings.Join(cells, " | ")) }

// measuredOn says where something was measured.
func (m *markdown) measuredOn(on rig.Machine) { fmt.Fprintf(m, "\nMeasured %s.\n", on) }

// thousands writes a whole number with commas.
func thousands(v float64) string {
	digits := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

func compareMarkdown(r *results) string {
	var m markdown
	served := map[string]figure{}
	for _, f := range r.Served.Figures {
		served[f.Name] = f
	}
	m.head("", "Against raw", "Ratio", "Middle half", "Goal", "Paper", "Floor", "Of floor", "By CPU", "Served oracle", "Requests", "Allocations: raw, ours", "Raw/s", "Ours/s", "CPU µs: raw client, ours", "raw emulator, ours")
	for _, f := range r.Compare.Figures {
		m.row(fmt.Sprintf("`%s_ratio`: %s", f.Name, f.What), f.Against, "**"+cli.Fixed(f.Ratio, 2)+"**", cli.Fixed(f.Low, 2)+"–"+cli.Fixed(f.High, 2), orNone(f.Goal, 2), orNone(f.Paper, 2), orNone(f.Floor, 2), orNone(f.OfFloor, 2), cli.Fixed(f.CPURatio, 2), cli.Fixed(served[f.Name].Ratio, 2),
			cli.Fixed(f.Reqs, 1), thousands(f.RawAlloc)+", "+thousands(f.Allocs), thousands(f.Raw), thousands(f.Ours), cli.Fixed(f.RawCPU, 0)+", "+cli.Fixed(f.OursCPU, 0), cli.Fixed(f.RawEmu, 0)+", "+cli.Fixed(f.OursEmu, 0))
	}
	fmt.Fprintf(&m, "\n%d rounds, %d callers in one process. The oracle is direct, except in the column of the served one.", r.Compare.Figures[0].Rounds, r.Compare.Callers)
	m.measuredOn(r.Compare.Machine)
	return m.String()
}

// compareShort compares rates and CPU time, with one line for each transaction.
func compareShort(r *results) string {
	var m markdown
	m.head("Transaction", "Raw operation", "Rate (raw = 1)", "CPU time (raw = 1)", "Floor (raw = 1)")
	for _, f := range r.Compare.Figures {
		if f.Name == "write_cam" {
			continue // only the long table has it
		}
		m.row(f.What, f.Against, "**"+cli.Fixed(f.Ratio, 2)+"**", cli.Fixed(1/f.CPURatio, 1), orNone(f.Floor, 2))
	}
	fmt.Fprintf(&m, "\n%d callers in one process, direct oracle.", r.Compare.Callers)
	m.measuredOn(r.Compare.Machine)
	return m.String()
}

// numbered is a word with a number behind it, as in write100.
var numbered = regexp.MustCompile(`([a-z])([0-9])`)

func compareCharts(r *results) []drawing {
	by := map[string]figure{}
	ratios := charts.Chart{File: "performance-compare", Title: "Transactions over raw Bigtable, on the emulator", Y: "Ratio of rates (1: as fast as raw)", Decimals: 2, Width: 27}
	ours, least := charts.Series{Name: "this library", Colour: charts.OursColour}, charts.Series{Name: "the least raw requests with the same data", Colour: charts.RawColour}
	for _, f := range r.Compare.Figures {
		by[f.Name] = f
		if strings.HasSuffix(f.Name, "_shared") {
			continue
		}
		floor := math.NaN() // of this figure
		if f.Floor > 0 {
			floor = f.Floor
		}
		least.Values = append(least.Values, floor)
		ratios.Groups = append(ratios.Groups, strings.ReplaceAll(numbered.ReplaceAllString(f.Name, "$1\n$2"), "_", "\n"))
		ours.Values = append(ours.Values, f.Ratio)
		goal := math.NaN()
		if f.Goal > 0 {
			goal = f.Goal
		}
		ratios.Goals = append(ratios.Goals, goal)
	}
	ratios.Series = []charts.Series{ours, least}
	// The middle of the ranges in the paper about Themis.
	figure8 := charts.Chart{File: "performance-figure8", Title: "The paper's Figure 8: relative to the raw store", Y: "Transactional over raw operations a second",
		Groups: []string{"random reads of one cell", "random writes of one cell"}, Decimals: 2, Width: 16, Series: []charts.Series{
			{Name: "Percolator (paper, on Bigtable)", Colour: charts.PaperColour, Values: []float64{.94, .23}},
			{Name: "Themis (on HBase, locks not synced; middle of its range)", Colour: charts.OtherColour, Values: []float64{.855, .60}},
			{Name: "this library (Bigtable's emulator)", Colour: charts.OursColour, Values: []float64{by["read"].Ratio, by["write"].Ratio}},
		}}
	return []drawing{{figure8, charts.Chart.Bars}, {ratios, charts.Chart.Bars}}
}

func rowsMarkdown(r *results) string {
	var m markdown
	m.head("", "Against raw", "Ratio", "Middle half", "By CPU", "Raw/s", "Ours/s", "Client µs: raw, ours", "Emulator µs: raw, ours")
	for _, f := range r.Rows.Figures {
		m.row(f.What, f.Against, "**"+cli.Fixed(f.Ratio, 2)+"**", cli.Fixed(f.Low, 2)+"–"+cli.Fixed(f.High, 2), cli.Fixed(f.CPURatio, 2), thousands(f.Raw), thousands(f.Ours), thousands(f.RawCPU)+", "+thousands(f.OursCPU), thousands(f.RawEmu)+", "+thousands(f.OursEmu))
	}
	fmt.Fprintf(&m, "\nA read of a cell with %d versions takes **%.2f** times the client's CPU time of one with 1 (goal: 1.5), and %.2f times the emulator's.\n",
		r.Rows.Figures[len(r.Rows.Figures)-1].Versions, r.Rows.DeepClient, r.Rows.DeepEmulator)
	m.measuredOn(r.Rows.Machine)
	return m.String()
}

func rowsCharts(r *results) []drawing {
	// The client's part grows with the number of rows, the emulator's with the cells that
	// it filters.
	c := charts.Chart{File: "performance-rows", Title: "How cost grows: CPU time over that of raw operations", Y: "Ratio of CPU time (1: as much as raw)", LogY: true, Loose: true, Width: 34}
	client, emulator := charts.Series{Name: "client", Colour: charts.OursColour}, charts.Series{Name: "emulator", Colour: charts.PaperColour}
	for _, f := range r.Rows.Figures {
		c.Groups = append(c.Groups, strings.ReplaceAll(f.Name, "_", "\n"))
		ours, theirs := f.OursCPU/max(f.RawCPU, 1e-3), f.OursEmu/max(f.RawEmu, 1e-3)
		client.Values, client.Labels = append(client.Values, ours), append(client.Labels, "")
		emulator.Values, emulator.Labels = append(emulator.Values, theirs), append(emulator.Labels, "")
		// Labels are above each other, so that they do not overlap.
		(map[bool]*charts.Series{true: &client, false: &emulator}[ours > theirs]).Labels[len(c.Groups)-1] = cli.Fixed(ours, 1) + ", " + cli.Fixed(theirs, 1)
	}
	c.Series = []charts.Series{client, emulator}
	return []drawing{{c, charts.Chart.Lines}}
}

func cpuMarkdown(r *results) string {
	var m markdown
	m.head("", "Requests", "CPU µs: Bigtable client alone", "ours", "beyond it", "Goal", "Allocations: Bigtable client alone", "ours", "beyond it", "Goal")
	for _, l := range r.CPU.Lines {
		m.row(l.Name, cli.Fixed(l.Requests, 0), cli.Fixed(l.RawCPU, 1), cli.Fixed(l.CPU, 1), "**"+cli.Fixed(l.OverCPU, 1)+"**", orNone(l.GoalCPU, 0), cli.Fixed(l.RawAllocs, 0), cli.Fixed(l.Allocs, 0), "**"+cli.Fixed(l.Over, 0)+"**", orNone(l.Goal, 0))
	}
	m.measuredOn(r.CPU.Machine)
	return m.String()
}

func cpuCharts(r *results) []drawing {
	c := charts.Chart{File: "performance-cpu", Title: "The client's own CPU time, with a stub that answers at once", Y: "µs for an operation, or for a row of one", Decimals: 1}
	raw, ours := charts.Series{Name: "Bigtable client alone, as many requests", Colour: charts.RawColour}, charts.Series{Name: "this library on it", Colour: charts.OursColour}
	for _, l := range r.CPU.Lines {
		c.Groups = append(c.Groups, strings.ReplaceAll(l.Name, " of ", "\nof "))
		raw.Values, ours.Values = append(raw.Values, l.RawCPU/float64(l.Rows)), append(ours.Values, l.CPU/float64(l.Rows))
	}
	c.Series = []charts.Series{raw, ours}
	return []drawing{{c, charts.Chart.Bars}}
}

func profileMarkdown(r *results) string {
	var m markdown
	m.head("", "", "Client µs", "this library", "Bigtable client", "gRPC, protobuf, network", "Go runtime", "Emulator µs", "rows and filters", "gRPC, protobuf, network", "Go runtime")
	for _, l := range r.Profile.Lines {
		who := "ours"
		if l.Raw {
			who = "raw"
		}
		m.row(l.Name, who, "**"+cli.Fixed(l.Client, 1)+"**", cli.Fixed(l.Library, 1), cli.Fixed(l.Bigtable, 1), cli.Fixed(l.GRPC, 1), cli.Fixed(l.Runtime, 1), "**"+cli.Fixed(l.Emulator, 1)+"**", cli.Fixed(l.Rows, 1), cli.Fixed(l.EmuGRPC, 1), cli.Fixed(l.EmuRun, 1))
	}
	m.measuredOn(r.Profile.Machine)
	return m.String()
}

func tripsMarkdown(r *results) string {
	var m markdown
	m.head("", "Round trips", "Requests, direct oracle", "Bytes sent, received", "with a served oracle", "By step")
	served := map[string]tripsLine{}
	for _, l := range r.Trips.Lines {
		served[l.Name] = l // lines of the served oracle come last
	}
	for _, l := range r.Trips.Lines {
		if l.Oracle == "served" {
			continue
		}
		s := served[l.Name]
		m.row(l.What, "**"+strconv.Itoa(l.Critical)+"**", strconv.Itoa(l.Requests), thousands(float64(l.Sent))+", "+thousands(float64(l.Received)), thousands(float64(s.Sent))+", "+thousands(float64(s.Received)), stepsText(l.Steps))
	}
	return m.String()
}

// tripsShort leaves bytes out. With a served oracle the requests are the same.
func tripsShort(r *results) string {
	var m markdown
	m.head("Transaction", "Round trips", "Requests", "Which requests")
	for _, l := range r.Trips.Lines {
		if l.Oracle != "served" {
			m.row(l.What, "**"+strconv.Itoa(l.Critical)+"**", strconv.Itoa(l.Requests), stepsText(l.Steps))
		}
	}
	return m.String()
}

func delayMarkdown(r *results) string {
	var m markdown
	m.head("Delay", "Oracle", "", "Round trips", "p50 ms", "p95 ms", "p50 in delays", "Goal", "p50 in raw round trips")
	for _, l := range r.Delay.Lines {
		m.row(cli.Fixed(l.Delay, 0)+" ms", l.Oracle, l.What, strconv.Itoa(l.Trips), cli.Fixed(l.P50, 1), cli.Fixed(l.P95, 1), "**"+cli.Fixed(l.Measured, 2)+"**", orNone(l.Goal, 1), cli.Fixed(l.Net, 2))
	}
	m.measuredOn(r.Delay.Machine)
	return m.String()
}

func delayCharts(r *results) []drawing {
	c := charts.Chart{File: "performance-delay", Title: "Latency in delays, served oracle: how many round trips follow each other", Y: "Median latency over the delay of each request", Decimals: 2}
	names := map[string]string{"raw ReadRow": "raw read", delayedOps[2].what: "read", delayedOps[3].what: "write", delayedOps[4].what: "write of\nten rows", delayedOps[5].what: "read,\nthen write", delayedOps[6].what: "two reads,\nthen writes"}
	colours := []charts.Series{{Colour: charts.RawColour}, {Colour: charts.OursColour}, {Colour: charts.OtherColour}}
	half := len(delayedOps)
	for i := half; i < len(r.Delay.Lines); i += 2 * half { // lines with a served oracle
		s := colours[len(c.Series)%len(colours)]
		s.Name = cli.Fixed(r.Delay.Lines[i].Delay, 0) + " ms for each request"
		c.Groups, c.Goals = nil, nil
		for _, l := range r.Delay.Lines[i:min(i+half, len(r.Delay.Lines))] {
			name, ok := names[l.What]
			if !ok {
				continue
			}
			c.Groups = append(c.Groups, name)
			s.Values = append(s.Values, l.Measured)
			goal := math.NaN()
			if l.Trips > 3 {
				goal = delayGoal + float64(l.Reads)
			}
			c.Goals = append(c.Goals, goal)
		}
		c.Series = append(c.Series, s)
	}
	return []drawing{{c, charts.Chart.Bars}}
}

func contentionMarkdown(r *results) string {
	var m markdown
	m.head("Accounts", "Latches", "Commits/s", "Conflicts for a commit", "Wasted attempts", "p50 ms", "p99 ms", "p99 over median", "Client µs for a commit", "Emulator µs")
	for _, l := range r.Contention.Lines {
		m.row(thousands(float64(l.Accounts)), onOff(l.Latches), thousands(l.Rate), cli.Fixed(float64(l.Conflicts)/float64(max(l.Commits, 1)), 3), cli.Fixed(100*l.Wasted, 1)+" %", cli.Fixed(l.P50, 1), cli.Fixed(l.P99, 1), cli.Fixed(l.Fairness, 1), thousands(l.CPU), thousands(l.Emulator))
	}
	fmt.Fprintf(&m, "\n%d processes with %d callers each, direct oracle.", r.Contention.Processes, r.Contention.Callers)
	m.measuredOn(r.Contention.Machine)
	return m.String()
}

func contentionShort(r *results) string {
	var m markdown
	m.head("Accounts", "Latches", "Commits/s", "Attempts that did not commit", "p50 ms", "p99 ms")
	for _, l := range r.Contention.Lines {
		m.row(thousands(float64(l.Accounts)), onOff(l.Latches), thousands(l.Rate), cli.Fixed(100*l.Wasted, 1)+" %", cli.Fixed(l.P50, 1), cli.Fixed(l.P99, 1))
	}
	fmt.Fprintf(&m, "\n%d processes with %d callers each, direct oracle.", r.Contention.Processes, r.Contention.Callers)
	m.measuredOn(r.Contention.Machine)
	return m.String()
}

func contentionCharts(r *results) []drawing {
	c := charts.Chart{File: "performance-contention", Title: "Transfers between random accounts, with the share of wasted attempts", X: "Accounts of the bank", Y: "Transfers a second", LogY: true}
	on, off := charts.Series{Name: "with latches in each process (and wasted attempts)", Colour: charts.OursColour}, charts.Series{Name: "without", Colour: charts.PaperColour}
	for _, l := range r.Contention.Lines {
		s := &off
		if l.Latches {
			s = &on
			c.Groups = append(c.Groups, thousands(float64(l.Accounts)))
		}
		s.Values, s.Labels = append(s.Values, l.Rate), append(s.Labels, thousands(l.Rate)+"/s, "+cli.Fixed(100*l.Wasted, 1)+" %")
	}
	off.Labels = nil // they would overlap with the other labels
	c.Series = []charts.Series{on, off}
	return []drawing{{c, charts.Chart.Lines}}
}

func brokerageMarkdown(r *results) string {
	var m markdown
	m.head("Callers", "Transactions/s", "Conflicts", "p50 ms", "p99 ms", "Client µs", "Emulator µs", "Requests for a transaction")
	for _, l := range r.Brokerage.Lines {
		m.row(strconv.Itoa(l.Callers), "**"+thousands(l.Rate)+"**", strconv.FormatInt(l.Conflicts, 10), cli.Fixed(l.P50, 1), cli.Fixed(l.P99, 1), thousands(l.CPU), thousands(l.Emulator), cli.Fixed(l.Requests, 1))
	}
	fmt.Fprintf(&m, "\n%s customers, %s orders, %s trades.", thousands(float64(r.Brokerage.Customers)), thousands(float64(r.Brokerage.Orders)), thousands(float64(r.Brokerage.Trades)))
	m.measuredOn(r.Brokerage.Machine)
	return m.String()
}

func brokerageCharts(r *results) []drawing {
	c := charts.Chart{File: "performance-brokerage", Title: "Brokerage in miniature: transactions a second against concurrency", X: "Callers at a time", Y: "Transactions a second"}
	s := charts.Series{Name: "transactions a second (and the median latency)", Colour: charts.OursColour}
	for _, l := range r.Brokerage.Lines {
		c.Groups = append(c.Groups, strconv.Itoa(l.Callers))
		s.Values, s.Labels = append(s.Values, l.Rate), append(s.Labels, cli.Fixed(l.P50, 1)+" ms")
	}
	c.Series = []charts.Series{s}
	return []drawing{{c, charts.Chart.Lines}}
}

func scaleMarkdown(r *results) string {
	var m markdown
	m.head("Processes", "Raw reads/s", "Reads/s", "Ratio", "Raw writes/s", "Writes/s", "Ratio", "Client µs for a write")
	for _, l := range r.Scale.Lines {
		m.row(strconv.Itoa(l.Processes), thousands(l.RawRead), thousands(l.Read), "**"+cli.Fixed(l.ReadRatio, 2)+"**", thousands(l.RawWrite), thousands(l.Write), "**"+cli.Fixed(l.WriteRatio, 2)+"**", cli.Fixed(l.WriteCPU, 0))
	}
	fmt.Fprintf(&m, "\n%d callers in each process, %s oracle.", r.Scale.Callers, r.Scale.Oracle)
	m.measuredOn(r.Scale.Machine)
	return m.String()
}

func scaleCharts(r *results) []drawing {
	c := charts.Chart{File: "performance-scale", Title: "Client processes on one emulator", X: "Client processes", Y: "Operations a second"}
	all := []charts.Series{{Name: "raw reads", Colour: charts.RawColour}, {Name: "reads", Colour: charts.OursColour}, {Name: "raw writes", Colour: charts.GoalColour}, {Name: "write transactions", Colour: charts.OtherColour}}
	for _, l := range r.Scale.Lines {
		c.Groups = append(c.Groups, strconv.Itoa(l.Processes))
		for i, v := range []float64{l.RawRead, l.Read, l.RawWrite, l.Write} {
			all[i].Values = append(all[i].Values, v)
		}
	}
	c.Series = all
	return []drawing{{c, charts.Chart.Bars}}
}

func planMarkdown(r *results) string {
	var m markdown
	m.head("Oracle", "", "Requests: planned, counted", "Round trips: planned, counted", "Bytes: about, counted")
	for _, l := range r.Plan.Lines {
		m.row(l.Oracle, l.Name, fmt.Sprintf("%d, %d", l.Requests, l.Counted), fmt.Sprintf("%d, %d", l.RoundTrips, l.CountedTrips), thousands(float64(l.Bytes))+", "+thousands(float64(l.CountedBytes)))
	}
	fmt.Fprintf(&m, "\nLatency with %v added to each request:\n\n", verifiedDelay)
	m.head("Oracle", "", "Planned ms", "Measured p50 ms", "Ratio")
	for _, l := range r.Plan.Latencies {
		m.row(l.Oracle, l.Name, cli.Fixed(l.Planned, 1), cli.Fixed(l.Measured, 1), cli.Fixed(l.Ratio, 2))
	}
	return m.String()
}
