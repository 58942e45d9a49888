// Package picture takes pictures of a deployment, without changing anything:
// what percctl top and percctl console show. What it finds, it finds as the
// commands for the single things do.
package picture

import (
	"slices"
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
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
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
	Scan          Scan                   `json:"scan"`          // age and cost of the frame

	taken   time.Time
	locks   map[lockID]bool
	own     tso.ClientStats // what this client asked of the oracle
	session *session.Session
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
func notVisible(oracle *tsocmd.Report, m *watch.Metrics) (words []string) {
	switch {
	case leader(oracle) != nil:
	case oracle.Row.Mode == string(tso.ModeServed):
		words = append(words, "timestamps handed out: no server says that it leads")
	default:
		words = append(words, "timestamps handed out: in direct mode there is no counter")
	}
	if m == nil {
		words = append(words, "commits, reads, rollbacks and conflicts of transactions: see the metrics of clients (docs/observability.md)")
	}
	return append(words, "locks that appear and disappear between two frames: the rates of locks compare frames",
		"successful runs of observers: they lower pending, and new changes raise it")
}

// A Scan says how old the picture is, and what it costs.
type Scan struct {
	Complete      bool    `json:"complete"`                // whether every row of the tables was read at least once
	Rows          int     `json:"rows"`                    // rows of the tables, as far as they were read
	Oldest        float64 `json:"oldest_seconds"`          // time since the row that was not read for the longest was read
	Pass          float64 `json:"pass_seconds"`            // time that the last pass over all rows took, summed over the tables
	Requests      float64 `json:"requests_per_second"`     // requests to Bigtable in the last 10 seconds
	Bytes         float64 `json:"bytes_per_second"`        // bytes of Bigtable's answers in the last 10 seconds
	MaxRequests   int     `json:"max_requests_per_second"` // the limit of requests; 0 if the frame is read without limits
	MaxBytes      int     `json:"max_bytes_per_second"`    // the limit of bytes; 0 if the frame is read without limits
	TotalRequests int64   `json:"total_requests"`          // requests since the command started
	TotalBytes    int64   `json:"total_bytes"`             // bytes of answers since the command started
}

// picture makes a picture of what is known.
func (s *Scanner) picture() *Picture {
	n := &s.small
	p := &Picture{
		Project: s.session.Connect.Project, Instance: s.session.Connect.Instance, TS: n.ts, Time: cli.Time(n.ts), Tables: append([]string{}, s.scan.Names...),
		Oracle: n.oracle, GC: n.gc, taken: n.at, locks: map[lockID]bool{}, own: n.own, session: s.session,
		DeadLetters: []DeadLetter{}, Warnings: []string{}, NotVisible: notVisible(n.oracle, s.Metrics),
	}
	p.Scan = s.cost()
	p.Locks.More, p.Notifications.More = !p.Scan.Complete, !p.Scan.Complete
	for _, t := range s.scan.Tables {
		p.Locks.More, p.Notifications.More = p.Locks.More || t.More, p.Notifications.More || t.More
		for _, k := range t.Rows {
			p.Locks.Unreadable += len(k.Unreadable)
			for _, words := range k.Unreadable {
				words = "unreadable: " + cli.Line(words)
				if len(p.Warnings) < keptNotes && !slices.Contains(p.Warnings, words) {
					p.Warnings = append(p.Warnings, words)
				}
			}
		}
	}
	slices.Sort(p.Warnings)
	s.pictureLocks(p)
	s.pictureObservers(p)
	for _, w := range n.workers {
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
	p.Warnings = append(p.Warnings, s.keeper.notes.all()...)
	return p
}

// leastWindow is how long the scanner measures at least what it costs: single reads come in
// bursts, which it pays for with pauses.
const leastWindow = 5 * time.Second

func (s *Scanner) cost() Scan {
	now := time.Now()
	c := Scan{Complete: len(s.scan.Names) > 0 || !s.listed.IsZero(), MaxRequests: s.limits.Requests, MaxBytes: s.limits.Bytes}
	for _, t := range s.scan.Tables {
		rows, oldest := t.Count()
		c.Rows += rows
		if t.Passes == 0 {
			c.Complete = false
		}
		if !oldest.IsZero() {
			c.Oldest = max(c.Oldest, now.Sub(oldest).Seconds())
		}
		c.Pass += t.LastPass.Seconds()
	}
	used := s.meter.Used()
	c.TotalRequests, c.TotalBytes = used.Requests, used.Bytes
	if len(s.window) > 0 {
		from := s.window[0]
		over := max(now.Sub(from.at), leastWindow).Seconds()
		c.Requests, c.Bytes = float64(used.Requests-from.used.Requests)/over, float64(used.Bytes-from.used.Bytes)/over
	}
	return c
}

func (s *Scanner) pictureLocks(p *Picture) {
	groups := s.scan.Groups()
	l := &p.Locks
	l.Transactions, l.Listed = len(groups), []*inspect.Transaction{}
	for _, g := range groups {
		l.Locks += len(g)
		for _, one := range g {
			p.locks[lockID{one.Cell, one.StartTS}] = true
		}
	}
	if len(groups) > 0 {
		l.OldestTS = groups[0][0].StartTS
		l.OldestAge = (time.Duration(max(p.TS-l.OldestTS, 0)) * time.Microsecond).Seconds()
	}
	for _, g := range groups[:min(len(groups), s.options.Transactions)] {
		d := s.txns[txnID{g[0].StartTS, g[0].Primary}]
		if d == nil {
			continue
		}
		t := d.t.With(g)
		l.Listed = append(l.Listed, t)
		switch t.Outcome {
		case doctor.Forward:
			l.Forward++
		case doctor.Back:
			l.Back++
		case doctor.Alive:
			l.Alive++
		}
	}
}

func (s *Scanner) pictureObservers(p *Picture) {
	n := &p.Notifications
	var observed []changes.ObservedColumn
	for _, name := range s.scan.Names {
		observed = append(observed, s.scan.Tables[name].Columns...)
	}
	backlog := observercmd.NewBacklog(observed)
	for _, t := range s.scan.Tables {
		for _, k := range t.Rows {
			for _, seen := range k.Seen {
				n.add(seen)
				backlog.Seen(seen)
			}
		}
	}
	for _, d := range s.small.letters {
		if n.Dead++; n.Dead <= shownDeadLetters {
			p.DeadLetters = append(p.DeadLetters, newDeadLetter(d))
		}
		backlog.Dead(d)
	}
	p.Observers = append([]observercmd.Observer{}, backlog.List(s.small.workers, s.small.ts)...)
	for _, b := range p.Observers {
		n.Pending += b.Pending
		n.Failing += b.Failing
	}
}

func newDeadLetter(d changes.DeadLetter) DeadLetter {
	return DeadLetter{d.Cell.String(), cli.Line(d.Observer), d.ChangeTS, d.ParkedTS, cli.Time(d.ParkedTS), d.Attempts, cli.Line(d.Error)}
}

func (n *Notifications) add(seen changes.Observation) {
	n.Cells++
	if seen.Locked {
		n.Locked++
	}
	n.Conflicting += watch.Conflicting(seen)
}
