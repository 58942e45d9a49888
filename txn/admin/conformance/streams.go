package conformance

import (
	"context"
	"io"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streams are assumptions about streams of rows that break. Bigtable's client continues them.
var streams = []Assumption{
	{
		ID: "scan-resumed", Group: "Rows", Class: Required,
		Title:  "A scan whose stream broke continues after the last row that arrived.",
		Used:   "all scans and reads of many rows (`txn/scan.go`, `txn/readbatch.go`)",
		Source: dataAPI + "#rowrange",
		Breaks: "Scans miss rows or return rows twice after a failure of the network.",
		Advice: otherService,
		cost:   cost{requests: 24, bytes: 256 << 10}, needsDial: true,
		test: testResumed,
	},
	{
		ID: "last-scanned-row-key", Group: "Rows", Class: Required,
		Title:  "If the service says how far a scan has come (last_scanned_row_key), nothing before that key is missing.",
		Used:   "scans that find little: for locks, for notifications (`txn/gc/locks.go`, `notify/scanner.go`)",
		Source: dataAPI + "#readrowsresponse",
		Breaks: "A scan that is continued misses locks or notifications. Garbage collection deletes what such locks need.",
		Advice: otherService,
		cost:   cost{requests: 10, bytes: 128 << 10}, needsDial: true,
		test: testLastScanned,
	},
}

// errBreak is what a stream that the test breaks ends with.
var errBreak = status.Error(codes.Unavailable, "broken by the conformance test")

// A breaker breaks streams of rows. next is called with each answer, and with nil at the end
// of a stream; n is the number of the answer in its stream. An error breaks the stream.
type breaker struct {
	t    *trial
	next func(n int, answer *btpb.ReadRowsResponse) error
}

func (b breaker) option() grpc.DialOption {
	return b.t.eachStream(func(s grpc.ClientStream) grpc.ClientStream { return &brokenStream{ClientStream: s, b: b} })
}

type brokenStream struct {
	grpc.ClientStream
	b breaker
	n int
}

func (s *brokenStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	answer, ok := m.(*btpb.ReadRowsResponse)
	if !ok || err != nil && err != io.EOF {
		return err
	}
	s.n++
	if err == io.EOF {
		answer = nil
	}
	if e := s.b.next(s.n, answer); e != nil {
		return e
	}
	return err
}

// testResumed breaks each scan after 1 answer, and after 20 more.
func testResumed(ctx context.Context, t *trial) error {
	var after []int
	end, err := t.over(ctx, breaker{t, func(n int, _ *btpb.ReadRowsResponse) error {
		if len(after) > 0 && n > after[0] {
			after = after[1:]
			return errBreak
		}
		return nil
	}}.option())
	if err != nil {
		return err
	}
	defer end()
	keys, err := t.manyRows(ctx)
	if err != nil {
		return err
	}
	rows := bigtable.PrefixRange(t.row("k"))
	for _, scan := range []struct {
		what string
		rows bigtable.RowSet
		want []string
		opts []bigtable.ReadOption
	}{
		{"a scan", rows, keys, nil},
		{"a reversed scan", rows, reversed(keys), []bigtable.ReadOption{bigtable.ReverseScan()}},
		{"a scan with a limit of 50", rows, keys[:50], []bigtable.ReadOption{bigtable.LimitRows(50)}},
		{"a read of a list", rowList(keys), keys, nil},
	} {
		after = []int{1, 20}
		if err := t.expectRows(ctx, scan.what+" whose stream broke", scan.rows, scan.want, scan.opts...); err != nil {
			return err
		}
	}
	return nil
}

// testLastScanned scans for a row that is behind many others, and breaks the stream after the
// service said how far it is. A service may also say nothing.
func testLastScanned(ctx context.Context, t *trial) error {
	last, breaks, next := "", 3, false
	var wrong error
	end, err := t.over(ctx, breaker{t, func(_ int, answer *btpb.ReadRowsResponse) error {
		if next && breaks > 0 {
			breaks, next = breaks-1, false
			return errBreak
		}
		if key := string(answer.GetLastScannedRowKey()); key != "" {
			if key <= last {
				wrong = brokenf("a scan says that it has come to %q after %q", key, last)
			}
			last, next = key, true
		}
		return nil
	}}.option())
	if err != nil {
		return err
	}
	defer end()
	keys, err := t.manyRows(ctx)
	if err != nil {
		return err
	}
	behind := keys[len(keys)-1] + "z"
	if err := t.apply(ctx, behind, set("b", 1, "v")); err != nil {
		return err
	}
	err = t.expectRows(ctx, "a scan for one of 61 rows", bigtable.PrefixRange(t.row("k")), []string{behind}, bigtable.RowFilter(exact(family1, "b")))
	if wrong != nil {
		return wrong
	}
	return err
}
