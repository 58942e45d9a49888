package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

// processEnv makes the test binary a server process instead: its value is the
// server's name.
const (
	processEnv  = "TSO_TEST_SERVER"
	emulatorEnv = "TSO_TEST_EMULATOR"
	listenEnv   = "TSO_TEST_LISTEN"
	leaseEnv    = "TSO_TEST_LEASE"

	// serverAgent marks the servers' requests to Bigtable.
	serverAgent = "tso-test-server"
)

// serverProcess is a server in a process of its own, until SIGTERM, or until
// standard input ends because the test is gone. Lines of standard input set its
// clock back or forward.
func serverProcess() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var off atomic.Int64
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			if d, err := time.ParseDuration(in.Text()); err == nil {
				off.Store(int64(d))
			}
		}
		stop()
	}()
	if err := runServer(ctx, &off); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runServer(ctx context.Context, off *atomic.Int64) error {
	conn, err := grpc.NewClient(os.Getenv(emulatorEnv), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(serverAgent+"/"+os.Getenv(processEnv)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bt, err := bigtable.NewClientWithConfig(ctx, "p", "i", bigtable.ClientConfig{
		MetricsProvider: bigtable.NoopMetricsProvider{}, DisableSession: true,
		DisableDynamicChannelPool: true, DisableConnectionRecycler: true,
	}, option.WithGRPCConn(conn))
	if err != nil {
		return err
	}
	defer func() { _ = bt.Close() }()
	length, err := time.ParseDuration(os.Getenv(leaseEnv))
	if err != nil {
		return err
	}
	s, err := server.New(bt.Open("percolator"), server.Config{
		Name: os.Getenv(processEnv), Lease: length,
		Clock:        func() time.Time { return time.Now().Add(time.Duration(off.Load())) },
		GraceTimeout: 50 * time.Millisecond,
		Logger:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", os.Getenv(listenEnv))
	if err != nil {
		return err
	}
	return s.Serve(ctx, lis)
}

// process is a server process at an address that outlives it.
type process struct {
	t       *testing.T
	name    string
	address string
	env     []string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  *strings.Builder
}

func newProcess(t *testing.T, e *tsotest.Emulator, name string, lease time.Duration) *process {
	t.Helper()
	// A port that is free now, and that no other process gets by chance while this one
	// is down, for the kernel goes through them in turn.
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := lis.Addr().String()
	_ = lis.Close()
	p := &process{t: t, name: name, address: address, env: append(os.Environ(),
		processEnv+"="+name, emulatorEnv+"="+e.Lis.Addr().String(), listenEnv+"="+address, leaseEnv+"="+lease.String())}
	p.start()
	t.Cleanup(func() { p.kill() })
	return p
}

func (p *process) start() {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = p.env
	p.stderr = &strings.Builder{}
	p.cmd.Stderr = p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("signalling %s: %v", p.name, err)
	}
}

// kill ends the process without a word.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
}

// terminate ends it gracefully.
func (p *process) terminate() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("server %s: %v: %s", p.name, err, p.stderr.String())
	}
	_ = p.stdin.Close()
}

// clock sets its clock off by d.
func (p *process) clock(d time.Duration) {
	_, _ = fmt.Fprintln(p.stdin, d)
}
