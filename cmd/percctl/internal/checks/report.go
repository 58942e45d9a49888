// Package checks runs the checks of txn/admin/doctor and prints what they find, for
// percctl doctor and percctl table verify.
package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
)

// A Report is the result of all checks.
type Report struct {
	Project       string          `json:"project"`        // Google Cloud project
	Instance      string          `json:"instance"`       // Bigtable instance
	MetadataTable string          `json:"metadata_table"` // metadata table of the deployment
	Tables        []string        `json:"tables"`         // transactional tables that were checked
	Errors        int             `json:"errors"`         // findings that are errors
	Warnings      int             `json:"warnings"`       // findings that are warnings
	Notes         int             `json:"notes"`          // findings that are notes
	Failed        int             `json:"failed"`         // checks that ended in an error themselves
	Checks        []doctor.Result `json:"checks"`         // the checks, in the order in which they are printed
}

// Deployment is what the checks look at. Call end when done.
func Deployment(ctx context.Context, s *session.Session, rows int) (d *doctor.Deployment, end func(), err error) {
	at := s.Connect
	d = &doctor.Deployment{
		Bigtable: s.Bigtable, Admin: s.Admin, Project: at.Project, Instance: at.Instance, MetadataTable: at.MetadataTable, AppProfile: at.AppProfile,
		Servers: session.Servers(at), Emulator: at.IsEmulator(), Rows: rows,
	}
	if !at.Embedded {
		d.Instances = at.OpenInstance
	}
	end, err = d.Open(ctx)
	return d, end, err
}

// Run runs checks of the tables, of all where tables is nil, and prints what they found.
// The error is what the exit code comes from.
func Run(ctx context.Context, o *session.Options, s *session.Session, d *doctor.Deployment, all []doctor.Check, tables []string) (err error) {
	if d.Tables = tables; tables == nil && d.Client != nil {
		if d.Tables, err = admin.Tables(ctx, d.Client); err != nil {
			return err
		}
	}
	end := s.Progress.During(s.Read)
	results := doctor.Run(ctx, d, all, func(p doctor.Progress) {
		s.Progress.Part(p.Part)
		s.Progress.Set("%d of %d checks done, now %s", p.Done, len(all), strings.Join(p.Running, ", "))
	})
	end()
	s.Progress.End()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r := newReport(d, results)
	style := cli.StyleFor(o.Streams.Out)
	if err := o.Print(r, func(w io.Writer) error { return r.text(w, style) }); err != nil {
		return err
	}
	switch {
	case r.Errors+r.Warnings > 0:
		return session.Foundf("%s and %s", cli.Count(r.Errors, "error"), cli.Count(r.Warnings, "warning"))
	case r.Failed > 0:
		return errors.New(cli.Count(r.Failed, "check") + " failed: see the state of each")
	}
	return nil
}

// Collect runs the checks of a whole deployment, and returns what they found.
func Collect(ctx context.Context, s *session.Session, rows int) (*Report, error) {
	d, end, err := Deployment(ctx, s, rows)
	if err != nil {
		return nil, err
	}
	defer end()
	if d.Client != nil {
		if d.Tables, err = admin.Tables(ctx, d.Client); err != nil {
			return nil, err
		}
	}
	d.Patience = 10
	return newReport(d, doctor.Run(ctx, d, doctor.All(), nil)), ctx.Err()
}

// newReport counts, and escapes what may be stored bytes.
func newReport(d *doctor.Deployment, results []doctor.Result) *Report {
	r := &Report{Project: d.Project, Instance: d.Instance, MetadataTable: d.MetadataTable, Tables: append([]string{}, d.Tables...), Checks: results}
	for i := range results {
		c := &results[i]
		c.Detail = cli.Line(cli.Plain(c.Detail))
		if c.State == doctor.Failed {
			r.Failed++
		}
		for i := range c.Findings {
			f := &c.Findings[i]
			f.Subject, f.What, f.Fix = cli.Line(f.Subject), cli.Line(f.What), cli.Line(f.Fix)
			*map[doctor.Severity]*int{doctor.Error: &r.Errors, doctor.Warning: &r.Warnings, doctor.Note: &r.Notes}[f.Severity]++
		}
	}
	return r
}

func (r *Report) text(w io.Writer, style cli.Style) error {
	states, names := 0, 0 // a tabwriter would count the colour
	for _, c := range r.Checks {
		states, names = max(states, len(c.State)), max(names, len(c.Check))
	}
	for _, c := range r.Checks {
		state := fmt.Sprintf("%-*s", states, c.State)
		switch c.State {
		case doctor.OK:
			state = style.Good(state)
		case doctor.Found, doctor.Failed:
			state = style.Bad(state)
		}
		line := strings.TrimRight(fmt.Sprintf("%-*s  %s", names, c.Check, c.Detail), " ")
		if _, err := fmt.Fprintf(w, "%s  %s\n", state, line); err != nil {
			return err
		}
	}
	words := map[doctor.Severity]string{doctor.Error: style.Bad("error"), doctor.Warning: "warning", doctor.Note: "note"}
	for _, severity := range []doctor.Severity{doctor.Error, doctor.Warning, doctor.Note} {
		for _, c := range r.Checks {
			found := slices.DeleteFunc(slices.Clone(c.Findings), func(f doctor.Finding) bool { return f.Severity != severity })
			for _, f := range found[:min(len(found), shownFindings)] {
				fmt.Fprintf(w, "\n%s: %s: %s: %s\n  why  %s\n  fix  %s\n", words[severity], f.Check, f.Subject, f.What, f.Why, f.Fix)
			}
			if n := len(found) - shownFindings; n > 0 {
				fmt.Fprintf(w, "\n%s: %s: … and %s more; -o json has all\n", words[severity], c.Check, cli.Count(n, "finding"))
			}
		}
	}
	return nil
}

// shownFindings bounds those of a check and a severity: one problem of many tables must not hide others.
const shownFindings = 5
