// Package picture takes pictures of a deployment, without changing anything:
// what percctl top and percctl console show. What it finds, it finds as the
// commands for the single things do.
package picture

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// Options bound a picture.
type Options struct {
	// Tables are looked at; without names, all of the deployment.
	Tables session.Tables
	// Limit is how many locks to read at most, and how many notifications.
	Limit int
	// Transactions is of how many transactions, the oldest, the primary and the
	// owner are looked at.
	Transactions int
}

// Add adds the arguments and flags of a command that shows pictures, one in each frame or
// page.
func (p *Options) Add(cmd *cobra.Command, o *session.Options, per string, transactions int) {
	p.Tables.Range.Add(cmd)
	cmd.Flags().IntVar(&p.Limit, "limit", defaultLimit, "maximum number of locks, and of notifications, per "+per)
	cmd.Flags().IntVar(&p.Transactions, "transactions", transactions, "number of transactions with locks to show, the oldest first")
	cli.AtLeast(&o.Checks, "limit", &p.Limit, 1, "positive")
	cli.AtLeast(&o.Checks, "transactions", &p.Transactions, 1, "positive")
	o.Require(p.Tables.Range.Check)
	cmd.Args = cli.AnyArgs(cli.All(&p.Tables.Names))
	cmd.ValidArgsFunction = o.CompleteTables(0)
}

// The bounds of a picture: what Bigtable answers in a second or so, and what
// people can look at.
const (
	defaultLimit     = 10_000
	shownDeadLetters = 20
)

// A Picture is a frame: the state of a deployment. Its parts were read one after
// the other.
type Picture struct {
	Project       string                 `json:"project"`       // Google Cloud project
	Instance      string                 `json:"instance"`      // Bigtable instance
	TS            tso.Timestamp          `json:"ts"`            // oracle time at the start of the frame
	Time          string                 `json:"time"`          // the timestamp as a time
	Took          float64                `json:"took_seconds"`  // time that the frame took
	Tables        []string               `json:"tables"`        // tables that were read
	Oracle        *tsocmd.Report         `json:"oracle"`        // state of the oracle, as percctl tso status prints it
	Locks         Locks                  `json:"locks"`         // locks of transactions
	Notifications Notifications          `json:"notifications"` // notifications of observers
	Observers     []observercmd.Observer `json:"observers"`     // registered observers, as percctl observer list prints them
	DeadLetters   []DeadLetter           `json:"dead_letters"`  // the first 20 dead letters
	Workers       Workers                `json:"workers"`       // clients that write a token
	GC            *gccmd.Status          `json:"gc"`            // state of garbage collection, as percctl gc status prints it
	Rates         *Rates                 `json:"rates"`         // changes per second since the previous frame; null in the first frame
	NotVisible    []string               `json:"not_visible"`   // what the frame cannot show
	Warnings      []string               `json:"warnings"`      // warnings

	taken time.Time
	locks map[lockID]bool
}

// Locks are the locks of transactions.
type Locks struct {
	Locks        int                    `json:"locks"`              // locks that were read
	Transactions int                    `json:"transactions"`       // transactions that they belong to
	More         bool                   `json:"more"`               // whether there are more locks than --limit
	Unreadable   int                    `json:"unreadable"`         // lock records that cannot be read
	OldestTS     tso.Timestamp          `json:"oldest_ts"`          // start timestamp of the oldest of these transactions; 0 if there are no locks
	OldestAge    float64                `json:"oldest_age_seconds"` // oracle time since oldest_ts
	Forward      int                    `json:"to_roll_forward"`    // listed transactions whose locks would be rolled forward
	Back         int                    `json:"to_roll_back"`       // listed transactions whose locks would be rolled back
	Alive        int                    `json:"to_leave"`           // listed transactions whose owners may be alive
	Listed       []*inspect.Transaction `json:"listed"`             // the oldest transactions, as percctl lock list prints them
}

// Notifications counts the notifications of all observers.
type Notifications struct {
	Cells       int  `json:"cells"`        // cells with notifications
	More        bool `json:"more"`         // whether there are more notifications than --limit
	Pending     int  `json:"pending"`      // pending changes, summed over the observers
	Failing     int  `json:"failing"`      // those whose last run failed
	Conflicting int  `json:"conflicting"`  // those whose last run lost a conflict, and will be retried
	Locked      int  `json:"locked"`       // cells with notifications that a transaction has locked
	Dead        int  `json:"dead_letters"` // dead letters
}

// Workers counts the clients that write a token.
type Workers struct {
	Fresh     int `json:"fresh"`     // clients that are alive
	Stale     int `json:"stale"`     // clients that died in the last hour
	Observing int `json:"observing"` // live clients that run observers
}

// A DeadLetter is a change on which an observer failed too often.
type DeadLetter struct {
	Cell     string        `json:"cell"`        // table, row and column
	Observer string        `json:"observer"`    // id of the observer that failed
	ChangeTS tso.Timestamp `json:"change_ts"`   // commit timestamp of the change that it failed on
	ParkedTS tso.Timestamp `json:"parked_ts"`   // oracle time at which the change became a dead letter
	Parked   string        `json:"parked_time"` // parked_ts as a time
	Attempts int           `json:"attempts"`    // failed runs
	Error    string        `json:"error"`       // error of the last failed run
}

// A lockID identifies a lock.
type lockID struct {
	cell    txn.Cell
	startTS tso.Timestamp
}

// notVisible is what a picture cannot show.
var notVisible = []string{
	"commits, reads, rollbacks and conflicts of transactions: see the metrics of clients (docs/observability.md)",
	"locks that appear and disappear between two frames: the rates of locks compare frames",
	"successful runs of observers: they lower pending, and new changes raise it",
}

// inDirectMode is what it cannot show of an oracle without servers.
const inDirectMode = "timestamps handed out: in direct mode there is no counter"

// Take takes a picture. It fails when a part of it cannot be seen.
func Take(ctx context.Context, s *session.Session, o Options) (*Picture, error) {
	p := &Picture{
		Project: s.Connect.Project, Instance: s.Connect.Instance, taken: time.Now(), locks: map[lockID]bool{},
		Observers: []observercmd.Observer{}, DeadLetters: []DeadLetter{}, Warnings: []string{}, NotVisible: notVisible,
	}
	var err error
	if p.TS, err = s.Client().Timestamp(ctx); err != nil {
		return nil, err
	}
	p.Time = cli.Time(p.TS)
	o.Tables.All = len(o.Tables.Names) == 0
	if p.Tables, err = o.Tables.Open(ctx, s); err != nil {
		return nil, err
	}
	if p.Tables == nil {
		p.Tables = []string{}
	}
	for _, part := range []func(context.Context, *session.Session, Options) error{p.takeOracle, p.takeLocks, p.takeObservers, p.takeRest} {
		if err := part(ctx, s, o); err != nil {
			return nil, err
		}
	}
	p.Took = time.Since(p.taken).Seconds()
	return p, nil
}

func (p *Picture) takeOracle(ctx context.Context, s *session.Session, _ Options) (err error) {
	if p.Oracle, err = tsocmd.Look(ctx, s.Bigtable.OpenTable(s.Connect.MetadataTable), &s.Connect.Oracle); err != nil {
		return err
	}
	if p.Leader() == nil {
		p.NotVisible = append([]string{inDirectMode}, notVisible...)
		if p.Oracle.Row.Mode == string(tso.ModeServed) {
			p.NotVisible[0] = "timestamps handed out: no server says that it leads"
		}
	}
	return nil
}

func (p *Picture) takeLocks(ctx context.Context, s *session.Session, o Options) error {
	found, err := inspect.Collect(ctx, s, &o.Tables, p.Tables, inspect.Want{Limit: o.Limit})
	if err != nil {
		return err
	}
	l := &p.Locks
	l.Locks, l.Transactions, l.More, l.Unreadable = found.Locks, len(found.Groups), found.More, found.Unreadable
	for _, g := range found.Groups {
		for _, one := range g {
			p.locks[lockID{one.Cell, one.StartTS}] = true
		}
	}
	if len(found.Groups) > 0 {
		l.OldestTS = found.Groups[0][0].StartTS
		l.OldestAge = (time.Duration(max(p.TS-l.OldestTS, 0)) * time.Microsecond).Seconds()
	}
	l.Listed, err = inspect.Describe(ctx, s, found.Groups[:min(len(found.Groups), o.Transactions)])
	for _, t := range l.Listed {
		switch {
		case t == nil: // with an error
		case t.Outcome == inspect.Forward:
			l.Forward++
		case t.Outcome == inspect.Back:
			l.Back++
		case t.Outcome == inspect.Alive:
			l.Alive++
		}
	}
	return err
}

func (p *Picture) takeObservers(ctx context.Context, s *session.Session, o Options) error {
	n := &p.Notifications
	want := observercmd.Want{Tables: o.Tables, Limit: o.Limit, Seen: n.add}
	want.Tables.Names = p.Tables
	want.Dead = func(d changes.DeadLetter) {
		if n.Dead++; n.Dead <= shownDeadLetters {
			p.DeadLetters = append(p.DeadLetters, DeadLetter{d.Cell.String(), cli.Line(d.Observer), d.ChangeTS, d.ParkedTS, cli.Time(d.ParkedTS), d.Attempts, cli.Line(d.Error)})
		}
	}
	all, more, err := observercmd.Survey(ctx, s, want)
	p.Observers, n.More = append(p.Observers, all...), more
	for _, b := range all {
		n.Pending += b.Pending
		n.Failing += b.Failing
	}
	return err
}

func (n *Notifications) add(seen changes.Observation) {
	n.Cells++
	if seen.Locked {
		n.Locked++
	}
	for id, f := range seen.Failures {
		if seen.Pending(id) && f.ChangeTS == seen.ChangeTS && f.Attempts == 0 && f.Error != "" {
			n.Conflicting++
		}
	}
}

func (p *Picture) takeRest(ctx context.Context, s *session.Session, _ Options) error {
	workers, err := admin.Workers(ctx, s.Client())
	if err != nil {
		return err
	}
	for _, w := range workers {
		switch {
		case w.State != admin.OwnerFresh:
			p.Workers.Stale++
		case len(w.Observers) > 0:
			p.Workers.Observing++
			fallthrough
		default:
			p.Workers.Fresh++
		}
	}
	p.GC, err = gccmd.NewStatus(ctx, s)
	return err
}
