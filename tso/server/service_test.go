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
