package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

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

func cpuMarkdown(r *results) string {
	var m markdown
	m.head("", "Requests", "CPU µs: Bigtable client alone", "ours", "beyond it", "Goal", "Allocations: Bigtable client alone", "ours", "beyond it", "Goal")
	for _, l := range r.CPU.Lines {
		m.row(l.Name, cli.Fixed(l.Requests, 0), cli.Fixed(l.RawCPU, 1), cli.Fixed(l.CPU, 1), "**"+cli.Fixed(l.OverCPU, 1)+"**", orNone(l.GoalCPU, 0), cli.Fixed(l.RawAllocs, 0), cli.Fixed(l.Allocs, 0), "**"+cli.Fixed(l.Over, 0)+"**", orNone(l.Goal, 0))
	}
	m.measuredOn(r.CPU.Machine)
	return m.String()
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
