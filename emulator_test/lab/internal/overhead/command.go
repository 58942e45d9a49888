// Package overhead is the command lab overhead, which measures what telemetry costs.
//
// Several processes take turns to run the same transaction, and the command compares
// their CPU time and allocations. One process is built without telemetry: the functions
// that make spans and metrics are empty, and the clock is not read for them (strip.go).
// The other processes are built from the unchanged source. One has no SDK, one an SDK
// that samples and measures nothing, and one an SDK that records everything.
//
// Bigtable is a stub in this process, which answers at once, so that the measurement
// contains only the client's own work: transaction, Bigtable client and gRPC. With a
// real Bigtable, telemetry's share of a transaction's time is far smaller.
package overhead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type options struct {
	sessions, rounds, transactions int
}

const (
	project  = "overhead"
	instance = "overhead"
	table    = "accounts"
)

var column = txn.Column{Family: "bal", Qualifier: "usd"}

// A mode is a kind of process.
type mode string

const (
	removed   mode = "telemetry removed"
	noSDK     mode = "no SDK"
	again     mode = "no SDK, again" // its difference from "no SDK" is the error of the measurement
	sampledNo mode = "SDK, nothing sampled"
	recorded  mode = "SDK, everything recorded"
)

var modes = []mode{removed, noSDK, again, sampledNo, recorded}

// NewCmd returns the overhead command.
func NewCmd(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "overhead",
		Short: "Measure what telemetry costs, in about five minutes",
		Long: `Measure what telemetry costs: the CPU time and allocations of a transaction in processes
that are built without telemetry, have no SDK, have an SDK that samples nothing, or
have one that records everything. The command builds the module, so run it inside the
module's directory.`,
		Example: `  lab overhead
  lab overhead --sessions 2 --rounds 20   # a first impression`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, s.Out, s.Err) },
	}
	f := cmd.Flags()
	f.IntVar(&o.sessions, "sessions", 20, "number of sessions; each links the programs with another order of functions")
	f.IntVar(&o.rounds, "rounds", 100, "turns of each process in a session")
	f.IntVar(&o.transactions, "transactions", 8, "transactions in a turn")
	cmd.AddCommand(&cobra.Command{
		Use:    "process MODE STUB",
		Short:  "A process of lab overhead",
		Hidden: true,
		Args:   cli.ExactArgs(2, "its mode and the stub's address"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTurns(cmd.Context(), mode(args[0]), args[1], s.In, s.Out)
		},
	})
	return cmd
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	if o.sessions < 1 || o.rounds < 1 || o.transactions < 1 {
		return cli.Usagef("--sessions, --rounds and --transactions have to be positive")
	}
	dir, err := os.MkdirTemp("", "overhead")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stub, err := startStub(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stub.Close() }()
	uses := map[mode][]usage{}
	for session := range o.sessions {
		fmt.Fprintf(progress, "session %d of %d\n", session+1, o.sessions)
		whole, bare, err := build(ctx, dir, session+1, progress)
		if err != nil {
			return err
		}
		if err := measure(ctx, o, whole, bare, stub, uses); err != nil {
			return err
		}
	}
	return report(out, o, uses)
}

// measure lets the processes take turns, and collects their usage.
func measure(ctx context.Context, o options, whole, bare string, stub *txntest.Stub, uses map[mode][]usage) (err error) {
	children := map[mode]*child.Process{}
	for _, m := range modes {
		program := whole
		if m == removed {
			program = bare
		}
		if children[m], err = child.Start(ctx, child.Config{Name: string(m), Program: program, Args: []string{"overhead", "process", string(m), stub.Addr()}, Env: os.Environ(), Stderr: os.Stderr}); err != nil {
			return err
		}
	}
	for round := range o.rounds + warming {
		for _, i := range rand.Perm(len(modes)) {
			before, _ := stub.Counts()
			var u usage
			if err := children[modes[i]].Ask(o.transactions, &u); err != nil { // the other processes wait
				return err
			}
			after, _ := stub.Counts()
			u.requests = after - before
			if round >= warming {
				uses[modes[i]] = append(uses[modes[i]], u)
			}
		}
	}
	for _, c := range children {
		err = errors.Join(err, c.End(ending))
	}
	return err
}

const (
	// warming is the number of turns that do not count.
	warming = 10
	// ending is how long a process may take to end.
	ending = 30 * time.Second
)

// build builds this program as it is, and without telemetry. The addresses of functions
// change the time by several percent, which has nothing to do with what the functions
// do. So the linker orders functions at random, by the seed layout.
func build(ctx context.Context, dir string, layout int, progress io.Writer) (whole, bare string, err error) {
	text, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", "", fmt.Errorf("lab overhead must run inside the module's directory: %w", err)
	}
	module := strings.TrimSpace(string(text))
	overlay, emptied, clocks, err := strip(module, dir)
	if err != nil {
		return "", "", err
	}
	fmt.Fprintf(progress, "without telemetry: %d functions made empty, %d reads of the clock removed\n", emptied, clocks)
	whole, bare = filepath.Join(dir, "whole"), filepath.Join(dir, "bare")
	for _, args := range [][]string{{"-o", whole}, {"-o", bare, "-overlay", overlay}} {
		cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", fmt.Sprintf("-ldflags=-s -w -randlayout=%d", layout)}, args...), "./emulator_test/lab")...)
		cmd.Dir, cmd.Stderr = module, progress
		if err := cmd.Run(); err != nil {
			return "", "", fmt.Errorf("go build %s: %w", strings.Join(args, " "), err)
		}
	}
	return whole, bare, nil
}

func startStub(ctx context.Context) (*txntest.Stub, error) {
	stub, err := txntest.StartStub("127.0.0.1:0", txntest.StubTable{Name: table, Columns: []txn.Column{column}, Value: []byte("10"), CommitTS: 1e15})
	if err != nil {
		return nil, err
	}
	conn, err := stub.Dial()
	if err != nil {
		return nil, errors.Join(err, stub.Close())
	}
	defer func() { _ = conn.Close() }()
	bt, adminClient, err := txntest.Open(ctx, conn, project, instance)
	if err != nil {
		return nil, errors.Join(err, stub.Close())
	}
	defer func(bt *bigtable.Client) { _, _ = bt.Close(), adminClient.Close() }(bt)
	if err := admin.InitTable(ctx, adminClient, bt, "", admin.TableSpec{Name: table, Families: []string{column.Family}}); err != nil {
		return nil, errors.Join(err, stub.Close())
	}
	return stub, nil
}

// report compares the turns of each round with each other. Turns are short and many, so
// that other load of the machine, which changes more slowly, affects all turns of a
// round alike. The ratio of a session is the median of the ratios of its rounds.
func report(out io.Writer, o options, uses map[mode][]usage) error {
	n := float64(o.transactions)
	fmt.Fprintf(out, "%d sessions of %d rounds of %d transactions\n\n", o.sessions, o.rounds, o.transactions)
	t := cli.NewTable(out)
	cli.WriteRow(t, "", "requests/txn", "allocs/txn", "CPU/txn", "CPU, against no SDK: mean of the sessions, and its standard error")
	for _, m := range modes {
		var cpu, allocs, requests, sessions, ratios []float64
		for i, u := range uses[m] {
			cpu = append(cpu, float64(u.CPU.Nanoseconds())/1000/n)
			allocs = append(allocs, float64(u.Allocations)/n)
			requests = append(requests, float64(u.requests)/n)
			if ratios = append(ratios, float64(u.CPU)/float64(uses[noSDK][i].CPU)); len(ratios) == o.rounds {
				sessions, ratios = append(sessions, median(ratios)), nil
			}
		}
		mean, spread := 0.0, 0.0
		for _, s := range sessions {
			mean += s / float64(len(sessions))
		}
		for _, s := range sessions {
			spread += (s - mean) * (s - mean) / float64(max(1, len(sessions)-1))
		}
		cli.WriteRow(t, string(m), cli.Fixed(median(requests), 1), cli.Fixed(median(allocs), 1), cli.Fixed(median(cpu), 1)+" µs", fmt.Sprintf("%.3f ± %.3f", mean, math.Sqrt(spread/float64(len(sessions)))))
	}
	return t.Flush()
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
