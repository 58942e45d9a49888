package txntest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/txn/rowcodec"
)

// maxMessage allows rows that are larger than gRPC's default of 4 MiB.
const maxMessage = 256 << 20

// pipeSize is the buffer of a pipe in each direction. Every connection allocates all
// of it; at 1 MiB that took a tenth of the time of short tests.
const pipeSize = 64 << 10

// An Emulator is Bigtable's emulator inside this process.
type Emulator struct {
	server   *bttest.Server
	listener net.Listener
	pipe     *bufconn.Listener // nil when it listens on a network address
}

// StartEmulator starts an emulator on a network address or, if addr is "", on a pipe
// inside the process, which is faster and works with testing/synctest. Close it to
// free its data.
func StartEmulator(addr string, opts ...grpc.ServerOption) (*Emulator, error) {
	e := &Emulator{}
	if addr == "" {
		e.pipe = bufconn.Listen(pipeSize)
		e.listener = e.pipe
	} else {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("txntest: starting the emulator: %w", err)
		}
		e.listener = l
	}
	opts = append([]grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage)}, opts...)
	server, err := bttest.NewServerWithListener(e.listener, append(opts, serialize()...)...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("txntest: starting the emulator: %w", err), e.listener.Close())
	}
	e.server = server
	return e, nil
}

// Addr is the network address for BIGTABLE_EMULATOR_HOST, or "bufconn" for a pipe.
func (e *Emulator) Addr() string { return e.listener.Addr().String() }

// Dial connects to the emulator.
func (e *Emulator) Dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if e.pipe == nil {
		return Dial(e.Addr(), opts...)
	}
	return dialPipe(e.pipe, opts...)
}

func dialPipe(pipe *bufconn.Listener, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	opts = append([]grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return pipe.DialContext(ctx)
	})}, opts...)
	return Dial("passthrough:///pipe", opts...)
}

func (e *Emulator) connect(ctx context.Context) (net.Conn, error) {
	if e.pipe == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", e.Addr())
	}
	return e.pipe.DialContext(ctx)
}

// Close stops the emulator.
func (e *Emulator) Close() {
	// The listener first: the server waits for it to stop accepting.
	_ = e.listener.Close()
	e.server.Close()
}

// Dial connects to an emulator at a network address, as given in
// BIGTABLE_EMULATOR_HOST.
func Dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		rowcodec.DialOption(),
	}, opts...)
	return grpc.NewClient(addr, opts...)
}

// Open returns Bigtable clients for an instance over a connection to an
// emulator. Instances need not be created; each has its own tables.
func Open(ctx context.Context, conn *grpc.ClientConn, project, instance string) (*bigtable.Client, *bigtable.AdminClient, error) {
	defer hideHost()()
	admin, err := bigtable.NewAdminClient(ctx, project, instance, option.WithGRPCConn(conn))
	if err != nil {
		return nil, nil, err
	}
	client, err := bigtable.NewClientWithConfig(ctx, project, instance, bigtable.ClientConfig{
		MetricsProvider:           bigtable.NoopMetricsProvider{},
		DisableSession:            true,
		DisableDynamicChannelPool: true,
		DisableConnectionRecycler: true,
		DisableDirectAccess:       true,
	}, option.WithGRPCConn(conn))
	if err != nil {
		return nil, nil, errors.Join(err, admin.Close())
	}
	return client, admin, nil
}

// Start starts an emulator inside this process, and returns Bigtable clients of an instance
// in it. stop closes them. It is for examples and programs; a test has [New].
func Start(ctx context.Context) (bt *bigtable.Client, admin *bigtable.AdminClient, stop func(), err error) {
	e, err := StartEmulator("")
	if err != nil {
		return nil, nil, nil, err
	}
	conn, err := e.Dial()
	if err != nil {
		e.Close()
		return nil, nil, nil, err
	}
	if bt, admin, err = Open(ctx, conn, "project", "instance"); err != nil {
		_ = conn.Close()
		e.Close()
		return nil, nil, nil, err
	}
	return bt, admin, func() {
		_ = bt.Close()
		_ = admin.Close()
		_ = conn.Close()
		e.Close()
	}, nil
}

const hostVariable = "BIGTABLE_EMULATOR_HOST"

var environment sync.Mutex // held while the variable is read or hidden

// emulatorHost is the address of an emulator in another process that tests must
// use; "" for none.
func emulatorHost() string {
	environment.Lock()
	defer environment.Unlock()
	return os.Getenv(hostVariable)
}

// hideHost hides BIGTABLE_EMULATOR_HOST from the Bigtable client until restore is
// called. Otherwise the client would connect there as well, although it gets a
// connection. That second connection is never used or closed, and network
// connections are not possible in a testing/synctest bubble.
func hideHost() (restore func()) {
	environment.Lock()
	host, ok := os.LookupEnv(hostVariable)
	if !ok {
		return environment.Unlock
	}
	_ = os.Unsetenv(hostVariable)
	return func() {
		_ = os.Setenv(hostVariable, host)
		environment.Unlock()
	}
}
