package capacity

import (
	"fmt"
	"math"
	"time"
)

// A Plan is what a workload needs.
type Plan struct {
	Workload     Workload    `json:"workload"`     // the workload, with defaults filled in
	Rates        Rates       `json:"rates"`        // rates and prices that the plan uses
	Transactions []KindPlan  `json:"transactions"` // requests, round trips and latency of each kind of transaction
	Tables       []TablePlan `json:"tables"`       // storage and sweeps of each table

	RowReads   float64 `json:"row_reads_per_second"`              // rows that Bigtable reads, without those of conditional mutations, scans and sweeps
	Scanned    float64 `json:"scanned_mb_per_second" unit:"MB/s"` // data that transactions scan, with old versions and removed cells
	RowWrites  float64 `json:"row_writes_per_second"`             // rows that Bigtable writes
	Conditions float64 `json:"conditional_mutations_per_second"`  // CheckAndMutateRow requests: prewrites, commits, and those of a direct oracle
	CPUNodes   float64 `json:"cpu_nodes" unit:"nodes"`            // nodes that would be busy all the time, before cpu_target
	ScanNodes  float64 `json:"scan_nodes" unit:"nodes"`           // part of cpu_nodes that scans of transactions take
	SweepNodes float64 `json:"sweep_nodes" unit:"nodes"`          // part of cpu_nodes that sweeps for notifications take
	GCNodes    float64 `json:"gc_nodes" unit:"nodes"`             // part of cpu_nodes that garbage collection takes (percctl gc run --watch): it reads and writes each changed row once, and reads every table twice a week
	GCHours    float64 `json:"gc_run_hours" unit:"h"`             // time that one collector needs for a run that reads every row
	IdleNodes  float64 `json:"idle_nodes" unit:"nodes"`           // part of cpu_nodes that the processes take without transactions: tokens, the safe point, schemas
	StoreNodes float64 `json:"storage_nodes" unit:"nodes"`        // nodes that the storage needs
	Nodes      int     `json:"nodes" unit:"nodes"`                // nodes to provision
	CPU        float64 `json:"cpu_utilisation" unit:"0 to 1"`     // average CPU utilisation with that many nodes

	StorageGiB float64 `json:"storage_gib"` // storage, before compression
	LiveGiB    float64 `json:"live_gib"`    // part of it that newest versions take
	OldGiB     float64 `json:"old_gib"`     // part of it that old versions take, until garbage collection removes them
	RemovedGiB float64 `json:"removed_gib"` // part of it that removed cells take, until Bigtable compacts; assumed

	Timestamps     float64 `json:"timestamps_per_second"`      // timestamps that the oracle hands out
	OracleRequests float64 `json:"oracle_requests_per_second"` // requests to the oracle; each process has one at a time

	Network float64 `json:"network_mb_per_second" unit:"MB/s"` // messages in both directions, approximately

	NodeCost    float64  `json:"node_cost_month" unit:"USD per month"`    // price of the nodes
	StorageCost float64  `json:"storage_cost_month" unit:"USD per month"` // price of the storage
	Cost        float64  `json:"cost_month" unit:"USD per month"`         // sum of both; without network and the machines of the processes
	Warnings    []string `json:"warnings"`                                // what exceeds a limit, or takes a large part of the nodes
}

// A KindPlan is what one transaction of a kind takes.
type KindPlan struct {
	Name       string  `json:"name"`                               // name of the kind
	PerSecond  float64 `json:"per_second" unit:"1/s"`              // commits, or snapshots
	Oracle     int     `json:"oracle_requests"`                    // requests to the oracle of a single transaction; concurrent transactions share them
	Reads      int     `json:"reads"`                              // read requests
	Prewrites  int     `json:"prewrites"`                          // prewrite requests: one for each row
	Commits    int     `json:"commits"`                            // commit requests to the primary's row
	Secondary  int     `json:"secondaries"`                        // requests in the background, to commit the secondaries
	Requests   int     `json:"requests"`                           // all requests
	RoundTrips int     `json:"round_trips"`                        // round trips, one after the other, until the caller has the answer
	Bytes      float64 `json:"bytes"`                              // messages in both directions, approximately
	Latency    float64 `json:"latency_ms"`                         // round trips multiplied by their time
	BusyMS     float64 `json:"busy_latency_ms"`                    // the same if many callers ask the oracle at the same time
	HotRate    float64 `json:"hot_row_rate" unit:"1/s"`            // writes of one hot row; 0 without hot rows
	HotLimit   float64 `json:"hot_row_limit" unit:"1/s"`           // commits that one row can take if each begins after the last
	HotBytes   float64 `json:"hot_row_bytes" unit:"bytes"`         // what a hot row holds before garbage collection removes versions
	Removed    float64 `json:"hot_row_removed_cells" unit:"cells"` // removed cells of a hot row, before Bigtable compacts it
	RemovedMS  float64 `json:"hot_row_removed_ms" unit:"ms"`       // time of a node to pass them, which each read of the row needs
	Conflicts  float64 `json:"conflict_share" unit:"0 to 1"`       // share of attempts that conflict on a hot row, approximately
}

// A TablePlan is what a table takes.
type TablePlan struct {
	Name      string  `json:"name"`                     // name of the table
	GiB       float64 `json:"gib"`                      // storage of newest versions
	SweepSecs float64 `json:"sweep_node_seconds"`       // time of one node for one sweep for notifications, if Bigtable reads the whole table
	SweepLoad float64 `json:"sweep_nodes" unit:"nodes"` // nodes that sweeps keep busy all the time
}

const (
	gib = 1 << 30
	mb  = 1e6
	kb  = 1024
)

// sized is how many rows of 1 KB a written row counts for.
func sized(bytes float64) float64 { return max(1, bytes/kb) }

// readAs is how many rows of 1 KB a row counts for that is read. What it has beyond 1 KB costs as
// in a scan.
func (r Rates) readAs(bytes float64) float64 { return 1 + max(0, bytes-kb)/(r.Scan*mb)*r.Reads }

// New plans for a workload. It fails for one that makes no sense.
func New(w Workload, r Rates) (Plan, error) {
	w, err := w.complete()
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Workload: w, Rates: r, Transactions: []KindPlan{}, Tables: []TablePlan{}, Warnings: []string{}}
	old, removed, scanned := 0.0, 0.0, 0.0 // bytes a second of versions, removed cells, and scans of newest versions
	for _, k := range w.Transactions {
		kp := w.kind(k, r)
		kept := time.Duration((w.Retention + w.Interval) * float64(time.Hour))
		kp.HotBytes = RowBytes(min(kp.HotRate, kp.HotLimit), float64(k.Cells)*(k.Bytes+r.Cell), kept)
		p.Transactions = append(p.Transactions, kp)
		p.Timestamps += k.Rate * float64(kp.Oracle)
		p.Network += k.Rate * kp.Bytes / mb
		p.RowReads += k.Rate * (float64(k.Reads*k.ReadRows)*r.readAs(k.ReadBytes) + float64(k.Scans))
		scanned += k.Rate * float64(k.Scans) * k.scanned(r)
		conditional := float64(k.Rows + kp.Commits)
		p.Conditions += k.Rate * conditional
		// The prewrites carry the values, with their locks; commits only records.
		size := sized(float64(k.Cells) * (k.Bytes + r.Cell))
		p.RowWrites += k.Rate * (float64(k.Rows)*size + float64(k.Rows))
		// A notification is read with its cell by the observer, whose
		// transactions are a kind of their own, and cleared by a mutation. Its journal entry
		// is written and removed.
		p.RowWrites += k.Rate * float64(3*k.Observed)
		old += k.Rate * float64(k.Rows*k.Cells) * (k.Bytes + r.Cell)
		removed += k.Rate * float64(k.Rows*k.Cells) * removedCells * r.Removed
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
	// Runs of garbage collection and compactions are an interval apart: what they find is half as
	// old on average.
	p.OldGiB = old * (w.Retention + w.Interval/2) * 3600 / gib
	p.RemovedGiB = removed * r.Compaction / 2 * 3600 / gib
	p.StorageGiB = p.LiveGiB + p.OldGiB + p.RemovedGiB
	if p.LiveGiB > 0 {
		scanned *= p.StorageGiB / p.LiveGiB
	}
	p.Scanned = scanned / mb
	p.ScanNodes = p.Scanned / r.Scan
	p.background(r)
	p.CPUNodes = (p.RowReads+p.Conditions*r.Conditional)/r.Reads + p.RowWrites/r.Writes + p.ScanNodes + p.SweepNodes + p.GCNodes + p.IdleNodes
	p.StoreNodes = p.StorageGiB / 1024 / r.Storage
	p.Nodes = int(math.Ceil(max(p.CPUNodes/r.CPU, p.StoreNodes, 1)))
	p.CPU = p.CPUNodes / float64(p.Nodes)
	p.NodeCost = float64(p.Nodes) * r.Node * hoursOfMonth
	p.StorageCost = p.StorageGiB * r.GiB
	p.Cost = p.NodeCost + p.StorageCost
	p.warnShares()
	return p, nil
}

// What processes do without transactions: docs/protocol.md. TokenTTL is 5 s, SchemaMaxAge 1 min.
const (
	tokenWrites     = 3.0 / 5  // a second, of a process that works
	safePointReads  = 1.0 / 10 // a second
	schemaReads     = 1.0 / 60 // a second and table
	gcFull          = 1.0 / (7 * 86400)
	collectedPerSec = 100_000 // rows that one collector reads, measured: 10 billion took 27 h of processor time
	removedPerSec   = 80_000  // versions that one collector removes, measured on the model with 30 nodes
)

// background adds what does not depend on the rate of transactions.
func (p *Plan) background(r Rates) {
	processes, rows, changed := float64(p.Workload.Processes), 0.0, p.changed()
	for _, t := range p.Workload.Tables {
		rows += t.Rows
	}
	p.IdleNodes = processes * (tokenWrites/r.Writes + (safePointReads+schemaReads*float64(len(p.Workload.Tables)))/r.Reads)
	// Most runs read the rows that clients changed.
	p.GCNodes = p.gcFullNodes() + changed/r.Reads + changed/r.Writes
	p.GCHours = rows / collectedPerSec / 3600
}

// gcFullNodes is the part of GCNodes for runs that read every row: once to find locks, and once to
// find old versions.
func (p *Plan) gcFullNodes() float64 { return 2 * p.StorageGiB * gib / (p.Rates.Scan * mb) * gcFull }

// changed is how many rows transactions change in a second. A hot row is changed often, but
// collected once.
func (p *Plan) changed() (rows float64) {
	for _, k := range p.Workload.Transactions {
		rows += k.Rate * float64(k.Rows)
		if k.Hot > 0 {
			rows -= k.Rate
		}
	}
	return rows
}

// share is the part of the nodes that background work may take without a warning.
const share = .25

// warnShares warns of background work that takes a large part of the nodes.
func (p *Plan) warnShares() {
	warn := func(nodes float64, format string, args ...any) {
		if nodes > share*p.CPUNodes && nodes > .1 {
			p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
		}
	}
	warn(p.SweepNodes, "sweeps for notifications take %.2f of %.2f busy nodes, if Bigtable reads all rows of the observed tables: keep observed columns in smaller tables, or give them a journal (percctl table init), so that a sweep a day is enough (--sweep-interval)", p.SweepNodes, p.CPUNodes)
	warn(p.gcFullNodes(), "garbage collection takes %.2f of %.2f busy nodes to read all rows once a week: do it less often (percctl gc run --full-every)", p.gcFullNodes(), p.CPUNodes)
	warn(p.IdleNodes, "%d processes take %.2f of %.2f busy nodes, even if they have no transactions: use fewer processes", p.Workload.Processes, p.IdleNodes, p.CPUNodes)
	if p.GCHours*3600*gcFull > 1 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("one collector needs %.0f h to read all rows: raise --full-every of percctl gc run, which is a week", p.GCHours))
	}
	if n := p.changed(); n > removedPerSec {
		p.Warnings = append(p.Warnings, fmt.Sprintf("transactions change %.0f rows a second, and one collector removes about %d versions a second: old versions pile up", n, removedPerSec))
	}
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
	if p.OracleRequests > r.HotRow/2 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the oracle's row gets %.0f mutations per second from %d processes, and one row can take about %.0f: use a served oracle (docs/oracle.md says how to change to it without downtime)", p.OracleRequests, p.Workload.Processes, r.HotRow))
	}
	if p.OracleRequests > r.HotRow {
		// The processes take turns at the row.
		wait := float64(p.Workload.Processes)*1000/r.HotRow - trip
		for i := range p.Transactions {
			p.Transactions[i].BusyMS += float64(p.Transactions[i].Oracle) * r.Busy * max(wait, 0)
		}
		p.OracleRequests = r.HotRow
	}
	p.Conditions += p.OracleRequests
	p.RowWrites += p.OracleRequests
}

// MaxRowBytes is how much Bigtable returns of one row at most. A read of a larger row fails.
const MaxRowBytes = 256 << 20

// RowBytes returns how much one row holds at most if it is written perSecond times, with that
// many bytes each time, and versions stay for a while: for the retention, and until the next
// garbage collection ends. Bigtable returns at most [MaxRowBytes] of a row.
func RowBytes(perSecond, bytes float64, kept time.Duration) float64 {
	return perSecond * bytes * kept.Seconds()
}

// warnHot warns of hot rows that cannot take what is written to them.
func (p *Plan) warnHot(kp KindPlan, k Kind) {
	warn := func(format string, args ...any) {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: each of its %d hot rows ", kp.Name, k.Hot)+fmt.Sprintf(format, args...))
	}
	if kp.HotBytes > MaxRowBytes/2 {
		warn("grows to %.0f MB before garbage collection removes versions, and Bigtable returns at most %d MB of a row: keep versions for less than %.3g h (percctl gc run --retention), collect more often than every %.3g h (--interval), or spread the writes over more rows", kp.HotBytes/(1<<20), MaxRowBytes>>20, p.Workload.Retention, p.Workload.Interval)
	}
	if kp.RemovedMS > p.Workload.RTT {
		warn("has %.0f removed cells before Bigtable compacts it (assumed: every %.0f h). If reading one costs %.0f bytes (assumed; percctl conformance measures the time), each read of the row takes %.0f ms longer then: spread the writes over more rows", kp.Removed, p.Rates.Compaction, p.Rates.Removed, kp.RemovedMS)
	}
	if kp.HotLimit > 0 && kp.HotRate > kp.HotLimit/2 {
		warn("is written %.3g times per second, and one row can take at most %.3g such transactions per second: spread the writes over more rows, and merge them later", kp.HotRate, kp.HotLimit)
	}
}
