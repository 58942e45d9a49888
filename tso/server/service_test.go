package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/hint"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func TestServedBadRequests(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		for _, bad := range []struct {
			version, count uint32
			code           codes.Code
			says           string
		}{
			{1, 0, codes.InvalidArgument, "from 1 to 100000"},
			{1, tso.MaxCount + 1, codes.InvalidArgument, "from 1 to 100000"},
			{1, 1<<32 - 1, codes.InvalidArgument, "from 1 to 100000"},
			{0, 1, codes.FailedPrecondition, "version 0"},
			{2, 1, codes.FailedPrecondition, "version 2"},
		} {
			if _, err := c.One("a", bad.version, bad.count); status.Code(err) != bad.code || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if r, err := c.One("a", 1, tso.MaxCount); err != nil || r.Count != tso.MaxCount {
			t.Errorf("the largest count: %v, %v", r, err)
		}
		if _, err := tsopb.NewOracleClient(c.Raw("a")).Status(t.Context(), &tsopb.StatusRequest{FormatVersion: 9}); status.Code(err) != codes.FailedPrecondition {
			t.Error(err)
		}
	})
}

// TestLockRequests: requests that are refused, and not answered with an empty response; and the
// answers of a leader. Only the leader answers.
func TestLockRequests(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		tsotest.Advance(time.Minute) // the leader knows all locks
		call := func(server string, version uint32, name, owner string, ttl time.Duration) map[string]error {
			o := tsopb.NewOracleClient(c.Raw(server))
			_, acquire := o.Acquire(t.Context(), &tsopb.AcquireRequest{FormatVersion: version, Name: []byte(name), Owner: []byte(owner), TtlUs: ttl.Microseconds()})
			_, release := o.Release(t.Context(), &tsopb.ReleaseRequest{FormatVersion: version, Name: []byte(name), Owner: []byte(owner)})
			_, holder := o.Holder(t.Context(), &tsopb.HolderRequest{FormatVersion: version, Name: []byte(name)})
			return map[string]error{"acquire": acquire, "release": release, "holder": holder}
		}
		for _, tt := range []struct {
			errs map[string]error
			code codes.Code
			says map[string]string
		}{
			{call("a", 1, "l", "", time.Second), codes.InvalidArgument, map[string]string{"acquire": "owner of 0 bytes", "release": "owner of 0 bytes"}},
			{call("a", 1, "", "x", time.Second), codes.InvalidArgument, map[string]string{"acquire": "name of 0 bytes", "release": "name of 0 bytes", "holder": "name of 0 bytes"}},
			{call("a", 1, "l", "x", 0), codes.InvalidArgument, map[string]string{"acquire": "ttl of 0s"}},
			{call("a", 2, "l", "x", time.Second), codes.FailedPrecondition, map[string]string{"acquire": "version 2", "release": "version 2", "holder": "version 2"}},
			{call("b", 1, "l", "x", time.Second), codes.Unavailable, map[string]string{"acquire": "", "release": "", "holder": ""}},
		} {
			for what, err := range tt.errs {
				says, refused := tt.says[what]
				if refused && (status.Code(err) != tt.code || !strings.Contains(err.Error(), says)) || !refused && err != nil {
					t.Errorf("%s: %v; want %v, %q", what, err, tt.code, says)
				}
			}
		}
		o := tsopb.NewOracleClient(c.Raw("a"))
		for _, tt := range []struct {
			owner string
			ttl   time.Duration
			ok    bool
		}{{"x", 10 * time.Second, true}, {"y", 20 * time.Second, false}, {"x", 10 * time.Second, true}} {
			r, err := o.Acquire(t.Context(), &tsopb.AcquireRequest{FormatVersion: 1, Name: []byte("l"), Owner: []byte(tt.owner), TtlUs: tt.ttl.Microseconds()})
			if err != nil || r.Acquired != tt.ok || string(r.Owner) != "x" || r.LeftUs != 10e6 {
				t.Errorf("%s: %v, %v", tt.owner, r, err)
			}
		}
		if r, err := o.Holder(t.Context(), &tsopb.HolderRequest{FormatVersion: 1, Name: []byte("l")}); err != nil || string(r.Owner) != "x" || r.LeftUs != 10e6 {
			t.Errorf("held by %v, %v", r, err)
		}
		if s := c.Status("a"); s.Locks != 1 || s.FormatVersion != 1 || s.BigtableRpcs < s.BigtableWrites || s.BigtableWrites == 0 {
			t.Errorf("%v", s)
		}
	})
}

func TestHintRequests(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		synctest.Wait()
		publish := func(server string, version uint32, hints ...*tsopb.Hint) (*tsopb.PublishHintsResponse, error) {
			return tsopb.NewOracleClient(c.Raw(server)).PublishHints(t.Context(), &tsopb.PublishHintsRequest{FormatVersion: version, Hints: hints})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		join := func(server string, version uint32, topics ...[]byte) (*tsopb.SubscribeHintsResponse, error) {
			stream, err := tsopb.NewOracleClient(c.Raw(server)).SubscribeHints(ctx, &tsopb.SubscribeHintsRequest{FormatVersion: version, Topics: topics})
			if err != nil {
				return nil, err
			}
			return stream.Recv()
		}
		x := &tsopb.Hint{Topic: []byte("x")}
		var many []*tsopb.Hint
		for range hint.MaxBatch + 1 {
			many = append(many, x)
		}
		refused := func(what string, err error, code codes.Code, says string) {
			t.Helper()
			if status.Code(err) != code || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := publish("a", 0, x)
		refused("version 0", err, codes.FailedPrecondition, "version 0")
		_, err = publish("a", 1, many...)
		refused("a large batch", err, codes.InvalidArgument, "1001 hints in one request; it has to be 1000 at most")
		_, err = publish("a", 1, x, &tsopb.Hint{})
		refused("no topic", err, codes.InvalidArgument, "a topic of 0 bytes")
		_, err = publish("a", 1, &tsopb.Hint{Topic: []byte("x"), Key: make([]byte, tso.MaxHintKey+1)})
		refused("a long key", err, codes.InvalidArgument, "a key of 8193 bytes")
		_, err = join("a", 2, []byte("x"))
		refused("version 2", err, codes.FailedPrecondition, "version 2")
		_, err = join("a", 1)
		refused("no topics", err, codes.InvalidArgument, "0 topics")
		_, err = join("a", 1, make([]byte, tso.MaxHintTopic+1))
		refused("a long topic", err, codes.InvalidArgument, "2049 bytes")

		if r, err := publish("b", 1, x); err != nil || r.NotLeader.GetLeaderAddress() != "passthrough:a" {
			t.Errorf("published at a standby: %v, %v", r, err)
		}
		if r, err := join("b", 1, []byte("x")); err != nil || r.NotLeader.GetLeaderAddress() != "passthrough:a" {
			t.Errorf("subscribed at a standby: %v, %v", r, err)
		}
		if r := c.Status("a"); r.HintsReceived != 0 || r.HintSubscribers != 0 {
			t.Errorf("after refusals: %v", r)
		}
		a.LimitSubscribers(2)
		for range 2 {
			if _, err := join("a", 1, []byte("x")); err != nil {
				t.Error(err)
			}
		}
		_, err = join("a", 1, []byte("x"))
		refused("a third subscriber", err, codes.ResourceExhausted, "there are 2")
		if r, err := publish("a", 1, many[1:]...); err != nil || r.NotLeader != nil {
			t.Errorf("the largest batch: %v, %v", r, err)
		}
		if r := c.Status("a"); r.HintsReceived != hint.MaxBatch || r.HintSubscribers != 2 {
			t.Errorf("at the end: %v", r)
		}
	})
}

func TestReflectionAndTelemetry(t *testing.T) {
	for _, on := range []bool{false, true} {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			spans := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
			telemetry := []otelgrpc.Option{otelgrpc.WithTracerProvider(provider)}
			c.Start("a", server.Config{Reflection: on, Telemetry: telemetry})
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := reflectionpb.NewServerReflectionClient(c.Raw("a")).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			r, err := stream.Recv()
			if got := err == nil && strings.Contains(fmt.Sprint(r), "percolator.tso.v1.Oracle"); got != on || !on && status.Code(err) != codes.Unimplemented {
				t.Errorf("reflection %t: %v, %v", on, r, err)
			}
			cancel()
			client := c.Client(tso.ClientConfig{Telemetry: telemetry}, "a")
			if _, err := client.Timestamp(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = client.Close()
			synctest.Wait()
			kinds := map[string]bool{}
			for _, s := range spans.GetSpans() {
				if strings.HasSuffix(s.Name, "Oracle/Timestamps") {
					kinds[s.SpanKind.String()] = true
				}
			}
			if !kinds["client"] || !kinds["server"] {
				t.Errorf("spans of Timestamps: %v", kinds)
			}
		})
	}
}

// TestServedLocksAfterFailover: the memory is gone, and for a while absence
// proves nothing.
func TestServedLocksAfterFailover(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		tsotest.Advance(time.Minute)
		l := c.Client(tso.ClientConfig{}, "a", "b").Locks()
		if ok, _, err := l.Acquire(t.Context(), "held", "x", 30*time.Second); err != nil || !ok {
			t.Fatal(ok, err)
		}
		a.Stop()
		<-a.Ended
		if _, err := l.Holder(t.Context(), "held"); !errors.Is(err, tso.ErrLockUnknown) {
			t.Errorf("right after the change: %v", err)
		}
		if ok, _, err := l.Acquire(t.Context(), "held", "y", 30*time.Second); err != nil || !ok {
			t.Errorf("advisory: %t, %v", ok, err)
		}
		tsotest.Advance(15 * time.Second)
		if by, err := l.Holder(t.Context(), "other"); err != nil || by.Owner != "" {
			t.Error(by, err)
		}
	})
}
