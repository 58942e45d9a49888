package format

import (
	"bytes"
	"context"
	"encoding/binary"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
)

// A NotifyCell is one notify cell.
type NotifyCell struct {
	TS tso.Timestamp
	// TraceParent is the W3C trace context of the transaction that set it.
	TraceParent string
	// Hops is how many runs of observers, one causing the next, led to it.
	Hops int
}

// A notify cell's value is the W3C traceparent of the transaction that set it,
// which may be empty, and then, where runs of observers led to that
// transaction, ";hops=" and how many.
const hopsSeparator = ";hops="

func EncodeNotifyCell(traceParent string, hops int) []byte {
	if hops > 0 {
		traceParent += hopsSeparator + strconv.Itoa(hops)
	}
	return []byte(traceParent)
}

// DecodeNotifyCell never fails: what it does not understand is no reason not to
// run an observer.
func DecodeNotifyCell(ts tso.Timestamp, value []byte) NotifyCell {
	traceParent, rest, _ := bytes.Cut(value, []byte(hopsSeparator))
	hops, err := strconv.Atoi(string(rest))
	if err != nil || hops < 0 {
		hops = 0
	}
	return NotifyCell{TS: ts, TraceParent: string(traceParent), Hops: hops}
}

// AckColumn is the acknowledgment column c:ack_O of an observer.
func AckColumn(c Column, observer string) Column {
	return Column{AckFamily, c.Key() + "/" + observer}
}

// ObserverOf tells which observer of which column an acknowledgment column
// belongs to. An observer's id has no slash in it, so the last one ends the
// column.
func ObserverOf(ack Column) (c Column, observer string, ok bool) {
	slash := strings.LastIndexByte(ack.Qualifier, '/')
	if ack.Family != AckFamily || slash < 0 {
		return Column{}, "", false
	}
	c, ok = SplitColumn(ack.Qualifier[:slash])
	return c, ack.Qualifier[slash+1:], ok
}

func DecodeAck(cell Cell, observer string, value []byte) (tso.Timestamp, error) {
	if len(value) != 8 {
		return 0, Corruptf(cell, "the acknowledgment of observer %s has %d bytes instead of 8", observer, len(value))
	}
	return tso.Timestamp(binary.BigEndian.Uint64(value)), nil
}

// TraceParent is the W3C trace context of ctx, for the locks; empty when
// nobody records the trace, so that no link leads to nothing.
func TraceParent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// ParseTraceParent reads the trace context that a lock or a notification
// carries; what is empty or no traceparent gives an invalid one.
func ParseTraceParent(s string) trace.SpanContext {
	if s == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": s})
	return trace.SpanContextFromContext(ctx)
}

// maxTriggers bounds how many notify cells of one column are read at a time.
// Those beyond it are older, and collapse into the same run.
const MaxNotifyCells = 128
