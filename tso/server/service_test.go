package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

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
