package txntest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A Stub answers requests on some tables at once and stores nothing there, so that
// the rest of a transaction's cost is the client's own. It forwards administration,
// and requests on other tables (for example the metadata table), to an emulator
// inside the process. So admin.InitTable, a direct oracle and worker tokens work as
// usual.
//
// In a stubbed table every row exists and contains the same cells. Mutations
// succeed. The predicate of a conditional mutation matches if the mutation changes
// something on a match: so a prewrite finds no conflict, and a commit finds its lock.
//
// It is for measuring and for counting requests, not for testing what a transaction
// does.
type Stub struct {
	emulator *Emulator
	proxy    *grpc.ClientConn
	server   *grpc.Server
	listener net.Listener
	pipe     *bufconn.Listener // nil when it listens on a network address
	served   chan error
	tables   map[string]*stubbed

	requests, bytes atomic.Int64
}

// A StubTable is a table that a [Stub] answers for.
type StubTable struct {
	Name string
	// Columns are the columns of each row. Each contains Value, committed at CommitTS
	// by a transaction that started at CommitTS-1.
	Columns []format.Column
	Value   []byte
	// CommitTS is 0 for a table without transactions. Then rows have no write records,
	// and the cells' timestamps are 1000.
	CommitTS int64
	// Rows is how many rows scans find: row-00000000, row-00000001 and so on. A scan
	// may have one range. A read by key finds any row.
	Rows int
}

// stubbed is a table with its cached answers.
type stubbed struct {
	StubTable
	mu   sync.RWMutex
	rows map[string]frame
	scan []stubbedRow
}

type stubbedRow struct {
	key    string
	answer frame
}

// maxStubbedRows limits the cached answers of a table.
const maxStubbedRows = 100_000

// StartStub starts a stub on a network address or, if addr is "", on a pipe inside the
// process, as [StartEmulator] does.
func StartStub(addr string, tables ...StubTable) (_ *Stub, err error) {
	s := &Stub{tables: map[string]*stubbed{}, served: make(chan error, 1)}
	for _, t := range tables {
		s.tables[t.Name] = &stubbed{StubTable: t, rows: map[string]frame{}}
	}
	if s.emulator, err = StartEmulator(""); err != nil {
		return nil, err
	}
	if s.proxy, err = s.emulator.Dial(); err != nil {
		s.emulator.Close()
		return nil, err
	}
	if addr == "" {
		s.pipe = bufconn.Listen(1 << 20)
		s.listener = s.pipe
	} else if s.listener, err = net.Listen("tcp", addr); err != nil {
		err = fmt.Errorf("txntest: starting the stub: %w", err)
		s.emulator.Close()
		return nil, errors.Join(err, s.proxy.Close())
	}
	s.server = grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(s.handle),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	go func() { s.served <- s.server.Serve(s.listener) }()
	return s, nil
}

// Addr is the network address for BIGTABLE_EMULATOR_HOST, or "bufconn" for a pipe.
func (s *Stub) Addr() string { return s.listener.Addr().String() }

// Dial connects to the stub.
func (s *Stub) Dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if s.pipe == nil {
		return Dial(s.Addr(), opts...)
	}
	return dialPipe(s.pipe, opts...)
}

// Counts returns the number of requests on stubbed tables so far, and the sum of their
// lengths in bytes.
func (s *Stub) Counts() (requests, bytes int64) { return s.requests.Load(), s.bytes.Load() }

// Close stops the stub and its emulator. It returns the error that stopped the stub
// earlier, if any.
func (s *Stub) Close() error {
	s.server.Stop()
	err := errors.Join(<-s.served, s.proxy.Close())
	s.emulator.Close()
	return err
}

// handle handles every method. It does not decode requests, so that the stub's share
// of a process's time is small, and equal for all requests.
func (s *Stub) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request frame
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	operation, data := strings.CutPrefix(method, "/google.bigtable.v2.Bigtable/")
	t := s.tables[tableOf(request)]
	if !data || t == nil {
		return s.forward(stream, method, request)
	}
	s.requests.Add(1)
	s.bytes.Add(int64(len(request)))
	switch operation {
	case "ReadRows":
		if filter := field(request, 3); len(filter) > 0 && bytes.Contains(filter[0], []byte(format.MarkFamily)) {
			return nil // it looks for conflicts, and there are none
		}
		return t.read(stream, request)
	case "MutateRow":
		return stream.SendMsg(frame{})
	case "CheckAndMutateRow":
		if len(field(request, 4)) > 0 { // true_mutations
			return stream.SendMsg(matched)
		}
		return stream.SendMsg(frame{})
	case "MutateRows":
		return stream.SendMsg(mutated(request))
	}
	return status.Errorf(codes.Unimplemented, "the stub has no %s", operation)
}

// matched is a CheckAndMutateRowResponse of a predicate that matched.
var matched = frame(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1))

// mutated is the MutateRowsResponse to a request: each entry was applied.
func mutated(request frame) frame {
	var answer bigtablepb.MutateRowsResponse
	for i := range field(request, 2) { // entries
		answer.Entries = append(answer.Entries, &bigtablepb.MutateRowsResponse_Entry{Index: int64(i), Status: status.New(codes.OK, "").Proto()})
	}
	return encode(&answer)
}

// read answers a ReadRowsRequest.
func (t *stubbed) read(stream grpc.ServerStream, request frame) error {
	var keys [][]byte
	if set := field(request, 2); len(set) > 0 {
		keys = field(set[0], 1)
	}
	if len(keys) > 0 {
		for _, key := range keys {
			if err := stream.SendMsg(t.row(string(key))); err != nil {
				return err
			}
		}
		return nil
	}
	var ranges bigtablepb.RowSet
	if set := field(request, 2); len(set) > 0 {
		if err := proto.Unmarshal(set[0], &ranges); err != nil {
			return err
		}
	}
	rows := t.all()
	if len(ranges.RowRanges) > 0 {
		rows = within(rows, ranges.RowRanges[0])
	}
	if limit := number(request, 4); limit > 0 { // rows_limit
		rows = rows[:min(uint64(len(rows)), limit)]
	}
	for _, row := range rows {
		if err := stream.SendMsg(row.answer); err != nil {
			return err
		}
	}
	return nil
}

// within returns the rows in a range.
func within(rows []stubbedRow, r *bigtablepb.RowRange) []stubbedRow {
	before := func(key string, inclusive bool) int {
		i, found := slices.BinarySearchFunc(rows, key, func(row stubbedRow, key string) int { return strings.Compare(row.key, key) })
		if found && inclusive {
			i++
		}
		return i
	}
	from, to := 0, len(rows)
	switch start := r.StartKey.(type) {
	case *bigtablepb.RowRange_StartKeyClosed:
		from = before(string(start.StartKeyClosed), false)
	case *bigtablepb.RowRange_StartKeyOpen:
		from = before(string(start.StartKeyOpen), true)
	}
	switch end := r.EndKey.(type) {
	case *bigtablepb.RowRange_EndKeyOpen:
		to = before(string(end.EndKeyOpen), false)
	case *bigtablepb.RowRange_EndKeyClosed:
		to = before(string(end.EndKeyClosed), true)
	}
	return rows[from:max(from, to)]
}

// all returns the rows of a scan, in order.
func (t *stubbed) all() []stubbedRow {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.scan); i < t.Rows; i++ {
		key := fmt.Sprintf("row-%08d", i)
		t.scan = append(t.scan, stubbedRow{key, t.encodeRow(key)})
	}
	return t.scan
}

// row returns the ReadRowsResponse with one row.
func (t *stubbed) row(key string) frame {
	t.mu.RLock()
	row := t.rows[key]
	t.mu.RUnlock()
	if row != nil {
		return row
	}
	row = t.encodeRow(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) < maxStubbedRows {
		t.rows[key] = row
	}
	return row
}

func (t *stubbed) encodeRow(key string) frame {
	var answer bigtablepb.ReadRowsResponse
	add := func(family, qualifier string, ts int64, value []byte) {
		answer.Chunks = append(answer.Chunks, &bigtablepb.ReadRowsResponse_CellChunk{
			RowKey: []byte(key), FamilyName: wrapperspb.String(family), Qualifier: wrapperspb.Bytes([]byte(qualifier)), TimestampMicros: ts, Value: value,
		})
	}
	columns := slices.SortedFunc(slices.Values(t.Columns), func(a, b format.Column) int {
		if a.Family != b.Family {
			return strings.Compare(a.Family, b.Family)
		}
		return strings.Compare(a.Qualifier, b.Qualifier)
	})
	ts := int64(1000)
	if t.CommitTS > 0 {
		ts = (t.CommitTS - 1) * 1000
		record := encode(&recordpb.Write{FormatVersion: format.Version, Kind: recordpb.Kind_KIND_PUT, StartTs: t.CommitTS - 1})
		for _, c := range columns {
			add(format.WriteFamily, c.Family+":"+c.Qualifier, t.CommitTS*1000, record)
		}
	}
	for _, c := range columns {
		add(c.Family, c.Qualifier, ts, t.Value)
	}
	if n := len(answer.Chunks); n > 0 {
		answer.Chunks[n-1].RowStatus = &bigtablepb.ReadRowsResponse_CellChunk_CommitRow{CommitRow: true}
	}
	return encode(&answer)
}

// forward sends a request to the emulator, and returns its answer.
func (s *Stub) forward(stream grpc.ServerStream, method string, request frame) error {
	ctx, cancel := context.WithCancel(outgoing(stream.Context()))
	defer cancel()
	up, err := s.proxy.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(bytesCodec{}))
	if err != nil {
		return err
	}
	if err := errors.Join(up.SendMsg(request), up.CloseSend()); err != nil {
		return err
	}
	for {
		var answer frame
		switch err := up.RecvMsg(&answer); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := stream.SendMsg(answer); err != nil {
			return err
		}
	}
}
