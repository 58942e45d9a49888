package traces

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// A receiver receives spans over OTLP and keeps them.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	server  *grpc.Server
	address string

	mu  sync.Mutex
	all spans
}

func newReceiver() (*receiver, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{server: grpc.NewServer(), address: "http://" + lis.Addr().String()}
	collector.RegisterTraceServiceServer(r.server, r)
	go func() { _ = r.server.Serve(lis) }() // ends with close
	return r, nil
}

func (r *receiver) close() { r.server.Stop() }

// Export receives a batch of spans.
func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		instance := attributes(rs.Resource.GetAttributes())["service.instance.id"]
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				r.all = append(r.all, fromOTLP(s, ss.Scope.GetName(), instance))
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// traces returns the spans that were received so far.
func (r *receiver) traces(context.Context) (spans, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(spans{}, r.all...), nil
}

func fromOTLP(s *tracepb.Span, scope, instance string) *span {
	out := &span{
		trace: hex.EncodeToString(s.TraceId), id: hex.EncodeToString(s.SpanId), parent: hex.EncodeToString(s.ParentSpanId),
		name: s.Name, scope: scope, instance: instance, attrs: attributes(s.Attributes),
		start: time.Unix(0, int64(s.StartTimeUnixNano)), end: time.Unix(0, int64(s.EndTimeUnixNano)),
		kind: map[tracepb.Span_SpanKind]string{tracepb.Span_SPAN_KIND_CONSUMER: "consumer", tracepb.Span_SPAN_KIND_CLIENT: "client", tracepb.Span_SPAN_KIND_INTERNAL: "internal"}[s.Kind],
	}
	for _, e := range s.Events {
		out.events = append(out.events, event{e.Name, time.Unix(0, int64(e.TimeUnixNano))})
	}
	for _, l := range s.Links {
		out.links = append(out.links, link{hex.EncodeToString(l.TraceId), hex.EncodeToString(l.SpanId)})
	}
	return out
}

func attributes(all []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		switch v := kv.Value.GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[kv.Key] = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_DoubleValue:
			m[kv.Key] = fmt.Sprint(v.DoubleValue)
		case *commonpb.AnyValue_BoolValue:
			m[kv.Key] = fmt.Sprint(v.BoolValue)
		}
	}
	return m
}
