package consolecmd

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A source is what pages are made of.
type source interface {
	Picture(context.Context) (*picture.Picture, error)
	State(ctx context.Context, since float64) (*picture.State, error)
	Tables(context.Context) ([]picture.Table, error)
	Heat(ctx context.Context, table string) (*picture.Heat, error)
	Letters(context.Context) ([]picture.DeadLetter, error)
	Row(ctx context.Context, table, row string) (*rowAnswer, error)
	Transaction(ctx context.Context, primary txn.Cell, startTS tso.Timestamp) (*txnAnswer, error)
	Doctor(ctx context.Context, again bool) (*health, error)
	Command(args []string, carryOut bool) (*job, error)
	Job(name string) (*job, error)
}

// shown bounds what one page gets of one thing: percctl history and lock list have all.
const (
	shownEvents = 1000
	shownRows   = 20
)

// live answers from the scanner, and asks Bigtable for single rows.
type live struct {
	*picture.Scanner
	keeper   *picture.Keeper
	commands *commands

	mu     sync.Mutex
	health health
}

// A txnAnswer is a transaction and what is known of its cells.
type txnAnswer struct {
	*inspect.Transaction
	Age    string          `json:"age"`   // in words
	OwnerT string          `json:"words"` // the owner, in words
	Cells  []readcmd.Event `json:"cells"` // stored versions of the transaction, in its rows that are known
	More   int             `json:"more"`  // rows with locks of it that are left out
}

func (l *live) Transaction(ctx context.Context, primary txn.Cell, startTS tso.Timestamp) (*txnAnswer, error) {
	locks := l.Locks(primary, startTS)
	a := &txnAnswer{Cells: []readcmd.Event{}}
	type at struct{ table, row string }
	rows := []at{{primary.Table, primary.Row}}
	for _, k := range locks {
		if r := (at{k.Cell.Table, k.Cell.Row}); !slices.Contains(rows, r) && len(rows) <= shownRows {
			rows = append(rows, r)
		}
	}
	err := l.keeper.Do(ctx, func(ctx context.Context, s *session.Session) (err error) {
		// The locks may have been resolved since they were found.
		var there []format.Lock
		for _, r := range rows {
			events, err := readcmd.Timeline(ctx, s, r.table, r.row)
			if err != nil {
				return err
			}
			for _, e := range events {
				if e.StartTS == startTS {
					a.Cells = append(a.Cells, e)
				}
			}
			for _, k := range locks {
				if k.Cell.Table == r.table && k.Cell.Row == r.row && slices.ContainsFunc(events, func(e readcmd.Event) bool { return e.IsLock(k) }) {
					there = append(there, k)
				}
			}
		}
		for _, k := range locks {
			if !slices.Contains(rows, at{k.Cell.Table, k.Cell.Row}) {
				there = append(there, k)
				a.More++
			}
		}
		a.Transaction, err = inspect.One(ctx, s, primary, startTS, there)
		return err
	})
	if err != nil {
		return nil, err
	}
	a.Age, a.OwnerT = a.AgeText(), a.OwnerText()
	return a, nil
}

// checkedRows is how many rows of each table the checks of the page look at.
const checkedRows = 100

// A health is what the checks of percctl doctor found.
type health struct {
	Running bool           `json:"running"`
	At      float64        `json:"at"` // seconds since 1970; 0: never
	Report  *checks.Report `json:"report"`
	Error   string         `json:"error"`
}

// Doctor returns what the checks found last. It runs them, in the background, if they never
// ran or are to run again.
func (l *live) Doctor(_ context.Context, again bool) (*health, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.health.Running && (again || l.health.At == 0) {
		l.health.Running = true
		l.commands.begin(func(ctx context.Context) {
			report, err := l.commands.doctor(ctx)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.health = health{At: float64(time.Now().UnixMilli()) / 1000, Report: report}
			if err != nil {
				l.health.Error = cli.Line(err.Error())
			}
		})
	}
	h := l.health
	return &h, nil
}

func (l *live) Command(args []string, carryOut bool) (*job, error) {
	return l.commands.start(args, carryOut), nil
}

func (l *live) Job(name string) (*job, error) { return l.commands.job(name) }
