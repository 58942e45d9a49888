package protocol

// collect adds the steps of a garbage collection (package txn/gc).
func collect(o *steps) {
	m, s := o.m, o.from
	if m.Follow {
		claim(o)
	}
	if m.SlowCollector {
		arrive(o)
	}
	switch s.collection {
	case notCollecting:
		o.add("a collector publishes its safe point", 0, 0, func(n *state) {
			if n.collection, n.safePoint = published, n.clock; m.Follow {
				n.collection = followPublished
			}
		})
	case followPublished:
		o.add("every client uses the safe point", 0, 0, func(n *state) { n.collection = following })
	case following:
		followChanges(o)
		if m.Collect {
			o.add("a collector publishes its next safe point", 0, 0, func(n *state) {
				n.collection, n.collected = published, 0
				n.followed, n.safePoint = n.safePoint, n.clock
			})
		}
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

// claim mirrors settled.Claims.Next. Transactions that have not begun their commit do not hold the
// claim back: safety does not rely on that.
func claim(o *steps) {
	m, s := o.m, o.from
	newest, open := uint8(0), uint8(255)
	for t := range m.txns {
		if y := &s.txns[t]; y.numbered != 0 && len(m.txns[t].rows) > 1 {
			if newest = max(newest, y.start); !settled(m, s, t) {
				open = min(open, y.start-1)
			}
		}
	}
	if ts := min(newest, open); ts > s.claimed {
		o.add("the client claims what it has settled", 0, 0, func(n *state) { n.claimed = ts })
	}
}

// settled mirrors settled.Commit: Bigtable has acknowledged the commits of all secondaries, or the
// transaction is not committed and never will be.
func settled(m *machine, s *state, t int) bool {
	y := &s.txns[t]
	switch y.phase {
	case committed:
		for row := 1; row < len(m.txns[t].rows); row++ {
			if y.rows[row].applied&reqSecondary == 0 && !m.is(ClaimBeforeSecondaries) {
				return false
			}
		}
		return true
	case undetermined:
		return m.is(ClaimAfterUnknown)
	}
	return y.phase == aborted || y.phase == failed
}

// followChanges mirrors changes.collectNoted. A row of which no client has noted a change is left out,
// which is as if it was collected later.
func followChanges(o *steps) {
	collectEach(o, "the collector collects row %d, whose change it knows", func(n *state, cell int) removal {
		return followCell(o.m, n, cell)
	})
}

// collectRows mirrors run.collectPage and run.collectRow in a run that reads every row.
func collectRows(o *steps) {
	collectEach(o, "the collector collects row %d", func(n *state, cell int) removal { return collectCell(o.m, n, cell) })
}

// collectEach adds the collection of each row once. A row with a lock at or below the safe point has to
// wait. If collectors are slow, the removal arrives later than the read, and again.
func collectEach(o *steps, what string, rules func(*state, int) removal) {
	m, s := o.m, o.from
	for row, cells := range m.inRow {
		if s.collected&bit(row) != 0 || (lockedUpTo(m, s, row) && !m.is(LocksNotResolvedFirst)) {
			continue
		}
		o.add(what, row, 0, func(n *state) {
			n.collected |= bit(row)
			for _, cell := range cells {
				if g := rules(n, cell); m.SlowCollector {
					n.cells[cell].removal = g
				} else {
					remove(m, n, cell, g)
				}
			}
		})
	}
}

// arrive adds what slow collectors have sent. A removal never ends: the network may double it.
func arrive(o *steps) {
	for row, cells := range o.m.inRow {
		next := *o.from
		for _, cell := range cells {
			remove(o.m, &next, cell, next.cells[cell].removal)
		}
		if next != *o.from {
			o.next = append(o.next, step{next, "the collector's removal arrives in row %d", row, 0})
		}
	}
}

// A removal mirrors columnGarbage: what a collector removes from a cell, in ranges of timestamps.
type removal struct {
	writesBelow, kept   uint8 // records below a timestamp, but for those of some transactions
	dataBelow           uint8 // data below a timestamp
	marksUpTo, unmarked uint8 // marks up to a timestamp, but for the markers of some transactions
}

// remove mirrors rules.remove.
func remove(m *machine, n *state, cell int, g removal) {
	c := &n.cells[cell]
	for t := range m.txns {
		start := n.txns[t].start
		if m.changes(t, cell) && c.records[t] < g.writesBelow && g.kept&bit(t) == 0 {
			c.records[t] = 0
		}
		if m.txns[t].kinds[cell] == Lock && c.records[t] <= g.marksUpTo {
			c.records[t] = 0
		}
		if start <= g.marksUpTo && g.unmarked&bit(t) == 0 {
			c.markers &^= bit(t)
		}
		if start < g.dataBelow {
			c.data &^= bit(t)
		}
	}
}

// followCell mirrors rules.column in a run that has not resolved all locks: marks, newest deletes and
// records without proof stay.
func followCell(m *machine, n *state, cell int) (g removal) {
	newest, commit := n.newestRecord(m, cell, n.safePoint)
	if m.is(FollowRemovesMarks) {
		g.marksUpTo = n.safePoint
	}
	if commit == 0 {
		return g
	}
	removeData(m, n, cell, newest, commit, &g)
	g.writesBelow = commit
	if m.is(FollowRemovesDeletes) && m.txns[newest].kinds[cell] == Delete && unneeded(m, n, newest, cell) {
		g.writesBelow = commit + 1
	}
	for t := range m.txns {
		if !unneeded(m, n, t, cell) && !m.is(FollowRemovesAll) {
			g.kept |= bit(t)
		}
	}
	return g
}

// unneeded mirrors changes.knowSettled: no lock needs the record.
func unneeded(m *machine, n *state, t, cell int) bool {
	y := &n.txns[t]
	return cell != m.txns[t].primary || len(m.txns[t].rows) == 1 || y.numbered != 0 && y.start <= n.claimed
}

// removeData chooses the data below the newest record at or below the safe point.
func removeData(m *machine, n *state, cell, newest int, commit uint8, g *removal) {
	g.dataBelow = n.txns[newest].start
	if m.txns[newest].kinds[cell] == Delete {
		g.dataBelow = commit
	}
}

// collectCell mirrors rules.column.
func collectCell(m *machine, n *state, cell int) (g removal) {
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
	g.marksUpTo = n.safePoint
	for t := range m.txns {
		if n.txns[t].start > markersUpTo && n.markerOf(cell, t) {
			g.unmarked |= bit(t)
		}
	}
	newest, commit := n.newestRecord(m, cell, n.safePoint)
	if commit == 0 {
		return g
	}
	removeData(m, n, cell, newest, commit, &g)
	g.writesBelow = commit
	if m.txns[newest].kinds[cell] == Delete && commit <= deletesUpTo {
		g.writesBelow = commit + 1
	}
	return g
}
