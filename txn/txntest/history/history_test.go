package history

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A story is a history written by hand. Each line is one transaction in the form
//
//	outcome start_ts commit_ts op op …
//
// with operations such as a:x:1 (append 1 to x), w:x:1, l:x (lock), r:x:1,2
// (the list), r:x:=1 (the register), r:x: (nothing). A transaction is invoked just
// before its start_ts and ends just after its commit_ts, unless the line ends with
// its times "@begin,end". The outcome "latest" is a read of the latest state.
func story(t *testing.T, text string) []Record {
	t.Helper()
	var records []Record
	process := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		process++
		r := Record{Type: Type(fields[0]), Process: process}
		if _, err := fmt.Sscan(fields[1]+" "+fields[2], &r.StartTS, &r.CommitTS); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		begun, ended := 10*r.StartTS-1, 10*max(r.StartTS, r.CommitTS)+1
		for _, f := range fields[3:] {
			if at, ok := strings.CutPrefix(f, "@"); ok {
				if _, err := fmt.Sscanf(at, "%d,%d", &begun, &ended); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				continue
			}
			r.Value = append(r.Value, parseOp(t, f))
		}
		invoke := Record{Type: Invoke, Process: process, Time: begun, StartTS: r.StartTS, Latest: r.Type == "latest"}
		if invoke.Latest {
			r.Type = OK
		}
		for _, o := range r.Value {
			if o.F == Read {
				o.State = State{}
			}
			invoke.Value = append(invoke.Value, o)
		}
		r.Time = ended
		records = append(records, invoke)
		switch r.Type {
		case Info:
			r.Value = nil // a killed client reports nothing
			records = append(records, r)
		case "killed": // the transaction has no end
		default:
			records = append(records, r)
		}
	}
	return records
}

func parseOp(t *testing.T, s string) Op {
	t.Helper()
	p := strings.SplitN(s, ":", 3)
	o := Op{Key: p[1]}
	number := func(s string) (n int64) {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatalf("operation %s: %v", s, err)
		}
		return n
	}
	switch p[0] {
	case "a":
		o.F, o.N = Append, number(p[2])
	case "w":
		o.F, o.N = Write, number(p[2])
	case "l":
		o.F = Lock
	case "r":
		o.F = Read
		switch {
		case p[2] == "":
			o.State = List()
		case p[2][0] == '=':
			o.State = Number(number(p[2][1:]))
		default:
			for e := range strings.SplitSeq(p[2], ",") {
				o.State.kind = 'l'
				o.State.list = append(o.State.list, number(e))
			}
		}
	default:
		t.Fatalf("operation %s", s)
	}
	return o
}

func kinds(all []Anomaly) map[Kind]bool {
	m := map[Kind]bool{}
	for _, a := range all {
		m[a.Kind] = true
	}
	return m
}

func describe(all []Anomaly) string {
	var b strings.Builder
	for _, a := range all {
		fmt.Fprintln(&b, a)
	}
	return b.String()
}

// TestAnomalies proves that each checker finds each anomaly in a history made for it,
// and finds nothing in a history that differs only in the anomaly. An empty kind means
// that the checker cannot see the anomaly.
func TestAnomalies(t *testing.T) {
	for _, tc := range []struct {
		name       string
		bad        string
		timestamps Kind
		append     Kind
		clean      string
	}{
		{
			name: "aborted read",
			bad: `fail 1 0 a:x:1
				ok 5 5 r:x:1`,
			timestamps: G1a, append: G1a,
			clean: `fail 1 0 a:x:1
				ok 5 5 r:x:`,
		}, {
			name: "aborted read of a register",
			bad: `fail 1 0 w:x:1
				ok 5 5 r:x:=1`,
			timestamps: G1a,
			clean: `fail 1 0 w:x:1
				ok 5 5 r:x:`,
		}, {
			name: "intermediate read",
			bad: `ok 1 9 a:x:1 a:x:2 @1,200
				ok 5 5 r:x:1 @1,200
				ok 20 20 r:x:1,2`,
			timestamps: FutureRead, append: G1b,
			clean: `ok 1 9 a:x:1 a:x:2
				ok 5 5 r:x:
				ok 20 20 r:x:1,2`,
		}, {
			name: "intermediate read of a register",
			bad: `ok 1 9 w:x:1 w:x:2
				ok 20 20 r:x:=1`,
			timestamps: G1b,
			clean: `ok 1 9 w:x:1 w:x:2
				ok 20 20 r:x:=2`,
		}, {
			name:       "garbage read",
			bad:        `ok 5 5 r:x:7`,
			timestamps: Garbage, append: Garbage,
			clean: `ok 1 2 a:x:7
				ok 5 5 r:x:7`,
		}, {
			name: "duplicate element",
			bad: `ok 1 2 a:x:7
				ok 5 5 r:x:7,7`,
			timestamps: DuplicateElement, append: DuplicateElement,
			clean: `ok 1 2 a:x:7
				ok 5 5 r:x:7`,
		}, {
			name: "lost element",
			bad: `ok 1 2 a:x:7
				ok 3 4 a:x:8
				ok 5 5 r:x:8`,
			timestamps: StaleRead, append: LostElement,
			clean: `ok 1 2 a:x:7
				ok 3 4 a:x:8
				ok 5 5 r:x:7,8`,
		}, {
			name: "incompatible order",
			bad: `ok 1 2 a:x:7
				ok 3 4 a:x:8
				ok 5 5 r:x:7,8
				ok 6 6 r:x:8,7`,
			timestamps: IncompatibleOrder, append: IncompatibleOrder,
			clean: `ok 1 2 a:x:7
				ok 3 4 a:x:8
				ok 5 5 r:x:7,8
				ok 6 6 r:x:7,8`,
		}, {
			name: "internal: own append is not read",
			bad: `ok 1 2 a:x:7 r:x:
				ok 5 5 r:x:7`,
			timestamps: Internal, append: Internal,
			clean: `ok 1 2 a:x:7 r:x:7
				ok 5 5 r:x:7`,
		}, {
			name: "internal: read before it was written",
			bad: `ok 1 2 r:x:7 a:x:7
				ok 5 5 r:x:7`,
			timestamps: Internal,
			clean: `ok 1 2 r:x: a:x:7
				ok 5 5 r:x:7`,
		}, {
			name: "non-repeatable read",
			bad: `ok 1 9 r:x: r:x:7 @1,200
				ok 2 3 a:x:7 @1,200`,
			timestamps: FutureRead, append: Internal,
			clean: `ok 1 9 r:x: r:x:
				ok 2 3 a:x:7`,
		}, {
			name: "stale read, across real time",
			bad: `ok 1 2 a:x:7
				ok 5 5 r:x:
				ok 9 9 r:x:7`,
			timestamps: StaleRead, append: StaleRead,
			clean: `ok 6 7 a:x:7
				ok 5 5 r:x:
				ok 9 9 r:x:7`,
		}, {
			name: "stale read of a failed transaction, across real time",
			bad: `ok 1 2 a:x:7
				fail 5 0 r:x:
				ok 9 9 r:x:7`,
			timestamps: StaleRead, append: StaleRead,
			clean: `ok 6 7 a:x:7
				fail 5 0 r:x:
				ok 9 9 r:x:7`,
		}, {
			name: "stale read in the middle of a list",
			bad: `ok 1 2 a:x:7
				ok 3 8 a:x:8
				ok 4 6 r:y: a:z:1
				ok 9 10 a:x:9
				ok 11 11 r:x:7
				ok 20 20 r:x:7,8,9 r:z:1`,
			timestamps: StaleRead, append: StaleRead,
			clean: `ok 1 2 a:x:7
				ok 3 8 a:x:8
				ok 4 6 r:y: a:z:1
				ok 9 10 a:x:9
				ok 5 5 r:x:7
				ok 20 20 r:x:7,8,9 r:z:1`,
		}, {
			name: "appends against real time",
			bad: `ok 1 2 a:x:7
				ok 3 4 a:x:8
				ok 5 5 r:x:8,7`,
			timestamps: IncompatibleOrder, append: RealTime,
			clean: `ok 1 2 a:x:7
				ok 3 4 a:x:8
				ok 5 5 r:x:7,8`,
		}, {
			name: "a read misses what must come before an acknowledged commit",
			bad: `killed 1 0 a:x:1 a:y:1
				ok 3 4 r:y:1 a:y:2
				ok 5 5 r:x:
				ok 9 9 r:x:1 r:y:1,2`,
			timestamps: StaleRead, append: RealTime,
			clean: `killed 1 0 a:x:1 a:y:1
				ok 3 7 r:y:1 a:y:2
				ok 2 2 r:x:
				ok 9 9 r:x:1 r:y:1,2`,
		}, {
			name: "two reads against real time, with writers between them",
			bad: `ok 1 8 a:x:1
				ok 2 2 r:x:1 @19,25
				ok 3 3 r:x:
				ok 9 9 r:x:1`,
			timestamps: FutureRead, append: RealTime,
			clean: `ok 2 3 a:x:1 @1,85
				ok 4 4 r:x:1
				ok 1 1 r:x:
				ok 9 9 r:x:1`,
		}, {
			name: "commit_ts taken too early: a read at a higher start_ts missed it",
			bad: `ok 1 4 w:x:7 @5,100
				ok 5 5 r:x: @6,101
				ok 9 9 r:x:=7`,
			timestamps: StaleRead,
			clean: `ok 1 6 w:x:7 @5,100
				ok 5 5 r:x: @6,101
				ok 9 9 r:x:=7`,
		}, {
			name: "real-time order",
			bad: `ok 5 6 w:x:7 @10,20
				ok 3 4 w:y:8 @30,40`,
			timestamps: RealTime,
			clean: `ok 5 6 w:x:7 @10,40
				ok 3 4 w:y:8 @30,40`,
		}, {
			name: "real-time order, after a read-only transaction",
			bad: `ok 5 5 r:x: @10,20
				ok 3 3 r:x: @30,40`,
			timestamps: RealTime,
			clean: `ok 3 3 r:x: @10,20
				ok 5 5 r:x: @30,40`,
		}, {
			name: "a timestamp handed out twice",
			bad: `ok 1 4 w:x:7
				ok 2 4 w:y:7`,
			timestamps: Timestamps,
			clean: `ok 1 4 w:x:7
				ok 2 5 w:y:7`,
		}, {
			name: "the start_ts of two writers",
			bad: `ok 1 4 w:x:7 @10,40
				ok 1 5 w:y:7 @20,30`,
			timestamps: Timestamps,
			clean: `ok 1 1 r:x: @10,40
				ok 1 1 r:y: @20,30`,
		}, {
			name:       "commit_ts at start_ts",
			bad:        `ok 4 4 w:x:7`,
			timestamps: Timestamps,
			clean:      `ok 4 5 w:x:7`,
		}, {
			name: "lost update",
			bad: `ok 1 5 r:x: a:x:7
				ok 2 6 r:x: a:x:8
				ok 9 9 r:x:7,8`,
			timestamps: Overlap, append: LostUpdate,
			clean: `ok 1 5 r:x: a:x:7
				ok 6 7 r:x:7 a:x:8
				ok 9 9 r:x:7,8`,
		}, {
			name: "lost update of a register",
			bad: `ok 1 5 r:x: w:x:7
				ok 2 6 r:x: w:x:8`,
			timestamps: Overlap,
			clean: `ok 1 5 r:x: w:x:7
				fail 2 0 r:x: w:x:8`,
		}, {
			name: "a lock-only write that let a writer through",
			bad: `ok 1 5 l:x w:y:1
				ok 2 6 w:x:8`,
			timestamps: Overlap,
			clean: `ok 1 5 l:x w:y:1
				ok 6 7 w:x:8`,
		}, {
			name: "G0: dirty write",
			bad: `ok 1 3 a:x:1 a:y:1
				ok 2 4 a:x:2 a:y:2
				ok 9 9 r:x:1,2 r:y:2,1`,
			timestamps: Overlap, append: G0,
			clean: `ok 1 2 a:x:1 a:y:1
				ok 3 4 a:x:2 a:y:2
				ok 9 9 r:x:1,2 r:y:1,2`,
		}, {
			name: "G1c: circular information flow",
			bad: `ok 1 3 a:x:1 r:y:2
				ok 2 4 a:y:2 r:x:1
				ok 9 9 r:x:1 r:y:2`,
			timestamps: FutureRead, append: G1c,
			clean: `ok 1 3 a:x:1 r:y:
				ok 4 5 a:y:2 r:x:1
				ok 9 9 r:x:1 r:y:2`,
		}, {
			name: "G-single: read skew",
			bad: `ok 1 5 a:x:1 a:y:1
				ok 3 3 r:x:1 r:y: @29,90
				ok 9 9 r:x:1 r:y:1`,
			timestamps: FutureRead, append: GSingle,
			clean: `ok 1 5 a:x:1 a:y:1
				ok 3 3 r:x: r:y: @29,90
				ok 9 9 r:x:1 r:y:1`,
		}, {
			name: "G-nonadjacent: long fork",
			bad: `ok 1 3 a:x:1 @1,200
				ok 2 4 a:y:1 @1,200
				ok 5 5 r:x:1 r:y: @1,200
				ok 6 6 r:x: r:y:1 @1,200
				ok 9 9 r:x:1 r:y:1 @1,200`,
			timestamps: StaleRead, append: GNonadjacent,
			clean: `ok 1 3 a:x:1 @1,200
				ok 2 6 a:y:1 @1,200
				ok 5 5 r:x:1 r:y: @1,200
				ok 4 4 r:x:1 r:y: @1,200
				ok 9 9 r:x:1 r:y:1 @1,200`,
		}, {
			name: "an unknown append seen, then gone",
			bad: `killed 1 0 a:x:1
				ok 5 5 r:x:1
				ok 9 9 r:x:`,
			timestamps: StaleRead, append: LostElement,
			clean: `killed 1 0 a:x:1
				ok 5 5 r:x:
				ok 9 9 r:x:1`,
		}, {
			name: "half commit of a killed client",
			bad: `killed 1 0 a:x:1 a:y:1
				ok 5 5 r:x:1 r:y:
				ok 9 9 r:x:1 r:y:`,
			timestamps: StaleRead, append: LostElement,
			clean: `killed 1 0 a:x:1 a:y:1
				ok 5 5 r:x: r:y:
				ok 9 9 r:x: r:y:`,
		}, {
			name: "half commit of an unknown outcome, registers",
			bad: `ok 1 2 w:x:10 w:y:10
				info 3 0 w:x:11 w:y:11
				ok 9 9 r:x:=11 r:y:=10`,
			timestamps: StaleRead,
			clean: `ok 1 2 w:x:10 w:y:10
				info 3 0 w:x:11 w:y:11
				ok 9 9 r:x:=11 r:y:=11`,
		}, {
			name: "an unknown commit moves into the past of a read",
			bad: `info 1 0 w:x:1
				ok 5 5 r:x:=1
				ok 7 7 r:x:`,
			timestamps: StaleRead,
			clean: `info 1 0 w:x:1
				ok 5 5 r:x:
				ok 7 7 r:x:=1`,
		}, {
			name: "an unknown commit overlaps a writer",
			bad: `info 1 0 r:x: a:x:1
				ok 2 6 r:x: a:x:2
				ok 9 9 r:x:2,1`,
			timestamps: StaleRead,
			clean: `info 1 0 r:x: a:x:1
				ok 5 6 r:x:1 a:x:2
				ok 9 9 r:x:1,2`,
		}, {
			name: "an unknown commit with its commit_ts",
			bad: `info 1 4 w:x:1 @5,100
				ok 6 6 r:x: @6,101
				ok 8 8 r:x:=1`,
			timestamps: StaleRead,
			clean: `info 1 7 w:x:1 @5,100
				ok 6 6 r:x: @6,101
				ok 8 8 r:x:=1`,
		}, {
			name: "two unknown commits in a row",
			bad: `info 3 0 a:x:1
				info 4 0 a:x:2
				ok 5 5 r:x:1 @29,100
				ok 6 6 r:x:2,1 @29,100
				ok 9 9 r:x:1,2`,
			timestamps: IncompatibleOrder, append: IncompatibleOrder,
			clean: `info 1 0 a:x:1
				info 4 0 a:x:2
				ok 3 3 r:x:1 @29,100
				ok 6 6 r:x:1,2 @29,100
				ok 9 9 r:x:1,2`,
		}, {
			name: "a failed transaction's reads count too",
			bad: `ok 1 3 w:x:1 w:y:1 @1,200
				fail 2 0 r:x:=1 r:y: w:z:9 @1,200`,
			timestamps: FutureRead,
			clean: `ok 1 3 w:x:1 w:y:1 @1,200
				fail 4 0 r:x:=1 r:y:=1 w:z:9 @1,200`,
		}, {
			name: "one value written twice",
			bad: `ok 1 2 a:x:1
				ok 3 4 a:x:1`,
			timestamps: Malformed, append: Malformed,
			clean: `ok 1 2 a:x:1
				ok 3 4 a:y:1`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad, clean := story(t, tc.bad), story(t, tc.clean)
			for _, c := range []struct {
				name  string
				check func([]Record) []Anomaly
				want  Kind
			}{{"timestamps", CheckTimestamps, tc.timestamps}, {"append", CheckAppend, tc.append}} {
				found := SnapshotIsolation.Forbidden(c.check(bad))
				if c.want != "" && !kinds(found)[c.want] {
					t.Errorf("%s: want %s, found:\n%s", c.name, c.want, describe(found))
				}
				if c.want == "" && len(found) > 0 {
					t.Errorf("%s: this checker cannot see the anomaly, but found:\n%s", c.name, describe(found))
				}
				if found := c.check(clean); len(found) > 0 {
					t.Errorf("%s: found in a clean history:\n%s", c.name, describe(found))
				}
			}
		})
	}
}

// TestLatestReads proves that the checkers find reads of the latest state that are not
// linearizable in a key, or not of one timestamp. Those of two rows may disagree about the order
// of two commits.
func TestLatestReads(t *testing.T) {
	// The first transaction has its commit_ts and is late. The snapshot at 13 shows it.
	const late = `ok 10 12 w:a:1 @99,400
		ok 11 14 w:b:2 @109,141
		ok 13 13 r:a:=1 r:b: @129,500
		`
	for _, tc := range []struct {
		name, story           string
		timestamps, registers Kind
	}{
		{"two rows", late + `latest 14 0 r:b:=2 @150,160
			latest 1 0 r:a: @170,180`, "", ""},
		{"in the course of a commit", late + `latest 12 0 r:a:=1 @150,160`, "", ""},
		{"an acknowledged commit is missed", late + `latest 1 0 r:b: @150,160`, StaleRead, StaleRead},
		{"what was shown before is missed", late + `latest 12 0 r:a:=1 @150,160
			latest 1 0 r:a: @170,180`, StaleRead, ""},
		{"what a snapshot has shown is missed", `ok 10 12 w:a:1 @99,400
			ok 13 13 r:a:=1 @129,140
			latest 1 0 r:a: @150,160`, StaleRead, ""},
		{"a row of two timestamps", late + `latest 14 0 r:b:=2 r:a: @150,160`, StaleRead, GNonadjacent},
		{"uncommitted", `fail 10 0 w:a:1
			latest 10 0 r:a:=1 @200,210`, G1a, G1a},
		{"of the future", `latest 12 0 r:a:=1 @50,60
			ok 10 12 w:a:1 @99,400`, RealTime, RealTime},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := story(t, tc.story)
			check := func(want Kind, found []Anomaly) {
				if got := kinds(found); want == "" && len(got) > 0 || want != "" && !got[want] {
					t.Errorf("want %q, found:\n%s", want, describe(found))
				}
			}
			check(tc.timestamps, CheckTimestamps(h))
			check(tc.registers, CheckRegisters(h))
		})
	}
}

// TestWriteSkew: write skew is allowed under snapshot isolation, and only there.
func TestWriteSkew(t *testing.T) {
	h := story(t, `ok 1 5 r:x: a:y:1
		ok 2 6 r:y: a:x:1
		ok 9 9 r:x:1 r:y:1`)
	if found := SnapshotIsolation.Check(h); len(found) > 0 {
		t.Errorf("snapshot isolation allows write skew:\n%s", describe(found))
	}
	if found := Serializable.Check(h); !kinds(found)[G2Item] || len(found) != 1 {
		t.Errorf("want %s, found:\n%s", G2Item, describe(found))
	}
	h = story(t, `ok 1 5 r:x: a:y:1
		ok 6 7 r:y:1 a:x:1
		ok 9 9 r:x:1 r:y:1`)
	if found := Serializable.Check(h); len(found) > 0 {
		t.Errorf("found in a serial history:\n%s", describe(found))
	}
}

// TestReadOnlyAnomaly: the anomaly of Fekete, O'Neil and O'Neil (2004) is a G2-item
// that needs its read-only transaction.
func TestReadOnlyAnomaly(t *testing.T) {
	h := story(t, `ok 1 8 r:x: r:y: a:x:1
		ok 2 3 r:y: a:y:1
		ok 4 4 r:x: r:y:1
		ok 9 9 r:x:1 r:y:1`)
	if found := SnapshotIsolation.Check(h); len(found) > 0 {
		t.Errorf("snapshot isolation allows it:\n%s", describe(found))
	}
	if found := Serializable.Check(h); !kinds(found)[G2Item] {
		t.Errorf("want %s, found:\n%s", G2Item, describe(found))
	}
}

// TestPairing: which sequences of records are well-formed.
func TestPairing(t *testing.T) {
	inv := func(p int, at int64) Record { return Record{Type: Invoke, Process: p, Time: at} }
	end := func(ty Type, p int, at int64) Record { return Record{Type: ty, Process: p, Time: at, StartTS: at} }
	for _, tc := range []struct {
		name string
		h    []Record
		bad  bool
	}{
		{"one after the other, lines out of order", []Record{end(OK, 1, 2), inv(1, 3), inv(1, 1), end(Fail, 1, 4)}, false},
		{"two at a time in one process", []Record{inv(1, 1), inv(1, 2)}, true},
		{"end without beginning", []Record{end(OK, 1, 1)}, true},
		{"process number used again after an unknown outcome", []Record{inv(1, 1), end(Info, 1, 2), inv(1, 3)}, true},
		{"never ended", []Record{inv(1, 1), inv(2, 2)}, false},
		{"unknown type", []Record{inv(1, 1), end("okay", 1, 2)}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if found := CheckTimestamps(tc.h); kinds(found)[Malformed] != tc.bad {
				t.Errorf("malformed is %v, want %v:\n%s", !tc.bad, tc.bad, describe(found))
			}
		})
	}
}

// TestFormat fixes the format of the lines.
func TestFormat(t *testing.T) {
	records := []Record{
		{Type: Invoke, Process: 3, Time: 17, StartTS: 5, Value: []Op{{F: Append, Key: "k", N: 1}, {F: Read, Key: "k"}}},
		{Type: OK, Process: 3, Time: 19, StartTS: 5, CommitTS: 9, Value: []Op{
			{F: Append, Key: "k", N: 1}, {F: Read, Key: "k", State: List(1, 2)}, {F: Read, Key: "empty", State: List()},
			{F: Write, Key: "r", N: -4}, {F: Read, Key: "r", State: Number(-4)}, {F: Lock, Key: "r"},
		}},
		{Type: Info, Process: 4, Time: 20},
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/format.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("written lines (-want +got):\n%s", d)
	}
	got, err := ReadAll(&b)
	if err != nil {
		t.Fatal(err)
	}
	records[2].Value = []Op{}
	if d := cmp.Diff(records, got, cmp.AllowUnexported(State{}), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
}

// TestReadAllErrors: ReadAll names the line that is wrong, and returns the records
// before it.
func TestReadAllErrors(t *testing.T) {
	const good = `{"type":"invoke","process":1,"time":1,"value":[["append",7,1]]}` + "\n"
	for _, line := range []string{
		`{`,
		`{"value":[["append","k"]]}`,
		`{"value":[["increment","k",1]]}`,
		`{"value":[["append","k","x"]]}`,
		`{"value":[["r","k",["x"]]]}`,
		`{"value":[["r",[],null]]}`,
	} {
		records, err := ReadAll(strings.NewReader(good + "\n" + line))
		if err == nil || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("%s: error %v does not name line 3", line, err)
		}
		if len(records) != 1 || records[0].Value[0].Key != "7" {
			t.Errorf("%s: records before the line: %v", line, records)
		}
	}
}
