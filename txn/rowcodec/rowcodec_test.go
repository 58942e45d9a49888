package rowcodec

import (
	"bytes"
	"reflect"
	"testing"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// rows is an answer with n rows, as Bigtable sends it: each has a record and a value.
func rows(n int, value []byte) *btpb.ReadRowsResponse {
	m := &btpb.ReadRowsResponse{}
	for i := range n {
		key := []byte{'r', byte(i >> 8), byte(i)}
		m.Chunks = append(m.Chunks,
			&btpb.ReadRowsResponse_CellChunk{RowKey: key, FamilyName: wrapperspb.String("_write"), Qualifier: wrapperspb.Bytes([]byte("f:q")), TimestampMicros: 2000, Value: []byte("record")},
			&btpb.ReadRowsResponse_CellChunk{FamilyName: wrapperspb.String("f"), Qualifier: wrapperspb.Bytes([]byte("q")), TimestampMicros: 1000, Value: value,
				RowStatus: &btpb.ReadRowsResponse_CellChunk_CommitRow{CommitRow: true}})
	}
	return m
}

// FuzzDecode compares with the protobuf library: what this package decodes is the same, also in
// what is nil, and it refuses every answer that the library refuses.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(marshal(f, rows(3, bytes.Repeat([]byte("v"), 100))))
	f.Add(marshal(f, rows(2, make([]byte, sharedValue+1))))
	f.Add(marshal(f, rows(1, nil)))
	f.Add(marshal(f, &btpb.ReadRowsResponse{LastScannedRowKey: []byte("last"), Chunks: rows(1, nil).Chunks}))
	f.Add(marshal(f, &btpb.ReadRowsResponse{Chunks: []*btpb.ReadRowsResponse_CellChunk{{RowStatus: &btpb.ReadRowsResponse_CellChunk_ResetRow{ResetRow: true}}}}))
	f.Add(marshal(f, &btpb.ReadRowsResponse{Chunks: []*btpb.ReadRowsResponse_CellChunk{{ValueSize: 10, Labels: []string{"l"}, Value: []byte("part")}}}))
	f.Add([]byte{10, 2, 72, 0})               // commit_row: false
	f.Add([]byte{10, 4, 18, 2, 10, 0})        // an empty family
	f.Add([]byte{10, 2, 18, 0})               // a family without a name
	f.Add([]byte{10, 4, 10, 0, 50, 0})        // an empty key and value
	f.Add([]byte{10, 5, 18, 3, 10, 1, 0xff})  // a family that is not UTF-8
	f.Add([]byte{10, 6, 32, 1, 32, 2, 40, 1}) // a timestamp twice
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours, theirs btpb.ReadRowsResponse
		if !decode(data, &ours) {
			return // the protobuf library decodes it
		}
		if err := proto.Unmarshal(data, &theirs); err != nil {
			t.Fatalf("decoded %x, which the protobuf library refuses: %v", data, err)
		}
		if !proto.Equal(&ours, &theirs) {
			t.Fatalf("decoded %x as %v, want %v", data, &ours, &theirs)
		}
		for i, c := range ours.Chunks {
			want := theirs.Chunks[i]
			if (c.RowKey == nil) != (want.RowKey == nil) || (c.Value == nil) != (want.Value == nil) || (c.Qualifier.GetValue() == nil) != (want.Qualifier.GetValue() == nil) {
				t.Fatalf("chunk %d of %x: nil where the protobuf library's is not", i, data)
			}
		}
	})
}

// TestUnusualAnswers: the codec decodes an answer that this package leaves to the protobuf
// library, and reports a damaged one.
func TestUnusualAnswers(t *testing.T) {
	c := codec{encoding.GetCodecV2("proto")}
	want := rows(2, []byte("v"))
	want.Chunks[1].Labels = []string{"label"}
	var got btpb.ReadRowsResponse
	if decode(marshal(t, want), &got) {
		t.Error("labels were decoded by this package")
	}
	reset := &btpb.ReadRowsResponse{Chunks: []*btpb.ReadRowsResponse_CellChunk{{RowStatus: &btpb.ReadRowsResponse_CellChunk_ResetRow{ResetRow: true}}}}
	if decode(marshal(t, reset), &got) {
		t.Error("a reset was decoded by this package")
	}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(marshal(t, want))}, &got); err != nil || !proto.Equal(&got, want) {
		t.Errorf("%v, %v; want %v", &got, err, want)
	}
	data := marshal(t, rows(2, []byte("v")))
	split := mem.BufferSlice{mem.SliceBuffer(data[:7]), mem.SliceBuffer(data[7:])}
	if err := c.Unmarshal(split, &got); err != nil || !proto.Equal(&got, rows(2, []byte("v"))) {
		t.Errorf("%v, %v", &got, err)
	}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data[:len(data)-1])}, &got); err == nil {
		t.Error("no error for half an answer")
	}
	state := &btpb.MutateRowResponse{}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(marshal(t, state))}, state); err != nil {
		t.Error(err)
	}
}

// TestAllocations: an answer needs a few allocations, however many cells it has. Values do not
// share the memory of the message, and small ones share at most a block.
func TestAllocations(t *testing.T) {
	value := bytes.Repeat([]byte("v"), 100)
	data := marshal(t, rows(100, value))
	var m btpb.ReadRowsResponse
	if !decode(data, &m) {
		t.Fatal("not decoded")
	}
	clear(data)
	if !proto.Equal(&m, rows(100, value)) {
		t.Error("the answer shares the memory of the message")
	}
	data = marshal(t, rows(100, value))
	most := 2 + float64(len(data)/blockBytes+1)
	if n := testing.AllocsPerRun(100, func() { decode(data, &m) }); n > most {
		t.Errorf("%v allocations for 100 rows, want at most %v", n, most)
	}
	for _, c := range m.Chunks {
		if cap(c.Value) != len(c.Value) {
			t.Fatalf("a value of %d bytes has room for %d, which belong to the next one", len(c.Value), cap(c.Value))
		}
	}
	if s := reflect.TypeFor[slot]().Size(); s > 400 {
		t.Errorf("a chunk takes %d bytes", s)
	}
}
