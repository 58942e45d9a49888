package format

import (
	"math"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A Failure says that an observer's last run on a cell failed, or that the observer
// snoozed it, and when a worker may run it again. It is stored beside the notify cells of
// the changed cell, so every worker knows.
type Failure struct {
	// ChangeTS is the commit_ts of the change that the observer ran for. A newer change
	// starts again with no failed attempts.
	ChangeTS tso.Timestamp
	// Attempts counts the failed runs for that change.
	Attempts int
	// NotBefore is the oracle time from which a worker may run the observer again. See
	// [Never].
	NotBefore tso.Timestamp
	// FirstTS and LastTS are the oracle times of the first and the last of these runs.
	FirstTS, LastTS tso.Timestamp
	// Error is the text of the last run's error. It is empty if the observer snoozed.
	Error string
}

// Never is Failure.NotBefore of a change that is a dead letter for one observer, while
// the notification waits for another. It holds for notifications up to Failure.LastTS.
const Never = tso.Timestamp(math.MaxInt64 / 1000)

// DecodeFailure reads the stored record of a failure on cell.
func DecodeFailure(cell Cell, value []byte) (Failure, error) {
	var m recordpb.Failure
	if err := proto.Unmarshal(value, &m); err != nil {
		return Failure{}, Corruptf(cell, "the record of an observer's failure does not parse: %v", err)
	}
	if err := CheckVersion(&m, "the record of an observer's failure at "+cell.String()); err != nil {
		return Failure{}, err
	}
	return Failure{
		ChangeTS:  tso.Timestamp(m.ChangeTs),
		Attempts:  int(m.Attempts),
		NotBefore: tso.Timestamp(m.NotBeforeTs),
		FirstTS:   tso.Timestamp(m.FirstTs),
		LastTS:    tso.Timestamp(m.LastTs),
		Error:     m.Error,
	}, nil
}

// FailureQualifier returns the qualifier in [NotifyFamily] of an observer's failure on
// column c: :observer:family:qualifier. The qualifier of a notify cell begins with a
// family's name, which is never empty, so it never begins with a colon.
func FailureQualifier(observer string, c Column) string { return ":" + observer + ":" + c.Key() }

// SplitFailure is the inverse of [FailureQualifier]: it returns the observer and
// family:qualifier of the column. ok is false if qualifier is not that of a failure.
func SplitFailure(qualifier string) (observer, key string, ok bool) {
	rest, ok := strings.CutPrefix(qualifier, ":")
	if !ok {
		return "", "", false
	}
	observer, key, ok = strings.Cut(rest, ":")
	return observer, key, ok && observer != ""
}

// IsFailure reports whether a cell of [NotifyFamily] is a failure and not a notify cell.
func IsFailure(item bigtable.ReadItem) bool {
	return strings.HasPrefix(item.Column, NotifyFamily+"::")
}

// FailureCell returns the changed cell and the observer that a failure is about. item is
// a cell of [NotifyFamily] for which [IsFailure] holds.
func FailureCell(table, row string, item bigtable.ReadItem) (cell Cell, observer string, err error) {
	_, qualifier, _ := strings.Cut(item.Column, ":")
	observer, key, ok := SplitFailure(qualifier)
	col, named := SplitColumn(key)
	if !ok || !named {
		return Cell{Table: table, Row: row, Family: NotifyFamily, Qualifier: qualifier}, "", Corruptf(Cell{Table: table, Row: row}, "notify column %q does not name an observer and a family:qualifier", item.Column)
	}
	return Cell{Table: table, Row: row, Family: col.Family, Qualifier: col.Qualifier}, observer, nil
}

// ClipErrorText returns an error's text as failures and dead letters store it: valid
// UTF-8 of at most 2000 bytes, with … where the rest was cut off.
func ClipErrorText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxErrorText {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorText], "") + "…"
}
