package mutate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/internal/systematic"
)

// A score counts the mutants of one file.
type score struct {
	File      string `json:"file"`
	Killed    int    `json:"killed"`
	Timeout   int    `json:"timeout"`
	Survived  int    `json:"survived"`
	Unreached int    `json:"unreached"`
	Explained int    `json:"explained"`
	NotRun    int    `json:"not_run"`
	// Score is the percentage that the tests noticed, of those that ran and are not
	// explained. It is null if there are none.
	Score *float64 `json:"score"`
}

func (s *score) add(v systematic.Verdict) {
	*map[systematic.Verdict]*int{
		systematic.Killed: &s.Killed, systematic.Timeout: &s.Timeout, systematic.Survived: &s.Survived,
		systematic.Unreached: &s.Unreached, systematic.Explained: &s.Explained, systematic.NotRun: &s.NotRun,
	}[v]++
	if noticed, all := s.Killed+s.Timeout, s.Killed+s.Timeout+s.Survived+s.Unreached; all > 0 {
		percent := 100 * float64(noticed) / float64(all)
		s.Score = &percent
	}
}

type report struct {
	Files []score `json:"files"`
	Total score   `json:"total"`
	// Mutants are all that ran.
	Mutants []systematic.Result `json:"mutants"`
}

func runSystematic(ctx context.Context, o options, root string, stdout, stderr io.Writer) error {
	suite := systematic.Protocol(root)
	suite.Files, suite.Parallel, suite.Short, suite.Log = o.files, o.parallel, o.short, stderr
	if cache, err := os.UserCacheDir(); err == nil {
		suite.Cache = filepath.Join(cache, "percolator-mutants")
	}
	explained, err := systematic.ReadList(filepath.Join(root, filepath.FromSlash(systematic.ExplainedFile)))
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	if o.list {
		return listSystematic(suite, only, stdout)
	}
	began, n := time.Now(), 0
	results, err := suite.Run(ctx, explained, systematic.Options{
		Sample: o.sample, Seed: o.seed, Only: only, Limit: o.limit,
		Done: func(r systematic.Result) {
			n++
			fmt.Fprintf(stderr, "%4d %-9s %s:%d %s (%d of %d tests) %s %s\n", n, r.Verdict, r.File, r.Line, r.Key(), r.Units, r.Of, r.Test, r.Why)
		},
	})
	if err != nil && (!errors.Is(err, context.Canceled) || len(results) == 0) {
		return err
	}
	rep := summarize(results)
	if o.file != "" {
		b, err := json.MarshalIndent(rep, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.file, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if err := rep.print(stdout, o.output); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d mutants in %v\n", n, time.Since(began).Round(time.Second))
	if err == nil && rep.Total.Survived+rep.Total.Unreached > 0 {
		err = fmt.Errorf("%d mutants survived, no test reaches %d others: add a test, or a reason to %s", rep.Total.Survived, rep.Total.Unreached, systematic.ExplainedFile)
	}
	return err
}

func listSystematic(suite systematic.Suite, only *regexp.Regexp, stdout io.Writer) error {
	mutants, err := suite.Find()
	for _, m := range mutants {
		if suite.Selected(m) && only.MatchString(m.Key()) {
			fmt.Fprintln(stdout, m.Key())
		}
	}
	return err
}

func summarize(results []systematic.Result) report {
	rep := report{Total: score{File: "all"}, Mutants: []systematic.Result{}}
	for _, r := range results {
		i := slices.IndexFunc(rep.Files, func(s score) bool { return s.File == r.File })
		if i < 0 {
			i = len(rep.Files)
			rep.Files = append(rep.Files, score{File: r.File})
		}
		rep.Files[i].add(r.Verdict)
		rep.Total.add(r.Verdict)
		if r.Verdict != systematic.NotRun {
			rep.Mutants = append(rep.Mutants, r)
		}
	}
	return rep
}

func (rep report) print(w io.Writer, format string) error {
	percent := func(s score) string {
		if s.Score == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", *s.Score)
	}
	rows := append(slices.Clip(rep.Files), rep.Total)
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(rep)
	case "markdown":
		fmt.Fprintf(w, "| File | Killed | Timeout | Survived | Unreached | Explained | Not run | Score |\n|---|---|---|---|---|---|---|---|\n")
		for _, s := range rows {
			fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %d | %s |\n", s.File, s.Killed, s.Timeout, s.Survived, s.Unreached, s.Explained, s.NotRun, percent(s))
		}
		return nil
	case "table":
		t := cli.NewTable(w)
		cli.WriteRow(t, "FILE", "KILLED", "TIMEOUT", "SURVIVED", "UNREACHED", "EXPLAINED", "NOT RUN", "SCORE")
		for _, s := range rows {
			cli.WriteRow(t, s.File, fmt.Sprint(s.Killed), fmt.Sprint(s.Timeout), fmt.Sprint(s.Survived), fmt.Sprint(s.Unreached), fmt.Sprint(s.Explained), fmt.Sprint(s.NotRun), percent(s))
		}
		return t.Flush()
	}
	return errOutput(format)
}
