package txntest

import (
	"bytes"
	"context"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A frame is a message that is not decoded.
type frame []byte

// bytesCodec neither encodes nor decodes messages.
type bytesCodec struct{}

var _ encoding.CodecV2 = bytesCodec{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(frame)
	if !ok {
		return nil, fmt.Errorf("txntest: message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(f)}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("txntest: message of type %T", v)
	}
	*f = data.Materialize()
	return nil
}

func encode(m proto.Message) frame {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil // the messages of this package have nothing that can fail
	}
	return b
}

// tableOf returns the name of the table of a request to Bigtable: the end of its
// field 1.
func tableOf(request frame) string {
	names := field(request, 1)
	if len(names) == 0 {
		return ""
	}
	return string(names[0][bytes.LastIndexByte(names[0], '/')+1:])
}

// field returns the values of field n, which contains bytes, strings or messages. It
// reads fields up to n only, because Go encodes them in order.
func field(message []byte, n protowire.Number) (values [][]byte) {
	for len(message) > 0 {
		num, kind, size := protowire.ConsumeTag(message)
		if size < 0 || num > n {
			return values
		}
		message = message[size:]
		if num == n && kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return values
			}
			values, message = append(values, value), message[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(num, kind, message); size < 0 {
			return values
		}
		message = message[size:]
	}
	return values
}

// number returns the value of field n, which contains an integer.
func number(message []byte, n protowire.Number) uint64 {
	for len(message) > 0 {
		num, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return 0
		}
		message = message[size:]
		if num == n && kind == protowire.VarintType {
			value, _ := protowire.ConsumeVarint(message)
			return value
		}
		if size = protowire.ConsumeFieldValue(num, kind, message); size < 0 {
			return 0
		}
		message = message[size:]
	}
	return 0
}

// outgoing returns ctx with the metadata of the request that it belongs to.
func outgoing(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	for key := range md {
		if len(key) > 0 && key[0] == ':' {
			delete(md, key)
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}
