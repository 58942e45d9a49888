package words

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"unicode/utf16"
)

// TestSafe: however output is cut into writes, what is not printable is escaped, and
// only the program's own control sequences go through.
func TestSafe(t *testing.T) {
	t.Parallel()
	stored := "é\x1b[2J\u009b31m\u202e\U000e0041\r\x00\x7f\xff\xf0\x9f🙂\ufffd\ttab\n"
	text := stored + Control("\r\x1b[K") + "\U000f0001" + mark[:4] + stored + "\xf0\x9f"
	escaped := `é\u001b[2J\u009b31m\u202e\udb40\udc41\u000d\u0000\u007f\xff\xf0\x9f` + "🙂\ufffd\ttab\n"
	private := func(s string) (out string) {
		for _, r := range s {
			high, low := utf16.EncodeRune(r)
			out += fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return out
	}
	want := escaped + "\r\x1b[K" + private("\U000f0001"+mark[:4]) + escaped + `\xf0\x9f`
	for size := 1; size < len(text)+1; size++ {
		var out bytes.Buffer
		w := Safe(&out)
		for rest := text; rest != ""; {
			n, err := io.WriteString(w, rest[:min(size, len(rest))])
			if err != nil || n != min(size, len(rest)) {
				t.Fatal(n, err)
			}
			rest = rest[n:]
		}
		Flush(w)
		if out.String() != want {
			t.Fatalf("in writes of %d bytes:\n%q\nwant:\n%q", size, out.String(), want)
		}
		if Safe(w) != w || Raw(w) != io.Writer(&out) {
			t.Error("a writer is made safe twice")
		}
	}
}
