package observers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type throughputOptions struct {
	streams     *cli.Streams
	workersFlag string
	workers     []int
	rows        int
	changes     int
	work        time.Duration
	profiles    string
	format      cli.Format
}

// NewThroughputCmd returns the command throughput.
func NewThroughputCmd(s *cli.Streams) *cobra.Command {
	o := &throughputOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Measure how fast worker processes work off a backlog, and how much work they waste",
		Long: `Measure how fast worker processes work off a backlog that they find by scanning. The
lines differ in the number of workers, in whether they use advisory locks in the metadata
table, and in whether their scanners jump to another place when they find another worker.
A run is wasted if another worker has committed for the same change first (a lost race).

JSON fields: lines with workers, locks, teleport, seconds, changes_per_second,
lost_races, conflicts, vain_seconds (in runs that did not commit), vain_share of the
time in runs, looks (at cells without a pending change), left_to_others (cells that
another worker had locked), teleports, and requests_per_change to Bigtable.`,
		Example: `  lab bench observers throughput --workers 1,4 --changes 1000`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.workers, err = rig.Numbers("workers", o.workersFlag, 1, 32); err != nil {
				return err
			}
			if o.rows < 10 || o.rows > 1_000_000 {
				return cli.Usagef("--rows %d: it has to be from 10 to 1000000", o.rows)
			}
			if o.changes < 1 || o.changes > o.rows {
				return cli.Usagef("--changes %d: it has to be from 1 to --rows, which is %d", o.changes, o.rows)
			}
			if o.work < 0 || o.work > time.Minute {
				return cli.Usagef("--work %v: it has to be from 0 to 1m", o.work)
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.workersFlag, "workers", "1,2,4", "numbers of worker processes, separated by commas")
	f.IntVar(&o.rows, "rows", 10_000, "rows of the table")
	f.IntVar(&o.changes, "changes", 2000, "number of changes in the backlog")
	f.DurationVar(&o.work, "work", 0, "how long an observer works in addition to its reads and writes")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.Table, cli.JSON)
	return cmd
}

// A throughputReport is what lab bench observers throughput prints.
type throughputReport struct {
	Rows    int              `json:"rows"`
	Changes int              `json:"changes"`
	Work    float64          `json:"work_ms"`
	CPUs    int              `json:"cpus"`
	Go      string           `json:"go"`
	Lines   []throughputLine `json:"lines"`
}

// A throughputLine is one combination of workers, advisory locks and jumps.
type throughputLine struct {
	Workers   int     `json:"workers"`
	Locks     bool    `json:"locks"`
	Teleport  bool    `json:"teleport"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"changes_per_second"`
	LostRaces int64   `json:"lost_races"`
	Conflicts int64   `json:"conflicts"`
	Vain      float64 `json:"vain_seconds"` // in runs that lost a race or had a conflict
	VainShare float64 `json:"vain_share"`
	Looks     int64   `json:"looks"`
	Left      int64   `json:"left_to_others"`
	Teleports int64   `json:"teleports"`
	Requests  float64 `json:"requests_per_change"`
}

func (o *throughputOptions) run(ctx context.Context) error {
	r := throughputReport{Rows: o.rows, Changes: o.changes, Work: rig.MS(o.work), CPUs: runtime.NumCPU(), Go: runtime.Version(), Lines: []throughputLine{}}
	for _, workers := range o.workers {
		for _, locks := range []bool{true, false} {
			for _, teleport := range []bool{true, false} {
				if !teleport && workers == 1 {
					continue // a single worker does not find another one
				}
				rig.Progress(o.streams, "%s, locks %v, teleport %v", cli.Count(workers, "worker"), locks, teleport)
				line, err := o.line(ctx, workers, locks, teleport)
				if err != nil {
					return err
				}
				r.Lines = append(r.Lines, line)
			}
		}
	}
	return cli.Print(o.streams.Out, o.format, r, r.text)
}

func (o *throughputOptions) line(ctx context.Context, workers int, locks, teleport bool) (line throughputLine, err error) {
	r, err := rig.Start(ctx, o.profiles)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	job := rig.RunOrder{Observer: "copy", Locks: locks, NoTeleport: !teleport, Work: o.work}
	if err := rig.SetUp(ctx, r, o.rows, job); err != nil {
		return line, err
	}
	if err := r.Add(ctx, workers); err != nil {
		return line, err
	}
	if _, err := r.All(func(i int) rig.Order {
		return rig.Order{Do: "load", Load: rig.LoadOrder{What: "touch", Documents: o.rows, Count: o.changes, Index: i, Of: workers}}
	}); err != nil {
		return line, err
	}
	if err := r.Await(ctx, time.Minute, func(loaded, _ int) bool { return loaded >= o.changes }); err != nil {
		return line, err
	}
	began := time.Now()
	if _, err := r.All(func(int) rig.Order { return rig.Order{Do: "run", Run: job} }); err != nil {
		return line, err
	}
	if err := r.Await(ctx, time.Minute, func(_, committed int) bool { return committed >= o.changes }); err != nil {
		return line, err
	}
	sum, err := r.StopAll()
	if err != nil {
		return line, err
	}
	last := began.UnixNano()
	for _, d := range sum.Done {
		last = max(last, d.At)
	}
	elapsed := time.Duration(last - began.UnixNano())
	return throughputLine{
		Workers: workers, Locks: locks, Teleport: teleport,
		Seconds: elapsed.Seconds(), Rate: float64(o.changes) / elapsed.Seconds(),
		LostRaces: sum.Worker.LostRaces, Conflicts: sum.Worker.Conflicts, Vain: sum.Wasted.Seconds(),
		VainShare: sum.Wasted.Seconds() / (sum.Wasted + sum.Useful + sum.Idle).Seconds(),
		Looks:     sum.Worker.Acknowledged, Left: sum.Worker.Locked, Teleports: sum.Scanner.Teleports,
		Requests: float64(sum.RPCs.All()) / float64(o.changes),
	}, nil
}

func (r throughputReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "WORKERS", "LOCKS", "TELEPORT", "CHANGES/s", "LOST RACES", "CONFLICTS", "WASTED", "EMPTY LOOKS", "LEFT LOCKED", "TELEPORTS", "REQUESTS/CHANGE")
	yes := map[bool]string{true: "yes", false: "no"}
	for _, l := range r.Lines {
		cli.WriteRow(t, strconv.Itoa(l.Workers), yes[l.Locks], yes[l.Teleport], cli.Fixed(l.Rate, 0), strconv.FormatInt(l.LostRaces, 10), strconv.FormatInt(l.Conflicts, 10),
			cli.Fixed(l.Vain, 1)+" s, "+cli.Fixed(100*l.VainShare, 0)+" %", strconv.FormatInt(l.Looks, 10), strconv.FormatInt(l.Left, 10), strconv.FormatInt(l.Teleports, 10), cli.Fixed(l.Requests, 1))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d changes among %d rows, %g ms of work in each run (%d CPUs, %s)\n", r.Changes, r.Rows, r.Work, r.CPUs, r.Go)
	return err
}
