package store

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// A client remembers a bounded number of ill tablets. Calls that wait for a forgotten one check again.
func TestIllTabletsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewRequests(&scripted{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		a := s.NewTable("a")
		for i := range 4 * maxIll {
			a.tablets.bounds = append(a.tablets.bounds, fmt.Sprintf("%04d", i))
		}
		a.NoteStall("0000")
		forgotten := a.ill.ranges[0].opened
		for _, row := range a.tablets.bounds {
			a.NoteStall(row)
			a.NoteStall(row + "x") // of the same tablet
		}
		if n := len(a.ill.ranges); n != maxIll {
			t.Errorf("%d ill tablets, want %d", n, maxIll)
		}
		if a.IsIll("0000") || !a.IsClosed(a.tablets.bounds[len(a.tablets.bounds)-1]) {
			t.Error("the client forgot another tablet than the oldest")
		}
		select {
		case <-forgotten:
		default:
			t.Error("calls still wait for the forgotten tablet")
		}
	})
}

// Rows that stall before the client knows where tablets end become one ill tablet at the next probe: else
// each of them would be probed.
func TestIllRowsBecomeATablet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewRequests(&scripted{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		a := s.NewTable("a")
		a.tablets.bounds = []string{"b", "c", "d", "x"} // so each row is ill by itself
		for _, row := range []string{"b", "c", "x", "d"} {
			a.NoteStall(row)
		}
		first, waits := a.ill.ranges[0], a.ill.ranges[1].opened
		a.ill.widen(first, nil)
		if n := len(a.ill.ranges); n != 4 {
			t.Fatalf("%d ill rows, want 4", n)
		}
		a.ill.widen(first, []string{"m"})
		if r := a.ill.find("a"); len(a.ill.ranges) != 2 || r != first || r.low != "b" || r.high != "d" || a.IsIll("m") || !a.IsClosed("x") {
			t.Errorf("%d ill ranges, the first %+v; want the tablet below m, and row x", len(a.ill.ranges), r)
		}
		select {
		case <-waits:
		default:
			t.Error("calls still wait for row c alone")
		}
	})
}
