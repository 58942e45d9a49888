package model

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A stream is a request with a streamed answer. It begins with the first RecvMsg.
type stream struct {
	front  *front
	ctx    context.Context
	method string
	open   func() (grpc.ClientStream, error) // to the emulator

	request proto.Message
	key     Key
	begun   bool
	answer  []proto.Message // that is not sent yet
	scan    *scan           // nil if answer is all
	waiting []int           // entries of a bulk mutation whose tablets are away
	trip    time.Duration
	after   time.Duration // that the answer takes longer
}

func (s *stream) SendMsg(m any) error          { s.request = m.(proto.Message); return nil }
func (s *stream) CloseSend() error             { return nil }
func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }

func (s *stream) RecvMsg(m any) error {
	if !s.begun {
		s.begun = true
		if err := s.begin(); err != nil {
			return err
		}
	}
	for len(s.answer) == 0 && s.scan != nil {
		if err := s.scan.next(s); err != nil {
			return err
		}
	}
	for len(s.answer) == 0 && len(s.waiting) > 0 {
		if err := s.mutate(s.request.(*btpb.MutateRowsRequest)); err != nil {
			return err
		}
	}
	if len(s.answer) == 0 {
		return io.EOF
	}
	next := s.answer[0]
	s.answer = s.answer[1:]
	if r, ok := next.(*btpb.ReadRowsResponse); ok {
		if err := s.pass(r); err != nil {
			return err
		}
	}
	to := m.(proto.Message)
	if to.ProtoReflect().Descriptor() == next.ProtoReflect().Descriptor() {
		proto.Merge(to, next)
	}
	return nil
}

// begin waits until the request has arrived and is done, or for a scan until it begins.
func (s *stream) begin() error {
	f, c := s.front, s.front.cluster
	s.key = f.key(s.method, s.request)
	trip, before, after := c.trip()
	s.trip, s.after = trip, after
	if err := f.wait(s.ctx, s.key, time.Now().Add(before)); err != nil {
		return err
	}
	switch r := s.request.(type) {
	case *btpb.MutateRowsRequest:
		c.count(s.key, func(n *Count) { n.Requests++; n.Rows += int64(len(r.Entries)) })
		for i := range r.Entries {
			s.waiting = append(s.waiting, i)
		}
		return s.mutate(r)
	case *btpb.ReadRowsRequest:
		c.count(s.key, func(n *Count) { n.Requests++ })
		if len(r.GetRows().GetRowRanges()) > 0 || len(r.GetRows().GetRowKeys()) == 0 {
			c.mu.Lock()
			s.scan = newScan(r, c.table(s.key.Table))
			c.mu.Unlock()
			return f.wait(s.ctx, s.key, time.Now().Add(trip+after))
		}
		parts := make([]work, len(r.Rows.RowKeys))
		for i, k := range r.Rows.RowKeys {
			if err := f.present(s.ctx, s.key, string(k)); err != nil {
				return err
			}
			parts[i] = work{row: string(k), points: c.cfg.Costs.Read, reads: true, filter: r.Filter}
		}
		done, refused := c.admit(s.key.Table, time.Now().Add(trip/2), parts)
		if err := cmp.Or(refused...); err != nil {
			return f.refuse(s.ctx, s.key, trip, err)
		}
		if err := f.wait(s.ctx, s.key, done); err != nil {
			return err
		}
		if err := s.forward(r); err != nil {
			return err
		}
		if large := s.size() - 1024*len(parts); large > 0 {
			if err := f.wait(s.ctx, s.key, c.extra(s.key.Table, parts[0].row, large)); err != nil {
				return err
			}
		}
	case *btpb.SampleRowKeysRequest:
		c.count(s.key, func(n *Count) { n.Requests++ })
		c.mu.Lock()
		all := slices.Clone(c.table(s.key.Table).tablets)
		c.mu.Unlock()
		if all[0].size == 0 {
			if err := s.forward(r); err != nil {
				return err
			}
			break
		}
		offset := 0.0
		for _, t := range all {
			offset += t.size
			s.answer = append(s.answer, &btpb.SampleRowKeysResponse{RowKey: []byte(t.end), OffsetBytes: int64(offset)})
		}
	default:
		if err := s.forward(r); err != nil {
			return err
		}
	}
	return f.wait(s.ctx, s.key, time.Now().Add(trip/2+after))
}

// size is the length of the values of the answer.
func (s *stream) size() (n int) {
	for _, m := range s.answer {
		if r, ok := m.(*btpb.ReadRowsResponse); ok {
			for _, chunk := range r.Chunks {
				n += len(chunk.Value)
			}
		}
	}
	return n
}

// mutate sends the waiting entries of a bulk mutation whose tablets are not away, unless they are
// refused. If all tablets are away, it waits for one first.
func (s *stream) mutate(r *btpb.MutateRowsRequest) error {
	f, c := s.front, s.front.cluster
	var now, later []int
	for first := true; len(now) == 0; first = false {
		if !first {
			if err := f.present(s.ctx, s.key, string(r.Entries[s.waiting[0]].RowKey)); err != nil {
				return err
			}
		}
		now, later = nil, nil
		for _, i := range s.waiting {
			if c.away(s.key.Table, string(r.Entries[i].RowKey)).IsZero() {
				now = append(now, i)
			} else {
				later = append(later, i)
			}
		}
		if len(s.waiting) == 0 {
			break
		}
	}
	s.waiting = later
	parts := make([]work, len(now))
	for i, n := range now {
		parts[i] = work{row: string(r.Entries[n].RowKey), points: c.write(size(r.Entries[n].Mutations)), mutate: true}
	}
	done, refused := c.admit(s.key.Table, time.Now().Add(s.trip/2), parts)
	accepted := &btpb.MutateRowsRequest{TableName: r.TableName, AuthorizedViewName: r.AuthorizedViewName, AppProfileId: r.AppProfileId}
	var index []int64
	failed := &btpb.MutateRowsResponse{}
	for i, n := range now {
		if refused[i] != nil {
			failed.Entries = append(failed.Entries, &btpb.MutateRowsResponse_Entry{Index: int64(n), Status: status.Convert(refused[i]).Proto()})
			continue
		}
		accepted.Entries, index = append(accepted.Entries, r.Entries[n]), append(index, int64(n))
	}
	if len(failed.Entries) > 0 {
		if len(failed.Entries) == len(r.Entries) {
			return f.refuse(s.ctx, s.key, s.trip, refused[0])
		}
		c.count(s.key, func(n *Count) { n.Refused++ })
		s.answer = append(s.answer, failed)
	}
	if err := f.wait(s.ctx, s.key, done); err != nil {
		return err
	}
	if len(index) > 0 {
		first := len(s.answer)
		if err := s.forward(accepted); err != nil {
			return err
		}
		for _, m := range s.answer[first:] {
			for _, e := range m.(*btpb.MutateRowsResponse).Entries {
				if e.Status.GetCode() == 0 {
					c.applied(s.key.Table, string(accepted.Entries[e.Index].RowKey), accepted.Entries[e.Index].Mutations)
				}
				e.Index = index[e.Index]
			}
		}
	}
	return f.wait(s.ctx, s.key, time.Now().Add(s.trip/2+s.after))
}

// forward sends a request to the emulator, and keeps the answer.
func (s *stream) forward(req proto.Message) error {
	inner, err := s.open()
	if err != nil {
		return err
	}
	if err := errors.Join(inner.SendMsg(req), inner.CloseSend()); err != nil {
		return err
	}
	for {
		var m proto.Message = &btpb.ReadRowsResponse{}
		switch req.(type) {
		case *btpb.MutateRowsRequest:
			m = &btpb.MutateRowsResponse{}
		case *btpb.SampleRowKeysRequest:
			m = &btpb.SampleRowKeysResponse{}
		case *btpb.ReadRowsRequest:
		default:
			return status.Errorf(12, "model: %T is not modelled", req)
		}
		switch err := inner.RecvMsg(m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if r, ok := m.(*btpb.ReadRowsResponse); ok && len(r.Chunks) == 0 && r.RequestStats == nil {
			continue // the emulator's last_scanned_row_key
		}
		s.answer = append(s.answer, m)
	}
}

// pass counts a message of rows and lets a scan reach it.
func (s *stream) pass(r *btpb.ReadRowsResponse) error {
	rows, last := int64(0), ""
	for _, chunk := range r.Chunks {
		if len(chunk.RowKey) > 0 {
			last = string(chunk.RowKey)
		}
		if chunk.GetCommitRow() {
			rows++
		}
	}
	s.front.cluster.count(s.key, func(n *Count) { n.Rows += rows; n.Cells += int64(len(r.Chunks)) })
	if s.scan == nil || last == "" {
		return nil
	}
	s.scan.found += rows
	for _, chunk := range r.Chunks {
		s.scan.returned += float64(len(chunk.Value))
	}
	s.scan.told = time.Now()
	if s.scan.request.Reversed {
		return nil // it counts at the end of its slice
	}
	return s.scan.reach(s, last, false)
}

// A scan is the state of a ReadRows of ranges. It goes through them in slices, each within
// one tablet.
type scan struct {
	request *btpb.ReadRowsRequest
	ranges  []keyRange // that are left; the first one begins with the current slice
	tablet  *tablet
	at      float64   // the position in the tablet
	from    string    // the key after the last one that was passed
	upTo    string    // the end of the slice
	ends    bool      // whether that is the end of the tablet
	began   bool      // whether a node has begun
	open    bool      // whether there is a current slice
	found   int64     // rows so far
	told    time.Time // when the client last got a message
	// returned are the bytes of values since the node last worked, which a table without a nominal
	// size has.
	returned float64
	owed     float64 // bytes that the node has not worked for
}

// A keyRange is from start up to end, without end; "" is the end of the table.
type keyRange struct{ start, end string }

func newScan(r *btpb.ReadRowsRequest, t *table) *scan {
	s := &scan{request: r, told: time.Now()}
	for _, k := range r.GetRows().GetRowKeys() {
		s.ranges = append(s.ranges, keyRange{string(k), string(k) + "\x00"})
	}
	for _, rr := range r.GetRows().GetRowRanges() {
		var k keyRange
		switch start := rr.StartKey.(type) {
		case *btpb.RowRange_StartKeyClosed:
			k.start = string(start.StartKeyClosed)
		case *btpb.RowRange_StartKeyOpen:
			k.start = string(start.StartKeyOpen) + "\x00"
		}
		switch end := rr.EndKey.(type) {
		case *btpb.RowRange_EndKeyOpen:
			k.end = string(end.EndKeyOpen)
		case *btpb.RowRange_EndKeyClosed:
			k.end = string(end.EndKeyClosed) + "\x00"
		}
		s.ranges = append(s.ranges, k)
	}
	if len(s.ranges) == 0 {
		s.ranges = []keyRange{{}}
	}
	slices.SortFunc(s.ranges, func(a, b keyRange) int { return cmp.Compare(a.start, b.start) })
	if r.Reversed {
		s.ranges = t.split(s.ranges)
		slices.Reverse(s.ranges)
	}
	return s
}

// next ends the current slice, and reads the rows of the next one. It ends the scan after
// the last slice.
func (sc *scan) next(s *stream) error {
	c := s.front.cluster
	limit := sc.request.RowsLimit
	full := limit > 0 && sc.found >= limit
	if sc.open && !full {
		if err := sc.reach(s, sc.upTo, sc.ends); err != nil {
			return err
		}
		sc.open = false
		if sc.upTo == sc.ranges[0].end {
			sc.ranges = sc.ranges[1:]
		} else {
			sc.ranges[0].start = sc.upTo
			if c.cfg.LastScanned > 0 && time.Since(sc.told) >= c.cfg.LastScanned {
				sc.told = time.Now()
				s.answer = append(s.answer, &btpb.ReadRowsResponse{LastScannedRowKey: []byte(sc.upTo)})
				return nil
			}
		}
	}
	if full || len(sc.ranges) == 0 {
		s.scan = nil
		return nil
	}
	return sc.begin(s, limit)
}

// begin reads the rows of the next slice.
func (sc *scan) begin(s *stream, limit int64) error {
	c, r := s.front.cluster, sc.ranges[0]
	if err := s.front.present(s.ctx, s.key, r.start); err != nil {
		return err
	}
	c.mu.Lock()
	t := c.table(s.key.Table).tablet(r.start)
	out := c.out(s.key.Table, t, time.Now())
	c.mu.Unlock()
	if out != nil {
		return s.front.refuse(s.ctx, s.key, 0, unavailable(s.key.Table))
	}
	if !sc.began { // a request costs what the read of a row does, too
		sc.began = true
		c.mu.Lock()
		done := c.node(t).point(time.Now(), c.cfg.Costs.Read)
		c.mu.Unlock()
		if err := s.front.wait(s.ctx, s.key, done); err != nil {
			return err
		}
	}
	sc.tablet, sc.from, sc.at = t, r.start, t.position(r.start, false)
	sc.upTo, sc.ends = t.end, true
	if t.end == "" || r.end != "" && r.end <= t.end {
		sc.upTo, sc.ends = r.end, r.end == t.end
	}
	// A slice in reverse is all of a range in a tablet: it is read from its end.
	if t.size > 0 && !sc.request.Reversed {
		k := t.keyAt(sc.at + c.cfg.Costs.Scan*slice.Seconds())
		if k > r.start && (sc.upTo == "" || k < sc.upTo) {
			sc.upTo, sc.ends = k, false
		}
	}
	sc.open = true
	part := proto.CloneOf(sc.request)
	part.Rows = &btpb.RowSet{RowRanges: []*btpb.RowRange{{StartKey: &btpb.RowRange_StartKeyClosed{StartKeyClosed: []byte(r.start)}}}}
	if sc.upTo != "" {
		part.Rows.RowRanges[0].EndKey = &btpb.RowRange_EndKeyOpen{EndKeyOpen: []byte(sc.upTo)}
	}
	if limit > 0 {
		part.RowsLimit = limit - sc.found
	}
	return s.forward(part)
}

// reach lets the node of the tablet scan up to a key, with the key unless it is the end of a slice.
func (sc *scan) reach(s *stream, key string, end bool) error {
	c := s.front.cluster
	after := key
	if !end && key != sc.upTo {
		after = key + "\x00"
	}
	c.mu.Lock()
	bytes := max(0, sc.tablet.position(key, end || key == "")-sc.at)
	sc.at += bytes
	if sc.tablet.size == 0 {
		bytes = sc.returned
	}
	sc.returned = 0
	if after == "" || after > sc.from {
		bytes += float64(c.removed(c.table(s.key.Table), sc.from, after)) * c.cfg.Costs.Removed
		sc.from = after
	}
	n := c.node(sc.tablet)
	c.mu.Unlock()
	// A node does not turn to other work after each row.
	sc.owed += bytes
	if key != sc.upTo && sc.owed < c.cfg.Costs.Scan*quantum.Seconds() {
		return nil
	}
	bytes, sc.owed = sc.owed, 0
	if bytes <= 0 {
		return nil
	}
	c.count(s.key, func(n *Count) { n.Bytes += bytes })
	for work := seconds(bytes, c.cfg.Costs.Scan); work > 0; {
		c.mu.Lock()
		part := n.scan(time.Now(), work)
		done := part.end
		c.mu.Unlock()
		if err := s.front.waitOr(s.ctx, s.key, done, part.cut); err != nil {
			return err
		}
		c.mu.Lock()
		work, done = work-part.work, part.end
		c.mu.Unlock()
		if err := s.front.wait(s.ctx, s.key, done); err != nil {
			return err
		}
	}
	return nil
}
