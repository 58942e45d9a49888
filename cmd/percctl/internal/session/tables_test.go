package session

import "testing"

func TestRange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags RangeFlags
		want  Range
	}{
		{RangeFlags{}, Range{}},
		{RangeFlags{prefix: "a/b"}, Range{"a/b", "a/c"}},
		{RangeFlags{prefix: "a%FF%FF"}, Range{"a\xff\xff", "b"}},
		{RangeFlags{prefix: "%FF"}, Range{"\xff", ""}},
		{RangeFlags{start: "a%20", end: "b"}, Range{"a ", "b"}},
		{RangeFlags{end: "%00"}, Range{"", "\x00"}},
	} {
		if got, err := test.flags.Range(); err != nil || got != test.want {
			t.Errorf("%+v: %q, %v; want %q", test.flags, got, err, test.want)
		}
	}
}

// What is printed of a row key is what commands take.
func TestRowRoundTrip(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"bob": "bob", "a/b:c": "a/b:c", "/f:": "/f:", "a b%": "a%20b%25", "\x00\xff\x1b": "%00%FF%1B", "ö": "ö",
	} {
		if got := Row(key); got != want {
			t.Errorf("Row(%q) is %s, want %s", key, got, want)
		}
		if got, err := ParseRow(want); err != nil || got != key {
			t.Errorf("ParseRow(%s) is %q, %v, want %q", want, got, err, key)
		}
	}
	for _, wrong := range []string{"", "%", "%zz"} {
		if got, err := ParseRow(wrong); err == nil {
			t.Errorf("ParseRow(%s) is %q", wrong, got)
		}
	}
}
