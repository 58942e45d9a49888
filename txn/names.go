package txn

import (
	"log/slog"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// The names of cells, and the records that are stored about them. Package format
// describes them.
type (
	// A Cell names one column of one row of a table: what a transaction reads, locks
	// and writes. See [format.Cell] for its fields.
	Cell = format.Cell
	// A Column names a column of a table. See [format.Column] for its fields.
	Column = format.Column
	// A Kind says what a transaction does to a cell.
	Kind = format.Kind
	// A Lock is a stored lock: an unfinished write of one cell.
	Lock = format.Lock
	// A State is one of the states of a transaction.
	State = format.State
	// A Status is the outcome of a transaction, as its primary cell shows it. See
	// [format.Status] for its fields.
	Status = format.Status
)

// The kinds of writes.
const (
	KindPut    = format.KindPut
	KindDelete = format.KindDelete
	KindLock   = format.KindLock
)

// The states of a transaction.
const (
	StateUnknown    = format.StateUnknown
	StateLocked     = format.StateLocked
	StateCommitted  = format.StateCommitted
	StateRolledBack = format.StateRolledBack
)

// DefaultMetadataTable is the name of the metadata table, unless Config names another.
const DefaultMetadataTable = format.DefaultMetadataTable

// WithTraceIDs returns a logger that adds trace_id and span_id to each record
// whose context is in a trace. [Config.Logger] and the loggers of observers' workers
// are wrapped already; an application may wrap its own.
func WithTraceIDs(l *slog.Logger) *slog.Logger { return telemetry.WithTraceIDs(l) }
