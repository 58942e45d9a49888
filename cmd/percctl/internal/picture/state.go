package picture

import (
	"context"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A State is a picture for a page, with what changed since the page asked last.
type State struct {
	*Picture
	Points       []Point            `json:"points"` // after the time that the page has
	Now          Point              `json:"now"`
	Edges        []watch.Edge       `json:"edges"`
	Runs         map[string]float64 `json:"runs"` // of observers, per second, if metrics tell
	GCFacts      [][2]string        `json:"gc_facts"`
	Facts        []Fact             `json:"facts"`
	Transactions []Summary          `json:"transactions"`
	Failure      string             `json:"failure"`          // why the last read failed
	Answered     float64            `json:"answered_seconds"` // time since Bigtable gave the last answer
	Silent       bool               `json:"silent"`           // whether that is longer than two refreshes
	MetricsError string             `json:"metrics_error"`    // why metrics are missing
}

// A Summary is a transaction with locks, for a list.
type Summary struct {
	*inspect.Transaction
	Locks   int     `json:"locks"`           // instead of the locks
	Age     string  `json:"age"`             // in words
	Owner   string  `json:"owner"`           // in words
	Checked float64 `json:"checked_seconds"` // how long ago its primary was read
	Dead    bool    `json:"stranded"`        // whether a dead client left the locks
	Hanging bool    `json:"hanging"`         // whether a client that may be alive holds the locks for so long that it may hang
}

// Open reads what is small, so that what does not work at all fails at once.
func (s *Scanner) Open(ctx context.Context) error {
	return s.keeper.Do(ctx, func(ctx context.Context, at *session.Session) error {
		s.use(at)
		if _, err := s.list(ctx, time.Now(), false); err != nil {
			return err
		}
		if _, err := s.takeSmall(ctx, time.Now(), false); err != nil {
			return err
		}
		s.good = time.Now()
		return nil
	})
}

// State returns what is known, with the points after a time in seconds since 1970. If
// nothing can be read now, it returns what was known before, and why.
func (s *Scanner) State(ctx context.Context, since float64) (*State, error) {
	s.Look()
	s.scan.Lock()
	defer s.scan.Unlock()
	p := s.picture()
	if s.last != nil {
		p.Rates = s.last.Rates
	}
	st := &State{Picture: p, Points: []Point{}, Edges: append([]watch.Edge{}, s.scan.Graph()...), Runs: s.Metrics.Runs(), Now: s.point(p, time.Now()), GCFacts: p.GC.Facts(), Facts: p.Facts(), Transactions: []Summary{}}
	for _, pt := range s.points {
		if pt.Time > since {
			st.Points = append(st.Points, pt)
		}
	}
	for _, t := range p.Locks.Listed {
		c := *t
		c.Locks = nil
		checked := time.Since(s.txns[txnID{t.StartTS, t.Found[0].Primary}].at).Seconds()
		c.Age += checked
		st.Transactions = append(st.Transactions, Summary{&c, len(t.Found), c.AgeText(), c.OwnerText(), checked, c.Stranded(), c.Hanging()})
	}
	p.Locks.Listed = nil
	waiting := min(time.Since(s.good), time.Since(s.woke)) // without viewers, nothing is asked
	st.Answered, st.Silent = time.Since(s.good).Seconds(), waiting > 2*s.refresh()
	if s.err != nil {
		st.Failure = cli.Line(cli.Plain(s.err.Error()))
	}
	if _, err := s.Metrics.Rates(); err != nil {
		st.MetricsError = "--metrics: " + cli.Line(err.Error())
	}
	return st, ctx.Err()
}

// A Table is what is known of a table.
type Table struct {
	Name     string       `json:"name"`
	Rows     int          `json:"rows"`
	Bytes    *int64       `json:"bytes"` // null if Bigtable has not said
	Sample   watch.Sample `json:"sample"`
	Locks    int          `json:"locks"`
	Pending  int          `json:"pending"` // notified cells that an observer has not acknowledged
	Failing  int          `json:"conflicts"`
	Complete bool         `json:"complete"`
	Oldest   float64      `json:"oldest_seconds"`
	Columns  []string     `json:"observed"`
}

// Tables returns what is known of each table.
func (s *Scanner) Tables(context.Context) ([]Table, error) {
	s.Look()
	s.scan.Lock()
	defer s.scan.Unlock()
	all := []Table{}
	for _, n := range s.scan.Names {
		t := s.scan.Tables[n]
		rows, oldest := t.Count()
		one := Table{Name: n, Rows: rows, Sample: t.Sample, Complete: t.Passes > 0, Columns: []string{}}
		if !oldest.IsZero() {
			one.Oldest = time.Since(oldest).Seconds()
		}
		if size, ok := s.meter.Size(n); ok {
			one.Bytes = &size
		}
		for _, k := range t.Rows {
			one.Locks += len(k.Locks)
			for _, seen := range k.Seen {
				one.Failing += watch.Conflicting(seen)
				if !seen.Acknowledged() {
					one.Pending++
				}
			}
		}
		for _, c := range t.Columns {
			one.Columns = append(one.Columns, c.Column.String())
		}
		all = append(all, one)
	}
	return all, nil
}

// A Heat is the heat map of a table.
type Heat struct {
	Bounds []string         `json:"bounds"` // where each range of keys but the first begins
	Slots  []watch.HeatSlot `json:"slots"`
	Slot   float64          `json:"slot_seconds"`
	GC     *gccmd.Status    `json:"gc"`
}

// Heat returns the heat map of a table.
func (s *Scanner) Heat(_ context.Context, name string) (*Heat, error) {
	s.Look()
	s.scan.Lock()
	defer s.scan.Unlock()
	t := s.scan.Tables[name]
	if t == nil {
		return nil, session.NotFoundf("table %s is not shown", name)
	}
	h := &Heat{Bounds: []string{}, Slots: slices.Clone(t.Heat.Slots), Slot: watch.HeatTime.Seconds(), GC: s.small.gc}
	for _, b := range t.Heat.Bounds {
		h.Bounds = append(h.Bounds, session.Row(b))
	}
	if h.Slots == nil {
		h.Slots = []watch.HeatSlot{}
	}
	// The last slot still changes.
	for i := range h.Slots {
		c := &h.Slots[i]
		c.Locks, c.Conflicts, c.Pending = slices.Clone(c.Locks), slices.Clone(c.Conflicts), slices.Clone(c.Pending)
	}
	return h, nil
}

// Letters returns the dead letters that were read.
func (s *Scanner) Letters(context.Context) ([]DeadLetter, error) {
	s.Look()
	s.scan.Lock()
	defer s.scan.Unlock()
	all := []DeadLetter{}
	for _, d := range s.small.letters {
		all = append(all, newDeadLetter(d))
	}
	return all, nil
}

// Locks returns the locks of a transaction that were found.
func (s *Scanner) Locks(primary txn.Cell, startTS tso.Timestamp) []format.Lock {
	s.scan.Lock()
	defer s.scan.Unlock()
	for _, g := range s.scan.Groups() {
		if g[0].StartTS == startTS && g[0].Primary == primary {
			return g
		}
	}
	return nil
}
