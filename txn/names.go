package txn

import (
	"log/slog"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// What applications need of package format.
type (
	// A Cell names one column of one row of a table: what a transaction reads, locks
	// and writes. It has the strings
	//
	//	Table, Row, Family, Qualifier
	//
	// and prints as [format.ParseCell] reads it.
	Cell = format.Cell
	// A Column names a column of a table by the strings
	//
	//	Family, Qualifier
	//
	// of which the qualifier may hold any bytes.
	Column = format.Column
	// A Status is what [Client.Settle] found out:
	//
	//	State    format.State   // StateCommitted or StateRolledBack
	//	CommitTS tso.Timestamp  // of StateCommitted
	//	Lock     *format.Lock   // nil
	Status = format.Status
)

// Pattern returns the column that stands for all columns of a family whose qualifiers begin with
// prefix, or for the whole family if prefix is empty. Only observers can be registered for it
// (package notify); reads have [Qualifiers].
func Pattern(family, prefix string) Column { return format.Pattern(family, prefix) }

// The outcomes of a transaction, as [Client.Settle] returns them.
const (
	StateCommitted  = format.StateCommitted
	StateRolledBack = format.StateRolledBack
)

// WithTraceIDs returns a logger that adds trace_id and span_id to each record
// whose context is in a trace. [Config.Logger] and the loggers of observers' workers
// are wrapped already; an application may wrap its own.
func WithTraceIDs(l *slog.Logger) *slog.Logger { return telemetry.WithTraceIDs(l) }
