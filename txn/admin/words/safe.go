package words

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A safeWriter escapes what is not printable, except tabs and line breaks. All output
// of a program goes through one, so that no stored name steers a terminal, whichever
// command prints it. The program's own control sequences go through by Control.
type safeWriter struct {
	mu   sync.Mutex
	out  io.Writer
	rest []byte // the beginning of a character, or of a control sequence
}

// Safe returns a writer that escapes what is not printable.
func Safe(w io.Writer) io.Writer {
	if s, ok := w.(*safeWriter); ok {
		return s
	}
	return &safeWriter{out: w}
}

// Raw returns the writer below a safe one: for bytes that the user asked for as they
// are, and for other processes of this program.
func Raw(w io.Writer) io.Writer {
	if s, ok := w.(*safeWriter); ok {
		return s.out
	}
	return w
}

// mark stands around a control sequence. It has 64 random bits, in characters of private
// use, so nothing stored can contain it.
var mark = func() string {
	var b strings.Builder
	for n, i := rand.Uint64(), 0; i < 4; n, i = n>>16, i+1 {
		b.WriteRune(0xF0000 + rune(n&0xFFFF)%0xFFF0)
	}
	return b.String()
}()

// Control returns a control sequence for a terminal as a safe writer lets it through.
func Control(sequence string) string { return mark + sequence + mark }

func (s *safeWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := p
	if len(s.rest) > 0 {
		data = append(s.rest, p...)
	}
	var b bytes.Buffer
	data = escape(&b, data, jsonEscape)
	s.rest = bytes.Clone(data)
	if _, err := s.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what a safe writer keeps of a character that was cut.
func Flush(w io.Writer) {
	s, ok := w.(*safeWriter)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.rest {
		fmt.Fprintf(s.out, `\x%02x`, c)
	}
	s.rest = nil
}

// EscapeYAML escapes what is not printable in quoted strings of YAML.
func EscapeYAML(text []byte) []byte {
	var b bytes.Buffer
	rest := escape(&b, text, yamlEscape)
	return append(b.Bytes(), rest...)
}

// escape appends data to b, with what is not printable escaped. It returns the end of
// data that may be the beginning of something longer.
func escape(b *bytes.Buffer, data []byte, as func(*bytes.Buffer, rune)) (rest []byte) {
	for len(data) > 0 {
		if c := data[0]; c >= ' ' && c < 0x7f || c == '\n' || c == '\t' {
			b.WriteByte(c)
			data = data[1:]
			continue
		}
		if data[0] == mark[0] {
			if len(data) < len(mark) && strings.HasPrefix(mark, string(data)) {
				return data
			}
			if sequence, ok := bytes.CutPrefix(data, []byte(mark)); ok {
				sequence, after, ok := bytes.Cut(sequence, []byte(mark))
				if !ok {
					return data
				}
				b.Write(sequence)
				data = after
				continue
			}
		}
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1 && !utf8.FullRune(data):
			return data
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(b, `\x%02x`, data[0])
		case !unicode.IsPrint(r):
			as(b, r)
		default:
			b.Write(data[:n])
		}
		data = data[n:]
	}
	return nil
}

// jsonEscape writes a character as JSON and Go do.
func jsonEscape(b *bytes.Buffer, r rune) {
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		return
	}
	fmt.Fprintf(b, `\u%04x`, r)
}

// yamlEscape writes a character as YAML does.
func yamlEscape(b *bytes.Buffer, r rune) { fmt.Fprintf(b, `\U%08x`, r) }
