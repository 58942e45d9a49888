package transfer

import (
	"bytes"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
)

// endless is a line without an end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.read += len(p)
	return len(p), nil
}

// TestLongLine: a line beyond the bound ends the reading there, not when the memory
// is used up.
func TestLongLine(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, NewHeader("t", 0, "", ""))
	if err != nil || w.Flush() != nil {
		t.Fatal(err)
	}
	rest := &endless{}
	r, err := NewReader("f.jsonl", &both{&file, rest})
	if err != nil {
		t.Fatal(err)
	}
	if r.longest != 400<<20 {
		t.Errorf("lines have up to %d bytes", r.longest)
	}
	r.longest = 1 << 20
	if _, err = r.Next(); err == nil || !strings.Contains(err.Error(), "line 2 is longer than 1048576 bytes") {
		t.Error(err)
	}
	if rest.read > 2<<20 {
		t.Errorf("%d bytes were read", rest.read)
	}
}

// both reads a file, then what never ends.
type both struct {
	file *bytes.Buffer
	rest *endless
}

func (b *both) Read(p []byte) (int, error) {
	if b.file.Len() > 0 {
		return b.file.Read(p)
	}
	return b.rest.Read(p)
}

// TestLinesOfControls: a value of characters that JSON escapes does not make a line
// several times as long as the value.
func TestLinesOfControls(t *testing.T) {
	for _, c := range []string{"\x00", "\x7f", `"`, "\\", "a", "ü", "\u202e", "\u2028"} {
		value := strings.Repeat(c, 1<<16)
		var file bytes.Buffer
		w, err := NewWriter(&file, NewHeader("t", 0, "", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.add(bigtable.Row{"f": {{Row: "r", Column: "f:q", Value: []byte(value)}}}); err != nil || w.Flush() != nil {
			t.Fatal(err)
		}
		if most := len(value)*4/3 + 1000; file.Len() > most {
			t.Errorf("%q: a line of %d bytes for a value of %d", c, file.Len(), len(value))
		}
	}
}
