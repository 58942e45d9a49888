package gc

import (
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// A Report says what a run did, or what a plan found.
type Report struct {
	// DryRun is set in the report of a plan: nothing was changed, and the numbers
	// say what a run would do.
	DryRun bool `json:"dry_run"`
	// SafePoint is the safe point of the run: it collected at and below it.
	SafePoint tso.Timestamp `json:"safe_point"`
	// Previous is the safe point before this run.
	Previous tso.Timestamp `json:"previous_safe_point"`
	// Now is the oracle's time when the safe point was chosen.
	Now tso.Timestamp `json:"now"`
	// Nothing is set if there was nothing to do: the safe point cannot move, and
	// everything up to it is collected.
	Nothing bool `json:"nothing_to_do"`
	// Changes is set if the run read only rows that clients noted as changed.
	Changes bool `json:"changes_only"`
	// Resumed is set if the run continued an interrupted one.
	Resumed bool `json:"resumed"`
	// Helped is set if another collector led the run, and this one took parts of it. The counts are
	// those of this collector.
	Helped bool `json:"helped"`
	// Finished is set if the run collected everything that it was to read.
	Finished bool `json:"finished"`
	// HeldBy are the clients that keep the safe point below what the retention
	// allows, the oldest hold first.
	HeldBy []Hold `json:"held_by"`
	// Locks counts the locks at or below the safe point, by what happened to them.
	Locks LockCounts `json:"locks"`
	// Tables are the tables that were collected, in order of their names.
	Tables []Counts `json:"tables"`
	// Skipped are the first 100 rows that were not collected.
	Skipped []SkippedRow `json:"skipped,omitempty"`
	// Missing are tables that have a schema record and do not exist. A plan leaves
	// them out; a run refuses.
	Missing []string `json:"missing_tables,omitempty"`
	// Total is the sum over the tables.
	Total Counts `json:"total"`
	// Elapsed is how long the run took.
	Elapsed time.Duration `json:"elapsed_ns"`
}

// LockCounts counts locks by what happened to them. In a plan, all are Found.
type LockCounts struct {
	Found         int64 `json:"found"`          // locks at or below the safe point
	RolledForward int64 `json:"rolled_forward"` // locks that the run rolled forward
	RolledBack    int64 `json:"rolled_back"`    // locks that the run rolled back
	// Gone are locks that their owners or other clients removed during the run.
	Gone int64 `json:"gone"`
	// Live are locks of live owners.
	Live int64 `json:"live"`
}

// Counts is what a run removed, or a plan would remove, in one table or in all.
type Counts struct {
	// Table is the name of the table; empty in a total.
	Table string `json:"table,omitempty"`
	// Rows are the rows that were read.
	Rows int64 `json:"rows"`
	// RowsChanged are the rows that had something to remove.
	RowsChanged int64 `json:"rows_changed"`
	// RowsSkipped are the rows that were not collected. Report.Skipped names them.
	RowsSkipped int64 `json:"rows_skipped"`
	// Versions are committed values and deletes, counted by their write records.
	Versions int64 `json:"versions"`
	// Deletes are the versions that were deletes and the newest of their columns.
	Deletes int64 `json:"newest_deletes"`
	// Marks are rollback markers and records of lock-only writes.
	Marks int64 `json:"marks"`
	// Data are data cells of transactions.
	Data int64 `json:"data_cells"`
	// Plain are data cells written without transactions.
	Plain int64 `json:"plain_cells"`
	// Cells are all of these, counted in cells of Bigtable.
	Cells int64 `json:"cells"`
	// Bytes are the lengths of the cells' values and qualifiers, before compression.
	Bytes int64 `json:"bytes"`
}

func (n *Counts) add(o Counts) {
	n.Rows += o.Rows
	n.RowsChanged += o.RowsChanged
	n.RowsSkipped += o.RowsSkipped
	n.Versions += o.Versions
	n.Deletes += o.Deletes
	n.Marks += o.Marks
	n.Data += o.Data
	n.Plain += o.Plain
	n.Cells += o.Cells
	n.Bytes += o.Bytes
}
