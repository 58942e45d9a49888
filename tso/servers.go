package tso

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/wire"
)

const (
	// roundPause is the first pause between two rounds through the servers. It
	// grows to maxRoundPause. A graceful handover takes about ten milliseconds,
	// and a process should not cost a server in trouble more than a few requests
	// a second.
	roundPause    = 5 * time.Millisecond
	maxRoundPause = 250 * time.Millisecond
)

// window is what a server may send before the client reads it, in bytes.
const window = 64 << 10

// keepaliveParams let a client notice that the other end of a connection is
// gone even while it sends no requests.
var keepaliveParams = keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}

// connectParams let a client find a restarted server soon: gRPC's default for the
// first pause is a second.
func connectParams(attempt time.Duration) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: attempt,
	}
}

// servers are the configured servers: a connection to each, and the one that
// led last.
type servers struct {
	all     []*remote
	timeout time.Duration // of a request
	attempt time.Duration // of an attempt at one server
	options []grpc.DialOption

	leader atomic.Int32 // index in all of the server to ask first
}

// dialServers makes connections, which do no I/O yet.
func dialServers(cfg ClientConfig) (*servers, error) {
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	s := &servers{
		timeout: cfg.Timeout,
		attempt: cfg.AttemptTimeout,
		options: append([]grpc.DialOption{
			grpc.WithTransportCredentials(creds),
			grpc.WithStatsHandler(otelgrpc.NewClientHandler(cfg.Telemetry...)),
			grpc.WithKeepaliveParams(keepaliveParams),
			grpc.WithConnectParams(connectParams(cfg.AttemptTimeout)),
			// A window of its own keeps gRPC from measuring the connection, with a ping beside
			// each answer. Answers are small.
			grpc.WithStaticStreamWindowSize(window),
		}, cfg.DialOptions...),
	}
	for _, address := range cfg.Addresses {
		if s.index(address) >= 0 {
			continue
		}
		r := &remote{address: address}
		if err := r.dial(s.options); err != nil {
			s.hangUp()
			return nil, fmt.Errorf("tso: address %q: %w", address, err)
		}
		s.all = append(s.all, r)
	}
	return s, nil
}

// index returns the index of the server with an address, or -1.
func (s *servers) index(address string) int {
	return slices.IndexFunc(s.all, func(r *remote) bool { return r.address == address })
}

// first returns the server to ask first.
func (s *servers) first() *remote { return s.all[s.leader.Load()] }

// unasked returns the addresses, without reasons.
func (s *servers) unasked() []ServerError {
	failed := make([]ServerError, len(s.all))
	for i, r := range s.all {
		failed[i].Address = r.address
	}
	return failed
}

// hangUp closes the connections.
func (s *servers) hangUp() {
	for _, r := range s.all {
		_ = r.link.Load().conn.Close()
	}
}

// next returns the server to ask after one that named a leader, or nobody: that leader,
// unless this round asked it before, because the answer may be stale. Then it is any
// other one, and -1 if there is none.
func (s *servers) next(asked []bool, leader string) int {
	if i := s.index(leader); i >= 0 && !asked[i] {
		return i
	}
	return slices.Index(asked, false)
}

// rest waits, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// remote is one server.
type remote struct {
	address string
	link    atomic.Pointer[link]
}

// link is a connection to a server.
type link struct {
	conn *grpc.ClientConn
	tsopb.OracleClient
}

// service is for one request, or one stream: dial replaces it.
func (r *remote) service() tsopb.OracleClient { return r.link.Load() }

// dial makes a connection, which does no I/O yet, and closes the one before.
func (r *remote) dial(opts []grpc.DialOption) error {
	conn, err := grpc.NewClient(r.address, opts...)
	if err != nil {
		return err
	}
	if old := r.link.Swap(&link{conn, tsopb.NewOracleClient(conn)}); old != nil {
		_ = old.conn.Close() // fails only when it is closed already
	}
	return nil
}

// A refusal is a server's answer that it does not lead.
type refusal struct {
	reason string
	is     error // the sentinel
}

func (e *refusal) Error() string { return e.reason }
func (e *refusal) Unwrap() error { return e.is }

func refused(n *tsopb.NotLeader) error {
	if sentinel := wire.TroubleError(n.Trouble); sentinel != nil {
		return &refusal{n.Reason, sentinel}
	}
	reason := n.Reason
	if n.LeaderAddress != "" {
		reason += "; the leader it knows is " + n.LeaderAddress
	}
	return &refusal{reason, ErrNotLeader}
}

// final reports whether asking the same server again is pointless.
func final(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

// agreed returns the trouble that a server reported, unless another server only
// says that it does not lead: that one may lead soon. A server that reports
// trouble with the row counts more than one that is no oracle.
func agreed(failed []ServerError) error {
	var trouble, useless error
	for _, f := range failed {
		var r *refusal
		switch {
		case errors.As(f.Err, &r) && errors.Is(r, ErrNotLeader):
			return nil
		case r != nil:
			trouble = f.Err
		case final(f.Err):
			useless = f.Err
		}
	}
	return cmp.Or(trouble, useless)
}
