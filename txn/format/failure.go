package format

import (
	"math"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A Failure says that an observer's last run on a cell did not succeed, or that
// the observer put it off, and when it may be tried again. It is stored beside
// the notification, so that every worker knows.
type Failure struct {
	// ChangeTS is the change that it was run for. A newer change is a new case.
	ChangeTS tso.Timestamp
	// Attempts counts failed runs for that change.
	Attempts int
	// NotBefore is the oracle time before which it is not to be tried again.
	NotBefore tso.Timestamp
	// FirstTS and LastTS are the oracle times of the first and the last of the
	// runs.
	FirstTS, LastTS tso.Timestamp
	// Error is the last run's, in words; empty when the observer put it off.
	Error string
}

// Never is the Failure.NotBefore of a change that became a dead letter for an
// observer while its notification stays for others.
const Never = tso.Timestamp(math.MaxInt64 / 1000)

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

// FailureQualifier is :observer:family:qualifier. No family has an empty name,
// so it cannot be the notify column of a cell.
func FailureQualifier(observer string, c Column) string { return ":" + observer + ":" + c.Key() }

// SplitFailure undoes failureQualifier.
func SplitFailure(qualifier string) (observer, key string, ok bool) {
	rest, ok := strings.CutPrefix(qualifier, ":")
	if !ok {
		return "", "", false
	}
	observer, key, ok = strings.Cut(rest, ":")
	return observer, key, ok && observer != ""
}

// IsFailure reports whether a cell of the notify family is the record of a
// failure.
func IsFailure(item bigtable.ReadItem) bool {
	return strings.HasPrefix(item.Column, NotifyFamily+"::")
}

// FailureCell tells whose failure a cell of the notify family is about.
func FailureCell(table, row string, item bigtable.ReadItem) (cell Cell, observer string, err error) {
	_, qualifier, _ := strings.Cut(item.Column, ":")
	observer, key, ok := SplitFailure(qualifier)
	col, named := SplitColumn(key)
	if !ok || !named {
		return Cell{Table: table, Row: row, Family: NotifyFamily, Qualifier: qualifier}, "", Corruptf(Cell{Table: table, Row: row}, "notify column %q does not name an observer and a family:qualifier", item.Column)
	}
	return Cell{table, row, col.Family, col.Qualifier}, observer, nil
}

// Clip bounds an error's text to what is worth storing.
func Clip(s string) string {
	const most = 2000
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
