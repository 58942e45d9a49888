package model

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/google/btree"
)

// A Table is the nominal size of a table.
type Table struct {
	// Bytes is the size of the table, spread evenly over its tablets. Within a tablet, it
	// is spread evenly over the keys between the tablet's bounds, as numbers.
	Bytes float64
	// Splits are the first keys of all tablets but the first one, in order. SampleRowKeys
	// returns them. Defaults to one tablet.
	Splits []string
}

// HexSplits returns n-1 splits for keys that begin with evenly distributed hexadecimal
// digits, after a prefix.
func HexSplits(prefix string, n int) []string {
	var splits []string
	for i := 1; i < n; i++ {
		splits = append(splits, fmt.Sprintf("%s%08x", prefix, uint64(i)<<32/uint64(n)))
	}
	return splits
}

type table struct {
	tablets []*tablet
	rows    *btree.BTreeG[*row]
}

// A tablet does not change: moves and splits replace it.
type tablet struct {
	start, end string  // the key after it; "" for the last one
	size       float64 // in bytes
	node       int     // modulo the number of nodes
}

func newTable(t Table, node int) *table {
	starts := append([]string{""}, t.Splits...)
	slices.Sort(starts)
	all := &table{rows: btree.NewG(16, less)}
	for i, start := range starts {
		end := ""
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		all.tablets = append(all.tablets, &tablet{start, end, t.Bytes / float64(len(starts)), node + i})
	}
	return all
}

// tablet returns the tablet of a key.
func (t *table) tablet(key string) *tablet {
	i, found := slices.BinarySearchFunc(t.tablets, key, func(x *tablet, key string) int { return cmp.Compare(x.start, key) })
	if !found {
		i--
	}
	return t.tablets[i]
}

// replace replaces a tablet.
func (t *table) replace(old *tablet, by func(tablet) []*tablet) {
	i := slices.Index(t.tablets, old)
	t.tablets = slices.Replace(t.tablets, i, i+1, by(*old)...)
}

// removed returns how many removed cells of the rows from start to end, without end, a scan passes.
func (c *Cluster) removed(t *table, start, end string) (n int) {
	add := func(r *row) bool { n += c.current(r).removed; return true }
	if end == "" {
		t.rows.AscendGreaterOrEqual(&row{key: start}, add)
	} else {
		t.rows.AscendRange(&row{key: start}, &row{key: end}, add)
	}
	return n
}

func (t *tablet) has(key string) bool { return key >= t.start && (t.end == "" || key < t.end) }

// split returns ranges that are each within one tablet.
func (t *table) split(ranges []keyRange) (all []keyRange) {
	for _, r := range ranges {
		for end := t.tablet(r.start).end; end != "" && (r.end == "" || end < r.end); end = t.tablet(end).end {
			all, r.start = append(all, keyRange{r.start, end}), end
		}
		all = append(all, r)
	}
	return all
}

// position returns how many bytes of a tablet are before a key, which may be the end of the
// tablet.
func (t *tablet) position(key string, end bool) float64 {
	if end {
		return t.size
	}
	prefix, from, to := t.bounds()
	at := number(strings.TrimPrefix(key, prefix))
	if !strings.HasPrefix(key, prefix) {
		at = to // beyond all keys with the prefix
		if key < prefix {
			at = from
		}
	}
	return t.size * min(max((at-from)/(to-from), 0), 1)
}

// keyAt returns the key at a position in a tablet.
func (t *tablet) keyAt(position float64) string {
	prefix, from, to := t.bounds()
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(min(from+(to-from)*position/t.size, math.MaxUint64-4096)))
	return prefix + strings.TrimRight(string(b[:]), "\x00")
}

// bounds returns what all keys of a tablet begin with, and what follows in the first and
// the last one, as numbers.
func (t *tablet) bounds() (prefix string, from, to float64) {
	start, end := t.start, t.end
	if end == "" {
		return "", number(start), math.MaxUint64
	}
	n := 0
	for n < min(len(start), len(end)) && start[n] == end[n] {
		n++
	}
	from, to = number(start[n:]), number(end[n:])
	return start[:n], from, max(to, from+4096)
}

// number is the first eight bytes of a key as a number.
func number(key string) float64 {
	var b [8]byte
	copy(b[:], key)
	return float64(binary.BigEndian.Uint64(b[:]))
}
