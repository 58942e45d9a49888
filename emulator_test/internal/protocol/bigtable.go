package protocol

// What Bigtable does with a request: each function is one atomic mutation of a row.

// since reports whether a cell has a record or marker at or above a timestamp.
func since(m *machine, s *state, cell int, ts uint8) bool {
	if s.marks[cell] >= ts {
		return true
	}
	for t := range m.txns {
		if c := s.cells[cell].records[t]; c != 0 && c >= ts && !m.is(PrewriteIgnoresWrites) {
			return true
		}
		if s.markerOf(cell, t) && s.txns[t].start >= ts && !m.is(PrewriteIgnoresMarkers) {
			return true
		}
	}
	return false
}

func locked(m *machine, s *state, cell int) bool {
	return s.cells[cell].locks != 0 && !m.is(PrewriteIgnoresLocks)
}

// applyFirst mirrors the first prewrite of a row: store.AnythingSince (any record of the row, and
// the locks of the named columns), or store.AnyConflictInRow if rows are wide.
func applyFirst(m *machine, s *state, t, row int) (ok bool) {
	x := &m.txns[t]
	for _, cell := range m.inRow[m.Rows[x.rows[row][0]]] {
		if since(m, s, cell, s.txns[t].start) || ((m.Wide || x.writes&bit(cell) != 0) && locked(m, s, cell)) {
			return false
		}
	}
	lockCells(m, s, t, x.rows[row])
	return true
}

// applyPart mirrors a prewrite that names its cells: store.AnyConflict.
func applyPart(m *machine, s *state, t, row, part int) (ok bool) {
	cells := m.part(t, row, part)
	for _, cell := range cells {
		if since(m, s, cell, s.txns[t].start) || locked(m, s, cell) {
			return false
		}
	}
	lockCells(m, s, t, cells)
	return true
}

// lockCells mirrors txn.lockMutation.
func lockCells(m *machine, s *state, t int, cells []int) {
	for _, cell := range cells {
		s.cells[cell].locks |= bit(t)
		if m.txns[t].kinds[cell] == Put {
			s.cells[cell].data |= bit(t)
		}
		if cell == m.txns[t].primary {
			s.txns[t].min, s.txns[t].sealed = 0, 0
		}
	}
}

// applyCommit mirrors the commit of the primary's row (recovery.PrimaryCommit.predicate,
// store.AddCommit): only the primary lock is a condition.
func applyCommit(m *machine, s *state, t int, commit uint8) (ok bool) {
	x := &m.txns[t]
	lock := s.lockOf(x.primary, t) || m.is(CommitWithoutLock)
	if !lock || (m.Pass && s.txns[t].min >= commit && !m.is(CommitIgnoresMinimum)) {
		return false
	}
	commitCells(s, t, x.rows[0], commit)
	s.txns[t].committed = commit
	return true
}

// commitCells mirrors store.AddCommit.
func commitCells(s *state, t int, cells []int, commit uint8) {
	for _, cell := range cells {
		s.cells[cell].records[t] = commit
		s.cells[cell].locks &^= bit(t)
	}
}

// removeCells mirrors store.RemoveLockAndData.
func removeCells(s *state, t int, cells ...int) {
	for _, cell := range cells {
		s.cells[cell].locks &^= bit(t)
		s.cells[cell].data &^= bit(t)
	}
}

// applyHeartbeat mirrors txn.heartbeat.rewrite. The owner knows no raised minimum.
func applyHeartbeat(m *machine, s *state, t int) {
	p := m.txns[t].primary
	if m.is(HeartbeatWithoutLock) {
		s.cells[p].locks |= bit(t)
	}
	if s.lockOf(p, t) && (s.txns[t].min == 0 || m.is(HeartbeatLowersMinimum)) {
		s.txns[t].min = 0
	}
	if s.lockOf(p, t) && m.is(HeartbeatUndoesSeal) {
		s.txns[t].sealed = 0
	}
}

// applyAhead mirrors a heartbeat that goes ahead of the readers. It may undo a seal that it does
// not know, and then the owner is not sure any more.
func applyAhead(m *machine, s *state, t int) {
	p, y := m.txns[t].primary, &s.txns[t]
	if !s.lockOf(p, t) || y.min > y.ahead && !m.is(AheadLowersMinimum) {
		return
	}
	y.min, y.sealed, y.sure = y.ahead, 0, unsealed
}

// applySeal mirrors recovery.sealLock.
func applySeal(m *machine, s *state, t int) (ok bool) {
	p, y := m.txns[t].primary, &s.txns[t]
	if m.is(SealWithoutLock) {
		s.cells[p].locks |= bit(t)
	}
	if !s.lockOf(p, t) || y.min >= y.seal && !m.is(SealLowersMinimum) {
		return false
	}
	y.min, y.sealed = y.seal, 1
	return true
}

// applyUndecided mirrors recovery.rollBackPrimary with store.Undecided: a marker at an empty
// primary, unless anything was written there since asOf.
func applyUndecided(m *machine, s *state, t int) (ok bool) {
	p := m.txns[t].primary
	asOf := s.txns[t].undecided
	if s.lockOf(p, t) || s.markerOf(p, t) {
		return false
	}
	for i := range m.txns {
		if c := s.cells[p].records[i]; c != 0 && c >= asOf || s.markerOf(p, i) && s.txns[i].start >= asOf {
			return false
		}
	}
	if !m.is(EmptyPrimaryWithoutMarker) {
		s.cells[p].markers |= bit(t)
	}
	s.txns[t].known |= knownRolledBack
	return true
}
