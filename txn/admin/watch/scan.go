// Package watch keeps what is known of the rows of a deployment up to date, and reads little
// at a time: rows with locks or notifications again and again, and all other rows in turn.
// It also counts what its requests cost, and reads the metrics of clients.
package watch

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Scan is what is known of the rows of tables. Its methods that read Bigtable do one piece
// of work, and report whether there was any. One goroutine calls them; they hold the lock
// only while they change what is known. Other goroutines hold the lock to read it.
type Scan struct {
	sync.Mutex
	Start, End string // rows from Start to before End; empty: all
	Limit      int    // how many locks to keep at most, and rows with notifications
	PageRows   int    // how many rows one piece of a pass reads at most

	Names  []string // tables, see SetTables
	Tables map[string]*Table
	Edges  map[Edge]bool // what runs of observers write
}

// SetTables sets the tables to read.
func (s *Scan) SetTables(names []string) {
	s.Lock()
	defer s.Unlock()
	s.Names = slices.Clone(names)
	known := s.Tables
	s.Tables = map[string]*Table{}
	for _, n := range names {
		s.Tables[n] = cmp.Or(known[n], &Table{Name: n, Rows: map[string]*Row{}})
	}
}

// room returns what cuts a new row down to the limit, and reports whether it did not have
// to.
func (s *Scan) room() func(*Row) bool {
	locks, notified := 0, 0
	for _, t := range s.Tables {
		for _, r := range t.Rows {
			locks += len(r.Locks)
			if r.notified {
				notified++
			}
		}
	}
	return func(k *Row) (whole bool) {
		n := min(len(k.Locks), s.Limit-locks)
		whole = n == len(k.Locks)
		k.Locks = k.Locks[:n]
		if locks += n; k.notified {
			if notified++; notified > s.Limit {
				k.notified, whole = false, false
			}
		}
		return whole
	}
}

// byAge returns the tables in order of a time.
func (s *Scan) byAge(of func(*Table) time.Time) (all []*Table) {
	at := map[*Table]time.Time{}
	for _, n := range s.Names {
		t := s.Tables[n]
		all, at[t] = append(all, t), of(t)
	}
	slices.SortStableFunc(all, func(a, b *Table) int { return at[a].Compare(at[b]) })
	return all
}

// ReadAgain reads rows again that have locks or notifications, and that were last read
// before a time.
func (s *Scan) ReadAgain(ctx context.Context, bt *bigtable.Client, before time.Time) (worked bool, err error) {
	for _, t := range s.byAge((*Table).oldestRow) {
		keys := t.due(before, false)
		if len(keys) == 0 {
			continue
		}
		at := time.Now()
		found, err := t.readRows(ctx, bt, bigtable.RowList(keys), len(keys))
		if err != nil {
			return false, err
		}
		s.Lock()
		defer s.Unlock()
		there, room := map[string]bool{}, s.room()
		for _, r := range found {
			there[r.Key()] = true
			t.put(r.Key(), newRow(t.Name, r, at), room)
		}
		for _, k := range keys {
			if !there[k] {
				delete(t.Rows, k)
			}
		}
		return true, nil
	}
	return false, nil
}

// far is after every time at which something was read.
var far = time.Unix(1<<40, 0)

// Pass reads the next page of the pass over all rows, of the table that it has not read for the
// longest: tables take turns. It begins no pass of a table whose last
// one ended after a time.
func (s *Scan) Pass(ctx context.Context, bt *bigtable.Client, since time.Time) (worked bool, err error) {
	tables := s.byAge(func(t *Table) time.Time {
		if t.began.IsZero() && t.passEnded.After(since) {
			return far
		}
		return t.paged
	})
	if len(tables) == 0 {
		return false, nil
	}
	t := tables[0]
	if t.began.IsZero() {
		if t.passEnded.After(since) {
			return false, nil
		}
		var boundaries []string
		if n, _ := t.Count(); t.Passes == 0 || n > s.PageRows {
			// Without boundaries the pages are only larger.
			boundaries, _ = bt.Open(t.Name).SampleRowKeys(ctx)
		}
		s.Lock()
		t.begin(boundaries, s.Start, time.Now())
		s.Unlock()
	}
	start, end := t.at, t.next(s.End)
	at := time.Now()
	found, err := t.readRows(ctx, bt, bigtable.NewRange(start, end), s.PageRows)
	if err != nil {
		return false, err
	}
	s.Lock()
	defer s.Unlock()
	if len(found) >= s.PageRows {
		end = found[len(found)-1].Key() + "\x00"
	}
	t.cover(start, end, found, at, s.room())
	t.paged = at
	if t.at = end; end == s.End {
		t.end(time.Now())
	}
	return true, nil
}

// Passed reports whether a pass of every table ended after a time.
func (s *Scan) Passed(since time.Time) bool {
	for _, t := range s.Tables {
		if t.passEnded.Before(since) {
			return false
		}
	}
	return true
}

// Observe compares notifications with acknowledgments, where it last did before a time.
func (s *Scan) Observe(ctx context.Context, client *txn.Client, before time.Time) (worked bool, err error) {
	for _, name := range s.Names {
		t := s.Tables[name]
		keys := t.due(before, true)
		if len(keys) == 0 {
			continue
		}
		at := time.Now()
		seen := map[string][]changes.Observation{}
		for o, err := range changes.Observations(ctx, client, name, bigtable.RowList(keys)) {
			if err != nil {
				return false, err
			}
			seen[o.Cell.Row] = append(seen[o.Cell.Row], o)
		}
		s.Lock()
		defer s.Unlock()
		for _, k := range keys {
			if r := t.Rows[k]; r != nil {
				r.Seen, r.seenAt = seen[k], at
			}
		}
		return true, nil
	}
	return false, nil
}

// Look reads the observed columns of the table where that was the longest ago, and before a
// time, and with sample some of its rows.
func (s *Scan) Look(ctx context.Context, client *txn.Client, bt *bigtable.Client, before time.Time, sample bool) (worked bool, err error) {
	tables := s.byAge(func(t *Table) time.Time { return t.looked })
	if len(tables) == 0 || tables[0].looked.After(before) {
		return false, nil
	}
	t := tables[0]
	cols, err := changes.ObservedColumns(ctx, client, t.Name)
	if err != nil {
		return false, err
	}
	taken, edges := t.Sample, []Edge(nil)
	if sample {
		start, end := s.Start, s.End
		if n := len(t.pages); n > 0 { // another part of the table each time
			p := t.pages[int(time.Now().UnixNano()/1000)%n]
			start, end = p.start, p.end
		}
		if taken, edges, err = readSample(ctx, bt, t.Name, start, end); err != nil {
			return false, err
		}
	}
	s.Lock()
	defer s.Unlock()
	t.Columns, t.Sample, t.looked = cols, taken, time.Now()
	s.AddEdges(edges...)
	return true, nil
}

// maxEdges bounds the graph of observers: qualifiers may be data.
const maxEdges = 2000

// AddEdges adds edges to the graph of observers.
func (s *Scan) AddEdges(edges ...Edge) {
	if s.Edges == nil {
		s.Edges = map[Edge]bool{}
	}
	for _, e := range edges {
		if len(s.Edges) < maxEdges {
			s.Edges[e] = true
		}
	}
}

// Groups returns the locks by transaction, in order of their start.
func (s *Scan) Groups() (groups [][]format.Lock) {
	type id struct {
		startTS tso.Timestamp
		primary format.Cell
	}
	byTxn := map[id][]format.Lock{}
	for _, t := range s.Tables {
		for _, k := range t.Rows {
			for _, l := range k.Locks {
				id := id{l.StartTS, l.Primary}
				byTxn[id] = append(byTxn[id], l)
			}
		}
	}
	for _, g := range byTxn {
		slices.SortFunc(g, func(a, b format.Lock) int { return strings.Compare(a.Cell.String(), b.Cell.String()) })
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b []format.Lock) int {
		return cmp.Or(cmp.Compare(a[0].StartTS, b[0].StartTS), strings.Compare(a[0].Primary.String(), b[0].Primary.String()))
	})
	return groups
}

// maxQualifiers is how many columns of a family are shown of one observer, where their
// qualifiers may be data.
const maxQualifiers = 2

// Graph returns the edges in order, with one for a family where an observer writes more than
// maxQualifiers columns of it that nobody observes.
func (s *Scan) Graph() (all []Edge) {
	observed := map[string]bool{}
	for _, t := range s.Tables {
		for _, c := range t.Columns {
			observed[t.Name+"/"+c.Column.String()] = true
		}
	}
	families := map[Edge][]Edge{}
	for e := range s.Edges {
		if observed[e.Writes] {
			all = append(all, e)
			continue
		}
		family, _, _ := strings.Cut(e.Writes, ":")
		f := Edge{e.Column, e.Observer, family + ":*"}
		families[f] = append(families[f], e)
	}
	for f, edges := range families {
		if len(edges) > maxQualifiers {
			edges = []Edge{f}
		}
		all = append(all, edges...)
	}
	slices.SortFunc(all, func(a, b Edge) int {
		return cmp.Or(strings.Compare(a.Column, b.Column), strings.Compare(a.Observer, b.Observer), strings.Compare(a.Writes, b.Writes))
	})
	return all
}
