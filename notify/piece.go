package notify

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"cloud.google.com/go/bigtable"
)

// A piece is a range of a table's rows. An empty end is the end of the table.
type piece struct {
	table, start, end string
	// resumed: it is the rest of a piece that a scan left.
	resumed bool
}

func (p piece) rows() bigtable.RowRange { return bigtable.NewRange(p.start, p.end) }

// turn cuts a piece at a random key and swaps the halves.
func (p piece) turn() []piece {
	at := randomKey(p.start, p.end)
	if p.resumed || at <= p.start {
		return []piece{p}
	}
	return []piece{{p.table, at, p.end, p.resumed}, {p.table, p.start, at, p.resumed}}
}

// randomKey returns a random key between start and end, or start if it finds none. It
// reads the 8 bytes after their common prefix as numbers.
func randomKey(start, end string) string {
	n := 0
	for n < len(start) && n < len(end) && start[n] == end[n] {
		n++
	}
	low, high := number(start[n:]), number(end[n:])
	if end == "" {
		high = 1<<64 - 1
	}
	if high <= low {
		return start
	}
	return start[:n] + string(binary.BigEndian.AppendUint64(nil, low+rand.Uint64N(high-low)))
}

// number reads the first eight bytes of s.
func number(s string) uint64 {
	var b [8]byte
	copy(b[:], s)
	return binary.BigEndian.Uint64(b[:])
}

// cutTable cuts a table at keys, which are in order, into at most as many pieces as most.
func cutTable(table string, keys []string, most int) []piece {
	var cuts []piece
	start := ""
	for i := 1; i < most; i++ {
		at := i * (len(keys) + 1) / most
		if at == 0 || keys[at-1] <= start {
			continue
		}
		cuts = append(cuts, piece{table: table, start: start, end: keys[at-1]})
		start = keys[at-1]
	}
	return append(cuts, piece{table: table, start: start})
}

// pieces are the pieces that a turn has not read yet.
type pieces struct {
	mu   sync.Mutex
	todo []piece
}

func (p *pieces) next() (piece, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.todo) == 0 {
		return piece{}, false
	}
	first := p.todo[0]
	p.todo = p.todo[1:]
	return first, true
}

func (p *pieces) again(rest []piece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.todo = append(p.todo, rest...)
}
