package scale

import (
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// oracleTrip is the round trip to the oracle's server; percctl plan has the same default.
const oracleTrip = time.Millisecond

// served is an oracle in the same process that takes as long as a server, without one.
type served struct{ local *tso.Local }

func (s served) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	time.Sleep(oracleTrip / 2)
	ts, err := s.local.Timestamp(ctx)
	time.Sleep(oracleTrip / 2)
	return ts, err
}

// serve starts a server of the oracle, which clients made from now on use. The clients of Env keep their oracle in the process, so they must not
// commit from now on.
func (w *world) serve() {
	w.Helper()
	bt, _ := w.env.Open(w.cluster.Client("oracle")...)
	table := bt.OpenTable(format.DefaultMetadataTable)
	if _, err := tso.SetMode(w.Context(), table, tso.RowConfig{}, tso.ModeServed); err != nil {
		w.Fatal(err)
	}
	s, err := server.New(table, server.Config{})
	if err != nil {
		w.Fatal(err)
	}
	lis := bufconn.Listen(64 << 10)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, lis) }()
	w.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	w.server = lis
	time.Sleep(10 * time.Second) // until it leads
}

// connect makes a client of the server.
func (w *world) connect() *tso.Client {
	w.Helper()
	c, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"passthrough:///" + w.server.Addr().String()}, DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.server.DialContext(ctx) }),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			if strings.HasSuffix(method, "/Timestamps") && err == nil {
				s = distant{s}
			}
			return s, err
		}),
	}})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// distant is a stream whose answers take a round trip.
type distant struct{ grpc.ClientStream }

func (d distant) RecvMsg(m any) error {
	err := d.ClientStream.RecvMsg(m)
	time.Sleep(oracleTrip)
	return err
}
