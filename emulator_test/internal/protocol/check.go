package protocol

import "fmt"

// violation returns what a state breaks of docs/guarantees.md, or "".
func violation(m *machine, s *state) string {
	for t := range m.txns {
		y := &s.txns[t]
		switch r := s.cells[m.txns[t].primary].records[t]; {
		case y.phase == committed && y.committed == 0:
			return fmt.Sprintf("T%d was acknowledged and is not committed", t+1)
		case (y.phase == failed || y.phase == aborted) && y.committed != 0:
			return fmt.Sprintf("T%d was reported as failed and is committed", t+1)
		case r != 0 && r != y.committed:
			return fmt.Sprintf("T%d has a record at %d and is committed at %d", t+1, r, y.committed)
		case y.phase == committed && y.commit != y.committed:
			return fmt.Sprintf("T%d was acknowledged at %d and is committed at %d", t+1, y.commit, y.committed)
		}
		if y.sure == certain && s.lockOf(m.txns[t].primary, t) && y.min >= y.commit {
			return fmt.Sprintf("starvation: a reader took the commit_ts of T%d away after its lock was sealed", t+1)
		}
		for row := range m.txns[t].rows {
			if r := &y.rows[row]; y.phase == aborted && r.knows&untouched != 0 && s.duplicates == m.Duplicates && (r.sent&prewrites != 0 || s.lockOf(m.txns[t].rows[row][0], t)) {
				return fmt.Sprintf("the abort of T%d has left out its row %d, which it may have locked", t+1, row)
			}
		}
		for i := range t {
			z := &s.txns[i]
			if y.committed != 0 && z.committed != 0 && m.txns[i].writes&m.txns[t].writes != 0 && y.start < z.committed && z.start < y.committed {
				return fmt.Sprintf("lost update: T%d and T%d are concurrent, wrote the same cell, and are committed", i+1, t+1)
			}
		}
	}
	for cell := range m.Rows {
		if t, ok := missingData(m, s, cell); ok {
			return fmt.Sprintf("cell %d has a record of T%d without its data", cell, t+1)
		}
	}
	for r := range m.Readers {
		if what := wrongRead(m, s, r); what != "" {
			return what
		}
	}
	return unresolvable(m, s)
}

// missingData finds a record without data that a permitted read may show.
func missingData(m *machine, s *state, cell int) (t int, ok bool) {
	_, visible := s.newestRecord(m, cell, s.used())
	for t := range m.txns {
		c := &s.cells[cell]
		if c.records[t] != 0 && c.records[t] >= visible && m.changes(t, cell) && m.txns[t].kinds[cell] == Put && c.data&bit(t) == 0 {
			return t, true
		}
	}
	return 0, false
}

// wrongRead compares what a reader returned with the commits that took effect, also with those
// that take effect later.
func wrongRead(m *machine, s *state, r int) string {
	y := &s.readers[r]
	if y.phase != done {
		return ""
	}
	for i, cell := range m.inRow[m.Rows[m.Readers[r].Cell]] {
		upTo := max(y.ts, y.floor)
		if m.Readers[r].Latest {
			for t := range m.txns {
				if y.acked&bit(t) != 0 && m.changes(t, cell) {
					upTo = max(upTo, s.txns[t].committed)
				}
			}
		}
		if want := s.expected(m, cell, upTo); y.values[i] != want {
			return fmt.Sprintf("reader %d read %s of cell %d up to %d, but %s is committed", r, value(y.values[i]), cell, upTo, value(want))
		}
	}
	return ""
}

func value(v uint8) string {
	if v == 0 {
		return "nothing"
	}
	return fmt.Sprintf("the value of T%d", v)
}

// unresolvable lets all owners die and all requests get lost, and one client resolve what is
// left. Then no lock may be left, and every cell must show what was committed: so a transaction
// is complete or not there at all, and a healthy client can remove every lock.
func unresolvable(m *machine, s *state) string {
	n := *s
	for t := range m.txns {
		if n.txns[t].start == 0 {
			continue
		}
		p := m.txns[t].primary
		n.txns[t].undecided = 0
		for cell := range m.Rows {
			if !n.lockOf(cell, t) {
				continue
			}
			late := n.late(t) && !m.is(LateLocksJudgedByOutcome)
			if !late && n.cells[p].records[t] == 0 && !n.markerOf(p, t) {
				if n.lockOf(p, t) {
					rollBackPrimary(m, &n, t)
				} else {
					n.txns[t].undecided = n.clock + 1
					applyUndecided(m, &n, t)
				}
			}
			if !late && n.cells[p].records[t] != 0 {
				rollForward(m, &n, t, cell)
			} else {
				rollBack(&n, t, cell)
			}
		}
	}
	for cell := range m.Rows {
		if n.cells[cell].locks != 0 {
			return fmt.Sprintf("nobody can resolve a lock in cell %d", cell)
		}
		if got, want := n.shows(m, cell, n.clock), n.expected(m, cell, n.clock); got != want {
			return fmt.Sprintf("cell %d shows %s, but %s is committed", cell, value(got), value(want))
		}
		if t, ok := missingData(m, &n, cell); ok {
			return fmt.Sprintf("cell %d has a record of T%d without its data, after its lock was resolved", cell, t+1)
		}
	}
	return ""
}
