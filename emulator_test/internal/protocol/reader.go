package protocol

// read adds the steps of a reader (recovery.ReadResolved; recovery.ReadLatest).
func read(o *steps, r int) {
	m, s := o.m, o.from
	y := &s.readers[r]
	latest := m.Readers[r].Latest
	switch y.phase {
	case notReading:
		o.add("reader %d starts", r, 0, func(n *state) {
			z := &n.readers[r]
			z.phase = reading
			if !latest {
				z.ts = n.clock
				evaluate(m, n, r)
				return
			}
			for t := range m.txns {
				if n.txns[t].phase == committed {
					z.acked |= bit(t)
				}
			}
			evaluate(m, n, r)
		})
	case reading:
		for t := range m.txns {
			if y.pending&bit(t) != 0 {
				resolveForRead(o, r, t)
			}
		}
		o.add("reader %d reads its row again", r, 0, func(n *state) { evaluate(m, n, r) })
	}
}

// evaluate mirrors a request of a read and recovery.Evaluate: it captures the values, and the
// locks that the reader has to resolve before it may use them.
func evaluate(m *machine, n *state, r int) {
	z := &n.readers[r]
	latest := m.Readers[r].Latest
	cells := m.inRow[m.Rows[m.Readers[r].Cell]]
	if latest {
		z.ts, z.ignored, z.floor = 0, 0, 0
		if n.collection >= resolved {
			z.floor = n.safePoint
		}
		for _, cell := range cells {
			_, commit := n.newestRecord(m, cell, n.clock)
			z.ts = max(z.ts, commit)
		}
	}
	z.pending = 0
	for i, cell := range cells {
		upTo := z.ts
		if latest {
			upTo = n.clock
		}
		z.values[i] = n.shows(m, cell, upTo)
		for t := range m.txns {
			if !n.lockOf(cell, t) || n.txns[t].start > upTo || z.ignored&bit(t) != 0 || m.txns[t].kinds[cell] == Lock || m.is(ReadIgnoresLocks) {
				continue
			}
			if latest && n.txns[t].start > z.ts && (cell == m.txns[t].primary || m.is(LatestIgnoresSecondaryLocks)) {
				continue
			}
			z.pending |= bit(t)
		}
	}
	finish(m, n, r)
}

// finish ends a read that waits for no lock. The safe point is checked after the answer.
func finish(m *machine, n *state, r int) {
	z := &n.readers[r]
	if z.pending != 0 {
		return
	}
	z.ignored = 0
	z.phase = done
	if !m.Readers[r].Latest && z.ts < n.used() && !m.is(ReadIgnoresSafePoint) {
		z.phase = tooOld
	}
}

// resolveForRead mirrors recovery.resolveOneForRead and resolveOneForLatest, as far as the reader
// ignores a lock: other clients' steps resolve it, and then the reader reads again.
func resolveForRead(o *steps, r, t int) {
	m, s := o.m, o.from
	y, p := &s.readers[r], m.txns[t].primary
	latest := m.Readers[r].Latest
	record, marker, lock := s.cells[p].records[t], s.markerOf(p, t), s.lockOf(p, t)
	ignore := func(what string) {
		o.add(what, r, t+1, func(n *state) {
			n.readers[r].pending &^= bit(t)
			n.readers[r].ignored |= bit(t)
			finish(m, n, r)
		})
	}
	switch {
	case s.late(t):
	case latest && record == 0 && !marker && s.txns[t].start > y.ts:
		ignore("reader %d sees that T%d is not committed")
	case !latest && record > y.ts:
		ignore("reader %d sees that T%d committed later")
	case record == 0 && !marker && (m.is(ReadIgnoresUndecided) && !latest || m.is(LatestIgnoresOlderLocks) && latest):
		ignore("reader %d ignores the lock of T%d")
	case m.Pass && lock && record == 0 && !marker:
		if s.txns[t].min >= y.ts || m.is(PassWithoutRaise) {
			ignore("reader %d passes the lock of T%d")
		} else if s.txns[t].sealed == 0 || m.is(PassSealed) {
			o.add("reader %d raises the minimum of T%d", r, t+1, func(n *state) { n.txns[t].min = y.ts })
			if m.Seal {
				o.add("reader %d raises the minimum of T%d ahead", r, t+1, func(n *state) { n.txns[t].min = y.ts + 1 })
			}
		}
	}
}
