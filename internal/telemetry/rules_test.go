package telemetry_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const rulesPath = root + "docs/deploy/prometheus-alerts_test.yaml"

// An alerting rule.
type rule struct {
	Alert, Expr string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// rulesFile is a test in promtool's format.
type rulesFile struct {
	RuleFiles          []string `yaml:"rule_files"`
	EvaluationInterval string   `yaml:"evaluation_interval"`
	Tests              []struct {
		Name        string
		Interval    string
		InputSeries []struct {
			Series, Values string
		} `yaml:"input_series"`
		AlertRuleTest []struct {
			EvalTime  string `yaml:"eval_time"`
			Alertname string
			ExpAlerts []struct {
				ExpLabels      map[string]string `yaml:"exp_labels"`
				ExpAnnotations map[string]string `yaml:"exp_annotations"`
			} `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRules runs the alerts' tests: each alert fires for what it is about, after
// its time, and not for less. With PERCOLATOR_PROMTOOL promtool does the same.
func TestRules(t *testing.T) {
	if tool := os.Getenv("PERCOLATOR_PROMTOOL"); tool != "" {
		for _, args := range [][]string{{"check", "rules", alertsPath}, {"test", "rules", rulesPath}} {
			out, err := exec.Command(tool, args...).CombinedOutput()
			t.Logf("promtool %s: %s", strings.Join(args, " "), out)
			if err != nil {
				t.Errorf("promtool %s: %v", strings.Join(args, " "), err)
			}
		}
	}
	var file rulesFile
	readYAML(t, rulesPath, &file)
	var alerts struct{ Groups []struct{ Rules []rule } }
	readYAML(t, alertsPath, &alerts)
	rules := map[string]rule{}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			rules[r.Alert] = r
		}
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			data := store{}
			for _, in := range test.InputSeries {
				expand(t, data, in.Series, in.Values, duration(t, test.Interval))
			}
			for _, check := range test.AlertRuleTest {
				r, ok := rules[check.Alertname]
				if !ok {
					t.Fatalf("there is no alert %s", check.Alertname)
				}
				var want []string
				for _, e := range check.ExpAlerts {
					want = append(want, fmt.Sprint(e.ExpLabels, e.ExpAnnotations))
				}
				if len(want) == 0 {
					silent[r.Alert] = true
				} else {
					fires[r.Alert] = true
				}
				got := firing(t, data, r, duration(t, check.EvalTime), duration(t, file.EvaluationInterval))
				slices.Sort(want)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("%s fires %s after the beginning:\n%s\nwant\n%s", r.Alert, check.EvalTime, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
		})
	}
	for name := range rules {
		if !fires[name] || !silent[name] {
			t.Errorf("%s: tests have it fire: %t, and not fire: %t; want both", name, fires[name], silent[name])
		}
	}
}

// firing returns the alerts of a rule, labels and annotations.
func firing(t *testing.T, data store, r rule, at, step time.Duration) (all []string) {
	t.Helper()
	since := map[string]time.Duration{}
	last := map[string]labels{}
	for now := time.Duration(0); now <= at; now += step {
		v, err := data.eval(r.Expr, time.Unix(0, 0).Add(now))
		if err != nil {
			t.Fatal(err)
		}
		active := map[string]bool{}
		for _, s := range v {
			l := s.labels.without("__name__")
			active[l.key()], last[l.key()] = true, l
			if _, ok := since[l.key()]; !ok {
				since[l.key()] = now
			}
		}
		maps.DeleteFunc(since, func(k string, _ time.Duration) bool { return !active[k] })
	}
	for k, began := range since {
		if at-began < duration(t, r.For) {
			continue
		}
		l, annotations := maps.Clone(map[string]string(last[k])), map[string]string{}
		maps.Copy(l, r.Labels)
		for name, text := range r.Annotations {
			annotations[name] = regexp.MustCompile(`{{ *\$labels\.(\w+) *}}`).ReplaceAllStringFunc(text, func(m string) string {
				return l[strings.Trim(strings.TrimPrefix(strings.Trim(m, "{} "), "$labels."), " ")]
			})
		}
		all = append(all, fmt.Sprint(l, annotations))
	}
	return all
}

var (
	seriesName = regexp.MustCompile(`^(\w+)(?:{(.*)})?$`)
	progress   = regexp.MustCompile(`^(-?[0-9.]+)(?:([+-][0-9.]+))?(?:x([0-9]+))?$`)
)

// expand adds a series in promtool's notation: values such as 3 0+5x10 _x5.
func expand(t *testing.T, data store, name, values string, step time.Duration) {
	t.Helper()
	m := seriesName.FindStringSubmatch(name)
	if m == nil {
		t.Fatalf("series %s is not understood", name)
	}
	l := labels{"__name__": m[1]}
	for _, pair := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
		l[pair[1]] = pair[2]
	}
	now := time.Duration(0)
	for word := range strings.FieldsSeq(values) {
		if rest, none := strings.CutPrefix(word, "_"); none {
			n, _ := strconv.Atoi(strings.TrimPrefix(rest, "x"))
			now += time.Duration(max(1, n)) * step
			continue
		}
		m := progress.FindStringSubmatch(word)
		if m == nil {
			t.Fatalf("values %s of %s are not understood", word, name)
		}
		v, _ := strconv.ParseFloat(m[1], 64)
		by, _ := strconv.ParseFloat(m[2], 64)
		n, _ := strconv.Atoi(m[3])
		for range n + 1 {
			data.add(l, point{at: time.Unix(0, 0).Add(now), value: v})
			v += by
			now += step
		}
	}
}
