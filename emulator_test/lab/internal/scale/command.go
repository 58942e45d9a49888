package scale

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type options struct {
	streams *cli.Streams
	only    string
	small   bool
	docs    string
	format  cli.Format
}

// NewCmd returns the command scale.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{streams: s}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure a deployment of production size on a model of a cluster",
		Long: `Measure a deployment of 10 TB, 200 tables, 500 clients, 10,000 commits a second and 100
workers on a model of a Bigtable cluster, in virtual time: what the model is, and which of
its numbers are assumed, is in docs/design/models-and-tests.md. The command compares each
number with its goal.

With --docs, the command also writes DIR/scale.json, and the tables of DIR/performance.md
between the marks "measured: growth". What --only leaves out stays as it is, unless it is of
a deployment of another size.

Exit status 4: a goal is missed.`,
		Example: `  lab scale
  lab scale --small --only 'oracle|idle'
  lab scale --docs docs`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.only, "only", "", "regular expression of the measurements to make (default: all)")
	f.BoolVar(&o.small, "small", false, "measure 1 TB, 20 tables, 50 clients, 1,000 commits a second")
	f.StringVar(&o.docs, "docs", "", "write the tables of performance.md, which is in this folder")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A report is what lab scale prints.
type report struct {
	Machine rig.Machine `json:"machine"` // where and when
	Size    Size        `json:"size"`    // of the deployment
	Results
}

func (o *options) run(ctx context.Context) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return cli.Usagef("--only %s: %v", o.only, err)
	}
	rep := report{Machine: rig.ThisMachine(), Size: Full}
	if o.small {
		rep.Size = Small
	}
	// Most of the memory is the emulator's data, which stays. By default Go would search it for
	// garbage in a quarter of the processor time.
	debug.SetGCPercent(300)
	results := make(chan Results)
	out := os.Stdout
	os.Stdout = os.Stderr // for what package testing prints
	go inTest(func(t *testing.T) { results <- Measure(t, rep.Size, only) })
	select {
	case rep.Results = <-results:
	case <-ctx.Done():
		return ctx.Err()
	}
	os.Stdout = out
	if err := cli.Print(o.streams.Out, o.format, rep, rep.text); err != nil {
		return err
	}
	if o.docs != "" {
		if err := rep.write(o.docs); err != nil {
			return err
		}
	}
	missed := 0
	for _, r := range rep.Rows {
		if !r.Met {
			missed++
		}
	}
	if missed > 0 {
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%d of %d goals are missed", missed, len(rep.Rows))}
	}
	if len(rep.Rows) == 0 {
		return errors.New("nothing was measured")
	}
	return nil
}

// inTest calls f in a test, because virtual time exists only there. It does not return: after
// the test, package testing would exit.
func inTest(f func(t *testing.T)) {
	testing.Init()
	_ = flag.Set("test.v", "true")  // a known flag
	_ = flag.CommandLine.Parse(nil) // otherwise package testing parses the arguments of the command
	test := testing.InternalTest{Name: "scale", F: func(t *testing.T) { f(t); select {} }}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{test}, nil, nil)
}

func (r report) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "", "MEASURED", "GOAL", "UNIT", "", "NOTE")
	for _, row := range r.Rows {
		sign, met := "≤", "met"
		if row.AtLeast {
			sign = "≥"
		}
		if !row.Met {
			met = "missed"
		}
		cli.WriteRow(t, row.Row, cli.Fixed(row.Measured, 3), sign+" "+cli.Fixed(row.Goal, 2), row.Unit, met, row.Note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	virtual, cpu := 0.0, 0.0
	for _, ran := range r.Ran {
		virtual, cpu = virtual+ran.Virtual, cpu+ran.CPU
	}
	_, err := fmt.Fprintf(w, "\n%d measurements: %.1f h of virtual time, %.1f min of processor time. %s\n", len(r.Ran), virtual/3600, cpu/60, r.Machine)
	return err
}
