package capacity

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Requests and round trips of each shape of transaction, as docs/protocol.md has
// them.
func TestRequests(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		kind Kind
		want KindPlan
	}{
		{"a read", Kind{Reads: 1}, KindPlan{Oracle: 1, Reads: 1, Requests: 2, RoundTrips: 2}},
		{"a stale read", Kind{Reads: 1, Stale: true}, KindPlan{Reads: 1, Requests: 1, RoundTrips: 1}},
		{"a batch read", Kind{Reads: 1, ReadRows: 100}, KindPlan{Oracle: 1, Reads: 1, Requests: 2, RoundTrips: 2}},
		{"a write", Kind{Rows: 1}, KindPlan{Oracle: 2, Prewrites: 1, Commits: 1, Requests: 4, RoundTrips: 4}},
		{"many columns", Kind{Rows: 1, Cells: 10}, KindPlan{Oracle: 2, Prewrites: 1, Commits: 1, Requests: 4, RoundTrips: 4}},
		{"ten rows", Kind{Rows: 10}, KindPlan{Oracle: 2, Prewrites: 10, Commits: 1, Secondary: 1, Requests: 14, RoundTrips: 4}},
		{"ten rows in each of two tables", Kind{Rows: 20, Tables: 2}, KindPlan{Oracle: 2, Prewrites: 20, Commits: 1, Secondary: 2, Requests: 25, RoundTrips: 4}},
		{"a row in each of two tables", Kind{Rows: 2, Tables: 2}, KindPlan{Oracle: 2, Prewrites: 2, Commits: 1, Secondary: 1, Requests: 6, RoundTrips: 4}},
		{"more rows than run at a time", Kind{Rows: 65, Tables: 65}, KindPlan{Oracle: 2, Prewrites: 65, Commits: 1, Secondary: 64, Requests: 132, RoundTrips: 5}},
		{"a transfer", Kind{Reads: 2, Rows: 2}, KindPlan{Oracle: 2, Reads: 2, Prewrites: 2, Commits: 1, Secondary: 1, Requests: 8, RoundTrips: 6}},
	} {
		got := Workload{Oracle: Direct, RTT: 5, OracleRTT: 1, Parallelism: 64}.Requests(tt.kind)
		if want := 5 * float64(tt.want.RoundTrips); got.Latency != want {
			t.Errorf("%s: latency %g ms, want %g", tt.name, got.Latency, want)
		}
		got.Bytes, got.Latency, got.BusyMS = 0, 0, 0
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6*math.Max(1, math.Abs(want)) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// A workload worked out by hand.
func TestPlan(t *testing.T) {
	t.Parallel()
	p, err := New(Workload{
		Transactions: []Kind{
			{Name: "transfer", Rate: 1000, Reads: 2, Rows: 2, Bytes: 100, Observed: 1, Hot: 1000},
			{Name: "statement", Rate: 3000, Reads: 1, ReadRows: 10, ReadBytes: 2048},
		},
		Tables:    []Table{{Name: "accounts", Rows: 1e8, Bytes: 850, Observed: true}},
		Retention: 10, Processes: 4, Sweep: 100,
	}, DefaultRates)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "timestamps", p.Timestamps, 1000*2+3000*1)
	near(t, "oracle requests", p.OracleRequests, 4*1000/5)
	reads := 1000*2 + 3000*10*(1+1024/220e6*17_000)
	near(t, "row reads", p.RowReads, reads)
	near(t, "conditional mutations", p.Conditions, 1000*3+800)
	near(t, "row writes", p.RowWrites, 1000*(2+2+3)+800)
	near(t, "live storage", p.LiveGiB, 1e8*(850+150)/(1<<30))
	near(t, "old versions", p.OldGiB, 1000*2*(100+150)*(10+6/2)*3600.0/(1<<30))
	near(t, "removed cells", p.RemovedGiB, 1000*2*2*100*12*3600.0/(1<<30))
	near(t, "a sweep", p.Tables[0].SweepSecs, 1e11/220e6)
	near(t, "sweeps", p.SweepNodes, 1e11/220e6/100)
	near(t, "garbage collection", p.GCNodes, 2*p.StorageGiB*(1<<30)/220e6/604800+1000/17_000.0+1000/14_000.0)
	near(t, "a run of garbage collection", p.GCHours, 1e8/1e5/3600)
	near(t, "idle processes", p.IdleNodes, 4*(.6/14_000+(.1+1/60.0)/17_000))
	nodes := (reads+3800)/17_000.0 + 7800/14_000.0 + p.SweepNodes + p.GCNodes + p.IdleNodes
	near(t, "busy nodes", p.CPUNodes, nodes)
	near(t, "nodes", float64(p.Nodes), math.Ceil(nodes/.7))
	near(t, "CPU", p.CPU, nodes/float64(p.Nodes))
	near(t, "cost", p.Cost, float64(p.Nodes)*.65*730+p.StorageGiB*.17)
	k := p.Transactions[0]
	near(t, "hot rate", k.HotRate, 1)
	near(t, "hot limit", k.HotLimit, 1000/30.0)
	near(t, "size of a hot row", k.HotBytes, 1*250*16*3600)
	near(t, "its removed cells", k.Removed, 1*2*86400)
	near(t, "time to read them", k.RemovedMS, 86400*2*100/220e6*1000)
	near(t, "conflicts", k.Conflicts, 1-math.Exp(-.03))
	near(t, "busy latency", k.BusyMS, 4*5+2*1.5*5)
	wantWarnings(t, "", p, "has 172800 removed cells", "the oracle's row gets 800 mutations per second", "sweeps for notifications take 4.55 of")
}

// wantWarnings fails unless a plan has exactly these warnings.
func wantWarnings(t *testing.T, what string, p Plan, want ...string) {
	t.Helper()
	same := len(p.Warnings) == len(want)
	for i := 0; same && i < len(want); i++ {
		same = strings.Contains(p.Warnings[i], want[i])
	}
	if !same {
		t.Errorf("%s: %q, want %q", what, p.Warnings, want)
	}
}

// A scan costs by bytes, whatever its rows are; old versions and removed cells are among them.
func TestScans(t *testing.T) {
	t.Parallel()
	scans := Kind{Rate: 50, Scans: 2, ScanRows: 10_000}
	p, err := New(Workload{Oracle: Served, Transactions: []Kind{scans}}, DefaultRates)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "scanned", p.Scanned, 50*2*10_000*250/1e6)
	near(t, "row reads", p.RowReads, 50*2)
	near(t, "latency", p.Transactions[0].Latency, 1+2*(5+10_000*250/220e6*1000))
	p, err = New(Workload{Oracle: Served, Transactions: []Kind{scans, {Rate: 100, Rows: 1}}, Tables: []Table{{Rows: 1e6}}}, DefaultRates)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "scanned with what was overwritten", p.Scanned, 250*(1150e6+100*(250*27+200*12)*3600)/1150e6)
}

// TestWarnings: what exceeds its part of the plan is said.
func TestWarnings(t *testing.T) {
	t.Parallel()
	writes := Kind{Name: "write", Rate: 1000, Rows: 1}
	for _, tt := range []struct {
		name     string
		workload Workload
		want     []string
	}{
		{"fine", Workload{Oracle: Served, Processes: 500, Transactions: []Kind{{Rate: 10_000, Rows: 1}}, Tables: []Table{{Rows: 1e8}}}, nil},
		{"10 TB with observers and no journal", Workload{Oracle: Served, Sweep: 60, Transactions: []Kind{writes}, Tables: []Table{{Rows: 1e10, Observed: true}}}, []string{"sweeps for notifications take 871.21 of"}},
		{"10 TB", Workload{Oracle: Served, Transactions: []Kind{writes}, Tables: []Table{{Rows: 1e10}}}, []string{"garbage collection takes 0.17 of 0.56 busy nodes to read all rows once a week"}},
		{"100 TB", Workload{Oracle: Served, Transactions: []Kind{writes}, Tables: []Table{{Rows: 1e11}}}, []string{"garbage collection takes 1.73 of", "one collector needs 278 h"}},
		{"changes", Workload{Oracle: Served, Processes: 500, Transactions: []Kind{{Rate: 100_000, Rows: 1}}}, []string{"transactions change 100000 rows a second"}},
		{"idle processes", Workload{Oracle: Served, Processes: 10_000, Transactions: []Kind{writes}}, []string{"10000 processes take 0.49 of"}},
		{"hot row", Workload{Oracle: Served, Transactions: []Kind{{Name: "write", Rate: 1000, Rows: 1, Hot: 1}}}, []string{"grows to 2146 MB", "has 14400000 removed cells", "write: each of its 1 hot rows is written 1e+03 times"}},
		{"a large row", Workload{Oracle: Served, Retention: 1, Transactions: []Kind{{Name: "write", Rate: 15, Rows: 1, Hot: 1, Bytes: 2048}}}, []string{"write: each of its 1 hot rows grows to 792 MB before garbage collection removes versions, and Bigtable returns at most 256 MB", "removed cells"}},
		{"a row that is small enough", Workload{Oracle: Served, Retention: 1, Transactions: []Kind{{Name: "write", Rate: .1, Rows: 1, Hot: 1, Bytes: 2048}}}, []string{"has 17280 removed cells"}},
		{"oracle's row", Workload{Oracle: Direct, Processes: 50, Transactions: []Kind{writes}}, []string{"the oracle's row gets 2000 mutations"}},
	} {
		p, err := New(tt.workload, DefaultRates)
		if err != nil {
			t.Fatal(err)
		}
		wantWarnings(t, tt.name, p, tt.want...)
	}
}

// Processes that want more than the row can take wait for their turn.
func TestBusyDirectOracle(t *testing.T) {
	t.Parallel()
	p, err := New(Workload{Oracle: Direct, Processes: 50, Transactions: []Kind{{Rate: 5000, Reads: 1}}}, DefaultRates)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "requests to the oracle", p.OracleRequests, 1000)
	near(t, "latency", p.Transactions[0].BusyMS, 5+1.5*50)
}

// With a served oracle the oracle's row is no load, and its round trips are its
// own.
func TestServed(t *testing.T) {
	t.Parallel()
	p, err := New(Workload{Transactions: []Kind{{Rate: 100_000, Rows: 1, Hot: 1}}, Oracle: Served, Processes: 20, OracleRTT: 2}, DefaultRates)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "oracle requests", p.OracleRequests, 20*1000/2)
	near(t, "conditional mutations", p.Conditions, 200_000)
	near(t, "latency", p.Transactions[0].Latency, 2*5+2*2)
	wantWarnings(t, "served", p, "grows to", "removed cells", "one row can take at most 71.4 such transactions per second")
}

// Storage and what reads it decide where there is much of it, and there is a node at least.
func TestNodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rows float64
		want int
	}{{0, 1}, {1e10, 5}} {
		p, err := New(Workload{Transactions: []Kind{{Rate: 1, Reads: 1}}, Tables: []Table{{Rows: tt.rows, Bytes: 1024}}}, DefaultRates)
		if err != nil {
			t.Fatal(err)
		}
		if p.Nodes != tt.want {
			t.Errorf("%g rows: %d nodes, want %d (%g for storage)", tt.rows, p.Nodes, tt.want, p.StoreNodes)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	want := Workload{Transactions: []Kind{{Name: "a", Rate: 1e3, Rows: 2}}, Oracle: Served}
	for _, text := range []string{`{"transactions": [{"name": "a", "per_second": 1000, "rows": 2}], "oracle": "served"}`, "transactions:\n- {name: a, per_second: 1e3, rows: 2}\noracle: served\n"} {
		got, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
	}
	for text, want := range map[string]string{"[": "neither JSON nor YAML", "rows: 1": `unknown field "rows"`, "processes: many": "processes"} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestWrongWorkloads(t *testing.T) {
	t.Parallel()
	ok := Kind{Rate: 1, Rows: 1}
	for want, w := range map[string]Workload{
		"there are no transactions":     {},
		`oracle is "none"`:              {Transactions: []Kind{ok}, Oracle: "none"},
		"must not be negative":          {Transactions: []Kind{ok}, Retention: -1},
		"transaction 1: nothing may be": {Transactions: []Kind{{Rate: -1, Rows: 1}}},
		"set reads, scans or rows":      {Transactions: []Kind{{Rate: 1}}},
		"tables is 3, more than":        {Transactions: []Kind{{Rows: 2, Tables: 3}}},
		"so it cannot be stale":         {Transactions: []Kind{{Rows: 1, Stale: true}}},
		"observed is 2, more than":      {Transactions: []Kind{{Rows: 1, Observed: 2}}},
		"table 1: nothing may be":       {Transactions: []Kind{ok}, Tables: []Table{{Rows: -1}}},
	} {
		if _, err := New(w, DefaultRates); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
