package observers

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// TestPlot: the plot names its axes with units, and both files can be read.
func TestPlot(t *testing.T) {
	t.Parallel()
	r := figure7Report{Documents: 20_000, Hour: 2.5, Saturation: 300, Percent: 4}
	for i, rate := range []float64{5, 40, 320, 640} {
		at := point{Kind: incremental, Rate: rate, Percent: rate / 80, Quantiles: rig.Quantiles{P5: 3, P50: 6, P95: 60}, Sustained: i < 3}
		if !at.Sustained {
			at.Quantiles = rig.Quantiles{P5: 50, P50: 3000, P95: 7000}
		}
		r.Points = append(r.Points, at, point{Kind: batched, Rate: rate, Percent: rate / 80, Quantiles: rig.Quantiles{P5: 600, P50: 1000, P95: 1600}, Sustained: true})
	}
	path := filepath.Join(t.TempDir(), "figure7")
	if dir := os.Getenv("PLOT_DIR"); dir != "" { // to keep the plot
		path = filepath.Join(dir, "figure7")
	}
	if err := plotFigure7(r, path); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(path + ".png")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(picture)); err != nil {
		t.Error(err)
	}
	svg, err := os.ReadFile(path + ".svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Crawl rate (% of the repository per hour", "Median clustering delay (ms", "incremental (observers)", "batches over the whole repository", "observers saturated: 4 % per hour, 300 documents/s"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the plot does not say %q", want)
		}
	}
}
