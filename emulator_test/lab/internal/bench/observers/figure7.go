package observers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type figure7Options struct {
	streams   *cli.Streams
	documents int
	ratesFlag string
	rates     []int
	duration  time.Duration
	workers   int
	profiles  string
	format    cli.Format
}

// batchesPerHour scales time: the paper's batch takes 20 minutes (§3.1).
const batchesPerHour = 3

// NewFigure7Cmd returns the command figure7.
func NewFigure7Cmd(s *cli.Streams) *cobra.Command {
	o := &figure7Options{streams: s}
	cmd := &cobra.Command{
		Use:   "figure7",
		Short: "Measure the paper's Figure 7: clustering delay by crawl rate",
		Long: `Measure the paper's Figure 7 in miniature: how long after its crawl a document is
clustered by three clustering keys. An observer does this incrementally; batches without
transactions read the whole repository and write all clusters, again and again. The
command raises the crawl rate until the observers' backlog grows without bound.

The paper's hour is scaled: its batch takes 20 minutes, so an hour is three batches
over the repository, as measured here.

JSON fields: documents, batch_seconds (over the repository, without a crawl),
hour_seconds, saturation_per_second and saturation_percent_per_hour (the highest rate
that the observers sustained), and points with kind (incremental or batch),
documents_per_second, percent_per_hour, p5_ms, p50_ms, p95_ms, sustained, and
backlog_growth_per_second.`,
		Example: `  lab bench observers figure7`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.rates, err = rig.Numbers("rates", o.ratesFlag, 1, 1_000_000); err != nil {
				return err
			}
			if o.documents < 100 || o.documents > 1_000_000 {
				return cli.Usagef("--documents %d: it has to be from 100 to 1000000", o.documents)
			}
			if o.workers < 1 || o.workers > 32 {
				return cli.Usagef("--workers %d: it has to be from 1 to 32", o.workers)
			}
			if err := rig.CheckDuration("duration", o.duration); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.documents, "documents", 20_000, "documents in the repository")
	f.StringVar(&o.ratesFlag, "rates", "5,10,20,40,80,160,240,320,480,640", "rates of the crawl, in documents a second, separated by commas")
	f.DurationVar(&o.duration, "duration", 8*time.Second, "how long to crawl at each rate")
	f.IntVar(&o.workers, "workers", 2, "worker processes, which also crawl")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.Table, cli.JSON)
	return cmd
}

// A figure7Report is what lab bench observers figure7 prints.
type figure7Report struct {
	Documents  int     `json:"documents"`
	Batch      float64 `json:"batch_seconds"`
	Hour       float64 `json:"hour_seconds"`
	Saturation float64 `json:"saturation_per_second"`
	Percent    float64 `json:"saturation_percent_per_hour"`
	CPUs       int     `json:"cpus"`
	Go         string  `json:"go"`
	Points     []point `json:"points"`
}

// The kinds of points.
const (
	incremental = "incremental"
	batched     = "batch"
)

// A point is one rate, incremental or in batches, with the quantiles of the delays.
type point struct {
	Kind    string  `json:"kind"`
	Rate    float64 `json:"documents_per_second"`
	Percent float64 `json:"percent_per_hour"`
	rig.Quantiles
	// Sustained means that the backlog did not grow without bound. If it grew, the
	// delays would grow with the duration of the measurement.
	Sustained bool    `json:"sustained"`
	Growth    float64 `json:"backlog_growth_per_second"`
}

func (o *figure7Options) run(ctx context.Context) error {
	r := figure7Report{Documents: o.documents, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	rig.Progress(o.streams, "a batch over the repository")
	alone, err := o.batch(ctx, 0)
	if err != nil {
		return err
	}
	var took []time.Duration
	for _, b := range alone {
		took = append(took, time.Duration(b.Ended-b.Began))
	}
	slices.Sort(took)
	r.Batch = took[len(took)/2].Seconds()
	r.Hour = batchesPerHour * r.Batch
	percent := func(rate float64) float64 { return 100 * rate * r.Hour / float64(o.documents) }
	beyond := 0
	for _, rate := range o.rates {
		rate := float64(rate)
		if beyond < 2 { // measure two points with a growing backlog
			rig.Progress(o.streams, "incremental, %g documents a second", rate)
			p, err := o.incremental(ctx, rate)
			if err != nil {
				return err
			}
			p.Percent = percent(rate)
			r.Points = append(r.Points, p)
			if p.Sustained {
				r.Saturation = max(r.Saturation, rate)
			} else {
				r.Saturation = max(r.Saturation, rate-p.Growth)
				beyond++
			}
		}
		rig.Progress(o.streams, "batch, %g documents a second", rate)
		batches, err := o.batch(ctx, rate)
		if err != nil {
			return err
		}
		r.Points = append(r.Points, point{Kind: batched, Rate: rate, Percent: percent(rate), Quantiles: batchDelays(batches), Sustained: true})
	}
	r.Percent = percent(r.Saturation)
	return cli.Print(o.streams.Out, o.format, r, r.text)
}

// batch clusters in batches.
func (o *figure7Options) batch(ctx context.Context, rate float64) (batches []rig.Batch, err error) {
	r, err := rig.Start(ctx, o.profiles)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := rig.SetUp(ctx, r, o.documents, rig.RunOrder{Observer: "cluster"}); err != nil {
		return nil, err
	}
	if err := r.Add(ctx, 1); err != nil {
		return nil, err
	}
	duration := o.duration
	if rate == 0 {
		duration = 0
	}
	a, err := rig.Ask(r.Workers[0], rig.Order{Do: "batch", Batch: rig.BatchOrder{Documents: o.documents, Rate: rate, Duration: duration, Runs: 3}})
	return a.Batches, err
}

// batchDelays returns the delays of all documents that batches have clustered. The
// first batch has none.
func batchDelays(batches []rig.Batch) rig.Quantiles {
	var all []time.Duration
	for _, b := range batches {
		for _, due := range b.Dues {
			all = append(all, time.Duration(b.Ended-due))
		}
	}
	return rig.NewQuantiles(all)
}

// incremental clusters by an observer. The workers themselves crawl documents, so that
// a worker finds a document by a hint or by scanning.
func (o *figure7Options) incremental(ctx context.Context, rate float64) (p point, err error) {
	r, err := rig.Start(ctx, o.profiles)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	job := rig.RunOrder{Observer: "cluster", Hints: true}
	if err := rig.SetUp(ctx, r, o.documents, job); err != nil {
		return p, err
	}
	if err := r.Add(ctx, o.workers); err != nil {
		return p, err
	}
	if _, err := r.All(func(int) rig.Order { return rig.Order{Do: "run", Run: job} }); err != nil {
		return p, err
	}
	count := max(int(rate*o.duration.Seconds()), 1)
	begin := time.Now().Add(500 * time.Millisecond)
	if _, err := r.All(func(i int) rig.Order {
		return rig.Order{Do: "load", Load: rig.LoadOrder{What: "crawl", Documents: o.documents, Count: count, Rate: rate, Start: begin.UnixNano(), Index: i, Of: o.workers}}
	}); err != nil {
		return p, err
	}
	growth, backlog, err := o.watch(ctx, r, begin, rate, count)
	if err != nil {
		return p, err
	}
	sum, err := r.StopAll()
	if err != nil {
		return p, err
	}
	clustered := map[string]int64{}
	for _, d := range sum.Done {
		clustered[d.Row] = d.At
	}
	var all []time.Duration
	for i := range count {
		at, ok := clustered[rig.RowOf(o.documents+i)]
		if !ok {
			at = time.Now().UnixNano() // not clustered yet
		}
		all = append(all, time.Duration(at-rig.DueAt(begin.UnixNano(), rate, i).UnixNano()))
	}
	return point{Kind: incremental, Rate: rate, Quantiles: rig.NewQuantiles(all), Growth: growth, Sustained: growth < rate/20 || backlog < rate}, nil
}

// watch waits until all documents are clustered, but not longer than twice the time in
// which they arrived. It returns how fast the backlog grew in the second half of that
// time, and how large it was at the end. A backlog of less than one second's documents
// counts as none.
func (o *figure7Options) watch(ctx context.Context, r *rig.Run, begin time.Time, rate float64, count int) (growth, backlog float64, err error) {
	end := begin.Add(o.duration)
	half := begin.Add(o.duration / 2)
	type mark struct {
		at      time.Time
		backlog float64
	}
	var first, last mark
	err = r.Await(ctx, o.duration+time.Minute, func(_, committed int) bool {
		now := time.Now()
		m := mark{now, min(rate*now.Sub(begin).Seconds(), float64(count)) - float64(committed)}
		switch {
		case now.Before(half):
		case first.at.IsZero():
			first = m
		case now.Before(end):
			last = m
		}
		return committed >= count || now.After(end.Add(o.duration))
	})
	if last.at.After(first.at) {
		growth = max(0, (last.backlog-first.backlog)/last.at.Sub(first.at).Seconds())
	}
	return growth, last.backlog, err
}

func (r figure7Report) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "CRAWLED/s", "%/HOUR", "CLUSTERED BY", "P5 ms", "P50 ms", "P95 ms", "BACKLOG")
	for _, p := range r.Points {
		backlog := ""
		if !p.Sustained {
			backlog = "grows by " + cli.Fixed(p.Growth, 0) + "/s"
		}
		cli.WriteRow(t, cli.Fixed(p.Rate, 0), cli.Fixed(p.Percent, 2), p.Kind, cli.Fixed(p.P5, 0), cli.Fixed(p.P50, 0), cli.Fixed(p.P95, 0), backlog)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d documents; a batch over them takes %.2f s, so an hour is %.2f s; the observers work off %.0f documents a second, %.2f %% an hour (%d CPUs, %s)\n",
		r.Documents, r.Batch, r.Hour, r.Saturation, r.Percent, r.CPUs, r.Go)
	return err
}
