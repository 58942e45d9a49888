package protocol

// A state is everything that decides what can happen next, and what was promised. All fields
// are bytes, so that a state is a string of bytes without padding.
//
// Timestamps are 1, 2, 3 …; 0 is none. A reader, a resolver or a collector whose timestamp is
// the clock's c stands between c and c+1: it needs no timestamp of its own.
type state struct {
	clock      uint8 // the newest timestamp
	duplicates uint8 // that may still happen
	timeouts   uint8

	collection uint8 // a phase of the collection
	safePoint  uint8
	followed   uint8 // the safe point of the collection that followed changes
	claimed    uint8 // settled.Claims
	scanned    uint8 // rows without locks up to the safe point, a bit for each
	collected  uint8 // rows that this phase has collected

	// marks has the newest record or marker of each cell that a transaction has left which has begun
	// again since.
	marks   [maxCells]uint8
	cells   [maxCells]cellState
	txns    [maxTxns]txnState
	readers [maxReaders]readerState
}

// cellState is what Bigtable stores in a cell, by transaction: locks and data at start_ts,
// markers at start_ts, records at commit_ts. A lock-only write has its record in the mark
// family; its kind shows that.
type cellState struct {
	locks, data, markers uint8
	forward, back        uint8 // a resolver's roll-forward or roll-back is under way
	records              [maxTxns]uint8
	removal              removal // that a slow collector has sent
}

// txnState is what the owner of a transaction knows, its requests under way, and what other
// clients remember of it.
type txnState struct {
	start, commit uint8
	oldCommit     uint8 // the commit_ts before that, if a reader passed the lock
	phase         uint8
	committed     uint8 // the commit_ts at which it took effect; no client knows this
	min, sealed   uint8 // of the primary lock, as stored
	seal          uint8 // the minimum of the seal that the owner has sent
	ahead         uint8 // the minimum of the heartbeat ahead of the readers
	sure          uint8 // what the owner may rely on because of its seal
	sent, applied uint8 // requests about the primary: under way; applied at least once
	known         uint8 // what some client remembers (recovery.OutcomeCache)
	seen          uint8 // a resolver read a lock with this timestamp
	undecided     uint8 // and then found nothing at the primary
	numbered      uint8 // 1: its record says that the client's claim covers it

	rows [maxRows]rowState
}

type rowState struct {
	status        uint8
	sent, applied uint8
	knows         uint8
}

// What an owner knows of a row besides.
const (
	unanswered uint8 = 1 << iota // it gave up waiting for a prewrite
	untouched                    // each prewrite was refused, so the abort leaves the row out
)

type readerState struct {
	phase            uint8
	ts               uint8
	pending, ignored uint8
	acked            uint8 // transactions that were acknowledged before the read began
	floor            uint8 // a timestamp up to which deletes may have been collected
	values           [maxInRow]uint8
}

// Phases of a transaction.
const (
	idle    uint8 = iota
	started       // and has not begun its commit
	prewriting
	commitSent
	readingBack
	committed
	failed // rolled back, after the commit was sent
	aborted
	undetermined
	failing // has a conflict, and awaits the answers to its prewrites (only with Retry)
)

// Statuses of a transaction's row.
const (
	rowIdle uint8 = iota
	waitFirst
	inspectFirst
	waitPart0
	inspectPart0
	waitPart1
	inspectPart1
	rowLocked
)

// Requests about a row.
const (
	reqFirst uint8 = 1 << iota
	reqPart0
	reqPart1
	reqAbort
	reqSecondary

	prewrites = reqFirst | reqPart0 | reqPart1
)

// Requests about the primary.
const (
	reqCommit uint8 = 1 << iota
	reqOldCommit
	reqHeartbeat
	reqSeal
	reqAhead
)

// What an owner may rely on because of its seal.
const (
	unsealed uint8 = iota
	acked          // the seal was acknowledged
	certain        // and then the owner took commit: no reader takes that away
)

// What some client remembers of a transaction.
const (
	knownCommitted uint8 = 1 << iota
	knownRolledBack
)

// Phases of a collection.
const (
	notCollecting   uint8 = iota
	followPublished       // as published
	following             // all clients use it, and rows are collected
	published             // some clients use the safe point, and some do not
	fenced                // all clients use it
	resolved              // no lock is left at or below it
	drained               // a retention later
)

// Phases of a reader.
const (
	notReading uint8 = iota
	reading
	done
	tooOld
)

func bit(i int) uint8 { return 1 << i }

// newestRecord returns the transaction of the newest put or delete of a cell up to a timestamp,
// and its commit_ts; 0 if there is none.
func (s *state) newestRecord(m *machine, cell int, upTo uint8) (t int, commit uint8) {
	for i := range m.txns {
		if c := s.cells[cell].records[i]; c > commit && c <= upTo && m.changes(i, cell) {
			t, commit = i, c
		}
	}
	return t, commit
}

// shows returns what a read of a cell up to a timestamp shows: 0 for no value, or 1 + the
// transaction.
func (s *state) shows(m *machine, cell int, upTo uint8) uint8 {
	t, commit := s.newestRecord(m, cell, upTo)
	if commit == 0 || m.txns[t].kinds[cell] == Delete {
		return 0
	}
	return uint8(t + 1)
}

// expected returns what a read must show, by the commits that took effect.
func (s *state) expected(m *machine, cell int, upTo uint8) (value uint8) {
	newest := uint8(0)
	for t := range m.txns {
		if c := s.txns[t].committed; c > newest && c <= upTo && m.changes(t, cell) {
			newest, value = c, uint8(t+1)
			if m.txns[t].kinds[cell] == Delete {
				value = 0
			}
		}
	}
	return value
}

// lockOf and so on report what a cell holds of a transaction.
func (s *state) lockOf(cell, t int) bool   { return s.cells[cell].locks&bit(t) != 0 }
func (s *state) markerOf(cell, t int) bool { return s.cells[cell].markers&bit(t) != 0 }

// late mirrors store.SafePoint.IsLate: a collector has resolved all locks at and below this one.
func (s *state) late(t int) bool {
	return s.collection >= resolved && s.txns[t].start <= s.safePoint
}

// tooOldToWrite mirrors store.SafePoint.CheckWrite. While a safe point is being published, a
// client may still rely on the older one.
func (s *state) tooOldToWrite(m *machine, t int) (sure, perhaps bool) {
	since := s.txns[t].start
	return since <= s.used(), since <= s.safePoint
}

// used is the newest safe point that all clients use.
func (s *state) used() uint8 {
	if s.collection >= fenced || s.collection == following {
		return s.safePoint
	}
	return s.followed
}
