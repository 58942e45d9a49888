package capacity

import (
	"fmt"
	"math"
)

// A Plan is what a workload needs.
type Plan struct {
	Workload     Workload    `json:"workload"`     // with what was left out filled in
	Rates        Rates       `json:"rates"`        // what was reckoned with
	Transactions []KindPlan  `json:"transactions"` // requests, round trips and latency of each kind
	Tables       []TablePlan `json:"tables"`       // storage and sweeps of each

	RowReads   float64 `json:"row_reads_per_second"`             // rows that Bigtable reads, those of conditional mutations and of sweeps apart
	RowWrites  float64 `json:"row_writes_per_second"`            // rows that Bigtable writes
	Conditions float64 `json:"conditional_mutations_per_second"` // CheckAndMutateRow: prewrites, commits, and a direct oracle's
	CPUNodes   float64 `json:"cpu_nodes"`                        // busy at all times, before the CPU target
	SweepNodes float64 `json:"sweep_nodes"`                      // of those, busy with sweeps for notifications
	StoreNodes float64 `json:"storage_nodes"`                    // that the storage needs
	Nodes      int     `json:"nodes"`                            // to provision
	CPU        float64 `json:"cpu_utilisation"`                  // average, with that many

	StorageGiB float64 `json:"storage_gib"` // before compression
	LiveGiB    float64 `json:"live_gib"`    // of that, newest versions
	OldGiB     float64 `json:"old_gib"`     // of that, versions within the retention

	Timestamps     float64 `json:"timestamps_per_second"`      // handed out
	OracleRequests float64 `json:"oracle_requests_per_second"` // batches; each process has one under way at a time

	Network float64 `json:"network_mb_per_second"` // of messages, both ways, about

	NodeCost    float64  `json:"node_cost_month"`    // US dollars
	StorageCost float64  `json:"storage_cost_month"` // US dollars
	Cost        float64  `json:"cost_month"`         // US dollars; without network and the processes' own machines
	Warnings    []string `json:"warnings"`           // rows that take more than one row can
}

// A KindPlan is what transactions of one kind take.
type KindPlan struct {
	Name       string  `json:"name"`            // of the kind or the table
	PerSecond  float64 `json:"per_second"`      // commits, or snapshots
	Oracle     int     `json:"oracle_requests"` // when it is alone; shared by those who ask at the same time
	Reads      int     `json:"reads"`           // requests
	Prewrites  int     `json:"prewrites"`       // one for each row
	Commits    int     `json:"commits"`         // of the primary's row
	Secondary  int     `json:"secondaries"`     // requests of the background
	Requests   int     `json:"requests"`        // in all
	RoundTrips int     `json:"round_trips"`     // that follow each other before the caller has the answer
	Bytes      float64 `json:"bytes"`           // of messages, both ways, about
	Latency    float64 `json:"latency_ms"`      // round trips × their length
	BusyMS     float64 `json:"busy_latency_ms"` // the same when many ask the oracle
	HotRate    float64 `json:"hot_row_rate"`    // writes of one hot row a second; 0 without hot rows
	HotLimit   float64 `json:"hot_row_limit"`   // commits a second that one row takes when each begins after the last
	Conflicts  float64 `json:"conflict_share"`  // of attempts that meet another one on a hot row, about
}

// A TablePlan is what a table takes.
type TablePlan struct {
	Name      string  `json:"name"`               // of the kind or the table
	GiB       float64 `json:"gib"`                // newest versions
	SweepSecs float64 `json:"sweep_node_seconds"` // of one node, for one sweep of the table for notifications, if Bigtable reads all of it
	SweepLoad float64 `json:"sweep_nodes"`        // busy with sweeps at all times
}

const (
	gib = 1 << 30
	mb  = 1e6
	kb  = 1024
)

// sized is how many rows of 1 KB a row counts for.
func sized(bytes float64) float64 { return max(1, bytes/kb) }

// New plans for a workload. It fails for one that makes no sense.
func New(w Workload, r Rates) (Plan, error) {
	w, err := w.complete()
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Workload: w, Rates: r, Transactions: []KindPlan{}, Tables: []TablePlan{}, Warnings: []string{}}
	old := 0.0 // bytes a second of versions
	for _, k := range w.Transactions {
		kp := w.kind(k, r)
		p.Transactions = append(p.Transactions, kp)
		p.Timestamps += k.Rate * float64(kp.Oracle)
		p.Network += k.Rate * kp.Bytes / mb
		p.RowReads += k.Rate * float64(k.Reads*k.ReadRows) * sized(k.ReadBytes)
		conditional := float64(kp.Prewrites + kp.Commits)
		p.Conditions += k.Rate * conditional
		size := sized(float64(k.Cells) * k.Bytes)
		// The prewrites carry the values; commits only records.
		p.RowWrites += k.Rate * (float64(k.Rows)*size + float64(k.Rows))
		// A notification is read with its cell by the observer, whose
		// transactions are a kind of their own, and cleared by a mutation.
		p.RowWrites += k.Rate * float64(k.Observed)
		old += k.Rate * float64(k.Rows*k.Cells) * (k.Bytes + r.Cell)
		p.warnHot(kp, k)
	}
	for _, t := range w.Tables {
		tp := TablePlan{Name: t.Name, GiB: t.Rows * (t.Bytes + float64(t.Cells)*r.Cell) / gib}
		if t.Observed {
			tp.SweepSecs = tp.GiB * gib / (r.Scan * mb)
			tp.SweepLoad = tp.SweepSecs / w.Sweep
			p.SweepNodes += tp.SweepLoad
		}
		p.LiveGiB += tp.GiB
		p.Tables = append(p.Tables, tp)
	}
	p.oracle(r)
	p.OldGiB = old * w.Retention * 3600 / gib
	p.StorageGiB = p.LiveGiB + p.OldGiB
	p.CPUNodes = (p.RowReads+p.Conditions*r.Conditional)/r.Reads + p.RowWrites/r.Writes + p.SweepNodes
	p.StoreNodes = p.StorageGiB / 1024 / r.Storage
	p.Nodes = int(math.Ceil(max(p.CPUNodes/r.CPU, p.StoreNodes, 1)))
	p.CPU = p.CPUNodes / float64(p.Nodes)
	p.NodeCost = float64(p.Nodes) * r.Node * hoursOfMonth
	p.StorageCost = p.StorageGiB * r.GiB
	p.Cost = p.NodeCost + p.StorageCost
	return p, nil
}

// oracle adds the oracle's load: its requests, and in direct mode the mutations
// that they are.
func (p *Plan) oracle(r Rates) {
	trip := p.Workload.RTT
	if p.Workload.Oracle == Served {
		trip = p.Workload.OracleRTT
	}
	p.OracleRequests = min(p.Timestamps, float64(p.Workload.Processes)*1000/trip)
	if p.Workload.Oracle == Served {
		return
	}
	p.Conditions += p.OracleRequests
	p.RowWrites += p.OracleRequests
	if p.OracleRequests > r.HotRow/2 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the oracle's row takes %.0f mutations a second from %d processes, and one row is assumed to take %.0f: use a served oracle", p.OracleRequests, p.Workload.Processes, r.HotRow))
	}
}

// Requests computes what one transaction takes; it is what is compared with
// counted runs.
func (w Workload) Requests(k Kind) KindPlan { return w.kind(k.complete(), DefaultRates) }

func (w Workload) kind(k Kind, r Rates) KindPlan {
	kp := KindPlan{Name: k.Name, PerSecond: k.Rate, Oracle: 1, Reads: k.Reads}
	if k.Stale {
		kp.Oracle = 0
	}
	trips := k.Reads
	if k.Rows > 0 {
		kp.Oracle, kp.Prewrites, kp.Commits = 2, k.Rows, 1
		// Rows beside the primary's, one request a table. The primary's table has
		// one only if another row of it is written.
		kp.Secondary = k.Tables - 1
		if k.Rows > k.Tables {
			kp.Secondary++
		}
		trips += (k.Rows+w.Parallelism-1)/w.Parallelism + 1
	}
	kp.Requests = kp.Oracle + kp.Reads + kp.Prewrites + kp.Commits + kp.Secondary
	kp.RoundTrips = trips + kp.Oracle
	kp.Bytes = w.bytes(k, kp)
	stamp, busy := w.RTT, r.Busy*w.RTT
	if w.Oracle == Served {
		stamp, busy = w.OracleRTT, r.Busy*w.OracleRTT
	}
	kp.Latency = float64(trips)*w.RTT + float64(kp.Oracle)*stamp
	kp.BusyMS = float64(trips)*w.RTT + float64(kp.Oracle)*busy
	if k.Rows > 0 && k.Hot > 0 {
		// Each transaction has to take its start_ts after the last one's
		// commit_ts, so they follow each other at best; and one that begins while
		// another is under way meets it.
		kp.HotRate = k.Rate / float64(k.Hot)
		kp.HotLimit = 1000 / kp.Latency
		kp.Conflicts = 1 - math.Exp(-kp.HotRate*kp.Latency/1000)
	}
	return kp
}

// Messages have these sizes, about, beside the values they carry.
const (
	stampBytes     = 150 // a question to the direct oracle; a served one's is a tenth
	readBytes      = 250 // a read and what it has of each row
	prewriteBytes  = 250 // of each cell
	commitBytes    = 200 // of the primary's row
	secondaryBytes = 100 // of each other row
)

func (w Workload) bytes(k Kind, kp KindPlan) float64 {
	stamp := stampBytes
	if w.Oracle == Served {
		stamp /= 10
	}
	return float64(kp.Oracle*stamp) +
		float64(k.Reads)*(readBytes+float64(k.ReadRows)*(k.ReadBytes+readBytes/3)) +
		float64(k.Rows*k.Cells)*(k.Bytes+prewriteBytes) +
		float64(kp.Commits*commitBytes) + float64(max(k.Rows-1, 0)*secondaryBytes)
}

func (p *Plan) warnHot(kp KindPlan, k Kind) {
	if kp.HotLimit == 0 || kp.HotRate <= kp.HotLimit/2 {
		return
	}
	p.Warnings = append(p.Warnings, fmt.Sprintf("%s: each of its %d hot rows is written %.3g times a second; one row takes at most %.3g such transactions a second. Spread the writes over more rows, and fold them later", kp.Name, k.Hot, kp.HotRate, kp.HotLimit))
}
