package protocol

// collect adds the steps of a garbage collection (package txn/gc).
func collect(o *steps) {
	m, s := o.m, o.from
	switch s.collection {
	case notCollecting:
		o.add("a collector publishes its safe point", 0, 0, func(n *state) { n.collection, n.safePoint = published, n.clock })
	case published:
		o.add("every client uses the safe point", 0, 0, func(n *state) {
			n.collection = fenced
			if m.is(LocksNotResolvedFirst) {
				n.collection = resolved
			}
		})
	case fenced:
		for row := range m.inRow {
			if s.scanned&bit(row) == 0 && !lockedUpTo(m, s, row) {
				o.add("the collector finds no lock in row %d", row, 0, func(n *state) {
					if n.scanned |= bit(row); n.scanned == bit(len(m.inRow))-1 {
						n.collection, n.scanned = resolved, 0
					}
				})
			}
		}
	case resolved:
		o.add("a retention passes", 0, 0, func(n *state) { drain(m, n) })
		collectRows(o)
	case drained:
		collectRows(o)
	}
}

// lockedUpTo reports whether a row has a lock at or below the safe point.
func lockedUpTo(m *machine, s *state, row int) bool {
	for _, cell := range m.inRow[row] {
		for t := range m.txns {
			if s.lockOf(cell, t) && s.txns[t].start <= s.safePoint {
				return true
			}
		}
	}
	return false
}

// drain is what docs/guarantees.md assumes about late requests: none arrives later than one
// retention after its client last checked the safe point. Only prewrites may be as late as they
// like. Resolvers of locks at or below the safe point sent their requests before the collector
// had resolved all locks, but for those that roll back late locks.
func drain(m *machine, n *state) {
	n.collection, n.collected = drained, 0
	for t := range m.txns {
		y := &n.txns[t]
		if y.start == 0 || y.start > n.safePoint {
			continue
		}
		y.sent, y.applied, y.seen, y.undecided = 0, 0, 0, 0
		for row := range y.rows {
			y.rows[row].sent &= prewrites
			y.rows[row].applied &= prewrites
		}
		for cell := range n.cells {
			n.cells[cell].forward &^= bit(t)
		}
	}
}

// collectRows mirrors run.collectRow: a row with a lock at or below the safe point has to wait.
func collectRows(o *steps) {
	m, s := o.m, o.from
	for row, cells := range m.inRow {
		if s.collected&bit(row) != 0 || (lockedUpTo(m, s, row) && !m.is(LocksNotResolvedFirst)) {
			continue
		}
		o.add("the collector collects row %d", row, 0, func(n *state) {
			n.collected |= bit(row)
			for _, cell := range cells {
				collectCell(m, n, cell)
			}
		})
	}
}

// collectCell mirrors rules.column.
func collectCell(m *machine, n *state, cell int) {
	c := &n.cells[cell]
	drainedTS := uint8(0)
	if n.collection >= drained {
		drainedTS = n.safePoint
	}
	markersUpTo, deletesUpTo := drainedTS, drainedTS
	if m.is(MarkersCollectedEarly) {
		markersUpTo = n.safePoint
	}
	if m.is(DeletesCollectedEarly) {
		deletesUpTo = n.safePoint
	}
	for t := range m.txns {
		if n.txns[t].start <= markersUpTo {
			c.markers &^= bit(t)
		}
		if m.txns[t].kinds[cell] == Lock && c.records[t] <= n.safePoint {
			c.records[t] = 0
		}
	}
	newest, commit := n.newestRecord(m, cell, n.safePoint)
	if commit == 0 {
		return
	}
	keepData := n.txns[newest].start
	goes := m.txns[newest].kinds[cell] == Delete && commit <= deletesUpTo
	if m.txns[newest].kinds[cell] == Delete {
		keepData = commit
	}
	for t := range m.txns {
		start := n.txns[t].start
		named := c.records[t] != 0 || c.locks&bit(t) != 0
		if start < keepData || start <= n.safePoint && !named {
			c.data &^= bit(t)
		}
	}
	for t := range m.txns {
		if m.changes(t, cell) && (c.records[t] < commit || goes && c.records[t] == commit) {
			c.records[t] = 0
		}
	}
}
