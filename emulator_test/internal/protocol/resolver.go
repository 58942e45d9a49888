package protocol

// resolve adds what clients do that find locks of a transaction, and that call its owner dead at
// any moment (recovery.Resolver.FindOutcome, ResolveCell). A resolver has no state but what it
// may remember: a request that is conditional on a lock, and on nothing that may have changed
// since, is as good as one by another resolver at the moment when it arrives.
func resolve(o *steps, t int) {
	m, s := o.m, o.from
	y, p := &s.txns[t], m.txns[t].primary
	if y.start == 0 || m.Retry != Never && (!y.dead(m.txns[t].rows) || m.is(NobodyResolves)) {
		return
	}
	late := s.late(t) && !m.is(LateLocksJudgedByOutcome)
	primaryLock, marker, record := s.lockOf(p, t), s.markerOf(p, t), s.cells[p].records[t] != 0

	// A request may be as late as a retention, and so arrive until the safe point is drained.
	if (primaryLock || m.is(RollBackWithoutLock) && y.commit != 0 && !marker) && !(late && s.collection >= drained) {
		o.add("T%d is rolled back at its primary", t, 0, func(n *state) { rollBackPrimary(m, n, t) })
	}
	if y.undecided != 0 {
		o.add("the rollback of T%d's empty primary arrives", t, 0, func(n *state) {
			applyUndecided(m, n, t)
			n.txns[t].undecided = 0
		})
	}
	found := false
	for cell := range m.Rows {
		if !s.lockOf(cell, t) {
			continue
		}
		found = found || cell != p
		switch {
		case late:
			resolveCell(o, t, cell, false)
		case cell == p:
		case record, y.known&knownCommitted != 0:
			resolveCell(o, t, cell, true)
		case marker, y.known&knownRolledBack != 0, m.is(SecondaryDecides) && !primaryLock:
			resolveCell(o, t, cell, false)
		}
		if y.known&knownRolledBack != 0 && record && cell != p {
			resolveCell(o, t, cell, false)
		}
	}
	// recovery.Resolver.rollBackIfDead, if the primary is empty. Its caller has asked for a
	// timestamp and then read the lock; slow callers did so long ago.
	empty := !record && !marker && !primaryLock
	if found && !late && m.Slow && y.seen != s.clock+1 {
		o.add("a resolver takes a timestamp and finds a lock of T%d", t, 0, func(n *state) { n.txns[t].seen = n.clock + 1 })
	}
	_, forgotten := s.tooOldToWrite(m, t)
	if found && empty && m.Retry != Never {
		o.add("T%d is rolled back at its empty primary", t, 0, func(n *state) {
			n.txns[t].undecided = n.clock + 1
			applyUndecided(m, n, t)
			n.txns[t].undecided = 0
		})
		return
	}
	if asOf := s.clock + 1; found && !late && empty && y.undecided != asOf {
		o.add("a resolver finds a lock of T%d and nothing at its primary", t, 0, func(n *state) { n.txns[t].undecided = asOf })
	}
	if m.is(UndecidedAsOfNow) && y.undecided != 0 && y.undecided != s.clock+1 {
		o.add("the resolver takes a timestamp after it has read T%d's primary", t, 0, func(n *state) { n.txns[t].undecided = n.clock + 1 })
	}
	if y.seen > y.undecided && !late && empty && !forgotten {
		o.add("the resolver finds nothing at T%d's primary", t, 0, func(n *state) { n.txns[t].undecided = y.seen })
	}
	for cell := range m.Rows {
		if c := &s.cells[cell]; c.forward&bit(t) != 0 {
			o.add("the roll-forward of T%d at cell %d arrives", t, cell, func(n *state) {
				n.cells[cell].forward &^= bit(t)
				rollForward(m, n, t, cell)
			})
		}
		if c := &s.cells[cell]; c.back&bit(t) != 0 {
			o.add("the rollback of T%d at cell %d arrives", t, cell, func(n *state) {
				n.cells[cell].back &^= bit(t)
				rollBack(n, t, cell)
			})
		}
	}
}

// rollBackPrimary mirrors recovery.rollBackPrimary, for a primary that has its lock.
func rollBackPrimary(m *machine, n *state, t int) {
	p := m.txns[t].primary
	removeCells(n, t, p)
	if !m.is(RollBackWithoutMarker) {
		n.cells[p].markers |= bit(t)
	}
	n.txns[t].known |= knownRolledBack
}

// resolveCell mirrors recovery.Resolver.ResolveCell. Its request can be late. Only a collection
// makes a difference between a late one and a new one.
func resolveCell(o *steps, t, cell int, forward bool) {
	m, c := o.m, &o.from.cells[cell]
	slow := m.Collect || m.Follow
	switch {
	case forward && slow:
		if c.forward&bit(t) == 0 {
			o.add("a resolver sends the roll-forward of T%d at cell %d", t, cell, func(n *state) { n.cells[cell].forward |= bit(t) })
		}
	case forward:
		o.add("T%d is rolled forward at cell %d", t, cell, func(n *state) { rollForward(m, n, t, cell) })
	case slow:
		if c.back&bit(t) == 0 {
			o.add("a resolver sends the rollback of T%d at cell %d", t, cell, func(n *state) { n.cells[cell].back |= bit(t) })
		}
	default:
		o.add("T%d is rolled back at cell %d", t, cell, func(n *state) { rollBack(n, t, cell) })
	}
}

func rollForward(m *machine, n *state, t, cell int) {
	if n.lockOf(cell, t) {
		commitCells(n, t, []int{cell}, n.txns[t].committed)
	}
}

// rollBack removes a lock and its data.
func rollBack(n *state, t, cell int) {
	if n.lockOf(cell, t) {
		removeCells(n, t, cell)
	}
}
