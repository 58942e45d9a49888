package bench

import (
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		q      float64
		values []float64
		want   float64
	}{
		{.5, nil, 0}, {.5, []float64{3}, 3}, {.5, []float64{4, 1, 2}, 2}, {.5, []float64{4, 1, 3, 2}, 2.5},
		{.25, []float64{5, 4, 3, 2, 1}, 2}, {.75, []float64{1, 2}, 1.75}, {1, []float64{1, 9}, 9},
	} {
		if got := quantile(tt.q, tt.values); got != tt.want {
			t.Errorf("quantile %g of %v is %g, want %g", tt.q, tt.values, got, tt.want)
		}
	}
}

// Ratios are of the same round, so a machine that is twice as fast in one of them
// changes nothing; two raw operations may be the least.
func TestFigure(t *testing.T) {
	t.Parallel()
	round := func(ops int, cpu time.Duration) measured { return measured{Ops: ops, Elapsed: time.Second, CPU: cpu} }
	raw := []measured{round(100, time.Second), round(200, time.Second), round(100, 2*time.Second)}
	ours := []measured{round(40, time.Second), round(80, time.Second), round(30, 2*time.Second)}
	for _, tt := range []struct {
		halved    bool
		ratio, by float64
	}{{false, .4, .4}, {true, .8, .8}} {
		f := newFigure(comparison{figure: "f", halved: tt.halved}, member{"ours", task{Callers: 3}}, ours, raw)
		if f.Ratio != tt.ratio || math.Abs(f.CPURatio-tt.by) > 1e-9 || f.Raw != 100 || f.Ours != 40 || f.Ops != 150 || f.RawOps != 400 || f.Rounds != 3 {
			t.Errorf("%+v", f)
		}
	}
}

// Writes go over all rows alike, and reads of many rows find different ones in
// order.
func TestRowsInTurn(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{1000, 10_000} {
		seen := map[string]int{}
		tk := task{Rows: rows, First: 17}
		for i := range 3 * rows {
			seen[tk.turnRow(i)]++
		}
		for row, n := range seen {
			if n != 3 {
				t.Fatalf("%d rows: %s was written %d times", rows, row, n)
			}
		}
		if len(seen) != rows {
			t.Errorf("%d of %d rows were written", len(seen), rows)
		}
	}
	list := (&task{Rows: 1000, Batch: 100}).anyRows()
	if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != 100 {
		t.Errorf("%q", list)
	}
}

// What is written arrives after the delay, whole and in order, and a connection
// that was closed takes nothing more.
func TestLateConn(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	const delay = 20 * time.Millisecond
	c := newLateConn(near, delay)
	began := time.Now()
	for _, text := range []string{"one", "two"} {
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took >= delay {
		t.Errorf("writing waited for %v", took)
	}
	got := make([]byte, 6)
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "onetwo" {
		t.Errorf("%q, %v", got, err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("it arrived after %v, want %v", took, delay)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Read(got); err == nil {
		t.Error("something arrived after the end")
	}
}

func TestReplaceMeasured(t *testing.T) {
	t.Parallel()
	page := "a\n<!-- measured: x -->\nold\n<!-- end -->\nb\n<!-- measured: y -->\n<!-- end -->\nc\n"
	for range 2 { // again changes nothing
		var err error
		if page, err = replaceMeasured(page, "y", "why\n"); err != nil {
			t.Fatal(err)
		}
		if page, err = replaceMeasured(page, "x", "\nex"); err != nil {
			t.Fatal(err)
		}
	}
	want := "a\n<!-- measured: x -->\n\nex\n\n<!-- end -->\nb\n<!-- measured: y -->\n\nwhy\n\n<!-- end -->\nc\n"
	if page != want {
		t.Errorf("%q, want %q", page, want)
	}
	for _, broken := range []string{"none", "<!-- measured: x -->\nno end"} {
		if _, err := replaceMeasured(broken, "x", ""); err == nil || !strings.Contains(err.Error(), "<!-- measured: x -->") {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

func TestCharts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []drawing{
		{chart{file: "bars", title: "A title", x: "X axis", y: "Y axis", decimals: 2, groups: []string{"first", "second"}, goals: []float64{.5, math.NaN()},
			series: []series{{name: "ours", colour: oursColour, values: []float64{.25, .75}}, {name: "theirs", colour: rawColour, values: []float64{math.NaN(), 1.5}}}}, chart.bars},
		{chart{file: "lines", title: "A title", x: "X axis", y: "Y axis", logY: true, groups: []string{"first", "second"},
			series: []series{{name: "ours", colour: oursColour, values: []float64{100, 1000}, labels: []string{"0.25", "0.75"}}, {name: "theirs", colour: rawColour, values: []float64{1, 2}, labels: []string{"", "1.50"}}}}, chart.lines},
	} {
		p, err := d.draw(d.chart)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.chart.save(p, dir, ".svg", ".png"); err != nil {
			t.Fatal(err)
		}
		svg, err := os.ReadFile(filepath.Join(dir, d.chart.file+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"A title", "X axis", "Y axis", "ours", "theirs", "first", "second", "0.25", "0.75", "1.50"} {
			if !strings.Contains(string(svg), ">"+want+"<") {
				t.Errorf("%s does not say %q", d.chart.file, want)
			}
		}
	}
}

// Every kind of transaction that is counted has a plan to compare it with, scans
// apart.
func TestEveryCountedKindIsPlanned(t *testing.T) {
	t.Parallel()
	left := len(planned)
	for _, k := range tripsKinds() {
		if _, ok := planned[k.name]; ok {
			left--
		} else if !strings.HasPrefix(k.name, "scan") {
			t.Errorf("%s is counted and not planned", k.name)
		}
	}
	if left != 0 {
		t.Errorf("%d kinds are planned and not counted", left)
	}
}
