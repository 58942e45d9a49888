package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A batch of which some callers have left and others were answered, so that nobody
// waits for it any more, went on: only those who left were counted, and it held its
// place, and so all reads behind it, until Config.RPCTimeout; closed by counting those
// who are answered as well (readBatcher.answer and leave).
func TestReadBatchOfWhichSomeAreAnswered(t *testing.T) {
	for name, leavesFirst := range map[string]bool{"one leaves, another is answered": true, "one is answered, another leaves": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { leaveReadBatch(t, leavesFirst) })
		})
	}
}

func leaveReadBatch(t *testing.T, leavesFirst bool) {
	f := newFanOut(t, txn.Config{RPCTimeout: 20 * time.Second})
	// The second row of the batch does not arrive.
	stall := &stall{begun: make(chan struct{}), first: make(chan struct{}), second: make(chan struct{})}
	c := f.env.NewClient(txn.Config{TokenTTL: -1, BatchReads: 1, SchemaMaxAge: time.Hour}, append(f.faults.DialOptions(), grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return &stalledStream{ClientStream: s, stall: stall}, err
		}))...)
	f.first.Release()
	f.wg.Wait()
	f.view = takeSnapshot(t, c).Table("a")
	first := f.faults.On("in front", stepOn(txntest.StepRead, "row0"), txntest.Hold, 1)
	f.get("row0", "0")
	<-first.Fired()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	answered := inBackground(func() error {
		_, _, err := f.view.Get(t.Context(), "row1", "f", "q")
		return err
	})
	synctest.Wait()
	go func() {
		_, _, err := f.view.Get(ctx, "row2", "f", "q")
		left <- err
	}()
	synctest.Wait()
	first.Release()
	<-stall.begun
	leave := func() {
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if leavesFirst {
		leave()
	}
	close(stall.first)
	<-stall.second
	if o := <-answered; o.err != nil {
		t.Error(o.err)
	}
	begun := time.Now()
	if !leavesFirst {
		leave()
	}
	f.get("row3", "later")
	f.wg.Wait()
	if d := time.Since(begun); d > time.Second {
		t.Errorf("a read waited %v behind a request that nobody waits for", d)
	}
}

// A stall is of the request that asks for two rows: it begins to wait for the first,
// gets it when first is closed, and asks for the second, which does not come.
type stall struct{ begun, first, second chan struct{} }

type stalledStream struct {
	grpc.ClientStream
	stall    *stall
	two      bool
	received int
}

func (s *stalledStream) SendMsg(m any) error {
	r, ok := m.(*btpb.ReadRowsRequest)
	s.two = ok && len(r.GetRows().GetRowKeys()) == 2
	return s.ClientStream.SendMsg(m)
}

func (s *stalledStream) RecvMsg(m any) error {
	switch s.received++; {
	case s.two && s.received == 1:
		close(s.stall.begun)
		<-s.stall.first
	case s.two && s.received == 2:
		close(s.stall.second)
		<-s.Context().Done()
		return status.FromContextError(s.Context().Err()).Err()
	}
	return s.ClientStream.RecvMsg(m)
}
