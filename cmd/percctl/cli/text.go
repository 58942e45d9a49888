package cli

import (
	"strconv"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

// How percctl writes stored values, timestamps and durations: see package words.
var (
	Text     = words.Text
	Line     = words.Line
	Shorten  = words.Shorten
	Time     = words.Time
	Stamp    = words.Stamp
	Between  = words.Between
	Duration = words.Duration
	Seconds  = words.Seconds
)

// Count is a number of things: 1 lock, 2 locks.
func Count[N int | int64](n N, thing string) string { return words.Count(n, thing) }

// Number is a timestamp for CSV; empty for none.
func Number(ts tso.Timestamp) string {
	if ts == 0 {
		return ""
	}
	return ts.String()
}

// Fixed is a number with so many decimals.
func Fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
