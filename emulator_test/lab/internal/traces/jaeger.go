package traces

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A jaeger asks Jaeger's query API for the traces of one service.
type jaeger struct{ address, service string }

type jaegerKV struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
}

type jaegerSpan struct {
	TraceID       string     `json:"traceID"`
	SpanID        string     `json:"spanID"`
	OperationName string     `json:"operationName"`
	StartTime     int64      `json:"startTime"`
	Duration      int64      `json:"duration"`
	ProcessID     string     `json:"processID"`
	Tags          []jaegerKV `json:"tags"`
	References    []struct {
		RefType string `json:"refType"`
		TraceID string `json:"traceID"`
		SpanID  string `json:"spanID"`
	} `json:"references"`
	Logs []struct {
		Timestamp int64      `json:"timestamp"`
		Fields    []jaegerKV `json:"fields"`
	} `json:"logs"`
}

func (j *jaeger) traces(ctx context.Context) (spans, error) {
	at := strings.TrimSuffix(j.address, "/") + "/api/traces?limit=1000&service=" + url.QueryEscape(j.service)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNotFound {
		return nil, nil // Jaeger does not know the service yet
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", at, res.Status)
	}
	var answer struct {
		Data []struct {
			Spans     []jaegerSpan `json:"spans"`
			Processes map[string]struct {
				Tags []jaegerKV `json:"tags"`
			} `json:"processes"`
		} `json:"data"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	var all spans
	for _, t := range answer.Data {
		for _, s := range t.Spans {
			all = append(all, fromJaeger(s, tags(t.Processes[s.ProcessID].Tags)["service.instance.id"]))
		}
	}
	return all, nil
}

func fromJaeger(s jaegerSpan, instance string) *span {
	attrs := tags(s.Tags)
	out := &span{
		trace: s.TraceID, id: s.SpanID, name: s.OperationName, kind: attrs["span.kind"], scope: attrs["otel.scope.name"], instance: instance,
		start: time.UnixMicro(s.StartTime), end: time.UnixMicro(s.StartTime + s.Duration), attrs: attrs,
	}
	if out.kind == "" {
		out.kind = "internal"
	}
	for _, r := range s.References {
		// In Jaeger a span's parent is one of its references.
		if r.RefType == "CHILD_OF" && r.TraceID == s.TraceID && out.parent == "" {
			out.parent = r.SpanID
		} else {
			out.links = append(out.links, link{r.TraceID, r.SpanID})
		}
	}
	for _, l := range s.Logs {
		out.events = append(out.events, event{tags(l.Fields)["event"], time.UnixMicro(l.Timestamp)})
	}
	return out
}

func tags(all []jaegerKV) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		switch v := kv.Value.(type) {
		case string:
			m[kv.Key] = v
		case float64:
			m[kv.Key] = fmt.Sprintf("%.0f", v)
		default:
			m[kv.Key] = fmt.Sprint(v)
		}
	}
	return m
}
