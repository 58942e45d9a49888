package rig

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// TestQuantile checks quantiles of few values, which lie between two of them.
func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		q      float64
		values []float64
		want   float64
	}{
		{.5, nil, 0}, {.5, []float64{3}, 3}, {.5, []float64{4, 1, 2}, 2}, {.5, []float64{4, 1, 3, 2}, 2.5},
		{.25, []float64{5, 4, 3, 2, 1}, 2}, {.75, []float64{1, 2}, 1.75}, {1, []float64{1, 9}, 9},
	} {
		if got := Quantile(tt.q, tt.values); got != tt.want {
			t.Errorf("quantile %g of %v is %g, want %g", tt.q, tt.values, got, tt.want)
		}
	}
}

// TestRowsInTurn: writes go to all rows equally often, and reads of many rows choose
// different ones, in order.
func TestRowsInTurn(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{1000, 10_000} {
		seen := map[string]int{}
		tk := Task{Rows: rows, First: 17}
		for i := range 3 * rows {
			seen[tk.turnRow(i)]++
		}
		for row, n := range seen {
			if n != 3 {
				t.Fatalf("%d rows: %s was written %d times", rows, row, n)
			}
		}
		if len(seen) != rows {
			t.Errorf("%d of %d rows were written", len(seen), rows)
		}
	}
	list := (&Task{Rows: 1000, Batch: 100}).anyRows()
	if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != 100 {
		t.Errorf("%q", list)
	}
}

// TestLateConn: what is written arrives after the delay, complete and in order. After
// its end a connection delivers nothing.
func TestLateConn(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	const delay = 20 * time.Millisecond
	c := newLateConn(near, delay)
	began := time.Now()
	for _, text := range []string{"one", "two"} {
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took >= delay {
		t.Errorf("Write waited for %v, want no wait", took)
	}
	got := make([]byte, 6)
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "onetwo" {
		t.Errorf("%q, %v", got, err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("the text arrived after %v, want %v", took, delay)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Read(got); err == nil {
		t.Error("a text arrived after Close")
	}
}
