package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type tripsOptions struct {
	streams *cli.Streams
	format  cli.Format
}

func newTripsCmd(s *cli.Streams) *cobra.Command {
	o := &tripsOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "trips",
		Short: "Count the round trips and bytes of transactions exactly",
		Long: `Count every request of single transactions at the client's connection: all of them, and
those of the critical path, which are the sequential ones before the caller has the
answer. Bytes are those of messages, without those that gRPC and HTTP add. The command
holds answers back until no other request can begin, so that the time each request
takes does not matter. It repeats each transaction until its fewest round trips came
twice.

The JSON fields critical and in_all have the requests by protocol step: oracle, read,
prewrite, commit, secondaries. Requests only in in_all were made in the background.`,
		Example: `  lab bench trips -o json`,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A tripsReport is what lab bench trips prints.
type tripsReport struct {
	Lines []tripsLine `json:"lines"` // one for each kind of transaction and oracle
}

// A tripsLine is one kind of transaction.
type tripsLine struct {
	Name     string         `json:"name"`           // of the kind
	What     string         `json:"what"`           // the kind in words
	Oracle   string         `json:"oracle"`         // direct or served
	Critical int            `json:"round_trips"`    // on the critical path
	Requests int            `json:"requests"`       // all requests, including the oracle's and those of the background
	Bigtable int            `json:"to_bigtable"`    // requests to Bigtable; those to a served oracle are not
	Sent     int            `json:"bytes_sent"`     // of the messages
	Received int            `json:"bytes_received"` // of the messages
	Before   map[string]int `json:"critical"`       // requests sent before the caller had the answer, by protocol step
	Steps    map[string]int `json:"in_all"`         // requests by protocol step
}

// A tripsKind is a kind of transaction.
type tripsKind struct {
	name, what string
	do         func(ctx context.Context, c *txn.Client, n int) error
}

// valueBytes is the length of the values.
const valueBytes = 100

// tripsKinds are the kinds of transactions. capacity.Kind has the same kinds by name.
func tripsKinds() []tripsKind {
	set := func(tables []string, rows, columns int) func(context.Context, *txn.Client, int) error {
		return func(ctx context.Context, c *txn.Client, n int) error {
			_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				for _, table := range tables {
					for i := range rows {
						for q := range columns {
							tx.Table(table).Set(rig.KeyOf(n*rows+i), rig.Family, rig.ColumnOf(q), make([]byte, valueBytes))
						}
					}
				}
				return nil
			})
			return err
		}
	}
	read := func(rs func(n int) bigtable.RowSet) func(context.Context, *txn.Client, int) error {
		return func(ctx context.Context, c *txn.Client, n int) error {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			for _, err := range s.Table("a").ReadRows(ctx, rs(n)) {
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	// change reads rows, together or one after the other, and writes them.
	change := func(rows int, batched bool) func(context.Context, *txn.Client, int) error {
		return func(ctx context.Context, c *txn.Client, n int) error {
			_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
				a := tx.Table("a")
				keys := make(bigtable.RowList, rows)
				for i := range keys {
					keys[i] = rig.KeyOf(n*rows + i)
				}
				if batched {
					for _, err := range a.ReadRows(ctx, keys) {
						if err != nil {
							return err
						}
					}
				}
				for _, key := range keys {
					if !batched {
						if _, _, err := a.Get(ctx, key, rig.Family, rig.ColumnOf(0)); err != nil {
							return err
						}
					}
					a.Set(key, rig.Family, rig.ColumnOf(0), make([]byte, valueBytes))
				}
				return nil
			})
			return err
		}
	}
	return []tripsKind{
		{"read", "read of one cell in a snapshot of its own", func(ctx context.Context, c *txn.Client, n int) error {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			_, _, err = s.Table("a").Get(ctx, rig.KeyOf(n), rig.Family, rig.ColumnOf(0))
			return err
		}},
		{"read_stale", "read of one cell in a snapshot that may be a minute old", func(ctx context.Context, c *txn.Client, n int) error {
			s, err := c.Snapshot(ctx, txn.MaxStaleness(time.Minute))
			if err != nil {
				return err
			}
			_, _, err = s.Table("a").Get(ctx, rig.KeyOf(n), rig.Family, rig.ColumnOf(0))
			return err
		}},
		{"latest", "read of the latest state of one cell", func(ctx context.Context, c *txn.Client, n int) error {
			_, _, err := c.Latest("a").Get(ctx, rig.KeyOf(n), rig.Family, rig.ColumnOf(0))
			return err
		}},
		{"read100", "read of a list of 100 rows", read(func(int) bigtable.RowSet {
			keys := make(bigtable.RowList, 100)
			for i := range keys {
				keys[i] = rig.KeyOf(i)
			}
			return keys
		})},
		{"scan1000", "scan of 1000 rows", read(func(int) bigtable.RowSet { return bigtable.NewRange(rig.KeyOf(0), rig.KeyOf(1000)) })},
		{"write", "write of one cell", set([]string{"a"}, 1, 1)},
		{"write10columns", "write of ten columns of one row", set([]string{"a"}, 1, 10)},
		{"write2", "write of two rows", set([]string{"a"}, 2, 1)},
		{"write10", "write of ten rows", set([]string{"a"}, 10, 1)},
		{"write100", "write of 100 rows", set([]string{"a"}, 100, 1)},
		{"write2tables", "write of one row in each of two tables", set([]string{"a", "b"}, 1, 1)},
		{"change", "read of a cell, then its write", change(1, false)},
		{"transfer", "reads of two rows, one after the other, then their writes", change(2, false)},
		{"transfer_batched", "read of two rows at once, then their writes", change(2, true)},
	}
}

func (o *tripsOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *tripsOptions) report(ctx context.Context) (rep tripsReport, err error) {
	rep = tripsReport{Lines: []tripsLine{}}
	for _, served := range []bool{false, true} {
		lines, err := countTrips(ctx, served)
		if err != nil {
			return rep, err
		}
		rep.Lines = append(rep.Lines, lines...)
	}
	return rep, nil
}

// countTrips counts all kinds of transactions.
func countTrips(ctx context.Context, served bool) (lines []tripsLine, err error) {
	with := shared{served: served}
	r, err := with.openAll(ctx, 0, rig.TableSpec{Name: "a", Rows: 2000, Columns: 1, Bytes: valueBytes}, rig.TableSpec{Name: "b", Rows: 10, Columns: 1, Bytes: valueBytes})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	rec := &recorder{}
	rec.reset()
	conn, err := txntest.Dial(r.Address, rec.dialOptions()...)
	if err != nil {
		return nil, err
	}
	bt, adminClient, err := txntest.Open(ctx, conn, rig.Project, rig.Instance)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	defer func() { _, _, _ = bt.Close(), adminClient.Close(), conn.Close() }()
	// No periodic requests of the client may be counted.
	cfg := txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}
	if served {
		oracle, err := tso.NewClient(tso.ClientConfig{Addresses: []string{r.Served}, DialOptions: rec.dialOptions()})
		if err != nil {
			return nil, err
		}
		defer func() { _ = oracle.Close() }()
		cfg.Oracle = oracle
	}
	client, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()
	for _, kind := range tripsKinds() {
		t, err := fewestTrips(ctx, rec, client, kind)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.what, err)
		}
		line := tripsLine{Name: kind.name, What: kind.what, Oracle: with.oracleMode(), Critical: t.critical, Requests: t.requests, Bigtable: t.requests,
			Sent: t.sent, Received: t.received, Before: t.criticalSet, Steps: t.steps}
		if served {
			line.Bigtable -= t.steps[string(txntest.StepOracle)]
		}
		lines = append(lines, line)
	}
	return lines, r.Check(ctx, "a", "b")
}

// fewestTrips repeats a transaction until its fewest round trips came twice. A process
// that is stopped for a while makes more of them, never fewer, because a request that
// needs an answer cannot begin before.
func fewestTrips(ctx context.Context, r *recorder, client *txn.Client, kind tripsKind) (trail, error) {
	var best trail
	for n := range 20 {
		r.reset()
		if err := kind.do(ctx, client, n); err != nil {
			return best, err
		}
		r.answered()
		for quiet := 0; quiet < 5; quiet++ { // the background may begin a request soon
			if client.Stats().BackgroundCells > 0 || !r.idle() {
				quiet = 0
			}
			if err := rig.Pause(ctx, time.Millisecond); err != nil {
				return best, err
			}
		}
		t := r.take()
		switch {
		case n == 0: // the first run warms up
		case n > 1 && t.equal(best):
			return t, nil
		case n == 1 || t.critical < best.critical || t.critical == best.critical && t.requests < best.requests:
			best = t
		}
	}
	return best, errors.New("the requests of the transaction differ each time")
}

// stepsText lists steps in the order of the protocol.
func stepsText(steps map[string]int) string {
	order := []txntest.Step{txntest.StepOracle, txntest.StepRead, txntest.StepPrewrite, txntest.StepCommit, txntest.StepSecondaries}
	var parts []string
	left := maps.Clone(steps)
	for _, s := range order {
		if n := left[string(s)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
		delete(left, string(s))
	}
	for _, s := range slices.Sorted(maps.Keys(left)) {
		parts = append(parts, fmt.Sprintf("%d %s", left[s], s))
	}
	return strings.Join(parts, ", ")
}

func (r tripsReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "ORACLE", "TRANSACTION", "ROUND TRIPS", "REQUESTS", "SENT", "RECEIVED", "REQUESTS BY STEP")
	for _, l := range r.Lines {
		cli.WriteRow(t, l.Oracle, l.What, strconv.Itoa(l.Critical), strconv.Itoa(l.Requests), strconv.Itoa(l.Sent), strconv.Itoa(l.Received), stepsText(l.Steps))
	}
	return t.Flush()
}
