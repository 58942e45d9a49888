package observers

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/charts"
)

// plotFigure7 writes path.svg and path.png.
func plotFigure7(r figure7Report, path string) error {
	p := plot.New()
	p.Title.Text = "Clustering delay against crawl rate, after the paper's Figure 7"
	p.Title.TextStyle.Font.Size = 14
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text = fmt.Sprintf("Crawl rate (%% of the repository per hour; %d documents, an hour scaled to %d batches = %.2f s)", r.Documents, batchesPerHour, r.Hour)
	p.Y.Label.Text = "Median clustering delay (ms; bars: 5th to 95th percentile)"
	// The data are logarithms, because gonum's logarithmic axes leave too much room
	// for long labels.
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Tick.Marker = charts.LogTicks{}
		axis.Label.TextStyle.Font.Size = 11
		axis.Tick.Label.Font.Size = font.Length(10)
		axis.Label.Padding = vg.Points(6)
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	lines := []struct {
		kind, legend string
		colour       color.Color
		dashes       []vg.Length
		shape        draw.GlyphDrawer
	}{
		{incremental, "incremental (observers)", charts.IncrementalColour, []vg.Length{vg.Points(6), vg.Points(3)}, draw.CircleGlyph{}},
		{batched, "batches over the whole repository", charts.BatchColour, nil, draw.BoxGlyph{}},
	}
	for _, l := range lines {
		if err := addLine(p, r.Points, l.kind, l.legend, l.colour, l.dashes, l.shape); err != nil {
			return err
		}
	}
	p.X.Min, p.X.Max = p.X.Min-0.08, p.X.Max+0.08
	p.Y.Max += (p.Y.Max - p.Y.Min) * 0.28 // room for the legend
	if err := addLimit(p, r); err != nil {
		return err
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(3)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(8), vg.Points(-4)
	p.Legend.TextStyle.Font.Size = 11
	return charts.Chart{File: filepath.Base(path)}.Save(p, filepath.Dir(path), ".svg", ".png")
}

// delays are points with error bars, in gonum's form.
type delays struct {
	plotter.XYs
	plotter.YErrors
}

// addLine draws the points of one kind.
func addLine(p *plot.Plot, measured []point, kind, legend string, colour color.Color, dashes []vg.Length, shape draw.GlyphDrawer) error {
	var d delays
	for _, pt := range measured {
		if pt.Kind != kind || pt.P50 <= 0 {
			continue
		}
		mid := math.Log10(pt.P50)
		d.XYs = append(d.XYs, plotter.XY{X: math.Log10(pt.Percent), Y: mid})
		d.YErrors = append(d.YErrors, struct{ Low, High float64 }{mid - math.Log10(max(pt.P5, pt.P50/1000)), math.Log10(pt.P95) - mid})
	}
	if len(d.XYs) == 0 {
		return nil
	}
	line, points, err := plotter.NewLinePoints(d.XYs)
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = colour, vg.Points(1.6), dashes
	points.Color, points.Shape, points.Radius = colour, shape, vg.Points(3.5)
	bars, err := plotter.NewYErrorBars(d)
	if err != nil {
		return err
	}
	bars.Color, bars.Width = colour, vg.Points(1)
	p.Add(line, points, bars)
	p.Legend.Add(legend, line, points)
	return nil
}

// addLimit draws the rate at which the observers' backlog begins to grow.
func addLimit(p *plot.Plot, r figure7Report) error {
	grows := false
	for _, pt := range r.Points {
		grows = grows || !pt.Sustained
	}
	if !grows {
		return nil
	}
	limit, err := plotter.NewLine(plotter.XYs{{X: math.Log10(r.Percent), Y: p.Y.Min}, {X: math.Log10(r.Percent), Y: p.Y.Max}})
	if err != nil {
		return err
	}
	limit.Color, limit.Width, limit.Dashes = charts.LimitColour, vg.Points(1.2), []vg.Length{vg.Points(1), vg.Points(3)}
	p.Add(limit)
	p.Legend.Add(fmt.Sprintf("observers saturated: %.3g %% per hour, %.0f documents/s", r.Percent, r.Saturation), limit)
	return nil
}
