// Package picture takes pictures of a deployment, without changing anything:
// what percctl top and percctl console show. What it finds, it finds as the
// commands for the single things do.
package picture

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// Options bound a picture.
type Options struct {
	// Tables are looked at; without names, all of the deployment.
	Tables session.Tables
	// Locks and Notifications are how many to read at most. They default to
	// DefaultLimit.
	Locks, Notifications int
	// Transactions is of how many transactions, the oldest, the primary and the
	// owner are looked at. Defaults to DefaultTransactions.
	Transactions int
}

// The bounds of a picture: what Bigtable answers in a second or so, and what
// people can look at.
const (
	DefaultLimit        = 10_000
	DefaultTransactions = 20
	shownDeadLetters    = 20
)

// A Picture is what was seen of a deployment. Its parts were looked at one
// after the other.
type Picture struct {
	Project       string                 `json:"project"`
	Instance      string                 `json:"instance"`
	TS            tso.Timestamp          `json:"ts"` // oracle time when it was begun
	Time          string                 `json:"time"`
	Took          float64                `json:"took_seconds"`
	Tables        []string               `json:"tables"`
	Oracle        *tsocmd.Report         `json:"oracle"` // as percctl tso status prints it
	Locks         Locks                  `json:"locks"`
	Notifications Notifications          `json:"notifications"`
	Observers     []observercmd.Observer `json:"observers"`    // as percctl observer list prints them
	DeadLetters   []DeadLetter           `json:"dead_letters"` // the first ones
	Workers       Workers                `json:"workers"`
	GC            *gccmd.Status          `json:"gc"`    // as percctl gc status prints it
	Rates         *Rates                 `json:"rates"` // since the frame before; null in the first one
	NotVisible    []string               `json:"not_visible"`
	Warnings      []string               `json:"warnings"`

	taken time.Time
	locks map[lockID]bool
}

// Locks are those of unfinished transactions.
type Locks struct {
	Locks        int                    `json:"locks"`
	Transactions int                    `json:"transactions"`
	More         bool                   `json:"more"`               // there are others beyond the limit
	Unreadable   int                    `json:"unreadable"`         // lock records
	OldestTS     tso.Timestamp          `json:"oldest_ts"`          // start_ts; 0: no locks
	OldestAge    float64                `json:"oldest_age_seconds"` // in oracle time
	Forward      int                    `json:"to_roll_forward"`    // transactions, of those listed
	Back         int                    `json:"to_roll_back"`
	Alive        int                    `json:"to_leave"` // their owners may be alive
	Listed       []*inspect.Transaction `json:"listed"`   // the oldest, as percctl lock list prints them
}

// Notifications are counted over all observers.
type Notifications struct {
	Cells       int  `json:"cells"` // that carry notifications
	More        bool `json:"more"`  // there are others beyond the limit
	Pending     int  `json:"pending"`
	Failing     int  `json:"failing"`
	Conflicting int  `json:"conflicting"` // whose last run lost a conflict, and waits to be tried again
	Locked      int  `json:"locked"`      // cells that a transaction is at work on, or has left locked
	Dead        int  `json:"dead_letters"`
}

// Workers are the clients that have a token.
type Workers struct {
	Fresh     int `json:"fresh"` // alive
	Stale     int `json:"stale"` // died in the last hour
	Observing int `json:"observing"`
}

// A DeadLetter is a notification that was given up.
type DeadLetter struct {
	Cell     string        `json:"cell"`
	Observer string        `json:"observer"`
	ChangeTS tso.Timestamp `json:"change_ts"`
	ParkedTS tso.Timestamp `json:"parked_ts"`
	Parked   string        `json:"parked_time"`
	Attempts int           `json:"attempts"`
	Error    string        `json:"error"`
}

// lockID tells locks apart.
type lockID struct {
	cell    txn.Cell
	startTS tso.Timestamp
}

// notVisible is what nobody sees from outside.
var notVisible = []string{
	"commits, reads, aborts and conflicts of transactions: clients' metrics count them (docs/observability.md)",
	"locks that come and go between two frames: rates of locks are what the frames show",
	"successful runs of observers: pending shrinks by them, and grows by changes",
}

// inDirectMode is what nobody sees of an oracle without servers.
const inDirectMode = "timestamps handed out: in direct mode nobody counts them"

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
	if o.Locks == 0 {
		o.Locks = DefaultLimit
	}
	if o.Transactions == 0 {
		o.Transactions = DefaultTransactions
	}
	found, err := inspect.Collect(ctx, s, &o.Tables, p.Tables, inspect.Want{Limit: o.Locks})
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
	want := observercmd.Want{Tables: o.Tables, Limit: o.Notifications, Seen: n.add}
	want.Tables.Names = p.Tables
	if want.Limit == 0 {
		want.Limit = DefaultLimit
	}
	want.Dead = func(d txn.DeadLetter) {
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

func (n *Notifications) add(seen txn.Observation) {
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
	workers, err := s.Client().Workers(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		switch {
		case w.State != txn.OwnerFresh:
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
