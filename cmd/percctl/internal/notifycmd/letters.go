package notifycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// shownLetters is how many dead letters a plan lists.
const shownLetters = 10

// A choice chooses dead letters.
type choice struct {
	cells    []txn.Cell
	observer string
}

func (c choice) has(d changes.DeadLetter) bool {
	return (len(c.cells) == 0 || slices.Contains(c.cells, d.Cell)) && (c.observer == "" || d.Observer == c.observer)
}

// A lettersPlan is what replay or drop would do.
type lettersPlan struct {
	Project  string         `json:"project"`      // Google Cloud project
	Instance string         `json:"instance"`     // Bigtable instance
	DryRun   bool           `json:"dry_run"`      // always true
	Letters  int            `json:"dead_letters"` // dead letters that were chosen
	Observer map[string]int `json:"by_observer"`  // number of them by the id of the observer
	First    []item         `json:"first"`        // the first 10 of them

	do   string
	asOf tso.Timestamp
}

// planLetters counts the chosen dead letters and keeps the first few. It fails
// with exit status 3 where a cell that is named has none.
func planLetters(ctx context.Context, s *session.Session, c choice, do string) (*lettersPlan, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	p := &lettersPlan{Project: s.Connect.Project, Instance: s.Connect.Instance, DryRun: true, Observer: map[string]int{}, First: []item{}, do: do, asOf: now}
	missing := slices.Clone(c.cells)
	for d, err := range changes.DeadLetters(ctx, s.Client()) {
		if err != nil {
			return nil, err
		}
		if !c.has(d) || d.ParkedTS > now {
			continue
		}
		missing = slices.DeleteFunc(missing, func(cell txn.Cell) bool { return cell == d.Cell })
		p.Letters++
		p.Observer[d.Observer]++
		if len(p.First) < shownLetters {
			p.First = append(p.First, newDeadLetter(d, now))
		}
		s.Progress.Set("%s so far", cli.Count(p.Letters, "dead letter"))
	}
	s.Progress.End()
	if c.observer != "" && p.Letters == 0 {
		if err := s.CheckObserver(ctx, c.observer); err != nil {
			return nil, err
		}
	}
	if len(missing) > 0 {
		if err := s.UseCells(ctx, missing[0]); err != nil {
			return nil, err
		}
		of := ""
		if c.observer != "" {
			of = " of observer " + c.observer
		}
		return nil, session.NotFoundf("%s has no dead letter%s", missing[0], of)
	}
	return p, nil
}

func (p *lettersPlan) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s: %s to %s\n", p.Project, p.Instance, cli.Count(p.Letters, "dead letter"), p.do)
	for _, it := range p.First {
		o := it.Observers[0]
		fmt.Fprintf(w, "  %s, observer %s, %s\n", it.Cell, cli.Line(o.Observer), cli.Shorten(o.Words, 120))
	}
	if more := p.Letters - len(p.First); more > 0 {
		fmt.Fprintf(w, "  … and %d more; percctl notify list --dead shows all\n", more)
	}
	return nil
}

// A lettersResult is what replay or drop did.
type lettersResult struct {
	Project    string `json:"project"`      // Google Cloud project
	Instance   string `json:"instance"`     // Bigtable instance
	DryRun     bool   `json:"dry_run"`      // always false
	Letters    int    `json:"dead_letters"` // dead letters that were chosen
	Done       int    `json:"done"`         // dead letters that were replayed or dropped
	Failed     int    `json:"failed"`       // dead letters that could not be, because of an error
	Unfinished int    `json:"unfinished"`   // dead letters that an interrupt or timeout left, or whose answer it cut off

	done    string
	failure error // the first
}

func (r *lettersResult) text(w io.Writer) error {
	table := cli.NewTable(w)
	cli.WriteRow(table, r.done, fmt.Sprint(r.Done))
	for _, row := range []struct {
		what string
		n    int
	}{{"failed", r.Failed}, {"not reached", r.Unfinished}} {
		if row.n > 0 {
			cli.WriteRow(table, row.what, fmt.Sprint(row.n))
		}
	}
	return table.Flush()
}

// verdict is the error that the exit code comes from; ended is that of a
// context that ended in between.
func (r *lettersResult) verdict(ended error) error {
	switch {
	case errors.Is(ended, context.Canceled):
		return fmt.Errorf("interrupted: %s not reached; run the command again to continue", cli.Count(r.Unfinished, "dead letter"))
	case ended != nil:
		return fmt.Errorf("%w: %s not reached; run the command again to continue", ended, cli.Count(r.Unfinished, "dead letter"))
	case r.Failed > 0:
		return fmt.Errorf("%s failed; the first error: %w", cli.Count(r.Failed, "dead letter"), r.failure)
	}
	return nil
}

// each does something to each dead letter of the plan, in one walk. It leaves those
// that were parked after the plan.
func (p *lettersPlan) each(ctx context.Context, s *session.Session, c choice, done string, do func(context.Context, *txn.Client, changes.DeadLetter) error) (*lettersResult, error) {
	r := &lettersResult{Project: p.Project, Instance: p.Instance, Letters: p.Letters, done: done}
	var ended error
	for d, err := range changes.DeadLetters(ctx, s.Client()) {
		if err == nil && (!c.has(d) || d.ParkedTS > p.asOf) {
			continue
		}
		if err == nil {
			err = do(ctx, s.Client(), d)
		} else {
			ended = err
		}
		if ctx.Err() != nil {
			ended = context.Cause(ctx)
		}
		if ended != nil {
			break
		}
		if err != nil {
			r.Failed++
			if r.failure == nil {
				r.failure = fmt.Errorf("%s, observer %s: %w", d.Cell, d.Observer, err)
			}
			continue
		}
		r.Done++
		s.Progress.Of(float64(r.Done)/float64(max(p.Letters, 1)), r.Done, "letter")
		s.Progress.Set("%d of %d dead letters %s", r.Done, p.Letters, done)
	}
	s.Progress.End()
	if ended != nil {
		r.Unfinished = max(0, p.Letters-r.Done-r.Failed)
	}
	return r, ended
}

// apply returns what a command does: it plans to do something, which was done after
// that, to dead letters, shows the plan, asks, and does it.
func (o *lettersOptions) apply(do, done string, f func(context.Context, *txn.Client, changes.DeadLetter) error) func(context.Context, *session.Session) error {
	return func(ctx context.Context, s *session.Session) error {
		p, err := planLetters(ctx, s, o.chosen, do)
		if err != nil {
			return err
		}
		question := ""
		if p.Letters > 0 {
			question = fmt.Sprintf("%s %s in %s?", capital(do), cli.Count(p.Letters, "dead letter"), s.Where)
		}
		if ok, err := o.Ask(ctx, p, p.text, question); !ok {
			return err
		}
		r, ended := p.each(ctx, s, o.chosen, done, f)
		if err := o.Print(r, r.text); err != nil {
			return err
		}
		return r.verdict(ended)
	}
}

func capital(word string) string { return string(word[0]-'a'+'A') + word[1:] }
