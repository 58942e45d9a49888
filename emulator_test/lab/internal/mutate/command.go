// Package mutate is the command lab mutate. It runs the tests against planted bugs,
// and prints which test catches each and how fast.
package mutate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/internal/mutant"
)

type options struct {
	only    string
	list    bool
	compile bool
	part    bool
	seed    uint64
	budget  time.Duration
	limit   time.Duration
	output  string
	file    string

	systematic bool
	files      []string
	sample     int
	parallel   int
	short      bool
}

// NewCmd returns the mutate command.
func NewCmd(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "mutate",
		Short: "Run the tests against planted bugs",
		Long: `Run the tests against planted bugs (mutants), and print which test catches each and how
fast. All of them take about half an hour. Exit status 1 means that a mutant survived or
is broken: it does not fit the source any more, or does not compile. The command does
not change the source.

With --systematic, the mutants are small changes of every condition, bound, statement,
error and constant of the protocol's files. The command prints how many the tests notice,
by file. All of them take hours; use --files, --only or --sample.`,
		Example: `  lab mutate
  lab mutate --only 'tso|marker'
  lab mutate --part --budget 60s     # a part that changes daily
  lab mutate --compile               # after a change of the library: no test runs
  lab mutate --list
  lab mutate --systematic --files txn/prewrite.go,txn/gc
  lab mutate --systematic --sample 200 -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, s.Out, s.Err) },
	}
	f := cmd.Flags()
	f.StringVar(&o.only, "only", "", "run only mutants whose names match this `regexp`")
	f.BoolVar(&o.list, "list", false, "list the mutants and run nothing")
	f.BoolVar(&o.compile, "compile", false, "compile the library with each mutant and run no tests")
	f.BoolVar(&o.part, "part", false, "run mutants in an order that --seed decides, until --budget is used up")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order of --part and of --sample (default: changes daily)")
	f.DurationVar(&o.budget, "budget", time.Minute, "how long --part may take, about")
	f.DurationVar(&o.limit, "limit", time.Minute, "how long tests may run against one mutant")
	f.BoolVar(&o.systematic, "systematic", false, "run systematic mutants instead of planted bugs")
	f.StringSliceVar(&o.files, "files", nil, "of --systematic: run only mutants of these files or `folders`")
	f.IntVar(&o.sample, "sample", 0, "of --systematic: run this many mutants, which --seed chooses (default: all)")
	f.IntVar(&o.parallel, "parallel", 1, "of --systematic: run this many processes with tests at once")
	f.BoolVar(&o.short, "short", false, "of --systematic: run the tests with -short, which is faster and kills fewer")
	f.StringVarP(&o.output, "output", "o", "table", "output `format`: table, json or markdown")
	f.StringVar(&o.file, "json", "", "also write the results to this `file` as JSON")
	return cmd
}

func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().Unix() / (24 * 60 * 60)) // changes daily
	}
	if o.systematic {
		return runSystematic(ctx, o, root, stdout, stderr)
	}
	mutants, err := mutant.Load(root)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant.Mutant) bool { return !only.MatchString(m.Name) })
	if len(mutants) == 0 {
		return fmt.Errorf("--only %q matches no mutant; lab mutate --list prints their names", o.only)
	}
	if o.list {
		for _, m := range mutants {
			fmt.Fprintf(stdout, "%s\t%s\n", m.Name, m.Why)
		}
		return nil
	}
	if o.compile {
		return compile(ctx, root, mutants, stderr)
	}
	if o.part {
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
		fmt.Fprintf(stderr, "running a part of %d mutants; to repeat it: go run ./emulator_test/lab mutate --part --seed %d --budget %v\n", len(mutants), o.seed, o.budget)
	}
	began := time.Now()
	var results []mutant.Result
	var longest time.Duration
	for _, m := range mutants {
		if o.part && len(results) > 0 && time.Since(began)+longest > o.budget {
			break
		}
		each := time.Now()
		r := mutant.Runner{Root: root, Limit: o.limit}.Run(ctx, m)
		longest = max(longest, time.Since(each))
		if err := ctx.Err(); err != nil {
			return err
		}
		results = append(results, r)
		fmt.Fprintf(stderr, "%3d/%d %-34s %s %s (%.1f s, built in %.1f s)\n", len(results), len(mutants), r.Mutant, r.Verdict, r.Test, r.Seconds, r.Build)
		if r.Verdict != mutant.Caught {
			fmt.Fprintln(stderr, r.Detail)
		}
	}
	slices.SortFunc(results, func(a, b mutant.Result) int { return cmp.Compare(a.Mutant, b.Mutant) })
	if o.file != "" {
		b, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.file, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if err := print(stdout, o.output, results); err != nil {
		return err
	}
	bad := 0
	for _, r := range results {
		if r.Verdict != mutant.Caught {
			bad++
		}
	}
	fmt.Fprintf(stderr, "%d of %d caught in %v\n", len(results)-bad, len(results), time.Since(began).Round(time.Second))
	if bad > 0 {
		return fmt.Errorf("%d mutants survived or are broken", bad)
	}
	return nil
}

// compile finds the mutants that are broken.
func compile(ctx context.Context, root string, mutants []mutant.Mutant, stderr io.Writer) error {
	broken := 0
	for _, m := range mutants {
		err := mutant.Runner{Root: root}.Compile(ctx, m)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err != nil {
			broken++
			fmt.Fprintf(stderr, "%s: %v\n", m.Name, err)
		}
	}
	fmt.Fprintf(stderr, "%d of %d compile\n", len(mutants)-broken, len(mutants))
	if broken > 0 {
		return fmt.Errorf("%d mutants are broken", broken)
	}
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	mod := strings.TrimSpace(string(out))
	if err == nil && (mod == "" || mod == os.DevNull) {
		err = errors.New("lab mutate must run inside the module's directory")
	}
	return filepath.Dir(mod), err
}

func print(w io.Writer, format string, results []mutant.Result) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(results)
	case "markdown":
		fmt.Fprintf(w, "| Mutant | Class | What goes wrong | Caught by | Seconds |\n|---|---|---|---|---|\n")
		for _, r := range results {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %.1f |\n", r.Mutant, r.Class, r.Why, strings.ReplaceAll(cmp.Or(r.Test, "**"+string(r.Verdict)+"**"), "|", `\|`), r.Seconds)
		}
		return nil
	case "table":
		t := cli.NewTable(w)
		cli.WriteRow(t, "MUTANT", "CLASS", "VERDICT", "SECONDS", "TEST")
		for _, r := range results {
			cli.WriteRow(t, r.Mutant, r.Class, string(r.Verdict), cli.Fixed(r.Seconds, 1), r.Test)
		}
		return t.Flush()
	}
	return errOutput(format)
}

func errOutput(format string) error {
	return fmt.Errorf("--output %s: use table, json or markdown", format)
}
