package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/txn"
)

type brokerageOptions struct {
	streams   *cli.Streams
	customers int
	flag      string
	callers   []int
	duration  time.Duration
	served    bool
	profiles  string
	format    cli.Format
}

func newBrokerageCmd(s *cli.Streams) *cobra.Command {
	o := &brokerageOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "brokerage",
		Short: "Measure the paper's brokerage workload in miniature",
		Long: `Measure a workload like that of the paper (§3.3, after TPC-E), and print transactions
a second for each number of callers. Customers of a brokerage place orders, the market
executes them, and customers look at their holdings. Indexes are tables of their own,
which the same transactions keep up to date. As in the paper, there are no commissions
of brokers.

  place    40 %  writes an order, and an index entry of its customer
  execute  40 %  reads the oldest pending order of a customer; writes the order's
                 status, a trade, the customer's holding, and entries of two indexes
  look     20 %  reads a customer's holdings and pending orders, and writes nothing

At the end, the command compares the tables in one snapshot: every index entry and
every trade has its order, and holdings are the sums of trades. It also runs the
consistency check.`,
		Example: `  lab bench brokerage --callers 16,64 --served`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.callers, err = rig.Numbers("callers", o.flag, 1, 4096); err != nil {
				return err
			}
			if err := errors.Join(rig.Between("customers", o.customers, 1, 1_000_000), rig.CheckDuration("duration", o.duration)); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.customers, "customers", 1000, "number of customers")
	f.StringVar(&o.flag, "callers", "1,2,4,8,16,32,64", "numbers of concurrent callers, separated by commas")
	f.DurationVar(&o.duration, "duration", 2*time.Second, "how long to measure each number of callers")
	f.BoolVar(&o.served, "served", false, "timestamps from a served oracle, a process of its own, instead of direct mode")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A brokerageReport is what lab bench brokerage prints.
type brokerageReport struct {
	Machine   rig.Machine     `json:"machine"`   // where and when
	Customers int             `json:"customers"` // of the brokerage
	Orders    int             `json:"orders"`    // placed in all
	Trades    int             `json:"trades"`    // executed in all
	Lines     []brokerageLine `json:"lines"`     // one for each number of callers
}

// A brokerageLine is the result for one number of callers.
type brokerageLine struct {
	Callers   int     `json:"callers"`                 // concurrent
	Rate      float64 `json:"transactions_per_second"` // including those that only read
	Conflicts int64   `json:"conflicts"`               // attempts that failed because of a conflict
	P50       float64 `json:"p50_ms"`                  // of a transaction, with all its attempts
	P99       float64 `json:"p99_ms"`                  // 1 % of the transactions are slower
	CPU       float64 `json:"client_us"`               // CPU time of the client process for a transaction
	Emulator  float64 `json:"emulator_us"`             // that of the emulator
	Requests  float64 `json:"requests"`                // to Bigtable for a transaction
}

func (o *brokerageOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *brokerageOptions) report(ctx context.Context) (rep brokerageReport, err error) {
	rep = brokerageReport{Machine: rig.ThisMachine(), Customers: o.customers, Lines: []brokerageLine{}}
	var specs []rig.TableSpec
	for _, name := range rig.BrokerageTables {
		specs = append(specs, rig.TableSpec{Name: name})
	}
	with := shared{streams: o.streams, served: o.served, profiles: o.profiles}
	r, err := with.openAll(ctx, 1, specs...)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for n, callers := range o.callers {
		rig.Progress(o.streams, "%d callers", callers)
		t := rig.Task{Op: "brokerage", Rows: o.customers, Callers: callers, Duration: o.duration, First: n}
		m, err := r.Measure(ctx, 0, t)
		if err != nil {
			return rep, err
		}
		rep.Lines = append(rep.Lines, brokerageLine{
			Callers: callers, Rate: m.PerSecond(), Conflicts: m.Stats.Conflicts, P50: rig.MS(m.P50), P99: rig.MS(m.P99), CPU: m.Micros(m.CPU), Emulator: m.Micros(m.Emulator),
			Requests: float64(m.RPCs.All()) / float64(max(m.Ops, 1)),
		})
	}
	if err := r.WithClient(ctx, func(c *txn.Client) error {
		rep.Orders, rep.Trades, err = audit(ctx, c)
		return err
	}); err != nil {
		return rep, err
	}
	if err := r.Check(ctx, rig.BrokerageTables...); err != nil {
		return rep, err
	}
	return rep, nil
}

// audit compares the tables with each other in one snapshot.
func audit(ctx context.Context, c *txn.Client) (orders, trades int, err error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return 0, 0, err
	}
	pending, executed, holdings := map[string]bool{}, map[string]bool{}, map[string]int64{}
	each := func(table, column string, f func(key string, value []byte) error) error {
		for row, err := range s.Table(table).ReadRows(ctx, nil, txn.Columns(txn.Column{Family: rig.Family, Qualifier: column})) {
			if err == nil {
				err = f(row.Key(), row[rig.Family][0].Value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	// Each entry is deleted when its counterpart is found. In the end none may be left.
	find := func(in map[string]bool, key, what string) error {
		if !in[key] {
			return fmt.Errorf("the tables disagree: %s %s has no counterpart", what, key)
		}
		delete(in, key)
		return nil
	}
	status := func(key string, value []byte) error {
		orders++
		pending[key], executed[key] = string(value) == "pending", string(value) == "executed"
		return nil
	}
	indexed := map[string]bool{}
	err = errors.Join(each(rig.OrdersTable, rig.StatusColumn, status),
		each(rig.TradesTable, rig.OrderColumn, func(key string, value []byte) error {
			trades++
			customer, security, quantity, err := rig.OrderOf(value)
			holdings[customer+"/"+security] += quantity
			indexed[security+"/"+key] = true
			return errors.Join(err, find(executed, key, "trade"))
		}),
		each(rig.PendingTable, rig.OrderColumn, func(key string, _ []byte) error {
			_, order, _ := strings.Cut(key, "/")
			return find(pending, order, "pending order")
		}),
		each(rig.HistoryTable, rig.OrderColumn, func(key string, _ []byte) error { return find(indexed, key, "history entry") }),
		each(rig.HoldingsTable, rig.QuantityColumn, func(key string, value []byte) error {
			if holdings[key] != rig.AmountOf(value) {
				return fmt.Errorf("the tables disagree: holding %s is %d, but its trades add up to %d", key, rig.AmountOf(value), holdings[key])
			}
			delete(holdings, key)
			return nil
		}))
	for _, left := range []map[string]bool{pending, executed, indexed} {
		for key, there := range left {
			if there {
				err = errors.Join(err, fmt.Errorf("the tables disagree: the counterpart of %s is missing", key))
			}
		}
	}
	if len(holdings) > 0 {
		err = errors.Join(err, fmt.Errorf("the tables disagree: %d holdings are missing", len(holdings)))
	}
	return orders, trades, err
}

func (r brokerageReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "CALLERS", "TRANSACTIONS/s", "CONFLICTS", "P50 ms", "P99 ms", "CLIENT µs", "EMULATOR µs", "REQUESTS")
	for _, l := range r.Lines {
		cli.WriteRow(t, strconv.Itoa(l.Callers), cli.Fixed(l.Rate, 0), strconv.FormatInt(l.Conflicts, 10), cli.Fixed(l.P50, 1), cli.Fixed(l.P99, 1), cli.Fixed(l.CPU, 0), cli.Fixed(l.Emulator, 0), cli.Fixed(l.Requests, 1))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d customers, %d orders, %d trades; indexes, trades and holdings agree, and the checks found nothing\n%s\n", r.Customers, r.Orders, r.Trades, r.Machine)
	return err
}
