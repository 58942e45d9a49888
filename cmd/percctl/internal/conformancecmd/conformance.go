// Package conformancecmd is percctl conformance: does a Bigtable service keep what
// transactions rely on?
package conformancecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance/soak"
)

// junit is the output format that CI systems read.
const junit cli.Format = "junit"

type options struct {
	session.Options
	conformance.Config
	soak  time.Duration
	clean bool
	// denied is a file with the credentials of an account without permissions.
	denied string
}

// A Report is what both stages found.
type Report struct {
	conformance.Report
	Soak *soak.Report `json:"soak"` // the second stage; null if it did not run
}

// Removed is what --clean removes.
type Removed struct {
	Tables []string `json:"tables"` // scratch tables of conformance tests
}

// NewCmd returns the conformance command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Test whether a Bigtable service keeps what transactions rely on",
		Long: `Test whether a Bigtable service keeps what transactions rely on: Cloud Bigtable, an
emulator or another service. docs/assumptions.md says how to read the report, and
where the list of assumptions is.

The first stage sends single requests. The second one, named soak, runs transactions and an
observer while their clients fail: requests are lost, late or doubled, clients die or stand
still. Then it checks what transactions saw, and measures transactions against raw requests
of the service. It does not run if the service refuses conditional mutations.

The command makes scratch tables, sends requests to them, and removes them, also after an
interrupt. It touches no other table. First it prints how many requests and bytes it sends
at most, with an estimate of their price on Cloud Bigtable.

If the command is killed, tables whose names begin with percolator-conformance- may stay.
--clean removes such tables. It removes only tables that this command made.

For each assumption the report says kept, limit, broken or untested. For all that are not
kept it says what happened, what that means for transactions, and what to do. -o junit is
for CI systems.

` + cli.AsksFirst + `

Exit status 0: the service keeps everything. 4: it is safe, with known limits; emulators
have such limits. 6: transactions are not safe there. 1: something could not be tested.`,
		Example: `  percctl conformance
  percctl conformance --dry-run
  percctl conformance --only linearizable,conditional-atomic --duration 1m --concurrency 32
  percctl conformance --only soak --soak 10m
  percctl conformance --yes -o json > conformance.json
  percctl conformance --clean`,
		Args: cli.NoArgs,
	}
	cmd.RunE = o.Runs(session.Bare, o.run)
	o.Setup(cmd, s, 10*time.Minute)
	cli.FormatFlag(cmd, &o.Format, append(cli.ObjectFormats, junit)...)
	cli.Prints(cmd, cli.ObjectOf[Report](),
		cli.ObjectOf[conformance.Estimate]().If("with --dry-run"),
		cli.ObjectOf[Removed]().If("with --clean"))
	f := cmd.Flags()
	f.StringSliceVar(&o.Only, "only", nil, "ids of the assumptions to test, and soak for the second stage (default: all)")
	f.IntVar(&o.Concurrency, "concurrency", 8, "requests that a concurrent test sends at once")
	f.DurationVar(&o.Duration, "duration", 3*time.Second, "time that a concurrent test takes at most; a test of rare faults takes up to 20 times as long")
	f.DurationVar(&o.soak, "soak", 20*time.Second, "how long transactions run under faults in the second stage (0: not at all)")
	f.IntVar(&o.Requests, "requests", 4000, "maximum number of requests of a concurrent test; a test of rare faults sends up to 10 times as many")
	f.StringVar(&o.denied, "denied-creds", "", "file with the credentials of an account without permissions, to test how it is refused (default: not tested)")
	f.StringVar(&o.Table, "table", "", "name of the scratch table, and prefix of the other scratch tables; they must not exist (default: a random name)")
	f.BoolVar(&o.clean, "clean", false, "only remove scratch tables that killed runs left; stop other runs first")
	o.Consent.Add(cmd)
	cli.AtLeast(&o.Checks, "concurrency", &o.Concurrency, 2, "at least 2")
	cli.AtLeast(&o.Checks, "duration", &o.Duration, time.Millisecond, "positive")
	cli.AtLeast(&o.Checks, "requests", &o.Requests, 100, "at least 100")
	o.Require(func() error {
		o.choose()
		o.Dial = o.Connect.Dial
		if o.denied != "" {
			o.Denied = o.Connect.DialAs(o.denied)
		} else if slices.Contains(o.Only, "permission-code") {
			return cli.Usagef("--only permission-code needs an account without permissions: set --denied-creds")
		}
		if _, err := conformance.EstimateFor(o.Config); err != nil {
			return cli.Usagef("--only: %w; docs/reference/assumptions.md lists them", err)
		}
		return nil
	})
	cli.AtLeast(&o.Checks, "soak", &o.soak, 0, "positive, or 0")
	ids := []string{soak.Assumption.ID}
	for _, a := range conformance.All() {
		ids = append(ids, a.ID)
	}
	session.CompleteFlag(cmd, "only", cobra.FixedCompletions(ids, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// choose turns the second stage off if --only does not name it. What it needs of the first
// stage is always tested.
func (o *options) choose() {
	if len(o.Only) == 0 {
		return
	}
	if i := slices.Index(o.Only, soak.Assumption.ID); i >= 0 {
		o.Only[i] = conformance.SingleRow
	} else {
		o.soak = 0
	}
}

func (o *options) run(ctx context.Context, s *session.Session) error {
	if o.clean {
		return o.cleanUp(ctx, s)
	}
	e, err := conformance.EstimateFor(o.Config)
	if err != nil {
		return err
	}
	o.Table = e.Table
	if o.soak > 0 {
		e = e.Plus(soak.EstimateFor(soak.Config{Prefix: o.Table, Duration: o.soak}))
	}
	plan := func(w io.Writer) error { return planText(w, e, s.Where) }
	if yes, err := o.Ask(ctx, e, plan, "Make the tables and test?"); !yes || err != nil {
		return err
	}
	o.Progress = func(done, all int, id string) { s.Progress.Set("%d of %d tests done, now %s", done, all, id) }
	first, err := conformance.Run(ctx, s.Bigtable, s.Admin, o.Config)
	if first == nil {
		return err
	}
	r := &Report{Report: *first}
	if o.soak > 0 && slices.Contains(r.Kept, conformance.SingleRow) && err == nil {
		err = o.soakOn(ctx, s, r)
		if ctx.Err() != nil {
			return err
		}
	}
	s.Progress.End()
	for i := range r.Results {
		r.Results[i].Detail = cli.Line(r.Results[i].Detail)
	}
	return errors.Join(o.print(r), err, verdict(&r.Report, s.Connect.IsEmulator()))
}

// soakOn adds what the second stage finds.
func (o *options) soakOn(ctx context.Context, s *session.Session, r *Report) (err error) {
	r.Soak, err = soak.Run(ctx, s.Connect.Dial, soak.Config{
		Prefix: o.Table, Duration: o.soak, Progress: func(part string) { s.Progress.Set("soak: %s", part) },
	})
	result := conformance.Result{Assumption: soak.Assumption, State: conformance.Untested}
	switch {
	case r.Soak != nil:
		result = r.Soak.Result()
	case ctx.Err() != nil:
		return err
	default:
		result.Detail, err = err.Error(), nil
	}
	r.Add(result)
	r.Seconds += result.Seconds
	return err
}

func planText(w io.Writer, e conformance.Estimate, where string) error {
	_, err := fmt.Fprintf(w, `In %s: test %s in table %s
and tables with names that begin so, which are made for it and removed again. At most %d
requests with %.1f MB of keys and cells, in about %s. Cloud Bigtable needs about %.0f s of
one node for it, which costs $%.4f at list price; you pay for nodes whether they are busy or not.
`, where, cli.Count(e.Assumptions, "assumption"), e.Table, e.Requests, float64(e.Bytes)/1e6, cli.Duration(time.Duration(e.Seconds*float64(time.Second))+10*time.Second), e.NodeSeconds, e.Dollars)
	return err
}

func (o *options) print(r *Report) error {
	if o.Format == junit {
		return r.JUnit(o.Streams.Out)
	}
	style := cli.StyleFor(o.Streams.Out)
	return o.Print(r, func(w io.Writer) error { return reportText(w, r, style) })
}

func reportText(w io.Writer, r *Report, style cli.Style) error {
	t := cli.NewTable(w)
	for _, x := range r.Results {
		cli.WriteRow(t, string(x.State), x.ID, x.Title)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range r.Results {
		if x.State == conformance.Kept {
			continue
		}
		state := string(x.State)
		if x.State == conformance.Broken {
			state = style.Bad(state)
		}
		fmt.Fprintf(w, "\n%s: %s: %s\n", state, x.ID, x.Detail)
		if x.State != conformance.Untested {
			fmt.Fprintf(w, "  means  %s\n  do     %s\n", x.Breaks, x.Advice)
		}
	}
	fmt.Fprintln(w)
	t = cli.NewTable(w)
	cli.WriteRow(t, "REQUEST", "COUNT", "P50", "P99")
	for _, l := range r.Latencies {
		cli.WriteRow(t, l.Kind, strconv.Itoa(l.Count), cli.Fixed(l.Median, 2)+" ms", cli.Fixed(l.P99, 2)+" ms")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if m := r.RemovedCells; m != nil {
		fmt.Fprintf(w, "\nA removed cell makes a read of its row %.3f µs slower: %.2f ms became %.2f ms after %s were set and deleted.\nA hot cell makes %.1f commits/s at most, and %.1f with 100,000 removed cells in its row.\n",
			m.PerCell, m.Read, m.ReadNow, cli.Count(m.Pairs, "cell"), m.Commits, m.CommitsWith)
	}
	if r.Soak != nil {
		if err := soakText(w, r.Soak); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%d kept, %d limits, %d broken, %d untested; %d requests, %.1f MB, %.1f s\n",
		len(r.Kept), len(r.Limits), len(r.Broken), len(r.Untested), r.Requests, float64(r.Bytes)/1e6, r.Seconds)
	return err
}

func soakText(w io.Writer, r *soak.Report) error {
	faults := 0
	for _, n := range r.Faults {
		faults += n
	}
	fmt.Fprintf(w, "\nsoak: %s under %s: %d committed, %d failed, %d with an unknown outcome; the observer ran %s\n\n",
		cli.Count(r.Transactions, "transaction"), cli.Count(faults, "fault"), r.Committed, r.Failed, r.Unknown, cli.Count(int(r.Observed), "time"))
	t := cli.NewTable(w)
	cli.WriteRow(t, "TRANSACTION", "RAW", "RATE", "RAW RATE", "RATIO", "P50", "RAW P50", "SLOWDOWN")
	for _, x := range r.Ratios {
		cli.WriteRow(t, x.Name, x.Raw, cli.Fixed(x.Rate, 0)+"/s", cli.Fixed(x.RawRate, 0)+"/s", cli.Fixed(x.Ratio, 2), cli.Fixed(x.P50, 2)+" ms", cli.Fixed(x.RawP50, 2)+" ms", cli.Fixed(x.Slowdown, 1))
	}
	return t.Flush()
}

// verdict is the error from which the exit code comes.
func verdict(r *conformance.Report, emulator bool) error {
	switch r.Verdict {
	case conformance.Unsafe:
		return &cli.Error{Code: cli.ExitUnsafe, Err: fmt.Errorf("transactions are not safe on this service: it does not keep %s", cli.Count(len(r.Broken), "required assumption"))}
	case conformance.Incomplete:
		return fmt.Errorf("%s could not be tested", cli.Count(len(r.Untested), "assumption"))
	case conformance.SafeWithLimits:
		of := "this service"
		if emulator {
			of = "this emulator"
		}
		return session.Foundf("transactions are safe; %s has %s", of, cli.Count(len(r.Limits), "known limit"))
	}
	return nil
}

func (o *options) cleanUp(ctx context.Context, s *session.Session) error {
	found, err := conformance.Remains(ctx, s.Bigtable, s.Admin)
	if err != nil {
		return err
	}
	removed := Removed{Tables: append([]string{}, found...)}
	text := func(w io.Writer) error {
		for _, name := range found {
			if _, err := fmt.Fprintf(w, "remove table %s\n", name); err != nil {
				return err
			}
		}
		if len(found) == 0 {
			_, err := fmt.Fprintf(w, "no scratch table is left in %s\n", s.Where)
			return err
		}
		return nil
	}
	question := ""
	if len(found) > 0 {
		question = "Remove " + cli.Count(len(found), "table") + "?"
	}
	if yes, err := o.Ask(ctx, removed, text, question); !yes || err != nil {
		return err
	}
	for _, name := range found {
		if err := conformance.Remove(ctx, s.Bigtable, s.Admin, name); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		return nil
	}
	return o.Print(removed, cli.Textf("removed %s\n", cli.Count(len(found), "table")))
}
