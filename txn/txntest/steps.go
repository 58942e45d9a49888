package txntest

import (
	"bytes"
	"path"
	"strings"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A Step is what a request to Bigtable is for.
type Step string

// The steps of the protocol (docs/protocol.md, docs/observers.md). Other requests on
// the metadata table are StepSchema.
const (
	StepRead         Step = "read"           // ReadRows of a transactional table
	StepPrewrite     Step = "prewrite"       // CheckAndMutateRow: data and locks at start_ts
	StepCommit       Step = "commit"         // CheckAndMutateRow: the primary's row, the commit point
	StepSecondaries  Step = "secondaries"    // MutateRows: the other rows
	StepAbort        Step = "abort"          // MutateRows: the owner removes its own locks
	StepHeartbeat    Step = "heartbeat"      // CheckAndMutateRow: a longer ttl on the primary lock
	StepRaise        Step = "raise"          // CheckAndMutateRow: a reader raises the minimum commit_ts of the primary lock
	StepSeal         Step = "seal"           // CheckAndMutateRow: the owner of the primary lock ends that
	StepRollForward  Step = "roll forward"   // CheckAndMutateRow: one cell of a committed transaction
	StepRollPrimary  Step = "roll back"      // CheckAndMutateRow: a rollback marker on the primary
	StepRollBackCell Step = "roll back cell" // CheckAndMutateRow: one cell of a rolled-back transaction
	StepProbe        Step = "probe"          // CheckAndMutateRow that changes nothing: does an ill row answer?
	StepNotify       Step = "notify"         // MutateRows: weak notifications
	StepClear        Step = "clear"          // MutateRows: remove notifications
	StepFailure      Step = "failure"        // MutateRows: an observer's failure
	StepDeadLetter   Step = "dead letter"    // of the metadata table, like the next ones
	StepLock         Step = "advisory lock"
	StepOracle       Step = "oracle"
	StepSchema       Step = "schema"
	StepToken        Step = "token"
	StepJournal      Step = "journal"       // MutateRows: entries of pending work
	StepJournalClear Step = "journal clear" // MutateRows: remove entries
	StepJournalRead  Step = "journal read"
	StepSweep        Step = "sweep"       // the position of a sweep
	StepChanged      Step = "changed"     // MutateRows: rows that a client has changed; or a collector removes that
	StepSafePoint    Step = "safe point"  // the safe point and the state of garbage collection
	StepCollect      Step = "collect"     // MutateRows: garbage collection removes versions
	StepCollectRow   Step = "collect row" // CheckAndMutateRow: garbage collection removes versions and a newest delete
	StepOther        Step = "other"       // not a request of this library
)

// A Call is one request to Bigtable.
type Call struct {
	Step   Step
	Method string // ReadRows, MutateRow, MutateRows, CheckAndMutateRow, ReadModifyWriteRow, …
	Table  string
	Row    string // the (first) row; empty for reads of ranges
	// StartTS is the start_ts of the transaction of a conditional mutation; 0 for
	// other requests.
	StartTS tso.Timestamp
	// N is the number of the call among those that the Faults saw, from 1.
	N int
	// Request is the message as it is sent.
	Request proto.Message
}

// Classify says what a request is for. It recognizes the requests of this library by
// what they change.
func Classify(fullMethod string, req proto.Message) Call {
	c := Call{Step: StepOther, Method: path.Base(fullMethod), Request: req}
	switch r := req.(type) {
	case *btpb.ReadRowsRequest:
		c.Table, c.Step = path.Base(r.TableName), StepRead
		if len(r.GetRows().GetRowKeys()) > 0 {
			c.Row = string(r.Rows.RowKeys[0])
		}
		for _, rr := range r.GetRows().GetRowRanges() {
			if c.Table != format.DefaultMetadataTable {
				continue
			}
			switch start := rr.GetStartKeyClosed(); {
			case bytes.HasPrefix(start, []byte("journal/")):
				c.Step = StepJournalRead
				return c
			case bytes.HasPrefix(start, []byte("worker/")):
				c.Step = StepToken
				return c
			}
		}
	case *btpb.MutateRowRequest:
		c.Table, c.Row = path.Base(r.TableName), string(r.RowKey)
	case *btpb.MutateRowsRequest:
		c.Table = path.Base(r.TableName)
		if len(r.Entries) > 0 {
			c.Row = string(r.Entries[0].RowKey)
			c.Step = stepOfBulk(r.Entries)
		}
	case *btpb.CheckAndMutateRowRequest:
		c.Table, c.Row = path.Base(r.TableName), string(r.RowKey)
		c.Step, c.StartTS = stepOfCondition(r)
	case *btpb.ReadModifyWriteRowRequest:
		c.Table, c.Row = path.Base(r.TableName), string(r.RowKey)
	}
	if c.Table == format.DefaultMetadataTable {
		switch {
		case c.Row == "oracle":
			c.Step = StepOracle
		case c.Row == "gc" || c.Row == "lock/gc":
			c.Step = StepSafePoint
		case strings.HasPrefix(c.Row, "worker/"):
			c.Step = StepToken
		case strings.HasPrefix(c.Row, "changed/"):
			c.Step = StepChanged
		case strings.HasPrefix(c.Row, "dead/"):
			c.Step = StepDeadLetter
		case strings.HasPrefix(c.Row, "journal/"):
			c.Step = stepOfJournal(req)
		case strings.HasPrefix(c.Row, "sweep/"):
			c.Step = StepSweep
		case strings.HasPrefix(c.Row, "lock/"):
			c.Step = StepLock
		default:
			c.Step = StepSchema
		}
	}
	return c
}

func stepOfJournal(req proto.Message) Step {
	r, ok := req.(*btpb.MutateRowsRequest)
	switch {
	case !ok:
		return StepJournalRead
	case r.Entries[0].Mutations[0].GetSetCell() == nil:
		return StepJournalClear
	}
	return StepJournal
}

func stepOfBulk(entries []*btpb.MutateRowsRequest_Entry) Step {
	step := StepCollect
	for _, e := range entries {
		for _, m := range e.Mutations {
			set, del := m.GetSetCell(), m.GetDeleteFromColumn()
			switch {
			case set != nil && (set.FamilyName == format.WriteFamily || set.FamilyName == format.MarkFamily):
				return StepSecondaries
			case set != nil && set.FamilyName == format.LockFamily:
				return StepPrewrite
			case set != nil && set.FamilyName == format.NotifyFamily && strings.HasPrefix(string(set.ColumnQualifier), ":"):
				step = StepFailure
			case set != nil && set.FamilyName == format.NotifyFamily:
				step = StepNotify
			case del != nil && del.FamilyName == format.NotifyFamily:
				step = StepClear
			case del != nil && del.FamilyName == format.LockFamily && step == StepCollect:
				step = StepAbort
			}
		}
	}
	return step
}

func stepOfCondition(r *btpb.CheckAndMutateRowRequest) (Step, tso.Timestamp) {
	if r.GetPredicateFilter().GetBlockAllFilter() {
		return StepProbe, 0
	}
	for _, m := range r.FalseMutations {
		if d := m.GetDeleteFromColumn(); d != nil && d.FamilyName == format.WriteFamily {
			return StepCollectRow, 0
		}
		if set := m.GetSetCell(); set != nil {
			ts := tso.FromCell(bigtable.Timestamp(set.TimestampMicros))
			switch set.FamilyName {
			case format.LockFamily:
				return StepPrewrite, ts
			case format.MarkFamily:
				return StepRollPrimary, ts
			}
		}
	}
	step := StepOther
	var startTS tso.Timestamp
	for _, m := range r.TrueMutations {
		if d := m.GetDeleteFromColumn(); d != nil && d.FamilyName == format.LockFamily {
			startTS = tso.FromCell(bigtable.Timestamp(d.TimeRange.GetStartTimestampMicros()))
			if step == StepOther {
				step = StepRollBackCell
			}
		}
		set := m.GetSetCell()
		if set == nil {
			continue
		}
		switch set.FamilyName {
		case format.LockFamily:
			ts := tso.FromCell(bigtable.Timestamp(set.TimestampMicros))
			return lockStep(r.PredicateFilter, set.Value), ts
		case format.MarkFamily:
			var mark recordpb.Mark
			if proto.Unmarshal(set.Value, &mark) == nil && mark.Kind == recordpb.Kind_KIND_ROLLBACK {
				step = StepRollPrimary
			} else {
				step = commitStep(step, mark.Primary)
			}
		case format.WriteFamily:
			var w recordpb.Write
			if proto.Unmarshal(set.Value, &w) == nil {
				step = commitStep(step, w.Primary)
			}
		}
	}
	return step, startTS
}

// lockStep returns what a new lock is for: a reader raises its minimum commit_ts, the owner does that
// for the last time, or a heartbeat keeps it.
func lockStep(predicate *btpb.RowFilter, value []byte) Step {
	var lock recordpb.Lock
	if proto.Unmarshal(value, &lock) != nil || len(lock.MinCommit) == 0 {
		return StepHeartbeat
	}
	for _, f := range predicate.GetInterleave().GetFilters() {
		for _, g := range f.GetChain().GetFilters() {
			from := g.GetValueRangeFilter().GetStartValueClosed()
			switch {
			case len(from) == 0:
			case bytes.HasSuffix(from, lock.MinCommit):
				return StepHeartbeat
			case lock.Sealed:
				return StepSeal
			default:
				return StepRaise
			}
		}
	}
	return StepHeartbeat
}

// commitStep returns StepCommit for a record of the primary itself, and
// StepRollForward for one of a secondary.
func commitStep(step Step, primary *recordpb.CellRef) Step {
	if primary == nil || step == StepCommit {
		return StepCommit
	}
	return StepRollForward
}
