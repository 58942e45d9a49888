//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A collected keeps the spans that processes send it.
type collected struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu  sync.Mutex
	all []collectedSpan
}

type collectedSpan struct {
	*tracepb.Span
	service, instance string
}

func collect(t *testing.T) *collected {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collected{address: "http://" + lis.Addr().String()}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return c
}

// env makes a process send its spans here. Where delay is set, what arrives was
// sent at its end.
func (c *collected) env(delay string, more ...string) []string {
	env := append(os.Environ(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.address, "OTEL_METRICS_EXPORTER=none", "OTEL_BSP_SCHEDULE_DELAY="+delay)
	return append(env, more...)
}

func (c *collected) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		about := map[string]string{}
		for _, kv := range rs.Resource.GetAttributes() {
			if v, ok := kv.Value.GetValue().(*commonpb.AnyValue_StringValue); ok {
				about[kv.Key] = v.StringValue
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.all = append(c.all, collectedSpan{s, about["service.name"], about["service.instance.id"]})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *collected) named(prefix string) (found []collectedSpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.all {
		if strings.HasPrefix(s.Name, prefix) {
			found = append(found, s)
		}
	}
	return found
}

// The processes of a demo send their spans, those of clients that cleaned up
// behind killed ones among them, and standard output stays the summary's.
func TestTelemetryOfDemo(t *testing.T) {
	long.Test(t, "a demo with killed processes")
	t.Parallel()
	c := collect(t)
	cmd := exec.Command("percctl", "demo", "--dir", writeFiles(t, 40), "--clients", "2", "--kills", "2", "--seed", "1", "-o", "json")
	cmd.Env = c.env("100")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out) {
		t.Errorf("standard output is not one JSON value: %s", out)
	}
	instances := map[string]bool{}
	for _, s := range c.named("transaction ") {
		instances[s.instance] = true
		if s.service != "percctl" {
			t.Fatalf("service.name is %q, want percctl", s.service)
		}
	}
	if len(instances) < 2 {
		t.Errorf("transactions of %d processes, want those of 2 or more", len(instances))
	}
	linked := 0
	for _, s := range c.named("resolve lock ") {
		linked += len(s.Links)
	}
	if linked == 0 {
		t.Error("nobody who cleaned up behind a killed client is linked to it")
	}
}

// What a process has recorded is sent when it ends: after an error, and after
// Ctrl-C, which is how a service ends. Meanwhile Prometheus can scrape it.
func TestTelemetryIsSentAtTheEnd(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	at := []string{"BIGTABLE_EMULATOR_HOST=" + f.emulator.Addr(), "PERCCTL_PROJECT=" + fixtureProject, "PERCCTL_INSTANCE=" + fixtureInstance}
	const never = "3600000"

	c := collect(t)
	cmd := exec.Command("percctl", "get", "accounts/nobody/bal:usd")
	cmd.Env = c.env(never, at...)
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitNotFound {
		t.Errorf("percctl get of a cell that is not there: %v, want exit code %d", err, cli.ExitNotFound)
	}
	if len(c.named("read accounts")) == 0 {
		t.Error("a command that failed has not sent the span of its read")
	}

	if _, err := tso.SetMode(t.Context(), f.bt.Open(format.DefaultMetadataTable), tso.RowConfig{}, tso.ModeServed); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	metrics := lis.Addr().String()
	_ = lis.Close()
	_, port, _ := net.SplitHostPort(metrics)
	serve := exec.Command("percctl", "tso", "serve", "--listen", "127.0.0.1:0")
	serve.Env = c.env(never, append(at, "OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST=127.0.0.1", "OTEL_EXPORTER_PROMETHEUS_PORT="+port)...)
	stdout, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serve.Process.Kill() }()
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	client, err := tso.NewClient(tso.ClientConfig{Addresses: []string{strings.TrimSpace(address)}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Timestamp(t.Context()) // it leads
	if err := errors.Join(err, client.Close()); err != nil {
		t.Fatal(err)
	}
	res, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\npercolator_oracle_leading{") {
		t.Errorf("Prometheus gets nothing of the oracle:\n%s", text)
	}
	if err := serve.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("percctl tso serve: %v", err)
	}
	if len(c.named("take over")) == 0 {
		t.Error("a service that was interrupted has not sent the span of its takeover")
	}
}
