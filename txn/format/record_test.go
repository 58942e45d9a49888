package format

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

var (
	testPrimary   = Cell{"accounts", "bob", "bal", "usd"}
	testSecondary = Cell{"accounts", "joe", "bal", "usd"}
)

// TestGoldenRecords: every later version of the library reads these bytes of format
// versions 1 and 2. The encoders may change, because a record is identified by its meaning
// and not by its bytes.
func TestGoldenRecords(t *testing.T) {
	for _, tt := range []struct {
		name, hex string
		decode    func([]byte) (any, error)
		want      any
	}{
		{
			"primary lock", "080110012080ade2042a03746f6b30013a0474726163",
			func(b []byte) (any, error) { l, err := DecodeLock(testPrimary, 7, b); return *l, err },
			Lock{Cell: testPrimary, StartTS: 7, Primary: testPrimary, Kind: KindPut, TTL: 10 * time.Second, Owner: "tok", Observed: true, TraceParent: "trac"},
		},
		{
			"passable lock", "08024a080000000000000809" + "10012080ade2045002",
			func(b []byte) (any, error) {
				l, err := DecodeLock(testPrimary, 7, b)
				if l.Record != string(b) {
					t.Errorf("record %x is kept as %x", b, l.Record)
				}
				l.Record = ""
				return *l, err
			},
			Lock{Cell: testPrimary, StartTS: 7, Primary: testPrimary, Kind: KindPut, TTL: 10 * time.Second, Passable: true, MinCommitTS: 0x0809, Sealed: true},
		},
		{
			"secondary lock", "080110021a051203626f6220c0843d",
			func(b []byte) (any, error) { l, err := DecodeLock(testSecondary, 7, b); return *l, err },
			Lock{Cell: testSecondary, StartTS: 7, Primary: testPrimary, Kind: KindDelete, TTL: time.Second},
		},
		{
			"primary write", "080110011807",
			func(b []byte) (any, error) { return DecodeWrite(testPrimary, 9, b) },
			WriteRecord{CommitTS: 9, StartTS: 7, Kind: KindPut, Primary: testPrimary},
		},
		{
			"write whose primary is elsewhere in every part", "0801100218072212" + "0a056f74686572" + "12026b31" + "1a0366616d" + "2200",
			func(b []byte) (any, error) { return DecodeWrite(testSecondary, 9, b) },
			WriteRecord{CommitTS: 9, StartTS: 7, Kind: KindDelete, Primary: Cell{"other", "k1", "fam", ""}},
		},
		{
			"lock-only mark", "080110031807",
			func(b []byte) (any, error) { return DecodeMark(testPrimary, 9, b) },
			WriteRecord{CommitTS: 9, StartTS: 7, Kind: KindLock, Primary: testPrimary},
		},
		{
			"rollback marker", "080110041807",
			func(b []byte) (any, error) { return DecodeMark(testPrimary, 7, b) },
			WriteRecord{CommitTS: 7, StartTS: 7, Kind: KindRollback, Primary: testPrimary},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := hex.DecodeString(tt.hex)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tt.decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("decoded %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestGoldenStateOfCollection: the same for records of the metadata table.
func TestGoldenStateOfCollection(t *testing.T) {
	for _, tt := range []struct {
		hex       string
		got, want proto.Message
	}{
		{"080110641878208094ebdc03", &recordpb.SafePoint{}, &recordpb.SafePoint{FormatVersion: 1, Ts: 100, PublishedTs: 120, RetentionMicros: 1e9}},
		{"080110641878208094ebdc03" + "285a" + "3032" + "383c" + "4046", &recordpb.SafePoint{},
			&recordpb.SafePoint{FormatVersion: 1, Ts: 100, PublishedTs: 120, RetentionMicros: 1e9, ResolvedTs: 90, DrainedTs: 50, DrainingTs: 60, DrainingSinceTs: 70}},
		{"0801106418022203626967" + "2a03726f77" + "30783879" + "42036f776e" + "4801" + "5002" + "5803" + "6004" + "688094ebdc03" + "7001", &recordpb.GarbageRun{},
			&recordpb.GarbageRun{FormatVersion: 1, SafePoint: 100, Phase: recordpb.GarbageRun_PHASE_COLLECT, Table: "big", Row: []byte("row"), StartedTs: 120, UpdatedTs: 121, Owner: "own", Rows: 1, Versions: 2, Cells: 3, Bytes: 4, RetentionMicros: 1e9, Plain: true}},
		{"0801" + "107b" + "187a" + "220468" + "6f7374" + "2807" + "3064", &recordpb.WorkerToken{},
			&recordpb.WorkerToken{FormatVersion: 1, ExpiresTs: 123, StartedTs: 122, Host: "host", Pid: 7, OldestTs: 100}},
	} {
		b, err := hex.DecodeString(tt.hex)
		if err == nil {
			err = proto.Unmarshal(b, tt.got)
		}
		if err != nil || !proto.Equal(tt.got, tt.want) {
			t.Errorf("%T: %v, %v, want %v (%x)", tt.want, tt.got, err, tt.want, Marshal(tt.want))
		}
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for _, primary := range []Cell{testPrimary, testSecondary, {"t", "joe", "bal", "usd"}, {"accounts", "joe", "bal", ""}, {"accounts", "joe", "f", "usd"}} {
		for _, cell := range []Cell{testSecondary, {"accounts", "joe", "bal", ""}} {
			l := &Lock{Cell: cell, StartTS: 7, Primary: primary, Kind: KindPut, TTL: 1500 * time.Millisecond, Owner: "o", Observed: true, TraceParent: "00-x", Hops: 300}
			got, err := DecodeLock(cell, 7, EncodeLock(l))
			if err != nil || *got != *l {
				t.Errorf("lock of %v: %+v, %v; want %+v", cell, got, err, l)
			}
			checkEncoding(t, EncodeLock(l), &recordpb.Lock{})
			for _, kind := range []Kind{KindPut, KindDelete, KindLock} {
				family, b := EncodeCommit(cell, primary, kind, 7)
				decode, message := DecodeWrite, proto.Message(&recordpb.Write{})
				if family == MarkFamily {
					decode, message = DecodeMark, &recordpb.Mark{}
				}
				checkEncoding(t, b, message)
				w, err := decode(cell, 9, b)
				if want := (WriteRecord{9, 7, kind, primary, 0}); err != nil || w != want {
					t.Errorf("%v in %s: %+v, %v; want %+v", kind, family, w, err, want)
				}
			}
		}
	}
}

// checkEncoding checks that the protobuf library encodes a record in the same way.
func checkEncoding(t *testing.T, record []byte, m proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(record, m); err != nil || len(m.ProtoReflect().GetUnknown()) > 0 || !bytes.Equal(Marshal(m), record) {
		t.Errorf("%x is %v, %v, which has the encoding %x", record, m, err, Marshal(m))
	}
}

// TestEncodingAllocates checks that a record is one piece of memory.
func TestEncodingAllocates(t *testing.T) {
	l := &Lock{Cell: testSecondary, StartTS: 7, Primary: testPrimary, Kind: KindPut, TTL: 15 * time.Second, Owner: "a-token-of-thirty-two-characters", TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	if n := testing.AllocsPerRun(100, func() { EncodeLock(l) }); n > 1 {
		t.Errorf("a lock takes %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { EncodeCommit(testSecondary, testPrimary, KindPut, 1<<50) }); n > 1 {
		t.Errorf("a write record takes %v allocations", n)
	}
}

func TestBadRecords(t *testing.T) {
	bytes := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	lock := func(b []byte) error { _, err := DecodeLock(testPrimary, 7, b); return err }
	write := func(b []byte) error { _, err := DecodeWrite(testPrimary, 9, b); return err }
	failure := func(b []byte) error { _, err := DecodeFailure(testPrimary, b); return err }
	mark := func(b []byte) error { _, err := DecodeMark(testPrimary, 9, b); return err }
	for _, tt := range []struct {
		name   string
		decode func([]byte) error
		value  []byte
		want   error
		says   string
	}{
		{"not a message", lock, []byte{0xff}, ErrCorrupt, "does not parse"},
		{"empty", write, nil, ErrCorrupt, "no format version"},
		{"later version", lock, bytes(&recordpb.Lock{FormatVersion: 3, Kind: recordpb.Kind_KIND_PUT}), ErrFormatVersion, "version 3"},
		{"later version of a write", write, bytes(&recordpb.Write{FormatVersion: 2, Kind: recordpb.Kind_KIND_PUT, StartTs: 7}), ErrFormatVersion, "version 2"},
		{"passable lock without a minimum", lock, bytes(&recordpb.Lock{FormatVersion: 2, Kind: recordpb.Kind_KIND_PUT}), ErrCorrupt, "minimum"},
		{"passable lock in another order", lock, bytes(&recordpb.Lock{FormatVersion: 2, Kind: recordpb.Kind_KIND_PUT, MinCommit: make([]byte, 8)}), ErrCorrupt, "minimum"},
		{"minimum in version 1", lock, bytes(&recordpb.Lock{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, MinCommit: make([]byte, 8)}), ErrCorrupt, "minimum"},
		{"passable secondary", lock, EncodeLock(&Lock{Cell: testSecondary, Primary: testPrimary, Kind: KindPut, Passable: true}), ErrCorrupt, "minimum"},
		{"lock without a row of the primary", lock, EncodeLock(&Lock{Cell: testPrimary, Primary: Cell{testPrimary.Table, "", "f", "q"}, Kind: KindPut}), ErrCorrupt, "empty row key"},
		{"lock with a primary in a metadata family", lock, EncodeLock(&Lock{Cell: testPrimary, Primary: Cell{testPrimary.Table, "r", LockFamily, "f:q"}, Kind: KindPut}), ErrCorrupt, "belongs to the transaction metadata"},
		{"lock of no kind", lock, bytes(&recordpb.Lock{FormatVersion: 1}), ErrCorrupt, "kind(0)"},
		{"write of kind lock", write, bytes(&recordpb.Write{FormatVersion: 1, Kind: recordpb.Kind_KIND_LOCK, StartTs: 7}), ErrCorrupt, "kind lock"},
		{"commit before start", write, bytes(&recordpb.Write{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, StartTs: 9}), ErrCorrupt, "start_ts 9"},
		{"minimum of a byte in version 1", lock, bytes(&recordpb.Lock{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, MinCommit: make([]byte, 1)}), ErrCorrupt, "minimum"},
		{"sealed in version 1", lock, bytes(&recordpb.Lock{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, Sealed: true}), ErrCorrupt, "minimum"},
		{"passable lock with a minimum below 0", lock, EncodeLock(&Lock{Cell: testPrimary, Primary: testPrimary, Kind: KindPut, Passable: true, MinCommitTS: -1}), ErrCorrupt, "minimum"},
		{"commit of start 0", write, bytes(&recordpb.Write{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT}), ErrCorrupt, "start_ts 0"},
		{"commit of a start below 0", write, bytes(&recordpb.Write{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, StartTs: -1}), ErrCorrupt, "start_ts -1"},
		{"lock-only commit of start 0", mark, bytes(&recordpb.Mark{FormatVersion: 1, Kind: recordpb.Kind_KIND_LOCK}), ErrCorrupt, "start_ts 0"},
		{"mark of a later version", mark, bytes(&recordpb.Mark{FormatVersion: 2, Kind: recordpb.Kind_KIND_LOCK, StartTs: 7}), ErrFormatVersion, "version 2"},
		{"mark of kind put", mark, bytes(&recordpb.Mark{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, StartTs: 7}), ErrCorrupt, "kind put"},
		{"mark of kind put, stored as a marker", mark, bytes(&recordpb.Mark{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, StartTs: 9}), ErrCorrupt, "kind put"},
		{"failure that is no message", failure, []byte{0xff}, ErrCorrupt, "does not parse"},
		{"failure without a version", failure, bytes(&recordpb.Failure{Attempts: 1}), ErrCorrupt, "no format version"},
		{"failure of a later version", failure, bytes(&recordpb.Failure{FormatVersion: 2, Attempts: 1}), ErrFormatVersion, "version 2"},
		{"marker elsewhere", mark, bytes(&recordpb.Mark{FormatVersion: 1, Kind: recordpb.Kind_KIND_ROLLBACK, StartTs: 7}), ErrCorrupt, "is stored at 9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.decode(tt.value)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), testPrimary.String()) {
				t.Errorf("error %v; want %v naming the cell and %q", err, tt.want, tt.says)
			}
		})
	}
}

// TestSettledBy: only the write record in the primary's cell says that no lock is left.
func TestSettledBy(t *testing.T) {
	w := WriteRecord{StartTS: 7, Kind: KindPut, Primary: testPrimary, SettledBy: Alone}
	for _, tt := range []struct {
		cell   Cell
		kind   Kind
		family string
		hex    string
	}{
		{testPrimary, KindPut, WriteFamily, "0801100118072801"}, {testSecondary, KindPut, WriteFamily, "080110011807" + "22051203626f62"},
		{testPrimary, KindLock, MarkFamily, "080110031807"},
	} {
		w.Kind = tt.kind
		family, value := w.Encode(tt.cell)
		if family != tt.family || hex.EncodeToString(value) != tt.hex {
			t.Errorf("%v of %v: %s %x", tt.kind, tt.cell, family, value)
		}
	}
	w.Kind, w.CommitTS, w.SettledBy = KindPut, 9, 300
	if _, value := w.Encode(testPrimary); len(value) != 9 {
		t.Errorf("encoded as %x", value)
	} else if got, err := DecodeWrite(testPrimary, 9, value); err != nil || got != w {
		t.Errorf("decoded %+v, %v", got, err)
	}
	if b := Marshal(&recordpb.Lock{FormatVersion: 1, Owner: "\xff"}); b != nil {
		t.Errorf("a string that is not UTF-8 is stored as %x", b)
	}
	if l, err := DecodeLock(testPrimary, 7, EncodeLock(&Lock{Cell: testPrimary, Primary: testPrimary, Kind: KindPut, Passable: true})); err != nil || !l.Passable || l.MinCommitTS != 0 {
		t.Errorf("a passable lock without a raise: %+v, %v", l, err)
	}
}

// TestKindAndStartAllocateNothing: every read decodes write records.
func TestKindAndStartAllocateNothing(t *testing.T) {
	for _, w := range []WriteRecord{
		{StartTS: 7, Kind: KindPut, Primary: testPrimary}, {StartTS: 7, Kind: KindDelete, Primary: testPrimary}, {StartTS: 1, Kind: KindPut, Primary: testPrimary},
		{StartTS: 7, Kind: KindPut, Primary: testSecondary, SettledBy: Alone},
	} {
		_, record := w.Encode(testSecondary)
		allocs := testing.AllocsPerRun(100, func() {
			if k, start, err := DecodeKindAndStart(testSecondary, 9, record); k != w.Kind || start != w.StartTS || err != nil {
				t.Errorf("%v, %d, %v", k, start, err)
			}
		})
		if allocs != 0 {
			t.Errorf("%+v: %v allocations", w, allocs)
		}
	}
}

// TestKindAndStartOfUnusualRecords: whatever the bytes, a read gets what DecodeWrite returns.
func TestKindAndStartOfUnusualRecords(t *testing.T) {
	const usual = "080110011807"
	for name, text := range map[string]string{
		"empty": "", "put": usual, "delete": "080110021807", "settled": usual + "2801", "with a primary": usual + "22051203626f62",
		"no version": "10011807", "version 0": "080010011807", "version 2": "080210011807", "no kind": "08011807", "kind lock": "080110031807", "kind 257": "08011081021807",
		"no start": "08011001", "start 0": "080110011800", "start below 0": "0801100118ffffffffffffffffff01", "start 1": "080110011801", "start 8": "080110011808", "start 9": "080110011809", "start 10": "08011001180a",
		"kind twice": usual + "1002", "reordered": "180710010801", "half a field": usual + "28", "half a number": "0801100118", "half a long number": "080110011887",
		"half a primary": usual + "2205", "no field": usual + "00", "no tag": usual + "ff", "unknown number": usual + "3001", "unknown bytes": usual + "3200", "unknown group": usual + "3334",
		"a fixed number": usual + "3d00000000", "start as bytes": "08011001" + "1a021003", "settled as bytes": usual + "2a021002", "primary as a number": usual + "20021002",
		"kind as bytes": usual + "12021002", "group for a primary": usual + "2324",
	} {
		value, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := DecodeWrite(testPrimary, 9, value)
		kind, start, err := DecodeKindAndStart(testPrimary, 9, value)
		if errors.Is(err, ErrCorrupt) != errors.Is(wantErr, ErrCorrupt) || errors.Is(err, ErrFormatVersion) != errors.Is(wantErr, ErrFormatVersion) || err == nil && (kind != want.Kind || start != want.StartTS) || (err == nil) != (wantErr == nil) {
			t.Errorf("%s: %v at %d, %v; want %+v, %v", name, kind, start, err, want, wantErr)
		}
	}
}

// A stored lock may have any ttl. Before the fix, the end of a very long one overflowed, so
// that the lock had expired when it was written.
func TestExpiryDoesNotOverflow(t *testing.T) {
	const now = 1_800_000_000_000_000
	for _, tt := range []struct {
		start tso.Timestamp
		ttl   int64 // microseconds
		alive bool
	}{
		{now, 1e6, true}, {now, math.MaxInt64, true}, {now, math.MaxInt64 / 1000, true}, {now, 0, false}, {now, -1, false}, {now, math.MinInt64, false},
		{math.MaxInt64 / 1000, math.MaxInt64, true}, {1, math.MaxInt64, true}, {1, 1e6, false},
	} {
		l, err := DecodeLock(testPrimary, tt.start, Marshal(&recordpb.Lock{FormatVersion: 1, Kind: recordpb.Kind_KIND_PUT, TtlMicros: tt.ttl}))
		if err != nil {
			t.Fatal(err)
		}
		if alive := l.ExpiresTS() > now; alive != tt.alive {
			t.Errorf("lock at %d with a ttl of %d µs expires at %d", tt.start, tt.ttl, l.ExpiresTS())
		}
	}
	for _, l := range []Lock{{StartTS: math.MaxInt64, TTL: math.MaxInt64}, {StartTS: math.MaxInt64 - 5, TTL: time.Second}} {
		if l.ExpiresTS() != math.MaxInt64 {
			t.Errorf("lock at %d expires at %d", l.StartTS, l.ExpiresTS())
		}
	}
}

// TestRecordSizes: docs/storage-format.md states these sizes.
func TestRecordSizes(t *testing.T) {
	const ts = 1_800_000_000_000_000
	owner := strings.Repeat("A", 26)
	lock := len(EncodeLock(&Lock{Cell: testPrimary, StartTS: ts, Primary: testPrimary, Kind: KindPut, TTL: 10 * time.Second, Owner: owner}))
	lock2 := len(EncodeLock(&Lock{Cell: testSecondary, StartTS: ts, Primary: testPrimary, Kind: KindPut, TTL: 10 * time.Second, Owner: owner}))
	_, write := EncodeCommit(testPrimary, testPrimary, KindPut, ts)
	_, write2 := EncodeCommit(testSecondary, testPrimary, KindPut, ts)
	got := []int{lock, lock2 - lock, len(write), len(write2) - len(write)}
	t.Logf("lock %d, secondary +%d; write %d, secondary +%d", got[0], got[1], got[2], got[3])
	for i, want := range []int{37, 4 + len("bob"), 13, 4 + len("bob")} {
		if got[i] != want {
			t.Errorf("size %d is %d, want %d; docs/storage-format.md says so too", i, got[i], want)
		}
	}
}

// TestRecordRanges: the ranges of a transaction contain each of its records, however they are
// serialized, and no ordinary record of another transaction. The first is what safety rests on.
func TestRecordRanges(t *testing.T) {
	inside := func(startTS tso.Timestamp, value []byte) bool {
		n := 0
		for _, r := range RecordRanges(startTS) {
			if bytes.Compare(value, r[0]) >= 0 && (r[1] == nil || bytes.Compare(value, r[1]) < 0) {
				n++
			}
		}
		if n > 1 {
			t.Errorf("%x is in %d ranges of %d", value, n, startTS)
		}
		return n == 1
	}
	starts := []tso.Timestamp{1, 127, 128, 255, 16383, 16384, 1<<50 - 1, 1793000000000000, 1793000000000001, 1793000000000127, 1793000000000128, math.MaxInt64 / 1000}
	for _, start := range starts {
		fields := [][]byte{{1 << 3, Version}, {2 << 3, 0}, protowire.AppendVarint([]byte{3 << 3}, uint64(start)), {4<<3 | 2, 0}}
		for kind := KindPut; kind <= KindRollback; kind++ {
			fields[1][1] = byte(kind)
			record := slices.Concat(fields...)
			for _, other := range starts {
				const told = 1<<49 - 1 // 17 years apart two numbers are the same to RecordRanges
				got, want := inside(other, record), start&told == other&told
				if got != want && (want || min(start, other) > told) {
					t.Errorf("a %v of %d is among the records of %d: %v", kind, start, other, got)
				}
			}
			padded := slices.Clone(fields[2])
			padded[len(padded)-1] |= 0x80
			for name, record := range map[string][]byte{
				"without its primary": slices.Concat(fields[:3]...),
				"reordered":           slices.Concat(fields[2], fields[0], fields[1]),
				"primary first":       slices.Concat(fields[3], fields[0], fields[1], fields[2]),
				"kind last":           slices.Concat(fields[0], fields[2], fields[1]),
				"padded":              slices.Concat(fields[0], fields[1], padded, []byte{0}),
				"padded version":      slices.Concat([]byte{1 << 3, 0x80 | Version, 0}, fields[1], fields[2]),
				"padded kind":         slices.Concat(fields[0], []byte{2 << 3, 0x80 | byte(kind), 0}, fields[2]),
				"another version":     slices.Concat([]byte{1 << 3, Version + 1}, fields[1], fields[2]),
				"another kind":        slices.Concat(fields[0], []byte{2 << 3, 9}, fields[2]),
				"a field more":        slices.Concat(fields[0], fields[1], []byte{5 << 3, 1}, fields[2]),
				"damaged":             {0xff},
				"empty":               {},
			} {
				if !inside(start, record) {
					t.Errorf("%s: the %v of %d, %x, is not among its records", name, kind, start, record)
				}
			}
		}
	}
}
