package repaircmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type applyOptions struct {
	session.Options
	file   string
	maxAge time.Duration

	plan    *plan
	repairs []admin.Repair
}

func newApplyCmd(s *cli.Streams) *cobra.Command {
	o := &applyOptions{}
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Make the repairs of a plan",
		Long: `Make the repairs of a plan of percctl repair plan. The command reads each cell again
and repairs it with a conditional mutation. It counts cells that have changed since
the plan, and leaves them as they are. It refuses a plan for another instance, or one
older than --max-age.

` + cli.AsksFirst + `

After an interrupt, run the command again.

With --dry-run, the command reads the cells as well, and exits as it would exit.

Exit status 4: some cells have changed since the plan, or the plan is too old: plan
again. 7: the repairs are made, and the plan leaves violations to you.`,
		Example: `  percctl repair apply plan.json --dry-run
  percctl repair apply plan.json --yes`,
		Args: cli.ExactArgs(1, "one, FILE", cli.Into(&o.file)),
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[applied]())
	cmd.Flags().DurationVar(&o.maxAge, "max-age", time.Hour, "maximum age of the plan, in oracle time")
	o.Consent.Add(cmd)
	cli.AtLeast(&o.Checks, "max-age", &o.maxAge, 1, "positive")
	o.Require(func() (err error) { o.plan, o.repairs, err = read(o.file); return err })
	return cmd
}

// read reads a plan, all of it before anything is done.
func read(file string) (*plan, []admin.Repair, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, cli.Usagef("%w", err)
	}
	p := &plan{}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return nil, nil, cli.Usagef("%s: it is not a plan of percctl repair: %w", file, err)
	}
	if p.Version != planVersion {
		return nil, nil, cli.Usagef("%s: it is a plan of version %d, but this percctl reads version %d: plan again", file, p.Version, planVersion)
	}
	var repairs []admin.Repair
	for i, r := range p.Repairs {
		cell, err := format.ParseCell(r.Cell)
		switch {
		case err != nil:
			return nil, nil, cli.Usagef("%s: repair %d: %w", file, i+1, err)
		case !slices.Contains(admin.RepairKinds, r.Kind):
			return nil, nil, cli.Usagef("%s: repair %d: unknown kind %q", file, i+1, r.Kind)
		}
		repair := admin.Repair{Kind: r.Kind, Cell: cell, StartTS: r.StartTS, CommitTS: r.CommitTS}
		if r.Kind == admin.RepairLostRecord {
			if repair.Witness, err = format.ParseCell(r.Witness); err != nil {
				return nil, nil, cli.Usagef("%s: repair %d: %w", file, i+1, err)
			}
		}
		repairs = append(repairs, repair)
	}
	return p, repairs, nil
}

// An applied is what repair apply did, or would do.
type applied struct {
	Project  string `json:"project"`  // Google Cloud project
	Instance string `json:"instance"` // Bigtable instance
	File     string `json:"file"`     // name of the plan
	DryRun   bool   `json:"dry_run"`  // whether --dry-run was given
	Planned  int    `json:"planned"`  // repairs in the plan
	Repaired int    `json:"repaired"` // repairs that were made
	Changed  []item `json:"changed"`  // repairs that were not made, because the cell has changed since the plan
}

func (a *applied) text(w io.Writer, p *plan) (err error) {
	if a.DryRun {
		err = p.text(w)
	} else {
		_, err = fmt.Fprintf(w, "%d of %s made\n", a.Repaired, cli.Count(a.Planned, "repair"))
	}
	for i, r := range a.Changed {
		if i == shown {
			fmt.Fprintf(w, "… and %d more\n", len(a.Changed)-i)
			break
		}
		fmt.Fprintf(w, "changed: %s %d of %s\n", r.Kind, r.StartTS, r.Cell)
	}
	return err
}

func (o *applyOptions) run(ctx context.Context, s *session.Session) error {
	p, repairs := o.plan, o.repairs
	if at := s.Connect; p.Project != at.Project || p.Instance != at.Instance || p.MetadataTable != at.MetadataTable {
		return cli.Usagef("%s: the plan is for project %s, instance %s, metadata table %s, but this command is for %v, metadata table %s", o.file, p.Project, p.Instance, p.MetadataTable, at, at.MetadataTable)
	}
	now, err := s.Client().Timestamp(ctx)
	if err != nil {
		return err
	}
	if age := now.Sub(p.CreatedTS); age > o.maxAge || age < 0 {
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%s: the plan is %s old, but --max-age is %v: plan again", o.file, cli.Duration(age), o.maxAge)}
	}
	if err := s.Use(ctx, p.Tables...); err != nil {
		return err
	}
	done := &applied{Project: p.Project, Instance: p.Instance, File: o.file, DryRun: o.Consent.DryRun, Planned: len(repairs), Changed: []item{}}
	question, make := "", admin.ApplyRepair
	if o.Consent.DryRun {
		make = admin.CheckRepair
	} else if len(repairs) > 0 {
		question = fmt.Sprintf("Make %s in %s?", cli.Count(len(repairs), "repair"), s.Where)
	}
	if !o.Consent.DryRun {
		if ok, err := o.Ask(ctx, done, p.text, question); !ok {
			return err
		}
	}
	var failed error
	for i, r := range repairs {
		ok, err := make(ctx, s.Client(), r)
		if err != nil {
			failed = fmt.Errorf("stopped at repair %d of %d: %w", i+1, len(repairs), err)
			break
		}
		switch {
		case ok && !done.DryRun:
			done.Repaired++
		case !ok:
			done.Changed = append(done.Changed, p.Repairs[i])
		}
		s.Progress.Of(float64(i+1)/float64(len(repairs)), i+1, "repair")
		s.Progress.Set("%d of %s", i+1, cli.Count(len(repairs), "repair"))
	}
	s.Progress.End()
	err = errors.Join(failed, o.Print(done, func(w io.Writer) error { return done.text(w, p) }))
	if err == nil && len(done.Changed) > 0 {
		err = session.Foundf("%s changed since the plan: plan again", cli.Count(len(done.Changed), "cell"))
	}
	if n := len(p.Left); err == nil && n > 0 {
		err = &cli.Error{Code: cli.ExitLeft, Err: fmt.Errorf("%s left to you: the plan names their cells", cli.Count(n, "violation"))}
	}
	return err
}
