package history

import (
	"fmt"
	"slices"
	"strings"
)

// A Kind is a class of anomalies. The names of cycles are those of Adya's
// thesis.
type Kind string

// The kinds of anomalies.
const (
	// Malformed: the history itself is wrong, so nothing else is certain.
	Malformed Kind = "malformed history"

	// Anomalies of single reads.
	Garbage           Kind = "garbage read"             // a value that no transaction wrote
	G1a               Kind = "G1a (aborted read)"       // a value of a transaction that failed
	G1b               Kind = "G1b (intermediate read)"  // a value that its own transaction replaced
	Internal          Kind = "internal inconsistency"   // a read contradicts the same transaction's own reads and writes
	DuplicateElement  Kind = "duplicate element"        // one append took effect twice
	IncompatibleOrder Kind = "incompatible order"       // two reads of one list, neither a prefix of the other
	LostElement       Kind = "lost element"             // an acknowledged append that a later read does not show
	StaleRead         Kind = "stale read"               // a read misses a commit at or before its start_ts
	FutureRead        Kind = "future read"              // a read shows a commit after its start_ts
	Timestamps        Kind = "impossible timestamps"    // equal ones, or commit_ts not after start_ts
	RealTime          Kind = "real-time order violated" // a later transaction has a smaller timestamp, or must come before
	Overlap           Kind = "overlapping writers"      // two committed writers of one key at the same time

	// Cycles of dependencies.
	LostUpdate   Kind = "lost update"                            // two transactions read the same version and both replaced it
	G0           Kind = "G0 (write cycle)"                       // ww
	G1c          Kind = "G1c (circular information flow)"        // ww and wr
	GSingle      Kind = "G-single (read skew)"                   // exactly one rw
	GNonadjacent Kind = "G-nonadjacent (no two rw side by side)" // several rw, never two in a row
	G2Item       Kind = "G2-item (write skew)"                   // two rw in a row
)

// A Level is an isolation level.
type Level int

// The levels. Both include real-time order: a transaction sees every commit that
// was acknowledged before the transaction began, and what must come before that commit.
// Every checker looks for violations. CheckTimestamps judges by timestamps; the others
// judge by what was read, so they see only what some read shows.
const (
	SnapshotIsolation Level = iota
	Serializable
)

// String names the level.
func (l Level) String() string {
	if l == Serializable {
		return "serializable"
	}
	return "snapshot isolation"
}

// Allows reports whether a level allows an anomaly: snapshot isolation allows write
// skew and nothing else.
func (l Level) Allows(k Kind) bool { return l == SnapshotIsolation && k == G2Item }

// An Anomaly is one occurrence of a Kind in a history.
type Anomaly struct {
	Kind Kind
	// Detail names keys and values.
	Detail string
	// Txns are the transactions involved. If the anomaly is a cycle, they are in
	// its order.
	Txns []*Txn
}

// String returns several lines: the kind, the detail, and the transactions.
func (a Anomaly) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", a.Kind, a.Detail)
	for _, t := range a.Txns {
		fmt.Fprintf(&b, "\n\t%s", t)
	}
	return b.String()
}

// Forbidden returns the anomalies that the level does not allow.
func (l Level) Forbidden(all []Anomaly) []Anomaly {
	return slices.DeleteFunc(slices.Clone(all), func(a Anomaly) bool { return l.Allows(a.Kind) })
}

// Check runs every checker that fits the history, and returns the anomalies that the
// level forbids.
func (l Level) Check(records []Record) []Anomaly {
	return l.Forbidden(slices.Concat(CheckTimestamps(records), CheckAppend(records), CheckRegisters(records)))
}

// report collects anomalies.
type report struct{ found []Anomaly }

func (r *report) add(k Kind, txns []*Txn, format string, args ...any) {
	r.found = append(r.found, Anomaly{k, fmt.Sprintf(format, args...), txns})
}
