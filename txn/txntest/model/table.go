package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
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
	starts []string // of the tablets
	size   float64  // of a tablet
}

func newTable(t Table) *table {
	starts := append([]string{""}, t.Splits...)
	slices.Sort(starts)
	return &table{starts: starts, size: t.Bytes / float64(len(starts))}
}

// tablet returns the tablet of a key.
func (t *table) tablet(key string) int {
	i, found := slices.BinarySearch(t.starts, key)
	if !found {
		i--
	}
	return i
}

// end returns the key after a tablet; "" for the last one.
func (t *table) end(tablet int) string {
	if tablet+1 < len(t.starts) {
		return t.starts[tablet+1]
	}
	return ""
}

// split returns ranges that are each within one tablet.
func (t *table) split(ranges []keyRange) (all []keyRange) {
	for _, r := range ranges {
		for end := t.end(t.tablet(r.start)); end != "" && (r.end == "" || end < r.end); end = t.end(t.tablet(end)) {
			all, r.start = append(all, keyRange{r.start, end}), end
		}
		all = append(all, r)
	}
	return all
}

// position returns how many bytes of a tablet are before a key, which may be the end of the
// tablet.
func (t *table) position(tablet int, key string, end bool) float64 {
	if end {
		return t.size
	}
	prefix, from, to := t.bounds(tablet)
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
func (t *table) keyAt(tablet int, position float64) string {
	prefix, from, to := t.bounds(tablet)
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(min(from+(to-from)*position/t.size, math.MaxUint64-4096)))
	return prefix + strings.TrimRight(string(b[:]), "\x00")
}

// bounds returns what all keys of a tablet begin with, and what follows in the first and
// the last one, as numbers.
func (t *table) bounds(tablet int) (prefix string, from, to float64) {
	start, end := t.starts[tablet], t.end(tablet)
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
