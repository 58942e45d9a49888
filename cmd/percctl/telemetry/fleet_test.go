package telemetry_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

const (
	workers  = 2
	targetsN = 1 + workers + 2 // the coordinator, its workers, and the servers of timestamps
	scraping = 500 * time.Millisecond
)

// A back end scrapes a fleet and evaluates expressions.
type backEnd interface {
	// query returns how many series have a number.
	query(expr string) (int, error)
}

// TestFleet runs lab fleet, scrapes its processes, and evaluates every expression of
// the dashboard and the alerts: each has to have data. The fleet in turn has to end
// well. Where PERCOLATOR_PROMETHEUS names the program, a real Prometheus does
// the same; docs/observability.md has the command.
func TestFleet(t *testing.T) {
	long.Test(t, "a fleet of processes runs for half a minute")
	lab := filepath.Join(t.TempDir(), "lab")
	if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", lab, "../../../emulator_test/lab").CombinedOutput(); err != nil {
		t.Fatalf("building lab: %v\n%s", err, out)
	}
	first := freePorts(t, targetsN)
	var targets []string
	for i := range targetsN {
		targets = append(targets, net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i)))
	}
	cmd := exec.Command(lab, "fleet", "--documents", "40", "--workers", strconv.Itoa(workers), "--duration", "30s", "--seed", "1", "-o", "json")
	cmd.Env = append(os.Environ(), "OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST=127.0.0.1", "OTEL_EXPORTER_PROMETHEUS_PORT="+strconv.Itoa(first))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()

	here := &scraper{targets: targets, data: store{}, names: map[string]map[string]labels{}}
	backEnds := map[string]backEnd{"the scraper": here}
	if program := os.Getenv("PERCOLATOR_PROMETHEUS"); program != "" {
		backEnds["Prometheus"] = startPrometheus(t, program, targets)
	}
	exprs := expressions(t)
	open := map[string]map[string]string{} // expressions without data so far, and where they are, by back end
	for name := range backEnds {
		open[name] = exprs()
	}
	tick := time.NewTicker(scraping)
	defer tick.Stop()
	for running := true; running; {
		select {
		case err := <-ended:
			if running = false; err != nil {
				t.Errorf("lab fleet: %v\n%s", err, stderr.Bytes())
			}
		case <-tick.C:
			here.scrape(time.Now())
			for name, b := range backEnds {
				for expr := range open[name] {
					n, err := b.query(expr)
					if err != nil {
						t.Fatalf("%s: %s: %v", name, expr, err)
					}
					if n > 0 {
						delete(open[name], expr)
					}
				}
			}
		}
	}
	for name, left := range open {
		for expr, where := range left {
			if strings.Contains(expr, "percolator_oracle_direct_") {
				continue // the fleet has a served oracle
			}
			t.Errorf("%s has no data of the fleet for %s: %s", name, where, expr)
		}
		t.Logf("%s has data for %d of %d expressions", name, len(exprs())-len(left), len(exprs()))
	}
	var sum struct {
		Violations int `json:"violations"`
		Mismatches int `json:"mismatches"`
		Left       int `json:"notifications_left"`
		Rounds     int `json:"rounds"`
		Workers    int `json:"workers_killed"`
		Killed     int `json:"leaders_killed"`
		Visits     int `json:"visits"`
		Lost       int `json:"visitors_lost"`
		GC         int `json:"gc_runs"`
		Letters    int `json:"dead_letters"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &sum); err != nil {
		t.Fatalf("the summary: %v\n%s\n%s", err, stdout.Bytes(), stderr.Bytes())
	}
	if sum.Violations+sum.Mismatches+sum.Left != 0 || slices.Contains([]int{sum.Rounds, sum.Workers, sum.Killed, sum.Visits, sum.Lost, sum.GC, sum.Letters}, 0) {
		t.Errorf("the fleet found something, or left something out: %s\n%s", stdout.Bytes(), stderr.Bytes())
	}
}

// expressions are all of the dashboard's and the alerts', and where they are.
func expressions(t *testing.T) func() map[string]string {
	return func() map[string]string {
		all := map[string]string{}
		for panel, exprs := range dashboard(t) {
			for _, e := range exprs {
				all[strings.NewReplacer("$__rate_interval", "1m", "$job", ".*").Replace(e)] = "dashboard, " + panel
			}
		}
		for name, e := range alerts(t) {
			// What is compared; whether it is too much is not the point here.
			all[regexp.MustCompile(` [<>] [0-9.]+`).ReplaceAllString(e, "")] = "alert " + name
		}
		return all
	}
}

// freePorts finds n ports in a row that nobody listens on.
func freePorts(t *testing.T, n int) (first int) {
	t.Helper()
	for range 100 {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first = lis.Addr().(*net.TCPAddr).Port
		all := []net.Listener{lis}
		for i := 1; i < n; i++ {
			if lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i)); err == nil {
				all = append(all, lis)
			}
		}
		for _, l := range all {
			_ = l.Close()
		}
		if len(all) == n {
			return first
		}
	}
	t.Fatalf("no %d ports in a row", n)
	return 0
}

// A scraper keeps what processes expose, as Prometheus does.
type scraper struct {
	targets []string
	data    store
	names   map[string]map[string]labels // series of the last scrape, by target
	now     time.Time
}

func (s *scraper) scrape(now time.Time) {
	s.now = now
	for _, target := range s.targets {
		seen := map[string]labels{}
		if res, err := http.Get("http://" + target + "/metrics"); err == nil { // else it is not there, or not yet
			for lines := bufio.NewScanner(res.Body); lines.Scan(); {
				if l, v, ok := exposed(lines.Text()); ok {
					l["instance"], l["job"] = target, "percolator"
					seen[l.key()] = l
					s.data.add(l, point{at: now, value: v})
				}
			}
			_ = res.Body.Close()
		}
		for k, l := range s.names[target] {
			if seen[k] == nil {
				s.data.add(l, point{at: now, stale: true})
			}
		}
		s.names[target] = seen
	}
}

func (s *scraper) query(expr string) (n int, err error) {
	v, err := s.data.eval(expr, s.now)
	for _, sample := range v {
		if !math.IsNaN(sample.value) {
			n++
		}
	}
	return n, err
}

var exposition = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)

// exposed reads a line of Prometheus's text format.
func exposed(line string) (l labels, value float64, ok bool) {
	m := exposition.FindStringSubmatch(line)
	if m == nil {
		return nil, 0, false // a comment
	}
	value, err := strconv.ParseFloat(m[3], 64)
	l = labels{"__name__": m[1]}
	for _, pair := range regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`).FindAllStringSubmatch(m[2], -1) {
		l[pair[1]] = pair[2]
	}
	return l, value, err == nil
}

// A realPrometheus is asked through its API.
type realPrometheus struct {
	t       *testing.T
	address string
}

// startPrometheus has a real one scrape the targets until the test ends.
func startPrometheus(t *testing.T, program string, targets []string) *realPrometheus {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(alertsPath)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: %[1]v, scrape_timeout: %[1]v, evaluation_interval: 1s}
rule_files: [%[2]q]
scrape_configs:
  - job_name: percolator
    static_configs: [{targets: %[3]s}]
`, scraping, rules, list), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &realPrometheus{t, net.JoinHostPort("127.0.0.1", strconv.Itoa(freePorts(t, 1)))}
	cmd := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Prometheus: %s", stderr.Bytes())
		}
	})
	for { // until it listens
		if res, err := http.Get("http://" + p.address + "/-/ready"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return p
			}
		}
		select {
		case <-time.After(scraping):
		case <-t.Context().Done():
			return p
		}
	}
}

func (p *realPrometheus) query(expr string) (n int, err error) {
	res, err := http.Get("http://" + p.address + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, fmt.Errorf("%w: %s", err, text)
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}
