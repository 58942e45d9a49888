package watch

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// endpoint is what a client's /metrics says after n commits of 3 ms each, n/2 conflicts and n
// rollbacks.
func endpoint(n int) string {
	return fmt.Sprintf(`# TYPE percolator_transaction_duration_seconds histogram
percolator_transaction_duration_seconds_bucket{percolator_outcome="committed",le="0.002"} 0
percolator_transaction_duration_seconds_bucket{percolator_outcome="committed",le="0.004"} %[1]d
percolator_transaction_duration_seconds_bucket{percolator_outcome="committed",le="+Inf"} %[1]d
percolator_transaction_duration_seconds_sum{percolator_outcome="committed"} 1
percolator_transaction_duration_seconds_count{percolator_outcome="committed"} %[1]d
percolator_transaction_duration_seconds_bucket{percolator_outcome="rolled_back",le="+Inf"} %[1]d
percolator_transaction_duration_seconds_sum{percolator_outcome="rolled_back"} 1
percolator_transaction_duration_seconds_count{percolator_outcome="rolled_back"} %[1]d
# TYPE percolator_transaction_conflicts_total counter
percolator_transaction_conflicts_total{server="a"} %[2]d
# TYPE percolator_observer_executions_total counter
percolator_observer_executions_total{percolator_observer="parser",percolator_outcome="committed"} %[2]d
percolator_observer_executions_total{percolator_observer="parser",percolator_outcome="acknowledged"} %[1]d
# TYPE go_goroutines gauge
go_goroutines 7
`, n, n/2)
}

// prometheus answers a query as Prometheus does.
func prometheus(n int) string {
	return fmt.Sprintf(`{"status":"success","data":{"resultType":"vector","result":[
		{"metric":{"__name__":"percolator_transaction_duration_seconds_count","percolator_outcome":"committed","instance":"a"},"value":[1.5,"%[1]d"]},
		{"metric":{"__name__":"percolator_transaction_duration_seconds_count","percolator_outcome":"committed","instance":"b"},"value":[1.5,"%[1]d"]},
		{"metric":{"__name__":"percolator_observer_lag_seconds_bucket","le":"2","instance":"a"},"value":[1.5,"%[1]d"]},
		{"metric":{"__name__":"percolator_observer_lag_seconds_bucket","le":"+Inf","instance":"a"},"value":[1.5,"%[1]d"]}]}}`, n)
}

func metricsOf(t *testing.T, answer http.HandlerFunc, path string) *Metrics {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	m, err := NewMetrics([]string{s.URL + path})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// age makes the last reading older.
func age(m *Metrics, by time.Duration) {
	for u, r := range m.last {
		r.at = time.Now().Add(-by)
		m.last[u] = r
	}
}

func near(got, want float64) bool { return math.Abs(got-want) < want*0.05 }

// TestMetricsOfEndpoint: rates are those between two readings of a client's endpoint, and
// quantiles those of what was observed between them. A client that began anew is left out.
func TestMetricsOfEndpoint(t *testing.T) {
	n := 1000
	m := metricsOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, endpoint(n)) }, "/metrics")
	m.read(t.Context())
	if rates, err := m.Rates(); rates != nil || err != nil {
		t.Errorf("first reading: %v, %v", rates, err)
	}
	age(m, 10*time.Second)
	n = 1200
	m.read(t.Context())
	rates, err := m.Rates()
	if err != nil || !near(rates["commits"], 20) || !near(rates["conflicts"], 10) || rates["retries"] != 0 || !near(rates["commit_p50"], 0.003) || !near(rates["commit_p99"], 0.00398) {
		t.Errorf("%v, %v", rates, err)
	}
	if runs := m.Runs(); len(runs) != 1 || !near(runs["parser"], 10) {
		t.Errorf("runs of observers: %v", runs)
	}
	if _, ok := rates["lag_p50"]; ok {
		t.Errorf("a quantile of nothing: %v", rates)
	}
	age(m, 10*time.Second)
	n = 10
	m.read(t.Context())
	if rates, err := m.Rates(); err != nil || rates["commits"] != 0 {
		t.Errorf("after a restart: %v, %v", rates, err)
	}
}

// TestMetricsOfPrometheus: one reading is enough, because Prometheus knows the minute before.
func TestMetricsOfPrometheus(t *testing.T) {
	var queries []string
	m := metricsOf(t, func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.URL.Path+" "+r.FormValue("query"))
		n := 600
		if strings.HasSuffix(r.FormValue("query"), "offset 1m") {
			n = 0
		}
		_, _ = io.WriteString(w, prometheus(n))
	}, "/prom/")
	m.read(t.Context())
	rates, err := m.Rates()
	if err != nil || !near(rates["commits"], 20) || !near(rates["lag_p50"], 1) {
		t.Errorf("%v, %v", rates, err)
	}
	if len(queries) != 2 || !strings.HasPrefix(queries[0], `/prom/api/v1/query {__name__=~"percolator_`) {
		t.Errorf("%q", queries)
	}
}

// TestMetricsFail: what gives no metrics is named, read no further than its bounds, and does
// not hide the others.
func TestMetricsFail(t *testing.T) {
	long.RacedAtNight(t)
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
	}
	endless := func(head string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			line := head + strings.Repeat("x", 1<<16)
			for n := 0; r.Context().Err() == nil; n += len(line) {
				if n > maxMetrics+8<<20 {
					t.Errorf("it took %d bytes", n)
					return
				}
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
		}
	}
	good := httptest.NewServer(text(endpoint(7)))
	defer good.Close()
	for _, test := range []struct {
		name, path string
		answer     http.HandlerFunc
		says       string
	}{
		{"garbage", "/metrics", text("\x00<html>{{{"), "text format parsing error"},
		{"a page", "", text("<!doctype html>"), "it is no Prometheus, and no endpoint that ends in /metrics"},
		{"other JSON", "", text(`{"a":1}`), "it is no Prometheus"},
		{"no number", "", text(`{"status":"success","data":{"result":[{"metric":{"__name__":"percolator_transaction_retries_total"},"value":[1,"x"]}]}}`), "it is no Prometheus"},
		{"a matrix", "", text(`{"status":"success","data":{"result":{"a":[]}}}`), "it is no Prometheus"},
		{"refused", "/metrics", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, "answers 403 Forbidden"},
		{"slow", "/metrics", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline exceeded"},
		{"endless text", "/metrics", endless("# "), "too large"},
		{"endless JSON", "", endless(`"`), "it is no Prometheus"},
		{"endless JSON of one value", "", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"status":"`)
			endless("")(w, r)
		}, "too large"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := metricsOf(t, test.answer, test.path)
			m.urls = append(m.urls, good.URL+"/metrics")
			ctx := t.Context()
			if test.name == "slow" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			} else {
				m.timeout = time.Minute // 16 MB may take long on a busy machine
			}
			m.read(ctx)
			age(m, time.Second)
			m.read(t.Context())
			rates, err := m.Rates()
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "1 of 2 URLs gave no metrics") {
				t.Errorf("%v does not say %q", err, test.says)
			}
			if test.name != "slow" && (rates == nil || rates["commits"] != 0) {
				t.Errorf("the other endpoint: %v", rates)
			}
		})
	}
}

// TestMetricsOfEndedClients: their URLs are not named one by one.
func TestMetricsOfEndedClients(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	m, err := NewMetrics([]string{s.URL + "/metrics", s.URL})
	if err != nil {
		t.Fatal(err)
	}
	m.read(t.Context())
	if _, err := m.Rates(); err == nil || err.Error() != "nothing listens at any of 2 URLs: have the clients ended?" {
		t.Error(err)
	}
}

// TestNewMetrics: a URL has a scheme and a host.
func TestNewMetrics(t *testing.T) {
	for u, ok := range map[string]bool{"http://localhost:9464/metrics": true, "https://prometheus": true, "localhost:9464": false, "/metrics": false, "ftp://x/metrics": false, "http://": false, "": false} {
		if m, err := NewMetrics([]string{u}); (err == nil) != ok || (m != nil) != ok {
			t.Errorf("%q: %v, %v", u, m, err)
		}
	}
	if m, err := NewMetrics(nil); m != nil || err != nil {
		t.Errorf("%v, %v", m, err)
	}
	var none *Metrics
	none.Refresh(t.Context())
	if rates, err := none.Rates(); rates != nil || err != nil {
		t.Errorf("%v, %v", rates, err)
	}
}
