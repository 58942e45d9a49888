package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

type contentionOptions struct {
	streams  *cli.Streams
	flag     string
	accounts []int
	callers  int
	clients  int
	duration time.Duration
	latches  string
	served   bool
	profiles string
	format   cli.Format
}

func newContentionCmd(s *cli.Streams) *cobra.Command {
	o := &contentionOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "contention",
		Short: "Measure conflicts: a bank with few or many accounts",
		Long: `Measure what conflicts cost: callers transfer money between two random accounts of a
bank. With fewer accounts, more transfers conflict. At the end the sum of all accounts
must be unchanged, and the consistency check must find nothing.

Wasted work is the share of attempts that did not commit. Fairness is the latency of
the slowest 1 % of the transfers, including retries, divided by the median latency.

Each bank is measured with latches and without. Latches are the queues in which
transactions of one client wait for the cells that they write, together with the
client's memory of recent commits. They help against conflicts within a process, not
between processes.`,
		Example: `  lab bench contention --accounts 10,1000 --latches both`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.accounts, err = rig.Numbers("accounts", o.flag, 2, 1_000_000); err != nil {
				return err
			}
			if err := errors.Join(rig.Between("callers", o.callers, 1, 4096), rig.Between("processes", o.clients, 1, 32), rig.CheckDuration("duration", o.duration)); err != nil {
				return err
			}
			if o.latches != "on" && o.latches != "off" && o.latches != "both" {
				return cli.Usagef("--latches %s: it has to be on, off or both", o.latches)
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.flag, "accounts", "10,100,1000,10000,100000", "numbers of accounts, separated by commas")
	f.IntVar(&o.callers, "callers", 16, "concurrent callers in each process")
	f.IntVar(&o.clients, "processes", 2, "client processes")
	f.DurationVar(&o.duration, "duration", 3*time.Second, "how long to measure each bank")
	f.StringVar(&o.latches, "latches", "both", "on, off or both: use latches (txn.Config.LatchWait)")
	f.BoolVar(&o.served, "served", false, "timestamps from a served oracle, a process of its own, instead of direct mode")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A contentionReport is what lab bench contention prints.
type contentionReport struct {
	Machine   rig.Machine      `json:"machine"`   // where and when
	Processes int              `json:"processes"` // client processes
	Callers   int              `json:"callers"`   // in each process
	Lines     []contentionLine `json:"lines"`     // one for each bank
}

// A contentionLine is the result for one bank.
type contentionLine struct {
	Accounts  int     `json:"accounts"`           // of the bank
	Latches   bool    `json:"latches"`            // were latches used
	Rate      float64 `json:"commits_per_second"` // transfers
	Commits   int64   `json:"commits"`            // transfers that committed
	Conflicts int64   `json:"conflicts"`          // attempts that failed with one
	Attempts  int64   `json:"attempts"`           // transactions begun
	Wasted    float64 `json:"wasted_share"`       // share of the attempts that did not commit
	P50       float64 `json:"p50_ms"`             // of a transfer, with all its attempts and waits
	P99       float64 `json:"p99_ms"`             // the slowest hundredth begins here
	Max       float64 `json:"max_ms"`             // the slowest
	Fairness  float64 `json:"p99_over_median"`    // fairness
	CPU       float64 `json:"client_us"`          // CPU time of the client processes for a commit
	Emulator  float64 `json:"emulator_us"`        // that of the emulator
}

const (
	bankTable    = "bank"
	startBalance = 1000
)

func (o *contentionOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *contentionOptions) report(ctx context.Context) (rep contentionReport, err error) {
	rep = contentionReport{Machine: rig.ThisMachine(), Processes: o.clients, Callers: o.callers, Lines: []contentionLine{}}
	for _, n := range o.accounts {
		for _, latches := range []bool{true, false} {
			if !latches && o.latches == "on" || latches && o.latches == "off" {
				continue
			}
			rig.Progress(o.streams, "%d accounts, latches %v", n, latches)
			line, err := o.line(ctx, n, latches)
			if err != nil {
				return rep, err
			}
			rep.Lines = append(rep.Lines, line)
		}
	}
	return rep, nil
}

func (o *contentionOptions) line(ctx context.Context, accounts int, latches bool) (line contentionLine, err error) {
	bank := shared{streams: o.streams, served: o.served, profiles: o.profiles}
	r, err := bank.openAll(ctx, 0, rig.TableSpec{Name: bankTable, Columns: 1})
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.WithClient(ctx, func(c *txn.Client) error {
		_, err := admin.BulkLoad(ctx, c, bankTable, balances(accounts), admin.BulkConfig{Idle: true})
		return err
	}); err != nil {
		return line, err
	}
	r.NoLatches = !latches
	if err := r.Add(ctx, o.clients); err != nil {
		return line, err
	}
	before, err := r.EmulatorCPU()
	if err != nil {
		return line, err
	}
	t := rig.Task{Op: "transfer", Table: bankTable, Callers: o.callers, Rows: accounts, Duration: o.duration}
	answers, err := r.All(func(int) rig.Order { return rig.Order{Do: "measure", Task: t} })
	if err != nil {
		return line, errors.Join(ctx.Err(), err)
	}
	line.Accounts, line.Latches = accounts, latches
	var sum rig.Measured
	for _, a := range answers {
		m := a.Measured
		line.Commits += m.Stats.Committed
		line.Conflicts += m.Stats.Conflicts
		line.Attempts += m.Stats.Begun
		sum.Ops += m.Ops
		sum.CPU += m.CPU
		sum.Elapsed = max(sum.Elapsed, m.Elapsed)
		line.P50, line.P99, line.Max = line.P50+rig.MS(m.P50)/float64(o.clients), max(line.P99, rig.MS(m.P99)), max(line.Max, rig.MS(m.Max))
	}
	emulator, err := r.EmulatorCPU()
	if err != nil {
		return line, err
	}
	line.Rate, line.CPU, line.Emulator = sum.PerSecond(), sum.Micros(sum.CPU), sum.Micros(emulator-before)
	line.Wasted = 1 - float64(line.Commits)/float64(max(line.Attempts, 1))
	line.Fairness = line.P99 / max(line.P50, 1e-3)
	if err := checkSum(ctx, r, accounts); err != nil {
		return line, err
	}
	return line, r.Check(ctx, bankTable)
}

func balances(accounts int) iter.Seq2[admin.BulkRow, error] {
	return func(yield func(admin.BulkRow, error) bool) {
		for i := range accounts {
			if !yield(admin.BulkRow{Row: rig.KeyOf(i), Cells: []admin.BulkCell{{Family: rig.Family, Qualifier: rig.ColumnOf(0), Value: rig.Amount(startBalance)}}}, nil) {
				return
			}
		}
	}
}

// checkSum fails if the bank has not as much money as at the beginning.
func checkSum(ctx context.Context, r *rig.Run, accounts int) error {
	return r.WithClient(ctx, func(c *txn.Client) error {
		s, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		var all int64
		for row, err := range s.Table(bankTable).ReadRows(ctx, nil) {
			if err != nil {
				return err
			}
			for _, item := range row[rig.Family] {
				all += rig.AmountOf(item.Value)
			}
		}
		if want := int64(accounts) * startBalance; all != want {
			return fmt.Errorf("the bank has %d after the transfers, want %d as before", all, want)
		}
		return nil
	})
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func (r contentionReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "ACCOUNTS", "LATCHES", "COMMITS/s", "COMMITS", "CONFLICTS", "WASTED", "P50 ms", "P99 ms", "P99/P50", "CLIENT µs", "EMULATOR µs")
	for _, l := range r.Lines {
		cli.WriteRow(t, strconv.Itoa(l.Accounts), onOff(l.Latches), cli.Fixed(l.Rate, 0), strconv.FormatInt(l.Commits, 10), strconv.FormatInt(l.Conflicts, 10), cli.Fixed(100*l.Wasted, 1)+" %",
			cli.Fixed(l.P50, 1), cli.Fixed(l.P99, 1), cli.Fixed(l.Fairness, 1), cli.Fixed(l.CPU, 0), cli.Fixed(l.Emulator, 0))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d processes with %d callers each; the sums were kept and the checks found nothing\n%s\n", r.Processes, r.Callers, r.Machine)
	return err
}
