// Package rowcodec makes reads of many rows cheaper for the Go process that reads them. The
// protobuf library allocates each part of each cell by itself. This package decodes an answer
// of Bigtable into a few large pieces of memory. Give its option to the Bigtable client:
//
//	bt, err := bigtable.NewClient(ctx, project, instance, option.WithGRPCDialOption(rowcodec.DialOption()))
//
// The option changes nothing else: every other message, and every answer with something unusual
// in it, goes to the protobuf library. A value of up to 1 KB shares at most 4 KB of memory with
// other cells, so a program that keeps a small value keeps at most that much.
package rowcodec

import (
	"sync"
	"sync/atomic"
	"unicode/utf8"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// DialOption makes a connection decode rows with this package.
func DialOption() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}))
}

// A codec decodes answers to ReadRows. It leaves the rest to the codec that it wraps.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*btpb.ReadRowsResponse); ok {
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		decoded := decode(buf.ReadOnlyData(), m)
		buf.Free()
		if decoded {
			return nil
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}

const (
	// sharedValue is how long a value may be that shares memory with other cells.
	sharedValue = 1 << 10
	// blockBytes is how much memory values share at most.
	blockBytes = 4 << 10
)

// A slot is the memory of one chunk.
type slot struct {
	chunk     btpb.ReadRowsResponse_CellChunk
	family    wrapperspb.StringValue
	qualifier wrapperspb.BytesValue
}

// committed is the status of the last chunk of a row. Nobody changes it.
var committed = &btpb.ReadRowsResponse_CellChunk_CommitRow{CommitRow: true}

// A decoder holds the memory for one answer.
type decoder struct {
	slots []slot
	block []byte // memory for row keys, qualifiers and short values
	left  int    // how many bytes of these are still to come
}

// decode decodes an answer into m. If it returns false, the answer has something in it that it
// does not know, or is damaged, and m is as it was.
func decode(data []byte, m *btpb.ReadRowsResponse) bool {
	var d decoder
	chunks := 0
	var last []byte
	ok := fields(data, none, repeated, func(num protowire.Number, _ uint64, v []byte) bool {
		switch num {
		case 1:
			chunks++
			return fields(v, numbers, none, func(num protowire.Number, _ uint64, v []byte) bool {
				if (num == 1 || num == 3 || num == 6) && len(v) <= sharedValue {
					d.left += len(v) // for a qualifier some more
				}
				return true
			})
		case 2:
			last = v
			return true
		}
		return false
	})
	if !ok {
		return false
	}
	var all []*btpb.ReadRowsResponse_CellChunk
	if chunks <= 2 { // one row of one column
		var few struct {
			slots [2]slot
			all   [2]*btpb.ReadRowsResponse_CellChunk
		}
		d.slots, all = few.slots[:], few.all[:0]
	} else {
		d.slots, all = make([]slot, chunks), make([]*btpb.ReadRowsResponse_CellChunk, 0, chunks)
	}
	ok = fields(data, none, repeated, func(num protowire.Number, _ uint64, v []byte) bool {
		if num != 1 {
			return true
		}
		s := &d.slots[len(all)]
		all = append(all, &s.chunk)
		return d.chunk(s, v)
	})
	if !ok {
		return false
	}
	m.Reset()
	if chunks > 0 {
		m.Chunks = all
	}
	m.LastScannedRowKey = copyOf(last)
	return true
}

// chunk decodes one chunk.
func (d *decoder) chunk(s *slot, data []byte) bool {
	c := &s.chunk
	return fields(data, numbers, none, func(num protowire.Number, n uint64, v []byte) (ok bool) {
		switch num {
		case 1:
			c.RowKey = d.copy(v)
		case 2:
			if v, ok = wrapped(v); !ok {
				return false
			}
			c.FamilyName = &s.family
			s.family.Value, ok = families.of(v)
			return ok
		case 3:
			if v, ok = wrapped(v); !ok {
				return false
			}
			c.Qualifier = &s.qualifier
			s.qualifier.Value = d.copy(v)
		case 4:
			c.TimestampMicros = int64(n)
		case 6:
			c.Value = d.copy(v)
		case 7:
			c.ValueSize = int32(n)
		case 9:
			c.RowStatus = committed
			return n == 1
		default: // labels, resets, and what is new
			return false
		}
		return true
	})
}

// wrapped returns the value in a StringValue or BytesValue.
func wrapped(data []byte) (value []byte, ok bool) {
	ok = fields(data, none, none, func(num protowire.Number, _ uint64, v []byte) bool {
		value = v
		return num == 1
	})
	return value, ok
}

// copy copies a row key, a qualifier or a value.
func (d *decoder) copy(v []byte) []byte {
	if len(v) == 0 || len(v) > sharedValue {
		return copyOf(v)
	}
	if cap(d.block)-len(d.block) < len(v) {
		d.block = make([]byte, 0, max(len(v), min(d.left, blockBytes)))
	}
	d.left -= len(v)
	at := len(d.block)
	d.block = append(d.block, v...)
	return d.block[at:len(d.block):len(d.block)]
}

func copyOf(v []byte) []byte { return append([]byte(nil), v...) }

// Sets of field numbers.
const (
	none     = 0
	repeated = 1 << 1                    // of an answer: its chunks
	numbers  = 1<<4 | 1<<7 | 1<<8 | 1<<9 // of a chunk
)

// fields calls fn with each field of a message: a field in numbers with its number n, each other
// one with its bytes v. It returns false if fn does, if a field has another type, if a field
// that is not in repeated is there twice, or if the message is damaged.
func fields(data []byte, numbers, repeated uint64, fn func(num protowire.Number, n uint64, v []byte) bool) bool {
	var seen uint64
	for len(data) > 0 {
		num, typ, size := protowire.ConsumeTag(data)
		if size < 0 || num > 63 {
			return false
		}
		data = data[size:]
		bit, want := uint64(1)<<num, protowire.BytesType
		if numbers&bit != 0 {
			want = protowire.VarintType
		}
		if typ != want || seen&^repeated&bit != 0 {
			return false
		}
		seen |= bit
		var n uint64
		var v []byte
		if typ == protowire.VarintType {
			n, size = protowire.ConsumeVarint(data)
		} else {
			v, size = protowire.ConsumeBytes(data)
		}
		if size < 0 || !fn(num, n, v) {
			return false
		}
		data = data[size:]
	}
	return true
}

// names are the families' names that answers had. A table has few families.
type names struct {
	mu    sync.Mutex
	known atomic.Pointer[map[string]string]
}

const maxFamilies = 128

var families names

// of returns a name as a string. ok is false if it is not UTF-8.
func (f *names) of(name []byte) (s string, ok bool) {
	if known := f.known.Load(); known != nil {
		if s, ok := (*known)[string(name)]; ok {
			return s, true
		}
	}
	if !utf8.Valid(name) {
		return "", false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s = string(name)
	more := map[string]string{s: s}
	if known := f.known.Load(); known != nil && len(*known) < maxFamilies {
		for k := range *known {
			more[k] = k
		}
	}
	f.known.Store(&more)
	return s, true
}
