package gc

import (
	"cmp"
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Status is what the metadata table says about garbage collection.
type Status struct {
	// SafePoint is 0 if no run has published one.
	SafePoint tso.Timestamp
	// PublishedTS is the oracle time at which it was published.
	PublishedTS tso.Timestamp
	// Retention is the retention from which it was computed.
	Retention time.Duration
	// Now is the oracle's time.
	Now tso.Timestamp
	// Run is the last run.
	Run RunStatus
	// Lease says which collector works now. It is empty if none does.
	Lease tso.Holder
	// Holds are all clients with open transactions or held snapshots, the oldest
	// first.
	Holds []Hold
}

// A RunStatus is how far a run is, and what it has removed since it began,
// interruptions included.
type RunStatus struct {
	Phase     Phase
	SafePoint tso.Timestamp
	// Table and Row are the position: all rows up to there are collected.
	Table, Row string
	// StartedTS and UpdatedTS are the oracle times at which the run began and last
	// stored its position.
	StartedTS, UpdatedTS tso.Timestamp
	// Owner is the collector that leads the run, or led it last.
	Owner string
	// Parts are what is left of this phase, and Collectors those that work on it now.
	Parts          int
	Collectors     []Collector
	Rows, Versions int64
	Cells, Bytes   int64
	// Skipped are the first 100 rows that were not collected since the last run began that read
	// every row.
	Skipped []SkippedRow
}

// A Collector shares a run.
type Collector struct {
	Owner string `json:"owner"` // collector: host, process id and a random part
	Parts int    `json:"parts"` // parts that it works on
	Table string `json:"table"` // table in which the first of them continues
	Row   string `json:"row"`   // row from which it continues
	// Scans is how many tablets it may scan at a time now without slowing down small reads, 1 to 16;
	// 0: it does not measure that, because it scans one, or follows changes.
	Scans int `json:"scans"`
}

// ReadStatus reads the state of garbage collection from the metadata table. It
// changes nothing.
func ReadStatus(ctx context.Context, client *txn.Client) (*Status, error) {
	c := access.ResolverOf(client)
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	record, _, err := c.SafePoint.ReadRecord(ctx)
	if err != nil {
		return nil, err
	}
	run, _, err := readRun(ctx, c)
	if err != nil {
		return nil, err
	}
	s := &Status{
		SafePoint: tso.Timestamp(record.Ts), PublishedTS: tso.Timestamp(record.PublishedTs), Retention: time.Duration(record.RetentionMicros) * time.Microsecond,
		Run: RunStatus{
			Phase: phases[run.Phase], SafePoint: tso.Timestamp(run.SafePoint), Table: run.Table, Row: string(run.Row),
			StartedTS: tso.Timestamp(run.StartedTs), UpdatedTS: tso.Timestamp(run.UpdatedTs), Owner: run.Owner,
			Rows: run.Rows, Versions: run.Versions, Cells: run.Cells, Bytes: run.Bytes,
		},
	}
	if s.Lease, err = leaseHolder(ctx, c); err != nil {
		return nil, err
	}
	if s.Now, err = c.Clock.Timestamp(ctx); err != nil {
		return nil, err
	}
	s.Run.Parts = len(run.Parts)
	for _, k := range run.Skipped {
		s.Run.Skipped = append(s.Run.Skipped, SkippedRow{k.Table, string(k.Row), SkipReason(k.Reason)})
	}
	for _, c := range run.Collectors {
		if tso.Timestamp(c.ExpiresTs) <= s.Now {
			continue
		}
		k := Collector{Owner: c.Owner, Scans: int(c.Scans)}
		for _, p := range run.Parts {
			if p.Owner == c.Owner {
				if k.Parts++; k.Parts == 1 {
					k.Table, k.Row = p.Table, string(p.Row)
				}
			}
		}
		s.Run.Collectors = append(s.Run.Collectors, k)
	}
	s.Holds, err = readHolds(ctx, c, s.Now)
	return s, err
}

// HoldsBack reports whether a hold keeps the safe point of the next run from reaching as far as the
// retention allows. The retention is that of the last run, or the default if there was none.
func (s *Status) HoldsBack(h Hold) bool {
	return h.OldestTS <= s.Now.Add(-cmp.Or(s.Retention, DefaultRetention))
}

var phases = map[recordpb.GarbageRun_Phase]Phase{
	recordpb.GarbageRun_PHASE_UNSPECIFIED: PhaseNone,
	recordpb.GarbageRun_PHASE_FENCE:       PhaseFence,
	recordpb.GarbageRun_PHASE_LOCKS:       PhaseLocks,
	recordpb.GarbageRun_PHASE_COLLECT:     PhaseCollect,
	recordpb.GarbageRun_PHASE_CHANGES:     PhaseChanges,
	recordpb.GarbageRun_PHASE_DONE:        PhaseDone,
}

// readHolds returns the holds of all clients, the oldest first.
func readHolds(ctx context.Context, c *recovery.Resolver, now tso.Timestamp) ([]Hold, error) {
	holds := []Hold{}
	err := c.Metadata.ReadRows(ctx, bigtable.PrefixRange(recovery.TokenRowPrefix), func(r bigtable.Row) bool {
		w, ok := recovery.DecodeToken(r)
		if ok && w.OldestTs > 0 && now < tso.Timestamp(w.ExpiresTs).Add(gctime.HoldGrace()) {
			holds = append(holds, Hold{Owner: r.Key()[len(recovery.TokenRowPrefix):], Host: w.Host, PID: w.Pid, OldestTS: tso.Timestamp(w.OldestTs), ExpiresTS: tso.Timestamp(w.ExpiresTs)})
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, recovery.TokenQualifier))))
	slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.OldestTS, b.OldestTS) })
	return holds, err
}

// The columns of row store.GCRowKey with the record of the last run, and with its version: random
// bytes that each change replaces.
const (
	runQualifier     = "run"
	versionQualifier = "run_version"
)

// readRun reads the record of the last run. A record that this release cannot
// read counts as missing, because a run can always begin again.
func readRun(ctx context.Context, c *recovery.Resolver) (run *recordpb.GarbageRun, version []byte, err error) {
	row, err := c.Metadata.ReadRow(ctx, store.GCRowKey, store.Interleave(store.ExactColumn(store.DeployFamily, runQualifier), store.ExactColumn(store.DeployFamily, versionQualifier)))
	if err != nil {
		return nil, nil, err
	}
	run = &recordpb.GarbageRun{}
	for _, item := range row[store.DeployFamily] {
		if item.Column == store.DeployFamily+":"+versionQualifier {
			version = item.Value
		} else if err := proto.Unmarshal(item.Value, run); err != nil || run.FormatVersion != format.Version {
			c.Log.WarnContext(ctx, "the record of the last garbage collection cannot be read; the next one begins anew", "format_version", run.FormatVersion, "error", err)
			run = &recordpb.GarbageRun{}
		}
	}
	return run, version, nil
}
