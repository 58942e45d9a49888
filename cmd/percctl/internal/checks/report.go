package checks

import (
	"errors"
	"fmt"
	"io"

	"github.com/percolator-bigtable/percolator/internal/cli"
)

// A Report is the result of all checks.
type Report struct {
	Project       string   `json:"project"`        // Google Cloud project
	Instance      string   `json:"instance"`       // Bigtable instance
	MetadataTable string   `json:"metadata_table"` // metadata table of the deployment
	Tables        []string `json:"tables"`         // transactional tables that were checked
	Errors        int      `json:"errors"`         // findings that are errors
	Warnings      int      `json:"warnings"`       // findings that are warnings
	Notes         int      `json:"notes"`          // findings that are notes
	Failed        int      `json:"failed"`         // checks that ended in an error themselves
	Checks        []Result `json:"checks"`         // the checks, in the order in which they are printed
}

// NewReport counts.
func NewReport(env *Env, results []Result) *Report {
	r := &Report{Project: env.At.Project, Instance: env.At.Instance, MetadataTable: env.At.MetadataTable, Tables: append([]string{}, env.Tables...), Checks: results}
	for _, c := range results {
		if c.State == Failed {
			r.Failed++
		}
		for _, f := range c.Findings {
			switch f.Severity {
			case Error:
				r.Errors++
			case Warning:
				r.Warnings++
			case Note:
				r.Notes++
			}
		}
	}
	return r
}

// Print prints the report.
func (r *Report) Print(out io.Writer, format cli.Format) error {
	style := cli.StyleFor(out)
	return cli.Print(out, format, r, func(w io.Writer) error {
		table := cli.NewTable(w)
		for _, c := range r.Checks {
			cli.WriteRow(table, string(c.State), c.Check, c.Detail)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, c := range r.Checks {
			for _, f := range c.Findings {
				severity := string(f.Severity)
				if f.Severity == Error {
					severity = style.Bad(severity)
				}
				_, err := fmt.Fprintf(w, "\n%s: %s: %s: %s\n  why  %s\n  fix  %s\n", severity, f.Check, f.Subject, f.What, f.Why, f.Fix)
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Verdict is the error that the exit code comes from.
func (r *Report) Verdict() error {
	switch {
	case r.Errors+r.Warnings > 0:
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%s and %s", cli.Count(r.Errors, "error"), cli.Count(r.Warnings, "warning"))}
	case r.Failed > 0:
		return errors.New(cli.Count(r.Failed, "check") + " failed: see the state of each")
	}
	return nil
}
