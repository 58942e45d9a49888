// Package protocol is a model of the whole protocol, small enough to try every order of its
// steps: transactions, readers, resolvers, heartbeats, a garbage collection, and requests that
// are lost, doubled and as late as docs/guarantees.md allows. Explore visits each state that a
// Scenario can reach, and checks what docs/guarantees.md promises. Each step names the function
// that it mirrors (docs/design/models-and-tests.md).
package protocol

// The bounds of a scenario. They bound the size of a state.
const (
	maxTxns    = 3
	maxCells   = 4
	maxReaders = 2
	maxRows    = 3 // of a transaction
	maxInRow   = 2 // cells
)

// A Kind says what a transaction writes.
type Kind uint8

// The kinds of writes.
const (
	Put Kind = iota
	Delete
	Lock // lock-only: changes no value
)

// A Write is one cell that a transaction writes.
type Write struct {
	Cell int
	Kind Kind
}

// A Reader reads the row of one cell.
type Reader struct {
	Cell   int
	Latest bool // reads the latest state, as Client.Latest
}

// A Scenario is what Explore explores.
type Scenario struct {
	Name string
	// Rows has the row of each cell.
	Rows []int
	// Txns has the writes of each transaction. The first is the primary.
	Txns    [][]Write
	Readers []Reader
	// Before is how many of the transactions are committed already.
	Before int

	// Wide makes transactions lock rows of two cells first as a whole, then cell by cell.
	Wide bool
	// Pass makes locks passable (Config.PassLocks).
	Pass bool
	// Seal lets readers raise the minimum ahead of them, and owners seal their locks, each once and at any
	// time after it sent its commit.
	Seal bool
	// Heartbeats makes owners extend their primary locks.
	Heartbeats bool
	// Slow lets time pass between a resolver's reads of a lock and of its primary.
	Slow bool
	// Collect allows one garbage collection that reads every row, and a second one a retention later.
	Collect bool
	// Follow puts a collection that follows changes before it. All transactions are of one client, which
	// claims what it has settled, and which begins the commits of several rows some time after it took their
	// start_ts.
	Follow bool
	// SlowCollector lets the removals of collectors arrive at any later time, and again.
	SlowCollector bool
	// Claimed is what the client has claimed before, because of transactions that are not in the scenario.
	Claimed uint8

	// Retry lets clients begin again when a transaction has ended, without limit. Their transactions then
	// wait and give up as the code does, and nobody calls a live owner dead. It is for Progress.
	Retry Retry

	// Duplicates is how often the network repeats a request.
	Duplicates uint8
	// Timeouts is how often owners give up waiting for an answer or before their commit.
	Timeouts uint8
}

// A Retry says how clients begin again.
type Retry uint8

// How clients begin again.
const (
	Never  Retry = iota
	Begins       // each attempt is a new transaction
)

// machine is a Scenario prepared for exploration, with a planted bug.
type machine struct {
	Scenario
	bug  Bug
	txns []txn
	// inRow has the cells of each row of the scenario.
	inRow [][]int
}

// txn is what a transaction writes, by row.
type txn struct {
	primary int
	kinds   [maxCells]Kind
	writes  uint8 // a bit for each cell
	rows    [][]int
}

func newMachine(sc Scenario, bug Bug) *machine {
	m := &machine{Scenario: sc, bug: bug}
	for cell, row := range sc.Rows {
		for len(m.inRow) <= row {
			m.inRow = append(m.inRow, nil)
		}
		m.inRow[row] = append(m.inRow[row], cell)
	}
	for _, writes := range sc.Txns {
		t := txn{primary: writes[0].Cell}
		at := map[int]int{}
		for _, w := range writes {
			t.writes |= bit(w.Cell)
			t.kinds[w.Cell] = w.Kind
			row := sc.Rows[w.Cell]
			if _, ok := at[row]; !ok {
				at[row] = len(t.rows)
				t.rows = append(t.rows, nil)
			}
			t.rows[at[row]] = append(t.rows[at[row]], w.Cell)
		}
		m.txns = append(m.txns, t)
	}
	return m
}

// is reports whether a bug is planted.
func (m *machine) is(b Bug) bool { return m.bug == b }

// part returns the cells of a prewrite that names its cells: all of a row, or one of them if
// rows are wide.
func (m *machine) part(t, row, part int) []int {
	cells := m.txns[t].rows[row]
	if !m.Wide {
		return cells
	}
	return cells[part : part+1]
}

// changes reports whether a transaction puts or deletes a cell.
func (m *machine) changes(t, cell int) bool {
	return m.txns[t].writes&bit(cell) != 0 && m.txns[t].kinds[cell] != Lock
}
