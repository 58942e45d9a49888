package txntest

import (
	"context"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// leastTablet is the least size of a tablet in bytes. Bigtable's are far larger, the
// tables of most tests smaller.
const leastTablet = 16 << 10

// sampling makes the samples of small tables repeatable: only their last row is one. The
// emulator answers SampleRowKeys with the last row and each other row by a chance of one
// in a hundred, so now and then it would divide a table of few rows elsewhere.
func sampling() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, d, cc, method, opts...)
		if err == nil && method == btpb.Bigtable_SampleRowKeys_FullMethodName {
			s = &samples{ClientStream: s}
		}
		return s, err
	})
}

// samples passes on what is at least leastTablet after the sample before, and the last two:
// the last row and the end of the table.
type samples struct {
	grpc.ClientStream
	next  *btpb.SampleRowKeysResponse // received, not yet passed on
	err   error                       // of the last receive
	start int64                       // where the current tablet begins, in bytes
}

func (s *samples) RecvMsg(m any) error {
	if s.next == nil {
		s.receive()
	}
	for s.err == nil {
		r := s.next
		if s.receive(); s.err != nil || len(s.next.RowKey) == 0 || r.OffsetBytes >= s.start+leastTablet {
			s.start = r.OffsetBytes
			if m, ok := m.(*btpb.SampleRowKeysResponse); ok { // otherwise it is dropped, see drain
				proto.Merge(m, r)
			}
			return nil
		}
	}
	return s.err
}

func (s *samples) receive() {
	s.next = &btpb.SampleRowKeysResponse{}
	s.err = s.ClientStream.RecvMsg(s.next)
}
