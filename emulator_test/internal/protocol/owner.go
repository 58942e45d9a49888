package protocol

// steps collects what can happen next in a state.
type steps struct {
	m    *machine
	from *state
	next []step
}

// A step leads to a state. what may have verbs for a and b: a transaction or reader, and a cell
// or row.
type step struct {
	to   state
	what string
	a, b int
}

// add adds a step. change changes a copy of the state.
func (o *steps) add(what string, a, b int, change func(*state)) {
	o.next = append(o.next, step{*o.from, what, a, b})
	change(&o.next[len(o.next)-1].to)
}

// owner adds the steps of a transaction's owner, and of the network that carries its requests.
// An owner that dies takes no further step.
func owner(o *steps, t int) {
	m, s := o.m, o.from
	x, y := &m.txns[t], &s.txns[t]
	switch {
	case y.phase == idle && m.Follow && len(x.rows) > 1:
		o.add("T%d starts", t, 0, func(n *state) {
			n.clock++
			n.txns[t].start, n.txns[t].phase = n.clock, started
		})
		return
	case y.phase == idle:
		o.add("T%d starts and sends its prewrites", t, 0, func(n *state) {
			n.clock++
			n.txns[t].start = n.clock
			sendPrewrites(m, n, t)
		})
		return
	case y.phase == started:
		o.add("T%d sends its prewrites", t, 0, func(n *state) {
			if n.txns[t].start > n.claimed || m.is(NumberBelowClaim) {
				n.txns[t].numbered = 1
			}
			sendPrewrites(m, n, t)
		})
		return
	}
	for row := range x.rows {
		rowRequests(o, t, row)
	}
	primaryRequests(o, t)
	switch y.phase {
	case prewriting:
		prewrite(o, t)
	case commitSent:
		if s.timeouts > 0 {
			o.add("T%d gives up waiting for the answer to its commit", t, 0, func(n *state) {
				n.timeouts--
				n.txns[t].phase = readingBack
			})
			if m.Follow {
				o.add("T%d's context ends before the answer to its commit", t, 0, func(n *state) {
					n.timeouts--
					n.txns[t].phase = undetermined
				})
			}
		}
	case readingBack:
		readBack(o, t)
	case aborted:
		prewriteAgain(o, t)
	}
}

// prewriteAgain adds what an owner must not do that gave up because a row did not answer: lock its
// rows again at the same start_ts, although Bigtable acknowledged each removal. A duplicate of a
// removal takes a new lock, because a removal has no condition.
func prewriteAgain(o *steps, t int) {
	m, y := o.m, &o.from.txns[t]
	if !m.is(GiveUpKeepsStart) {
		return
	}
	for row := range m.txns[t].rows {
		if r := &y.rows[row]; r.applied&reqAbort == 0 || r.sent&reqAbort != 0 {
			return
		}
	}
	o.add("T%d prewrites again at its start_ts", t, 0, func(n *state) {
		n.txns[t].phase = prewriting
		for row := range m.txns[t].rows {
			n.txns[t].rows[row].status = waitFirst
			request(&n.txns[t].rows[row], reqFirst)
		}
	})
}

// sendPrewrites mirrors the beginning of txn.prewriteAll.
func sendPrewrites(m *machine, n *state, t int) {
	n.txns[t].phase = prewriting
	for row := range m.txns[t].rows {
		n.txns[t].rows[row] = rowState{status: waitFirst, sent: reqFirst}
	}
}

// request sends a request, or sends it again.
func request(r *rowState, req uint8) { r.sent |= req }

// take lets a request that is under way, or a duplicate of one that was applied, take effect.
// apply gets whether the owner may still get the answer.
func take(o *steps, what string, t, row int, sent, applied, req uint8, fields func(*state) (sent, applied *uint8), apply func(n *state, first bool)) {
	if sent&req != 0 {
		o.add(what, t, row, func(n *state) {
			s, a := fields(n)
			*s &^= req
			*a |= req
			apply(n, true)
		})
	}
	if applied&req != 0 && o.from.duplicates > 0 {
		o.add(what+", a duplicate", t, row, func(n *state) {
			n.duplicates--
			apply(n, false)
		})
	}
}

// rowRequests adds what requests about a row do when they arrive.
func rowRequests(o *steps, t, row int) {
	m, r := o.m, &o.from.txns[t].rows[row]
	fields := func(n *state) (sent, applied *uint8) {
		return &n.txns[t].rows[row].sent, &n.txns[t].rows[row].applied
	}
	takeRow := func(what string, req uint8, apply func(n *state, first bool)) {
		take(o, what, t, row, r.sent, r.applied, req, fields, apply)
	}
	answer := func(n *state, first, ok bool, wait, good, bad uint8) {
		if r := &n.txns[t].rows[row]; first && r.status == wait && (n.txns[t].phase == prewriting || n.txns[t].phase == failing) {
			r.status = bad
			if ok {
				r.status = good
			}
			nextPart(m, n, t, row)
		}
	}
	takeRow("T%d's first prewrite of its row %d arrives", reqFirst, func(n *state, first bool) {
		answer(n, first, applyFirst(m, n, t, row), waitFirst, rowLocked, inspectFirst)
	})
	takeRow("T%d's exact prewrite of its row %d arrives", reqPart0, func(n *state, first bool) {
		answer(n, first, applyPart(m, n, t, row, 0), waitPart0, partLocked(m, t, row, 0), inspectPart0)
	})
	takeRow("T%d's exact prewrite of its row %d, second part, arrives", reqPart1, func(n *state, first bool) {
		answer(n, first, applyPart(m, n, t, row, 1), waitPart1, rowLocked, inspectPart1)
	})
	takeRow("T%d's abort arrives at its row %d", reqAbort, func(n *state, _ bool) {
		removeCells(n, t, m.txns[t].rows[row]...)
	})
	takeRow("T%d's commit of its secondary row %d arrives", reqSecondary, func(n *state, _ bool) {
		commitCells(n, t, m.txns[t].rows[row], n.txns[t].commit)
	})
}

// partLocked returns the status of a row after a part of it was locked.
func partLocked(m *machine, t, row, part int) uint8 {
	if part == 0 && m.Wide && len(m.txns[t].rows[row]) > 1 {
		return waitPart1
	}
	return rowLocked
}

// nextPart sends what the status of a row says. The owner of a wide row does not inspect it
// after the first prewrite (txn.prewriteWholeRow).
func nextPart(m *machine, n *state, t, row int) {
	r := &n.txns[t].rows[row]
	if r.status == inspectFirst && m.Wide {
		r.status = waitPart0
	}
	switch r.status {
	case waitPart0:
		request(r, reqPart0)
	case waitPart1:
		request(r, reqPart1)
	}
}

// primaryRequests adds what requests about the primary do when they arrive.
func primaryRequests(o *steps, t int) {
	m, y := o.m, &o.from.txns[t]
	fields := func(n *state) (sent, applied *uint8) { return &n.txns[t].sent, &n.txns[t].applied }
	commit := func(n *state, first bool, ts uint8) {
		ok := applyCommit(m, n, t, ts)
		if !first || n.txns[t].phase != commitSent || ts != n.txns[t].commit {
			return
		}
		if n.txns[t].phase = readingBack; ok {
			acknowledged(m, n, t)
		}
	}
	take(o, "T%d's commit arrives", t, 0, y.sent, y.applied, reqCommit, fields, func(n *state, first bool) { commit(n, first, y.commit) })
	take(o, "T%d's commit at its former commit_ts arrives", t, 0, y.sent, y.applied, reqOldCommit, fields, func(n *state, first bool) { commit(n, first, y.oldCommit) })
	take(o, "T%d's seal arrives", t, 0, y.sent, y.applied, reqSeal, fields, func(n *state, first bool) {
		if applySeal(m, n, t) && first {
			n.txns[t].sure = max(n.txns[t].sure, acked)
		}
	})
	take(o, "T%d's heartbeat arrives", t, 0, y.sent, y.applied, reqHeartbeat, fields, func(n *state, _ bool) { applyHeartbeat(m, n, t) })
	take(o, "T%d's heartbeat ahead of the readers arrives", t, 0, y.sent, y.applied, reqAhead, fields, func(n *state, _ bool) { applyAhead(m, n, t) })
}

// prewrite adds what an owner does while it prewrites (txn.prewriteCells, txn.inspect), and when
// it has locked everything (txn.commit.run).
func prewrite(o *steps, t int) {
	m, s := o.m, o.from
	y := &s.txns[t]
	all := true
	for row := range m.txns[t].rows {
		switch status := y.rows[row].status; status {
		case rowLocked:
			continue
		case waitFirst, waitPart0, waitPart1:
			if s.timeouts > 0 {
				o.add("T%d gives up waiting for a prewrite of its row %d", t, row, func(n *state) {
					n.timeouts--
					n.txns[t].rows[row].status++ // inspect
					n.txns[t].rows[row].knows |= unanswered
					nextPart(m, n, t, row)
				})
			}
		case inspectFirst:
			inspect(o, t, row, 0)
		case inspectPart0:
			inspect(o, t, row, 0)
		case inspectPart1:
			inspect(o, t, row, 1)
		}
		all = all && m.is(PrewriteNotAwaited) && row == len(m.txns[t].rows)-1 && row > 0
	}
	if s.timeouts > 0 {
		o.add("T%d gives up and aborts", t, 0, func(n *state) {
			n.timeouts--
			abort(m, n, t)
		})
	}
	if m.Heartbeats && y.rows[0].status == rowLocked && (y.sent|y.applied)&reqHeartbeat == 0 {
		o.add("T%d sends a heartbeat", t, 0, func(n *state) { n.txns[t].sent |= reqHeartbeat })
	}
	if m.Seal && y.ahead == 0 && y.min > 0 && y.sealed == 0 && s.lockOf(m.txns[t].primary, t) {
		o.add("T%d sends a heartbeat ahead of the readers", t, 0, func(n *state) {
			n.txns[t].ahead = max(n.clock, y.min) + 1
			n.txns[t].sent |= reqAhead
		})
	}
	if y.commit == 0 && m.is(CommitTSBeforeLocks) {
		o.add("T%d takes its commit_ts", t, 0, func(n *state) {
			n.clock++
			n.txns[t].commit = n.clock
		})
	}
	if !all || (m.is(CommitTSBeforeLocks) && y.commit == 0) {
		return
	}
	sure, perhaps := s.tooOldToWrite(m, t)
	if perhaps && !m.is(CommitIgnoresSafePoint) {
		o.add("T%d is below the safe point and aborts", t, 0, func(n *state) { abort(m, n, t) })
	}
	if !sure || m.is(CommitIgnoresSafePoint) {
		o.add("T%d takes its commit_ts and sends its commit", t, 0, func(n *state) {
			if n.txns[t].commit == 0 {
				n.clock++
				n.txns[t].commit = n.clock
			}
			n.txns[t].phase = commitSent
			n.txns[t].sent |= reqCommit
		})
	}
}

// inspect adds what an owner does after it has read a row (txn.inspect). It does nothing as long
// as it waits for a lock; others resolve it.
func inspect(o *steps, t, row, part int) {
	m, s := o.m, o.from
	x := &m.txns[t]
	cells := m.part(t, row, part)
	own, conflict, others := 0, false, false
	for _, cell := range cells {
		if s.lockOf(cell, t) {
			own++
		}
		others = others || (s.cells[cell].locks&^bit(t) != 0 && !m.is(PrewriteIgnoresLocks))
		conflict = conflict || since(m, s, cell, s.txns[t].start)
	}
	for _, cell := range m.inRow[m.Rows[x.rows[row][0]]] {
		conflict = conflict || (s.markerOf(cell, t) && !m.is(PrewriteIgnoresMarkers))
	}
	if !conflict && own == 0 && others && waits(m, s, t, cells) {
		return
	}
	switch {
	case own == len(cells) && !conflict:
		o.add("T%d finds its locks in its row %d", t, row, func(n *state) {
			n.txns[t].rows[row].status = partLocked(m, t, row, part)
			nextPart(m, n, t, row)
		})
		return
	case conflict, own > 0, others:
		o.add("T%d finds a conflict in its row %d and aborts", t, row, func(n *state) {
			r := &n.txns[t].rows[row]
			if own == 0 && !m.Wide && (r.knows&unanswered == 0 || m.is(AbortLeavesUnanswered)) {
				r.knows |= untouched
			}
			abort(m, n, t)
		})
		return
	}
	sure, perhaps := s.tooOldToWrite(m, t)
	if perhaps {
		o.add("T%d is below the safe point and aborts", t, 0, func(n *state) { abort(m, n, t) })
	}
	if !sure {
		o.add("T%d sends an exact prewrite of its row %d", t, row, func(n *state) {
			if m.Retry != Never {
				applyPart(m, n, t, row, part) // a poll: see Progress
				n.txns[t].rows[row].status = partLocked(m, t, row, part)
				nextPart(m, n, t, row)
				return
			}
			n.txns[t].rows[row].status = waitPart0
			if part == 1 {
				n.txns[t].rows[row].status = waitPart1
			}
			nextPart(m, n, t, row)
		})
	}
}

// abort mirrors txn.commit.abort: no commit was sent, so the removal needs no condition. Before
// that the owner awaits all answers, but without Retry an owner may also not do so.
func abort(m *machine, n *state, t int) {
	if m.Retry != Never {
		n.txns[t].phase = failing
		for row := range m.txns[t].rows {
			switch n.txns[t].rows[row].status {
			case waitFirst, waitPart0, waitPart1:
				return
			}
		}
	}
	n.txns[t].phase = aborted
	for row := range m.txns[t].rows {
		r := &n.txns[t].rows[row]
		r.status, r.knows = rowIdle, r.knows&untouched
		if r.knows == 0 {
			request(r, reqAbort)
		}
	}
}

// acknowledged mirrors what follows the commit point (txn.commit.commitSecondaries). A commit of
// secondaries is not sent below the safe point (store.SafePoint.splitTooOld).
func acknowledged(m *machine, n *state, t int) {
	n.txns[t].phase = committed
	n.txns[t].known |= knownCommitted
	for row := range m.txns[t].rows {
		n.txns[t].rows[row].status = rowIdle
		if sure, _ := n.tooOldToWrite(m, t); row > 0 && (!sure || m.is(SecondariesIgnoreSafePoint)) {
			request(&n.txns[t].rows[row], reqSecondary)
		}
	}
}

// readBack mirrors recovery.PrimaryCommit.readBack, and what Run does with its result.
func readBack(o *steps, t int) {
	m, s := o.m, o.from
	y, p := &s.txns[t], m.txns[t].primary
	sure, perhaps := s.tooOldToWrite(m, t)
	switch {
	case s.cells[p].records[t] != 0:
		o.add("T%d reads back that it is committed", t, 0, func(n *state) { acknowledged(m, n, t) })
	case s.markerOf(p, t):
		if !sure {
			o.add("T%d reads back that it was rolled back", t, 0, func(n *state) { n.txns[t].phase = failed })
		}
		if perhaps {
			o.add("T%d reads back a marker below the safe point", t, 0, func(n *state) { n.txns[t].phase = undetermined })
		}
	case s.lockOf(p, t):
		if m.is(AbortAfterCommit) {
			o.add("T%d aborts after it sent its commit", t, 0, func(n *state) { abort(m, n, t) })
		}
		if perhaps {
			o.add("T%d is below the safe point and does not send its commit again", t, 0, func(n *state) { n.txns[t].phase = undetermined })
		}
		if sure {
			break
		}
		o.add("T%d finds its primary lock and sends its commit again", t, 0, func(n *state) {
			z := &n.txns[t]
			z.phase = commitSent
			if (m.Pass && z.min >= z.commit || m.is(NewCommitTSAfterTimeout)) && z.oldCommit == 0 {
				z.oldCommit = z.commit
				n.clock = max(n.clock, z.min) + 1 // it waits for the oracle
				z.commit = n.clock
				z.sent, z.applied = moved(z.sent), moved(z.applied)
				if z.sure == acked {
					z.sure = certain
				}
			}
			z.sent |= reqCommit
		})
		if m.Seal && y.seal == 0 {
			o.add("T%d finds its primary lock and seals it", t, 0, func(n *state) {
				n.txns[t].seal = n.clock + 1
				n.txns[t].sent |= reqSeal
			})
		}
	default:
		o.add("T%d reads back nothing", t, 0, func(n *state) { n.txns[t].phase = undetermined })
	}
}

// moved renames a commit that is under way, because the owner took a new commit_ts.
func moved(requests uint8) uint8 {
	if requests&reqCommit != 0 {
		requests = requests&^reqCommit | reqOldCommit
	}
	return requests
}
