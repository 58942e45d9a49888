// Package inspect finds out, without changing anything, what is to be said of
// transactions with locks: the state of the primary, the owner, and what would
// become of the locks.
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// parallelism bounds the requests under way at a time: enough to hide the way
// to Bigtable, few enough to leave the service to others.
const parallelism = 16

// A Lock is one lock of a transaction.
type Lock struct {
	Cell      string        `json:"cell"`         // locked cell
	Kind      string        `json:"kind"`         // write that the lock is for: `put`, `delete` or `lock` (a lock-only write)
	Primary   bool          `json:"primary"`      // whether the cell is the primary of its transaction
	TTL       float64       `json:"ttl_seconds"`  // time to live that the owner gave the lock
	ExpiresTS tso.Timestamp `json:"expires_ts"`   // oracle time from which other clients may roll the lock back
	Expires   string        `json:"expires_time"` // expires_ts as a time
	Observed  bool          `json:"observed"`     // whether the column has observers, so that the commit leaves a notification
}

func newLock(l format.Lock) Lock {
	return Lock{l.Cell.String(), l.Kind.String(), l.IsPrimary(), l.TTL.Seconds(), l.ExpiresTS(), cli.Time(l.ExpiresTS()), l.Observed}
}

// A Transaction is one transaction and its locks.
type Transaction struct {
	Primary     string           `json:"primary"`                      // primary cell of the transaction
	StartTS     tso.Timestamp    `json:"start_ts"`                     // start timestamp
	Start       string           `json:"start_time"`                   // start_ts as a time
	Age         float64          `json:"age_seconds"`                  // oracle time since start_ts
	State       string           `json:"state"`                        // state that the primary shows: `committed`, `rolled back`, `locked`, `unknown` (the primary has no trace of the transaction), or `unreadable`
	CommitTS    tso.Timestamp    `json:"commit_ts,omitempty"`          // commit timestamp, once the transaction is committed
	Commit      string           `json:"commit_time,omitempty"`        // commit_ts as a time
	Outcome     doctor.Outcome   `json:"outcome"`                      // effect of resolving the locks now
	Verdict     string           `json:"verdict"`                      // outcome in words, with the reason
	Owner       string           `json:"owner"`                        // id of the client that wrote the locks; empty if there is no lock or the client writes no token
	OwnerToken  admin.OwnerState `json:"owner_token"`                  // state of the owner's worker token; empty if there is no lock
	OwnerHost   string           `json:"owner_host,omitempty"`         // host of the owner's process
	OwnerPID    int64            `json:"owner_pid,omitempty" unit:"-"` // id of the owner's process
	TokenTS     tso.Timestamp    `json:"token_expires_ts,omitempty"`   // oracle time at which the owner's token becomes stale
	TokenTime   string           `json:"token_expires_time,omitempty"` // token_expires_ts as a time
	TraceID     string           `json:"trace_id,omitempty"`           // id of the transaction's trace, from trace_parent
	TraceParent string           `json:"trace_parent,omitempty"`       // W3C traceparent of the transaction's trace
	Locks       []Lock           `json:"locks"`                        // locks of the transaction in the tables and rows that were read

	// Found are the locks as the library knows them, Status the primary's.
	Found  []format.Lock `json:"-"`
	Status txn.Status    `json:"-"`
	now    tso.Timestamp
	token  admin.OwnerStatus
}

// DefaultLimit is how many locks are held in memory at most, unless a command
// is told otherwise: some hundred megabytes.
const DefaultLimit = 200_000

// A Want says which locks Collect is to read.
type Want struct {
	// Keep chooses locks; nil is all.
	Keep func(format.Lock) bool
	// StartTS, when not 0, is the transaction whose locks are read alone.
	StartTS tso.Timestamp
	// Limit is how many locks to read at most; 0 is DefaultLimit.
	Limit int
}

// A Collection is what Collect found.
type Collection struct {
	// Groups are locks by transaction, in order of their start.
	Groups [][]format.Lock
	Locks  int
	// More says that there are others beyond the limit.
	More bool
	// Unreadable counts lock records that say nothing.
	Unreadable int
}

// shownUnreadable is how many of them are named.
const shownUnreadable = 10

// Collect reads the locks in tables and groups them by transaction. Records
// that cannot be read are named on standard error and counted.
func Collect(ctx context.Context, s *session.Session, t *session.Tables, tables []string, want Want) (*Collection, error) {
	type id struct {
		startTS tso.Timestamp
		primary txn.Cell
	}
	if want.Limit == 0 {
		want.Limit = DefaultLimit
	}
	byTxn := map[id][]format.Lock{}
	c := &Collection{}
	errFull := errors.New("full")
	err := t.Each(ctx, s, tables, func(table string, rows bigtable.RowSet) error {
		locks := admin.Locks(ctx, s.Client(), table, rows)
		if want.StartTS != 0 {
			locks = admin.TransactionLocks(ctx, s.Client(), table, rows, want.StartTS)
		}
		for l, err := range locks {
			switch {
			case errors.Is(err, txn.ErrCorrupt), errors.Is(err, txn.ErrFormatVersion):
				if c.Unreadable++; c.Unreadable <= shownUnreadable {
					s.Progress.End()
					fmt.Fprintf(s.Streams.Err, "unreadable: %s\n", cli.Line(err.Error()))
				}
				continue
			case err != nil:
				return err
			case want.Keep != nil && !want.Keep(l):
				continue
			case c.Locks == want.Limit:
				c.More = true
				return errFull
			}
			k := id{l.StartTS, l.Primary}
			byTxn[k] = append(byTxn[k], l)
			c.Locks++
			s.Progress.Set("reading table %s: %s so far", table, cli.Count(c.Locks, "lock"))
		}
		return nil
	})
	if errors.Is(err, errFull) {
		err = nil
	}
	for _, g := range byTxn {
		c.Groups = append(c.Groups, g)
	}
	slices.SortFunc(c.Groups, func(a, b []format.Lock) int {
		return cmp.Or(cmp.Compare(a[0].StartTS, b[0].StartTS), strings.Compare(a[0].Primary.String(), b[0].Primary.String()))
	})
	return c, err
}

// Verdict is the error of a collection that does not have everything: the exit
// code comes from it.
func (c *Collection) Verdict() error {
	switch {
	case c.More:
		return session.Foundf("stopped at %s, and there are more: choose fewer with --prefix, --start, --end or --older-than, or raise --limit", cli.Count(c.Locks, "lock"))
	case c.Unreadable > 0:
		return session.Foundf("%s cannot be read; run percctl check, which names the cells", cli.Count(c.Unreadable, "lock record"))
	}
	return nil
}

// Describe says of each group of locks, which are of one transaction each, what
// Transaction says. It asks the oracle for the time once.
func Describe(ctx context.Context, s *session.Session, groups [][]format.Lock) ([]*Transaction, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*Transaction, len(groups))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelism)
	for i, locks := range groups {
		g.Go(func() (err error) {
			all[i], err = describe(gctx, s, locks[0].Primary, locks[0].StartTS, locks, now)
			s.Progress.Set("looking at primaries: %d of %d", i+1, len(groups))
			return err
		})
	}
	return all, g.Wait()
}

// One says what Transaction says of one transaction, with or without locks.
func One(ctx context.Context, s *session.Session, primary txn.Cell, startTS tso.Timestamp, locks []format.Lock) (*Transaction, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	return describe(ctx, s, primary, startTS, locks, now)
}

func describe(ctx context.Context, s *session.Session, primary txn.Cell, startTS tso.Timestamp, locks []format.Lock, now tso.Timestamp) (*Transaction, error) {
	// The primary may be in a table that was not asked for.
	var status txn.Status
	err := s.Use(ctx, primary.Table)
	if err == nil {
		status, err = admin.TransactionStatus(ctx, s.Client(), primary, startTS)
	}
	if ctx.Err() != nil {
		return nil, err
	}
	t := &Transaction{
		Primary: primary.String(), StartTS: startTS, Start: cli.Time(startTS),
		Age:   time.Duration((now - startTS) * 1000).Seconds(),
		State: status.State.String(), CommitTS: status.CommitTS, Commit: cli.Time(status.CommitTS),
		Locks: []Lock{}, Found: locks, Status: status, now: now,
	}
	if err != nil {
		t.State = "unreadable"
	}
	for _, l := range locks {
		t.Locks = append(t.Locks, newLock(l))
	}
	any := status.Lock
	if any == nil && len(locks) > 0 {
		any = &locks[0]
	}
	if any != nil {
		t.Owner, t.TraceParent, t.TraceID = cli.Line(any.Owner), cli.Line(any.TraceParent), traceID(any.TraceParent)
		var e error
		if t.token, e = admin.ReadOwner(ctx, s.Client(), any.Owner, now); e != nil {
			return nil, e
		}
		t.OwnerToken, t.OwnerHost, t.OwnerPID = t.token.State, cli.Line(t.token.Host), t.token.PID
		t.TokenTS, t.TokenTime = t.token.ExpiresTS, cli.Time(t.token.ExpiresTS)
	}
	t.Outcome, t.Verdict = doctor.Judge(status, err, locks, t.token, now)
	if err == nil && len(locks) == 0 && (status.State == format.StateUnknown || status.State == txn.StateRolledBack) {
		p, err := gc.SafePoint(ctx, s.Client())
		if err != nil {
			return nil, err
		}
		if t.StartTS <= p {
			t.Verdict += "; below the safe point, " + cli.Stamp(p) + ", this proves nothing: garbage collection may have removed the commit"
		}
	}
	return t, nil
}

// strandedAfter is how old a transaction is at least whose client writes no token, and counts as
// dead.
const strandedAfter = 10.0 // seconds

// Stranded reports whether the locks are left by a dead client: another client has to
// resolve them.
func (t *Transaction) Stranded() bool {
	switch {
	case t.Outcome == doctor.Back:
		return true
	case t.Outcome == doctor.Forward && t.OwnerToken == admin.OwnerMissing:
		return t.Age > strandedAfter
	}
	return t.Outcome == doctor.Forward && (t.OwnerToken == admin.OwnerStale || t.OwnerToken == admin.OwnerEnded)
}

// DeclareDead says what resolving the locks does if the owner is treated as dead.
func (t *Transaction) DeclareDead() {
	if t.Outcome == doctor.Alive {
		t.Outcome, t.Verdict = doctor.Back, t.Verdict+"; not committed, and --owner-dead: will be rolled back. If its owner lives, it gets a conflict"
	}
}

// Hanging reports whether a client that may be alive holds the locks for so long that it may hang.
// They block writers, and some of them readers.
func (t *Transaction) Hanging() bool {
	return t.Outcome == doctor.Alive && len(t.Found) > 0 && t.Age > doctor.LongLock.Seconds()
}

// With returns the transaction with other locks, which were read later.
func (t *Transaction) With(locks []format.Lock) *Transaction {
	c := *t
	c.Found, c.Locks = locks, make([]Lock, len(locks))
	for i, l := range locks {
		c.Locks[i] = newLock(l)
	}
	return &c
}

// traceID is the second part of a W3C traceparent.
func traceID(parent string) string {
	parts := strings.Split(parent, "-")
	if len(parts) < 4 {
		return ""
	}
	return cli.Line(parts[1])
}

// IsFinal reports whether the transaction has ended.
func (t *Transaction) IsFinal() bool {
	return t.Status.State == txn.StateCommitted || t.Status.State == txn.StateRolledBack
}
