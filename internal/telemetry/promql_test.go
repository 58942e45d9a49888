package telemetry_test

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file evaluates as much of PromQL as the dashboard and the alerts use, so
// that they are tested where there is no Prometheus. What it does not know is an
// error.

type labels map[string]string

// key is the same for equal labels.
func (l labels) key() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&b, "%s=%q,", k, l[k])
	}
	return b.String()
}

func (l labels) without(names ...string) labels {
	l = maps.Clone(l)
	for _, n := range names {
		delete(l, n)
	}
	return l
}

// A point is a sample of a series; stale says that the series has ended.
type point struct {
	at    time.Time
	value float64
	stale bool
}

type series struct {
	labels labels // __name__ among them
	points []point
}

// A store is what was scraped.
type store map[string]*series

func (s store) add(l labels, p point) {
	k := l.key()
	if s[k] == nil {
		s[k] = &series{labels: l}
	}
	s[k].points = append(s[k].points, p)
}

// A sample is an element of a vector. A scalar is a vector of one without labels.
type sample struct {
	labels labels
	value  float64
}

// lookback is how old a sample may be that stands for now.
const lookback = 5 * time.Minute

var lexer = regexp.MustCompile(`\s*(\[[^\]]*\]|\{[^}]*\}|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9.]+|[(),/<>])`)

// eval evaluates an expression at a moment.
func (s store) eval(expr string, at time.Time) (result []sample, err error) {
	e := &evaluation{store: s, at: at}
	rest := strings.TrimSpace(expr)
	for rest != "" {
		m := lexer.FindStringSubmatchIndex(rest)
		if m == nil || m[0] != 0 {
			return nil, fmt.Errorf("%s: not understood from %q on", expr, rest)
		}
		e.tokens = append(e.tokens, rest[m[2]:m[3]])
		rest = strings.TrimSpace(rest[m[1]:])
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %v", expr, r)
		}
	}()
	result = e.expression()
	if len(e.tokens) > 0 {
		return nil, fmt.Errorf("%s: not understood from %q on", expr, e.tokens[0])
	}
	return result, nil
}

// evaluation reads tokens from the left. Its methods panic on what they do not
// know.
type evaluation struct {
	store  store
	at     time.Time
	tokens []string
}

func (e *evaluation) peek() string {
	if len(e.tokens) == 0 {
		return ""
	}
	return e.tokens[0]
}

func (e *evaluation) take(want ...string) string {
	t := e.peek()
	if t == "" || (len(want) > 0 && !slices.Contains(want, t)) {
		panic(fmt.Sprintf("%q where one of %q has to be", t, want))
	}
	e.tokens = e.tokens[1:]
	return t
}

// expression is comparisons with "or" or "unless" in between.
func (e *evaluation) expression() []sample {
	left := e.comparison()
	for e.peek() == "or" || e.peek() == "unless" {
		op := e.take()
		right := e.comparison()
		if op == "or" {
			left = append(left, except(right, left)...)
		} else {
			left = except(left, right)
		}
	}
	return left
}

func except(v, others []sample) (result []sample) {
	for _, s := range v {
		if !slices.ContainsFunc(others, func(o sample) bool {
			return o.labels.without("__name__").key() == s.labels.without("__name__").key()
		}) {
			result = append(result, s)
		}
	}
	return result
}

// comparison is a quotient, compared with a number or not.
func (e *evaluation) comparison() []sample {
	left := e.operand()
	for e.peek() == "/" {
		e.take()
		left = divide(left, e.operand())
	}
	op := e.peek()
	if op != "<" && op != ">" {
		return left
	}
	e.take()
	limit := e.number()
	return slices.DeleteFunc(left, func(s sample) bool {
		if op == "<" {
			return !(s.value < limit)
		}
		return !(s.value > limit)
	})
}

func divide(left, right []sample) (result []sample) {
	for _, l := range left {
		for _, r := range right {
			if r.labels == nil || l.labels.without("__name__").key() == r.labels.without("__name__").key() {
				result = append(result, sample{l.labels.without("__name__"), l.value / r.value})
			}
		}
	}
	return result
}

func (e *evaluation) number() float64 {
	n, err := strconv.ParseFloat(e.take(), 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (e *evaluation) operand() []sample {
	switch t := e.peek(); {
	case t == "(":
		e.take()
		v := e.expression()
		e.take(")")
		return v
	case t == "sum" || t == "max" || t == "min":
		return e.aggregate(e.take())
	case t == "rate" || t == "increase" || t == "changes" || t == "max_over_time":
		return e.overRange(e.take())
	case t == "histogram_quantile":
		e.take()
		e.take("(")
		q := e.number()
		e.take(",")
		v := e.expression()
		e.take(")")
		return quantile(q, v)
	case t[0] >= '0' && t[0] <= '9':
		return []sample{{nil, e.number()}}
	}
	var result []sample
	for _, s := range e.selector() {
		if p, ok := s.now(e.at); ok {
			result = append(result, sample{s.labels, p.value})
		}
	}
	return result
}

func (s *series) now(at time.Time) (last point, ok bool) {
	for _, p := range s.points {
		if !p.at.After(at) && p.at.After(at.Add(-lookback)) {
			last, ok = p, !p.stale
		}
	}
	return last, ok
}

func (e *evaluation) aggregate(op string) []sample {
	var by []string
	if e.peek() == "by" {
		e.take()
		e.take("(")
		for by = append(by, e.take()); e.take(",", ")") == ","; {
			by = append(by, e.take())
		}
	}
	e.take("(")
	v := e.expression()
	e.take(")")
	groups := map[string]*sample{}
	for _, s := range v {
		group := labels{}
		for _, name := range by {
			if s.labels[name] != "" {
				group[name] = s.labels[name]
			}
		}
		g := groups[group.key()]
		switch {
		case g == nil:
			groups[group.key()] = &sample{group, s.value}
		case op == "sum":
			g.value += s.value
		case op == "max":
			g.value = max(g.value, s.value)
		case op == "min":
			g.value = min(g.value, s.value)
		}
	}
	var result []sample
	for _, g := range groups {
		result = append(result, *g)
	}
	return result
}

// selector takes a name and matchers.
func (e *evaluation) selector() (found []*series) {
	name, matchers := e.take(), ""
	if strings.HasPrefix(e.peek(), "{") {
		matchers = strings.Trim(e.take(), "{}")
	}
	for _, s := range e.store {
		if s.labels["__name__"] == name && matches(matchers, s.labels) {
			found = append(found, s)
		}
	}
	return found
}

var matcher = regexp.MustCompile(`^(\w+)(=~|!=|=)"([^"]*)"$`)

func matches(matchers string, l labels) bool {
	for part := range strings.SplitSeq(matchers, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		m := matcher.FindStringSubmatch(part)
		if m == nil {
			panic("matcher not understood: " + part)
		}
		got := l[m[1]]
		switch m[2] {
		case "=":
			if got != m[3] {
				return false
			}
		case "!=":
			if got == m[3] {
				return false
			}
		case "=~":
			if !regexp.MustCompile("^(?:" + m[3] + ")$").MatchString(got) {
				return false
			}
		}
	}
	return true
}

// overRange is a function of a range of each series, or of a subquery.
func (e *evaluation) overRange(function string) (result []sample) {
	e.take("(")
	var in []*series
	if e.peek() == "(" {
		in = e.subquery()
	} else {
		in = e.selector()
	}
	window, _, _ := strings.Cut(strings.Trim(e.take(), "[]"), ":")
	e.take(")")
	d, err := time.ParseDuration(window)
	if err != nil {
		panic(err)
	}
	for _, s := range in {
		var points []point
		for _, p := range s.points {
			if !p.stale && !p.at.After(e.at) && !p.at.Before(e.at.Add(-d)) {
				points = append(points, p)
			}
		}
		l := s.labels.without("__name__")
		switch {
		case function == "max_over_time" && len(points) > 0:
			v := points[0].value
			for _, p := range points {
				v = max(v, p.value)
			}
			result = append(result, sample{l, v})
		case function == "max_over_time":
		case function == "changes" && len(points) > 0:
			n := 0
			for i := 1; i < len(points); i++ {
				if points[i].value != points[i-1].value {
					n++
				}
			}
			result = append(result, sample{l, float64(n)})
		case function != "changes" && len(points) > 1:
			v := increase(points, e.at.Add(-d), e.at)
			if function == "rate" {
				v /= d.Seconds()
			}
			result = append(result, sample{l, v})
		}
	}
	return result
}

// subquery evaluates what is in brackets at every step of the range behind it.
func (e *evaluation) subquery() (found []*series) {
	depth, end := 0, 0
	for i, t := range e.tokens {
		if t == "(" {
			depth++
		} else if t == ")" {
			depth--
		}
		if depth == 0 {
			end = i
			break
		}
	}
	inner, rest := e.tokens[1:end], e.tokens[end+1:]
	window, step, ok := strings.Cut(strings.Trim(rest[0], "[]"), ":")
	d, err := time.ParseDuration(window)
	by, err2 := time.ParseDuration(step)
	if !ok || err != nil || err2 != nil {
		panic("subquery not understood: " + rest[0])
	}
	all := store{}
	for at := e.at.Add(-d).Truncate(by); !at.After(e.at); at = at.Add(by) {
		part := &evaluation{e.store, at, slices.Clone(inner)}
		for _, s := range part.expression() {
			all.add(s.labels, point{at: at, value: s.value})
		}
	}
	e.tokens = rest
	return slices.Collect(maps.Values(all))
}

// increase is Prometheus's: with resets, and stretched to the ends of the range.
func increase(points []point, from, to time.Time) float64 {
	first, last := points[0], points[len(points)-1]
	sum := last.value - first.value
	for i := 1; i < len(points); i++ {
		if points[i].value < points[i-1].value {
			sum += points[i-1].value
		}
	}
	sampled := last.at.Sub(first.at).Seconds()
	mean := sampled / float64(len(points)-1)
	start, end := first.at.Sub(from).Seconds(), to.Sub(last.at).Seconds()
	if sum > 0 && first.value >= 0 {
		start = min(start, sampled*first.value/sum)
	}
	stretched := sampled
	for _, gap := range []float64{start, end} {
		if gap < mean*1.1 {
			stretched += gap
		} else {
			stretched += mean / 2
		}
	}
	return sum * stretched / sampled
}

type bucket struct{ upper, count float64 }

func quantile(q float64, v []sample) (result []sample) {
	groups, names := map[string][]bucket{}, map[string]labels{}
	for _, s := range v {
		upper, err := strconv.ParseFloat(s.labels["le"], 64)
		if err != nil {
			panic(err)
		}
		l := s.labels.without("__name__", "le")
		names[l.key()] = l
		groups[l.key()] = append(groups[l.key()], bucket{upper, s.value})
	}
	for k, buckets := range groups {
		slices.SortFunc(buckets, func(a, b bucket) int {
			if a.upper < b.upper {
				return -1
			}
			return 1
		})
		result = append(result, sample{names[k], bucketQuantile(q, buckets)})
	}
	return result
}

func bucketQuantile(q float64, b []bucket) float64 {
	last := len(b) - 1
	if last < 1 || !math.IsInf(b[last].upper, 1) || b[last].count == 0 {
		return math.NaN()
	}
	rank := q * b[last].count
	i := slices.IndexFunc(b, func(b bucket) bool { return b.count >= rank })
	switch {
	case i == last:
		return b[last-1].upper
	case i == 0 && b[0].upper <= 0:
		return b[0].upper
	}
	start, below := 0.0, 0.0
	if i > 0 {
		start, below = b[i-1].upper, b[i-1].count
	}
	return start + (b[i].upper-start)*(rank-below)/(b[i].count-below)
}
