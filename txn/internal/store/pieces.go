package store

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bigtable reads past every row of a range, also past those that the filter drops, and its Go
// client does not tell how far a request came. So if a range has no row for the filter, a
// request that reaches its deadline says nothing, and the next one starts over. Pieces keep the
// progress of such scans: after the first deadline without a row, a scan asks for one piece of
// its range after the other. A piece begins as a tablet. It halves whenever it is too slow, and
// doubles whenever it is fast.

// Pieces divides one scan. The zero value is ready to use, by one goroutine.
type Pieces struct {
	// on: a request of the scan reached its deadline without a row.
	on bool
	// level is the size of a piece: 0 is a tablet, 1 half of one, -1 two tablets.
	level int
	// worked is the level of the last piece that was neither slow nor fast.
	worked int
	// fastInARow counts fast pieces. Keys have gaps, from '9' to 'a' for example, in which
	// pieces are fast and after which the size is right again.
	fastInARow int
}

// tablets is what the scans of one table know about it. They share no more: a short scan, or one
// of a range without data, must not change the pieces of another scan.
type tablets struct {
	mu sync.Mutex
	// bounds are where tablets end, ascending.
	bounds []string
	asked  time.Time // when Bigtable told the bounds
	// slow: pieces of startLevel were the right size for the last scan that needed them.
	slow       bool
	startLevel int
}

const (
	// minPieceLevel is the level from which a scan is not divided any more.
	minPieceLevel = -12
	// maxPieceLevel is enough for keys that differ only after 64 bytes.
	maxPieceLevel = 512
	// enoughFast is how many fast pieces in a row do not make the next ones larger.
	enoughFast = 8
	// boundsMaxAge is how long the bounds of tablets are used.
	boundsMaxAge = 10 * time.Minute
	// maxSlowTries is how many requests in a row a scan sends that has something else to do.
	maxSlowTries = 3
)

// next returns the rows that a scan asks for next, and those after them.
func (p *Pieces) next(t *tablets, rest RowSet, reverse bool) (piece, later RowSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.on {
		return t.cut(p.level, rest, reverse)
	}
	if t.slow {
		// The scan is probably slow as well if its first range is longer than a piece.
		piece, later = t.cut(t.startLevel, rest, reverse)
		if n := len(rest.Ranges); n > 0 && len(later.Ranges) == n {
			p.on, p.level, p.worked = true, t.startLevel, t.startLevel
			return piece, later
		}
	}
	return rest, RowSet{}
}

// cut divides rest: the first piece, and the rows after it.
func (t *tablets) cut(level int, rest RowSet, reverse bool) (piece, later RowSet) {
	n := len(rest.Ranges)
	if n == 0 {
		return rest, RowSet{}
	}
	if reverse {
		r := rest.Ranges[n-1]
		start := max(t.startBefore(level, r.End), r.Start)
		later.Ranges = slices.Clone(rest.Ranges[:n-1])
		if start > r.Start {
			later.Ranges = append(later.Ranges, KeyRange{r.Start, start})
		}
		return RowSet{Ranges: []KeyRange{{start, r.End}}}, later
	}
	r := rest.Ranges[0]
	end := t.endAfter(level, r.Start)
	if end == "" || r.End != "" && r.End < end {
		end = r.End
	}
	if end != r.End {
		later.Ranges = append(later.Ranges, KeyRange{end, r.End})
	}
	later.Ranges = append(later.Ranges, rest.Ranges[1:]...)
	return RowSet{Ranges: []KeyRange{{r.Start, end}}}, later
}

// endAfter returns the end of the piece that start is in.
func (t *tablets) endAfter(level int, start string) string {
	i, found := slices.BinarySearch(t.bounds, start)
	if found {
		i++
	}
	if level <= 0 {
		return t.bound(i + 1<<-level - 1)
	}
	low, high := t.bound(i-1), t.bound(i)
	for i := range level {
		m, ok := middle(low, high, i%2 == 0)
		switch {
		case !ok:
			return high
		case start < m:
			high = m
		default:
			low = m
		}
	}
	return high
}

// startBefore returns the start of the piece that the last row before end is in.
func (t *tablets) startBefore(level int, end string) string {
	i := len(t.bounds)
	if end != "" {
		i, _ = slices.BinarySearch(t.bounds, end)
	}
	if level <= 0 {
		return t.bound(i - 1<<-level)
	}
	low, high := t.bound(i-1), t.bound(i)
	for i := range level {
		m, ok := middle(low, high, i%2 == 0)
		switch {
		case !ok:
			return low
		case end == "" || end > m:
			low = m
		default:
			high = m
		}
	}
	return low
}

// bound returns the i-th bound. Before the first and after the last is the table's end.
func (t *tablets) bound(i int) string {
	if i < 0 || i >= len(t.bounds) {
		return ""
	}
	return t.bounds[i]
}

// middle returns a key between low and high; an empty high has no bound. It reads the eight
// bytes after their common prefix as numbers. With text, it assumes that most keys above an
// unbounded low share the first half of low. ok is false if it finds no such key.
func middle(low, high string, text bool) (m string, ok bool) {
	n := 0
	switch {
	case low == "" && high == "":
		return "\x80", true
	case high == "":
		b := []byte(low[:(len(low)+1)/2])
		for len(b) > 0 && b[len(b)-1] == 0xff {
			b = b[:len(b)-1]
		}
		if text && len(b) > 0 {
			b[len(b)-1]++
			return string(b), true
		}
		for low[n:] != "" && low[n] == 0xff {
			n++
		}
	case low == "" && len(high) > 8:
		return high[:len(high)/2], true
	default:
		for n < len(low) && n < len(high) && low[n] == high[n] {
			n++
		}
	}
	a, b := number(low[n:]), uint64(1<<64-1)
	if high != "" {
		b = number(high[n:])
	}
	if b < a+2 {
		return "", false
	}
	digits := binary.BigEndian.AppendUint64(nil, a+(b-a)/2)
	for digits[len(digits)-1] == 0 {
		digits = digits[:len(digits)-1]
	}
	return low[:n] + string(digits), true
}

// number reads the first eight bytes of s.
func number(s string) uint64 {
	var b [8]byte
	copy(b[:], s)
	return binary.BigEndian.Uint64(b[:])
}

// tooSlow reports whether the next request of a scan asks for fewer rows than the one that was
// just too slow. rest is what the scan had to read, and piece what it asked for.
func (p *Pieces) tooSlow(t *tablets, rest, piece RowSet, reverse bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	level := p.level + 1
	if !p.on {
		level = 0
	}
	for ; level <= maxPieceLevel && len(piece.Ranges) > 0; level++ {
		if smaller, _ := t.cut(level, rest, reverse); smaller.less(piece, reverse) {
			p.on, p.fastInARow, p.level = true, 0, max(level, p.worked)
			t.slow, t.startLevel = true, p.level
			return true
		}
	}
	return false // a list of keys, one row, or one that keys do not divide
}

// answered notes how long a request for a piece took that was answered completely.
func (p *Pieces) answered(t *tablets, took, timeout time.Duration) {
	switch {
	case !p.on:
		return
	case took > timeout/4:
		p.worked, p.fastInARow = p.level, 0
	case p.fastInARow < enoughFast:
		p.fastInARow++
		return
	default:
		if p.level--; p.level >= minPieceLevel {
			return
		}
		*p = Pieces{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slow, t.startLevel = p.on, p.level
}

// ownDeadline reports whether a request ended at its own deadline.
func ownDeadline(ctx context.Context, err error) bool {
	return ctx.Err() == nil && slices.ContainsFunc(RPCErrors(err), func(e error) bool { return status.Code(e) == codes.DeadlineExceeded })
}
