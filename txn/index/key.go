package index

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Key is what an index is ordered by: one string for each part. Keys are ordered part by
// part, by their bytes. [Int] and [Time] make parts that sort like numbers and times.
type Key []string

// Int returns a part of a key that sorts like the number.
func Int(n int64) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(n)^1<<63))
}

// Time returns a part of a key that sorts like the time, to the nanosecond, in the years 1678
// to 2261.
func Time(t time.Time) string { return Int(t.UnixNano()) }

// A part ends with end. A zero byte in it is followed by 0xff, which sorts after every other
// byte that could follow, so the order of keys is that of their encodings.
const end = "\x00\x01"

func escape(part string) string { return strings.ReplaceAll(part, "\x00", "\x00\xff") }

func (k Key) encode() string {
	var b strings.Builder
	for _, part := range k {
		b.WriteString(escape(part))
		b.WriteString(end)
	}
	return b.String()
}

func decodeKey(s string) (Key, error) {
	var k Key
	for s != "" {
		i := strings.Index(s, end)
		if i < 0 {
			return nil, fmt.Errorf("a part of the key has no end: %q", s)
		}
		k = append(k, strings.ReplaceAll(s[:i], "\x00\xff", "\x00"))
		s = s[i+len(end):]
	}
	return k, nil
}

// Values are the values of an index's columns in a row. An absent cell is missing in the map.
type Values map[txn.Column][]byte

// An Entry is one key of a row.
type Entry struct {
	Key Key
	Row string
}

// An entry is an Entry with its place in the table of entries.
type entry struct {
	Entry
	at string
}
