package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/tso"
)

// A NotifyCell says that an observed cell changed. It is in [NotifyFamily] of the cell's
// row.
type NotifyCell struct {
	// TS is the commit_ts of the transaction that changed or notified the cell. A
	// notification without a transaction has a timestamp of its own.
	TS tso.Timestamp
	// TraceParent is the W3C trace context of the transaction that changed the cell. It
	// may be empty.
	TraceParent string
	// Hops is how many observer runs, one causing the next, led to the change.
	Hops int
	// Replayed is the change of the dead letter that was replayed; 0: none. Garbage
	// collection may have removed the change itself, if it was a delete.
	Replayed tso.Timestamp
}

// hopsSeparator follows the traceparent in the value of a notify cell, and the number of
// hops follows it. Both are absent if there are no hops.
const hopsSeparator = ";hops="

// replayedSeparator follows the number of hops in the notify cell of a replay, and the
// commit_ts of the replayed change follows it.
const replayedSeparator = ";replayed="

// EncodeNotifyCell returns the stored value of a notify cell: the traceparent, which may
// be empty, and ";hops=N" if N is positive.
func EncodeNotifyCell(traceParent string, hops int) []byte {
	if hops > 0 {
		traceParent += hopsSeparator + strconv.Itoa(hops)
	}
	return []byte(traceParent)
}

// EncodeReplay returns the stored value of the notify cell of a replay: the traceparent,
// ";hops=0;replayed=" and the commit_ts of the change.
func EncodeReplay(traceParent string, change tso.Timestamp) []byte {
	return fmt.Appendf(nil, "%s%s0%s%d", traceParent, hopsSeparator, replayedSeparator, change)
}

// DecodeNotifyCell returns the notify cell that has value at ts. It never fails: a value
// that it cannot read must not keep an observer from running. Hops or Replayed is 0 then.
func DecodeNotifyCell(ts tso.Timestamp, value []byte) NotifyCell {
	traceParent, rest, _ := bytes.Cut(value, []byte(hopsSeparator))
	number, replayed, _ := bytes.Cut(rest, []byte(replayedSeparator))
	hops, err := strconv.Atoi(string(number))
	if err != nil {
		hops = 0
	}
	change, _ := strconv.ParseInt(string(replayed), 10, 64) // one that is too large is above ts
	if change > int64(ts) {
		change = 0
	}
	return NotifyCell{TS: ts, TraceParent: string(traceParent), Hops: max(hops, 0), Replayed: tso.Timestamp(max(change, 0))}
}

// AckColumn returns the column in [AckFamily] that holds the acknowledgment of one
// observer of column c: the paper's c:ack_O.
func AckColumn(c Column, observer string) Column {
	return Column{Family: AckFamily, Qualifier: c.Key() + "/" + observer}
}

// CanAcknowledge reports whether the name of the acknowledgment column is not too long.
func CanAcknowledge(c Column, observer string) bool {
	return len(AckFamily)+len(c.Family)+len(c.Qualifier)+len(observer)+len("::/") <= MaxColumnKey
}

// Acknowledging returns those observers that can acknowledge changes of the column. A pattern may
// contain columns with longer names than its observers can acknowledge.
func Acknowledging(c Column, observers []string) []string {
	cannot := func(id string) bool { return !CanAcknowledge(c, id) }
	if !slices.ContainsFunc(observers, cannot) {
		return observers
	}
	return slices.DeleteFunc(slices.Clone(observers), cannot)
}

// ObserverOf returns the observed column and the observer that an acknowledgment column
// names. ok is false if ack is not an acknowledgment column. An observer's id contains no
// slash, so the last one separates the two.
func ObserverOf(ack Column) (c Column, observer string, ok bool) {
	slash := strings.LastIndexByte(ack.Qualifier, '/')
	if ack.Family != AckFamily || slash < 0 {
		return Column{}, "", false
	}
	c, ok = SplitColumn(ack.Qualifier[:slash])
	return c, ack.Qualifier[slash+1:], ok
}

// DecodeAck returns the timestamp in an acknowledgment: the start_ts of the observer's
// last committed run on the observed cell. cell is the cell of the acknowledgment, and
// startTS the start_ts of the transaction that wrote it. The value has 8 bytes, big-endian.
// Another size, or a timestamp above startTS, is a [CorruptError].
func DecodeAck(cell Cell, value []byte, startTS tso.Timestamp) (tso.Timestamp, error) {
	if len(value) != 8 {
		return 0, Corruptf(cell, "the acknowledgment has %d bytes instead of 8", len(value))
	}
	ts := tso.Timestamp(binary.BigEndian.Uint64(value))
	if ts < 0 || ts > startTS {
		return 0, Corruptf(cell, "acknowledges %d, by a transaction that started at %d", ts, startTS)
	}
	return ts, nil
}
