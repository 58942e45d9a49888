package telemetry_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	dashboardPath = root + "docs/deploy/grafana-dashboard.json"
	alertsPath    = root + "docs/deploy/prometheus-alerts.yaml"
)

// dashboard reads the expressions of the dashboard by the titles of panels.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(dashboardPath)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatalf("%s: %v", dashboardPath, err)
	}
	all := map[string][]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], target.Expr)
			for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, m[1]) {
					t.Errorf("panel %q: its legend has %s, which is not in %s", p.Title, m[1], target.Expr)
				}
			}
		}
		if p.Type != "row" && len(all[p.Title]) == 0 {
			t.Errorf("panel %q has no expression", p.Title)
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Query); m != nil {
			all["variable"] = append(all["variable"], "sum by ("+m[2]+") ("+m[1]+")")
		} else if v.Type == "query" {
			t.Errorf("variable's query %q is not understood", v.Query)
		}
	}
	return all
}

// alerts reads the conditions of the alerts by their names.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(alertsPath)
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatalf("%s: %v", alertsPath, err)
	}
	all := map[string]string{}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			all[r.Alert] = r.Expr
			for _, a := range r.Annotations {
				for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(a, -1) {
					if !strings.Contains(r.Expr, m[1]) {
						t.Errorf("alert %s: its text has %s, which is not in %s", r.Alert, m[1], r.Expr)
					}
				}
			}
		}
	}
	return all
}

// Words of PromQL that are used, and the labels that Prometheus adds itself.
var (
	words   = setOf("sum", "max", "min", "rate", "increase", "changes", "histogram_quantile", "by", "or", "unless", "max_over_time")
	targets = setOf("job", "instance")
)

var (
	strs      = regexp.MustCompile(`"[^"]*"`)
	ranges    = regexp.MustCompile(`\[[^\]]*\]`)
	grouping  = regexp.MustCompile(`\bby \(([^)]*)\)`)
	selection = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^}]*)\})?`)
)

// wrong says what an expression names that nothing exposes. It knows no more of
// PromQL than these expressions need, and refuses words that it does not know.
func wrong(expr string, exposed map[string]map[string]bool) (problems []string) {
	expr = ranges.ReplaceAllString(strs.ReplaceAllString(expr, `""`), "")
	labels := map[string]bool{}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			labels[strings.TrimSpace(l)] = true
		}
	}
	expr = grouping.ReplaceAllString(expr, "by ")
	series := 0
	known := setOf(list(targets)...)
	for _, m := range selection.FindAllStringSubmatch(expr, -1) {
		if words[m[1]] {
			continue
		}
		if exposed[m[1]] == nil {
			problems = append(problems, "nothing exposes "+m[1])
			continue
		}
		series++
		for l := range exposed[m[1]] {
			known[l] = true
		}
		for matcher := range strings.SplitSeq(m[2], ",") {
			name := strings.TrimRight(strings.TrimSpace(strings.SplitN(matcher, "=", 2)[0]), "!")
			if name != "" && !exposed[m[1]][name] && !targets[name] {
				problems = append(problems, m[1]+" has no label "+name)
			}
		}
	}
	if series == 0 {
		problems = append(problems, "it names no series")
	}
	for l := range labels {
		if !known[l] {
			problems = append(problems, "no series of it has the label "+l)
		}
	}
	return problems
}

// compareExpressions compares the dashboard and the alerts with what Prometheus would
// scrape from a scene of everything.
func compareExpressions(t *testing.T, s *scene) {
	used := ""
	for panel, exprs := range dashboard(t) {
		for _, expr := range exprs {
			used += expr
			for _, p := range wrong(expr, s.exposed) {
				t.Errorf("dashboard, %s: %s: %s", panel, p, expr)
			}
		}
	}
	for name, expr := range alerts(t) {
		for _, p := range wrong(expr, s.exposed) {
			t.Errorf("alert %s: %s: %s", name, p, expr)
		}
	}
	for name := range s.exposed {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !strings.Contains(used, base) && base != "target_info" {
			t.Errorf("the dashboard shows nothing of %s", name)
		}
	}
	if alerts := alerts(t); len(alerts) < 5 {
		t.Errorf("%d alerts", len(alerts))
	}
}

// The check above has to find what is wrong.
func TestWrongExpressions(t *testing.T) {
	exposed := map[string]map[string]bool{"a_total": setOf("x"), "b_bucket": setOf("le", "y")}
	for expr, problems := range map[string]int{
		`sum by (x) (rate(a_total{x="1", job=~"$job"}[5m])) > 0.5`:              0,
		`histogram_quantile(0.9, sum by (le, y) (rate(b_bucket[$__interval])))`: 0,
		`sum(a)`:                      2,
		`sum by (z) (a_total)`:        1,
		`sum by (x) (a_total{y="x"})`: 1,
		`avg(a_total)`:                1,
		`1`:                           1,
	} {
		if got := wrong(expr, exposed); len(got) != problems {
			t.Errorf("%s: %q, want %d problems", expr, got, problems)
		}
	}
}

// TestDashboardLayout: the dashboard begins with stats, every panel says what it shows, and
// no panel covers another one.
func TestDashboardLayout(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(dashboardPath)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Annotations struct {
			List []struct{ Name, Expr string }
		}
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ H, W, X, Y int }
			Targets                  []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken, ids, heatmaps := map[[2]int]string{}, map[int]bool{}, 0
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: another panel has the id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		switch p.Type {
		case "row":
			if i == 0 && d.Panels[1].Type != "stat" {
				t.Error("the first row has no stats")
			}
		case "stat", "timeseries", "heatmap":
			if p.Description == "" || len(p.Targets) == 0 {
				t.Errorf("%s: a description and a target are needed", p.Title)
			}
			if p.Type == "heatmap" {
				heatmaps++
			}
		default:
			t.Errorf("%s: unknown type %q", p.Title, p.Type)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" || at[0] >= 24 {
					t.Fatalf("%s covers %s at %v", p.Title, other, at)
				}
				taken[at] = p.Title
			}
		}
	}
	if heatmaps == 0 || len(d.Annotations.List) == 0 {
		t.Errorf("%d heat maps, %d annotations", heatmaps, len(d.Annotations.List))
	}
}
