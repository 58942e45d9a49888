package store

import (
	"testing"

	"cloud.google.com/go/bigtable"
)

func TestRowBytes(t *testing.T) {
	row := bigtable.Row{
		"f": {{Column: "f:q", Value: make([]byte, 100)}, {Column: "f:longer"}},
		"g": {{Column: "g:", Value: make([]byte, 1)}},
	}
	if n := RowBytes(row); n != 3+100+8+2+1 {
		t.Errorf("%d bytes", n)
	}
}
