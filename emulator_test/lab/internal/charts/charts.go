// Package charts draws the plots of measurements.
package charts

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// A Series is one set of bars, or one line.
type Series struct {
	Name   string
	Colour color.Color
	Values []float64 // NaN: no value
	Labels []string  // texts at the values, for lines only
}

// Colours that colour-blind people can distinguish.
var (
	IncrementalColour = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	BatchColour       = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	LimitColour       = color.RGBA{0x80, 0x80, 0x80, 0xff}
)

// More colours that colour-blind people can distinguish.
var (
	RawColour   = color.RGBA{0xb0, 0xb0, 0xb0, 0xff}
	OursColour  = IncrementalColour
	PaperColour = BatchColour
	OtherColour = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	GoalColour  = color.RGBA{0x40, 0x40, 0x40, 0xff}
)

// A Chart has what all plots of the report have.
type Chart struct {
	File, Title, X, Y string
	Groups            []string // names on the X axis
	Series            []Series
	Goals             []float64 // one for each group, drawn across it; NaN: no goal
	Goal              string    // in the legend
	Decimals          int
	LogY              bool
	Loose             bool    // points without lines between them
	Width             float64 // in centimetres; 0 is 22
}

// sans is the font of all plots. Readers of an SVG may have others than the one that
// measured its texts, of the same widths.
var sans = font.Font{Typeface: "Liberation", Variant: "Sans"}

const families = "font-family:'Liberation Sans',Arial,Helvetica,sans-serif"

func init() { plot.DefaultFont, plotter.DefaultFont = sans, sans }

func (c Chart) new() *plot.Plot {
	p := plot.New()
	p.Title.Text = c.Title
	p.Title.TextStyle.Font.Size = 14
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text, p.Y.Label.Text = c.X, c.Y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size = 11
		axis.Tick.Label.Font.Size = font.Length(10)
		axis.Label.Padding = vg.Points(6)
	}
	p.Y.Tick.Marker = plainTicks{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(3)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(8), vg.Points(-4)
	p.Legend.TextStyle.Font.Size = 11
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xe0}
	p.Add(grid)
	return p
}

func (c Chart) width() float64 {
	if c.Width == 0 {
		return 22
	}
	return c.Width
}

// Save writes the chart into a directory.
func (c Chart) Save(p *plot.Plot, dir string, suffixes ...string) error {
	for _, suffix := range suffixes {
		canvas, err := draw.NewFormattedCanvas(vg.Length(c.width())*vg.Centimeter, 12*vg.Centimeter, suffix[1:])
		if err != nil {
			return fmt.Errorf("writing the plot: %w", err)
		}
		all := draw.New(canvas)
		all.SetColor(color.White)
		all.Fill(all.Path())
		p.Draw(draw.Crop(all, vg.Points(8), -vg.Points(12), vg.Points(6), -vg.Points(8)))
		var out bytes.Buffer
		if _, err := canvas.WriteTo(&out); err != nil {
			return fmt.Errorf("writing the plot: %w", err)
		}
		text := bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans"), []byte(families))
		if err := os.WriteFile(filepath.Join(dir, c.File+suffix), text, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// Bars draws groups of bars, with their values above them.
func (c Chart) Bars() (*plot.Plot, error) {
	p := c.new()
	n := len(c.Series)
	room := vg.Points(460 * c.width() / 22 / float64(max(len(c.Groups), 1)))
	width := min(room/vg.Length(n), vg.Points(34))
	top := 0.0
	var numbers []plot.Plotter // above all bars, so that none hides them
	for i, s := range c.Series {
		// A single bar is in the middle of its group.
		for _, alone := range []bool{false, true} {
			offset := (vg.Length(i) - vg.Length(n-1)/2) * width
			if alone {
				offset = 0
			}
			values, labels := make(plotter.Values, len(s.Values)), plotter.XYLabels{}
			for k, v := range s.Values {
				if math.IsNaN(v) || c.alone(k) != alone {
					continue
				}
				values[k] = v
				top = max(top, v)
				labels.XYs = append(labels.XYs, plotter.XY{X: float64(k), Y: c.above(k, v)})
				labels.Labels = append(labels.Labels, cli.Fixed(v, c.Decimals))
			}
			b, err := plotter.NewBarChart(values, width)
			if err != nil {
				return nil, err
			}
			b.Color, b.Offset, b.LineStyle.Width = s.Colour, offset, 0
			if !alone {
				p.Legend.Add(s.Name, b)
			}
			if len(labels.Labels) == 0 {
				continue
			}
			marked, err := plotter.NewLabels(labels)
			if err != nil {
				return nil, err
			}
			for k := range marked.TextStyle {
				marked.TextStyle[k].Font.Size = 9
				marked.TextStyle[k].XAlign = draw.XCenter
			}
			marked.Offset = vg.Point{X: offset, Y: vg.Points(3)}
			p.Add(b)
			numbers = append(numbers, marked)
		}
	}
	p.Add(numbers...)
	p.Add(c.goalLines(p, &top)...)
	p.NominalX(c.Groups...)
	p.X.Min, p.X.Max = -0.6, float64(len(c.Groups))-0.4
	p.Y.Min, p.Y.Max = 0, top*1.1+top*0.07*float64(n+1) // room for the legend
	return p, nil
}

// above is where the value of a bar is written: above the bar, and above the goal if its
// line would cross the number.
func (c Chart) above(k int, v float64) float64 {
	top := 0.0
	for _, s := range c.Series {
		for _, v := range s.Values {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	if k < len(c.Goals) && v <= c.Goals[k] && c.Goals[k] < v+top*0.07 {
		return c.Goals[k]
	}
	return v
}

// alone reports whether only one series has a value for a group.
func (c Chart) alone(k int) bool {
	there := 0
	for _, s := range c.Series {
		if k < len(s.Values) && !math.IsNaN(s.Values[k]) {
			there++
		}
	}
	return there == 1
}

// goalLines draws each group's goal as a line across the group.
func (c Chart) goalLines(p *plot.Plot, top *float64) (all []plot.Plotter) {
	for k, goal := range c.Goals {
		if math.IsNaN(goal) {
			continue
		}
		goal = c.at(goal)
		*top = max(*top, goal)
		line, err := plotter.NewLine(plotter.XYs{{X: float64(k) - .42, Y: goal}, {X: float64(k) + .42, Y: goal}})
		if err != nil {
			continue // two points make a line
		}
		line.Color, line.Width, line.Dashes = GoalColour, vg.Points(1.4), []vg.Length{vg.Points(4), vg.Points(2)}
		if len(all) == 0 {
			p.Legend.Add(cmp.Or(c.Goal, "goal"), line)
		}
		all = append(all, line)
	}
	return all
}

// at is the height of a value.
func (c Chart) at(v float64) float64 {
	if c.LogY {
		return math.Log10(max(v, 1e-3))
	}
	return v
}

// Lines draws lines over the groups, which are evenly spaced.
func (c Chart) Lines() (*plot.Plot, error) {
	p := c.new()
	low, high := math.Inf(1), math.Inf(-1)
	shapes := []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}}
	for i, s := range c.Series {
		var points plotter.XYs
		var labels plotter.XYLabels
		for k, v := range s.Values {
			if math.IsNaN(v) {
				continue
			}
			at := plotter.XY{X: float64(k), Y: c.at(v)}
			points = append(points, at)
			low, high = min(low, at.Y), max(high, at.Y)
			if k < len(s.Labels) {
				labels.XYs, labels.Labels = append(labels.XYs, at), append(labels.Labels, s.Labels[k])
			}
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = s.Colour, vg.Points(1.6)
		marks.Color, marks.Shape, marks.Radius = s.Colour, shapes[i%len(shapes)], vg.Points(3.5)
		if c.Loose {
			p.Add(marks)
			p.Legend.Add(s.Name, marks)
		} else {
			p.Add(line, marks)
			p.Legend.Add(s.Name, line, marks)
		}
		marked, err := plotter.NewLabels(labels)
		if err != nil {
			return nil, err
		}
		for k := range marked.TextStyle {
			marked.TextStyle[k].Font.Size = 9
			marked.TextStyle[k].XAlign = besides(points, k, c.Loose)
		}
		marked.Offset = vg.Point{Y: vg.Points(7)}
		p.Add(marked)
	}
	p.Add(c.goalLines(p, &high)...)
	p.NominalX(c.Groups...)
	p.X.Min, p.X.Max = -0.4, float64(len(c.Groups))-0.6
	if c.LogY {
		p.Y.Tick.Marker = LogTicks{}
		p.Y.Min, p.Y.Max = math.Floor(low*2)/2-.1, high+(high-low)*.15+.12*float64(len(c.Series))
		return p, nil
	}
	p.Y.Min, p.Y.Max = 0, high*(1.12+.08*float64(len(c.Series)))
	return p, nil
}

// besides puts a label beside the line if the line would cross it.
func besides(points plotter.XYs, k int, loose bool) text.XAlignment {
	switch last := k+1 >= len(points); {
	case loose || last && (k == 0 || points[k-1].Y <= points[k].Y):
		return draw.XCenter
	case last:
		return -0.2
	case points[k+1].Y > points[k].Y:
		return -0.8
	}
	return -0.2
}

// plainTicks are gonum's ticks with plain numbers.
type plainTicks struct{}

func (plainTicks) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = strconv.FormatFloat(math.Round(ticks[i].Value*1e6)/1e6, 'f', -1, 64)
		}
	}
	return ticks
}

// LogTicks are 1, 2 and 5 of each power of ten, labelled with plain numbers, on an axis
// of logarithms.
type LogTicks struct{}

func (LogTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for exp := math.Floor(low); exp <= math.Ceil(high); exp++ {
		for _, n := range []float64{1, 2, 5} {
			v := n * math.Pow(10, exp)
			if at := math.Log10(v); at >= low && at <= high {
				ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(v, 'g', 6, 64)})
			}
		}
	}
	return ticks
}
