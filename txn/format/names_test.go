package format

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
)

// TestCellNames: what a cell is called in messages and commands, and back.
func TestCellNames(t *testing.T) {
	for text, cell := range map[string]Cell{
		"accounts/bob/bal:usd":            {"accounts", "bob", "bal", "usd"},
		"t/r/f:":                          {"t", "r", "f", ""},
		"t/a/b/f:q%2Fr":                   {"t", "a/b", "f", "q/r"},
		"t/a%20b/f:q:r":                   {"t", "a b", "f", "q:r"},
		"t/%25/f:%09~%7F%C2%85":           {"t", "%", "f", "\t~\x7f\u0085"},
		"t/é!/f:%FF%00":                   {"t", "é!", "f", "\xff\x00"},
		"t/\uFFFD/f:%C3":                  {"t", "\uFFFD", "f", "\xc3"},
		"t/ab%0Fzz/f:%99%AF%FA":           {"t", "ab\x0fzz", "f", "\x99\xaf\xfa"},
		"t/r/f:" + strings.Repeat(";", 9): {"t", "r", "f", strings.Repeat(";", 9)},
	} {
		if got := cell.String(); got != text {
			t.Errorf("%+v is written %q, want %q", cell, got, text)
		}
		if got, err := ParseCell(text); err != nil || got != cell {
			t.Errorf("%q is read as %+v, %v; want %+v", text, got, err, cell)
		}
		_, after, _ := strings.Cut(text, "/")
		row, column := after[:strings.LastIndexByte(after, '/')], after[strings.LastIndexByte(after, '/')+1:]
		if got, err := ParseRow(row); err != nil || got != cell.Row || EscapeRow(cell.Row) != row {
			t.Errorf("row %q is read as %q, %v, and written %q", row, got, err, EscapeRow(cell.Row))
		}
		if got, err := ParseColumn(column); err != nil || got != cell.Column() || cell.Column().String() != column {
			t.Errorf("column %q is read as %+v, %v, and written %q", column, got, err, cell.Column())
		}
		if got, ok := SplitColumn(cell.Column().Key()); !ok || got != cell.Column() {
			t.Errorf("key %q is split into %+v, %t", cell.Column().Key(), got, ok)
		}
	}
	if got, err := ParseRow("%e9%Af"); err != nil || got != "\xe9\xaf" {
		t.Errorf("small letters: %q, %v", got, err)
	}
	for text, says := range map[string]string{
		"t":           "no table before the first slash",
		"/r/f:q":      "no table before the first slash",
		"t/r":         "no column after the row key",
		"t//f:q":      "empty row key",
		"t/r%2/f:q":   `row key: "%2" ends inside an escape`,
		"t/r%/f:q":    `row key: "%" ends inside an escape`,
		"t/%2g/f:q":   `row key: "%2g" is not an escape of the form %XX`,
		"t/%/2/f:q":   `row key: "%/2" is not an escape of the form %XX`,
		"t/%+1/f:q":   `row key: "%+1" is not an escape of the form %XX`,
		"t/%@1/f:q":   `row key: "%@1" is not an escape of the form %XX`,
		"t/r/f":       `column "f" is not of the form family:qualifier`,
		"t/r/:q":      `column ":q" is not of the form family:qualifier`,
		"t/r/f:%XX":   `qualifier: "%XX" is not an escape of the form %XX`,
		"t/r/f:q%41%": `qualifier: "%" ends inside an escape`,
	} {
		if _, err := ParseCell(text); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "the form is table/row/family:qualifier") {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
	for text, says := range map[string]string{"": "empty row key", "%1": "has an escape that is not of the form %XX"} {
		if _, err := ParseRow(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("row %q: error %v, want %q", text, err, says)
		}
	}
	for _, key := range []string{"", ":q", "f"} {
		if _, ok := SplitColumn(key); ok {
			t.Errorf("key %q has a column", key)
		}
	}
}

// TestMetadataNames: which cell and which observer a cell of a metadata family is about.
func TestMetadataNames(t *testing.T) {
	col := Column{"f", "a/b:c"}
	cell := Cell{"t", "r", col.Family, col.Qualifier}
	item := func(family, qualifier string) bigtable.ReadItem {
		return bigtable.ReadItem{Row: "r", Column: family + ":" + qualifier}
	}
	if ack := AckColumn(col, "o"); ack != (Column{AckFamily, "f:a/b:c/o"}) {
		t.Errorf("acknowledgments of %v are in %+v", col, ack)
	}
	for ack, ok := range map[Column]bool{AckColumn(col, "o"): true, {AckFamily, "f:q"}: false, {AckFamily, ":q/o"}: false, {NotifyFamily, "f:a/b:c/o"}: false} {
		if c, o, got := ObserverOf(ack); got != ok || ok && (c != col || o != "o") {
			t.Errorf("%+v is the acknowledgment of %q in %+v, %t", ack, o, c, got)
		}
	}
	if c, o, ok := ObserverOf(Column{AckFamily, "/o"}); ok {
		t.Errorf("/o is the acknowledgment of %q in %+v", o, c)
	}
	failure := item(NotifyFamily, FailureQualifier("o", col))
	if !IsFailure(failure) || IsFailure(item(NotifyFamily, col.Key())) || IsFailure(item(LockFamily, FailureQualifier("o", col))) {
		t.Error("a failure is not distinguished from a notify cell")
	}
	if c, o, err := FailureCell("t", "r", failure); c != cell || o != "o" || err != nil {
		t.Errorf("the failure is of %q at %v, %v", o, c, err)
	}
	for _, bad := range []string{"f:q", "::f:q", ":o", ":o:f", ":o::q", ""} {
		if _, _, err := FailureCell("t", "r", item(NotifyFamily, bad)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("failure %q: %v", bad, err)
		}
	}
	for qualifier, want := range map[string]bool{":o:f:q": true, ":o:": true, "o:f:q": false, "::f": false, ":o": false} {
		if _, _, ok := SplitFailure(qualifier); ok != want {
			t.Errorf("%q is a failure: %t", qualifier, ok)
		}
	}
	for _, family := range MetadataFamilies {
		if IsMetadataFamily(family) != (family != AckFamily) {
			t.Errorf("family %s holds records: %t", family, IsMetadataFamily(family))
		}
	}
	if IsMetadataFamily("f") {
		t.Error("f is a metadata family")
	}
	if c, of, err := MetadataCell("t", "r", item(LockFamily, col.Key())); c != col || of != cell || err != nil {
		t.Errorf("the lock is of %+v, %+v, %v", c, of, err)
	}
	if _, _, err := MetadataCell("t", "r", item(LockFamily, "q")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a lock of no family: %v", err)
	}
}

// TestAcknowledging: a column of a pattern may have a name that is too long for an acknowledgment.
func TestAcknowledging(t *testing.T) {
	for _, tt := range []struct {
		family, qualifier, observer int
		want                        bool
	}{
		{1, 1, 1, true}, {3, MaxColumnKey - len("_ack:fff::/") - 1 + 1, 1, true}, {3, MaxColumnKey - len("_ack:fff::/") + 1, 1, false},
		{1, MaxColumnKey - 1 - len("_ack::/") - 100, 100, true}, {2, MaxColumnKey - 1 - len("_ack::/") - 100, 100, false}, {1, MaxColumnKey - 1 - len("_ack::/") - 100, 101, false},
	} {
		c, o := Column{strings.Repeat("f", tt.family), strings.Repeat("q", tt.qualifier)}, strings.Repeat("o", tt.observer)
		fits := len(AckFamily+":"+AckColumn(c, o).Qualifier) <= MaxColumnKey
		if got := CanAcknowledge(c, o); got != tt.want || got != fits {
			t.Errorf("%+v: %v, want %v; its column has %d bytes", tt, got, tt.want, len(AckColumn(c, o).Qualifier))
		}
	}
	c := Column{"f", strings.Repeat("q", MaxColumnKey-len("_ack:f:/")-2)}
	both := []string{"ab", "c"}
	if n := testing.AllocsPerRun(10, func() { Acknowledging(c, both) }); n != 0 {
		t.Errorf("if all observers can acknowledge, that takes %v allocations", n)
	}
	for _, tt := range []struct{ observers, want []string }{
		{nil, nil}, {[]string{"ab", "c"}, []string{"ab", "c"}}, {[]string{"ab", "abc", "c"}, []string{"ab", "c"}}, {[]string{"abc"}, nil},
	} {
		before := slices.Clone(tt.observers)
		if got := Acknowledging(c, tt.observers); !slices.Equal(got, tt.want) || !slices.Equal(before, tt.observers) {
			t.Errorf("of %q, %q can acknowledge", before, got)
		}
	}
}

// TestPatterns: a pattern matches the columns of its family that begin with its prefix, and narrower
// patterns. A column matches itself.
func TestPatterns(t *testing.T) {
	if got := Pattern("f", "a"); got != (Column{"f*", "a"}) || !got.IsPattern() || got.RealFamily() != "f" || (Column{"f", "a*"}).IsPattern() || (Column{"f", "a"}).RealFamily() != "f" {
		t.Errorf("the pattern is %+v, of family %q", got, got.RealFamily())
	}
	for _, tt := range []struct {
		c, other Column
		want     bool
	}{
		{Column{"f", "a"}, Column{"f", "a"}, true}, {Column{"f", "a"}, Column{"f", "ab"}, false}, {Column{"f", "a"}, Column{"g", "a"}, false}, {Column{"f", "a"}, Pattern("f", "a"), false},
		{Pattern("f", "a"), Column{"f", "a"}, true}, {Pattern("f", "a"), Column{"f", "ab"}, true}, {Pattern("f", "a"), Column{"f", "b"}, false}, {Pattern("f", "a"), Column{"g", "a"}, false},
		{Pattern("f", ""), Column{"f", ""}, true}, {Pattern("f", "a"), Pattern("f", "ab"), true}, {Pattern("f", "ab"), Pattern("f", "a"), false},
	} {
		if got := tt.c.Matches(tt.other); got != tt.want {
			t.Errorf("%v matches %v: %v", tt.c, tt.other, got)
		}
	}
}

// TestNotifyCells: a value that no release wrote says nothing, and the observer runs.
func TestNotifyCells(t *testing.T) {
	for value, want := range map[string]NotifyCell{
		"":                                      {TS: 9},
		"00-x":                                  {TS: 9, TraceParent: "00-x"},
		"00-x;hops=1":                           {TS: 9, TraceParent: "00-x", Hops: 1},
		";hops=-1":                              {TS: 9},
		";hops=x":                               {TS: 9},
		";hops=0;replayed=1":                    {TS: 9, Replayed: 1},
		"t;hops=2;replayed=9":                   {TS: 9, TraceParent: "t", Hops: 2, Replayed: 9},
		"t;hops=0;replayed=10":                  {TS: 9, TraceParent: "t"},
		"t;hops=0;replayed=-1":                  {TS: 9, TraceParent: "t"},
		"t;hops=0;replayed=1.5":                 {TS: 9, TraceParent: "t"},
		"t;hops=0;replayed=9223372036854775808": {TS: 9, TraceParent: "t"},
		";hops=9223372036854775808":             {TS: 9},
	} {
		if got := DecodeNotifyCell(9, []byte(value)); got != want {
			t.Errorf("%q: %+v, want %+v", value, got, want)
		}
	}
	if got := DecodeNotifyCell(100, []byte(";hops=0;replayed=12")); got != (NotifyCell{TS: 100, Replayed: 12}) {
		t.Errorf("replay of 12: %+v", got)
	}
	if got := string(EncodeNotifyCell("t", 0)); got != "t" {
		t.Errorf("no hops: %q", got)
	}
	if got := string(EncodeNotifyCell("t", 1)); got != "t;hops=1" {
		t.Errorf("one hop: %q", got)
	}
	if got := string(EncodeReplay("t", 7)); got != "t;hops=0;replayed=7" {
		t.Errorf("replay: %q", got)
	}
}

// TestAcknowledgments: a transaction cannot have acknowledged what began after it.
func TestAcknowledgments(t *testing.T) {
	for value, want := range map[string]int64{"\x00\x00\x00\x00\x00\x00\x00\x00": 0, "\x00\x00\x00\x00\x00\x00\x01\x02": 258} {
		if got, err := DecodeAck(testPrimary, []byte(value), 258); int64(got) != want || err != nil {
			t.Errorf("%x: %d, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "\x00\x00\x00\x00\x00\x00\x01", "\x00\x00\x00\x00\x00\x00\x00\x00\x01", "\x00\x00\x00\x00\x00\x00\x01\x03", "\xff\x00\x00\x00\x00\x00\x00\x00"} {
		if got, err := DecodeAck(testPrimary, []byte(value), 258); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%x: %d, %v", value, got, err)
		}
	}
}
