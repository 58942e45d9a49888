package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the metrics of clients, of a Prometheus or of the clients' own endpoints.
type Metrics struct {
	urls    []string
	timeout time.Duration      // of a read of all of them
	busy    sync.Mutex         // held while they are read
	last    map[string]reading // by URL
	at      time.Time

	mu  sync.Mutex
	now map[string]float64
	by  map[string]float64
	err error
}

// A reading is what an endpoint said at a time.
type reading struct {
	at  time.Time
	all map[model.Fingerprint]*model.Sample
}

// NewMetrics returns the metrics at URLs: a Prometheus, or the endpoints of clients, which
// end in /metrics. It is nil without one.
func NewMetrics(urls []string) (*Metrics, error) {
	for _, u := range urls {
		if p, err := url.Parse(u); err != nil || p.Host == "" || (p.Scheme != "http" && p.Scheme != "https") {
			return nil, fmt.Errorf("%s: it has to be a URL such as http://localhost:9464/metrics", u)
		}
	}
	if len(urls) == 0 {
		return nil, nil
	}
	return &Metrics{urls: urls, timeout: metricsTimeout}, nil
}

const (
	metricsEvery   = 5 * time.Second // how often metrics are read
	metricsTimeout = 2 * time.Second
	maxMetrics     = 16 << 20 // bytes of one answer
)

// counters and histograms are the metrics that are read, and the names of their rates and
// quantiles.
var (
	counters = map[string]string{
		"percolator_transaction_duration_seconds_count": "commits",
		"percolator_transaction_conflicts_total":        "conflicts",
		"percolator_transaction_retries_total":          "retries",
		"percolator_observer_executions_total":          "runs",
	}
	histograms = map[string]string{
		"percolator_transaction_duration_seconds_bucket": "commit",
		"percolator_oracle_wait_duration_seconds_bucket": "oracle",
		"percolator_observer_lag_seconds_bucket":         "lag",
	}
)

// wanted reports whether a metric is read.
func wanted(name string) bool { return counters[name] != "" || histograms[name] != "" }

// Rates are the rates per second between the last two readings, and quantiles in seconds;
// nil before the second reading. The error is why some metrics are missing.
func (m *Metrics) Rates() (map[string]float64, error) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.err
}

// Runs are the committed runs per second of observers, by their ids, between the last two
// readings; nil if they are not known.
func (m *Metrics) Runs() map[string]float64 {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.by
}

// Refresh reads the metrics in the background, unless they were read a short time ago.
func (m *Metrics) Refresh(ctx context.Context) {
	if m == nil || !m.busy.TryLock() {
		return
	}
	if time.Since(m.at) < metricsEvery {
		m.busy.Unlock()
		return
	}
	go func() {
		defer m.busy.Unlock()
		m.read(ctx)
	}()
}

// read reads all URLs at once. One that does not answer is left out: its counters are
// compared again when it answers twice.
func (m *Metrics) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	type answer struct {
		before, now reading
		err         error
	}
	answers := make([]answer, len(m.urls))
	var wg sync.WaitGroup
	for i, u := range m.urls {
		wg.Go(func() {
			a := &answers[i]
			a.before = m.last[u]
			a.now, a.err = fetch(ctx, u, &a.before)
		})
	}
	wg.Wait()
	last, total, first := map[string]reading{}, newTotal(), error(nil)
	for i, a := range answers {
		if a.err != nil {
			first = cmp.Or(first, a.err)
			continue
		}
		last[m.urls[i]] = a.now
		if a.before.all != nil {
			total.add(a.before, a.now)
		}
	}
	refused := func(a answer) bool { return errors.Is(a.err, syscall.ECONNREFUSED) }
	switch {
	case first == nil:
	case !slices.ContainsFunc(answers, func(a answer) bool { return !refused(a) }):
		first = fmt.Errorf("nothing listens at any of %d URLs: have the clients ended?", len(m.urls))
	default:
		first = fmt.Errorf("%d of %d URLs gave no metrics; the first error: %w", len(m.urls)-len(last), len(m.urls), first)
	}
	m.last, m.at = last, time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.by, m.err = total.rates(), total.runs, first
}

// total adds up the differences of counters.
type total struct {
	some    bool
	rate    map[string]float64
	runs    map[string]float64             // by observer
	buckets map[string]map[float64]float64 // observations by upper bound
}

func newTotal() *total {
	return &total{runs: map[string]float64{}, rate: map[string]float64{"commits": 0, "conflicts": 0, "retries": 0}, buckets: map[string]map[float64]float64{}}
}

func (t *total) add(before, now reading) {
	t.some = true
	for id, s := range now.all {
		old := before.all[id]
		if old == nil || s.Value < old.Value {
			continue // a process that began anew
		}
		if o := s.Metric["percolator_outcome"]; o != "" && o != "committed" {
			continue
		}
		name, d := string(s.Metric[model.MetricNameLabel]), float64(s.Value-old.Value)
		switch perSecond := d / now.at.Sub(before.at).Seconds(); counters[name] {
		case "":
		case "runs":
			t.runs[string(s.Metric["percolator_observer"])] += perSecond
		default:
			t.rate[counters[name]] += perSecond
		}
		if le, err := strconv.ParseFloat(string(s.Metric[model.BucketLabel]), 64); err == nil && histograms[name] != "" {
			if t.buckets[name] == nil {
				t.buckets[name] = map[float64]float64{}
			}
			t.buckets[name][le] += d
		}
	}
}

// rates are nil if no counter was read twice.
func (t *total) rates() map[string]float64 {
	if !t.some {
		return nil
	}
	for name, key := range histograms {
		for _, q := range []float64{0.5, 0.99} {
			if v := quantile(t.buckets[name], q); !math.IsNaN(v) {
				t.rate[fmt.Sprintf("%s_p%.0f", key, q*100)] = v
			}
		}
	}
	return t.rate
}

// quantile is the q-quantile of a histogram, between its bounds in a straight line; NaN
// without observations.
func quantile(buckets map[float64]float64, q float64) float64 {
	bounds := slices.Sorted(maps.Keys(buckets))
	if len(bounds) == 0 || buckets[bounds[len(bounds)-1]] == 0 {
		return math.NaN()
	}
	rank, low, below := q*buckets[bounds[len(bounds)-1]], 0.0, 0.0
	for _, b := range bounds {
		if n := buckets[b]; n >= rank && n > below {
			if math.IsInf(b, 1) {
				return low
			}
			return low + (b-low)*(rank-below)/(n-below)
		}
		low, below = b, buckets[b]
	}
	return low
}

// fetch reads an endpoint of a client, and else a Prometheus, which also says what the
// counters were a minute before.
func fetch(ctx context.Context, at string, before *reading) (now reading, err error) {
	now.at = time.Now()
	at = strings.TrimRight(at, "/")
	if strings.HasSuffix(at, "/metrics") {
		now.all, err = get(ctx, at, readText)
		return now, err
	}
	query := func(offset string) (map[model.Fingerprint]*model.Sample, error) {
		names := slices.Concat(slices.Sorted(maps.Keys(counters)), slices.Sorted(maps.Keys(histograms)))
		q := `{__name__=~"` + strings.Join(names, "|") + `"}` + offset
		return get(ctx, at+"/api/v1/query?"+url.Values{"query": {q}}.Encode(), readPrometheus)
	}
	if now.all, err = query(""); err != nil {
		return now, err
	}
	before.at = now.at.Add(-time.Minute)
	before.all, err = query(" offset 1m")
	return now, err
}

// get reads samples by series.
func get(ctx context.Context, at string, read func(io.Reader) (model.Vector, error)) (map[model.Fingerprint]*model.Sample, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", r.URL.Redacted(), res.Status)
	}
	samples, err := read(http.MaxBytesReader(nil, res.Body, maxMetrics))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.URL.Redacted(), err)
	}
	all := map[model.Fingerprint]*model.Sample{}
	for _, s := range samples {
		all[s.Metric.Fingerprint()] = s
	}
	return all, nil
}

func readText(body io.Reader) (model.Vector, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, err
	}
	all, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, slices.Collect(maps.Values(families))...)
	return slices.DeleteFunc(all, func(s *model.Sample) bool { return !wanted(string(s.Metric[model.MetricNameLabel])) }), err
}

func readPrometheus(body io.Reader) (model.Vector, error) {
	var answer struct {
		Status string
		Data   struct{ Result model.Vector }
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("it is no Prometheus, and no endpoint that ends in /metrics: %w", err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("it is no Prometheus: the status is %q", answer.Status)
	}
	return answer.Data.Result, nil
}
