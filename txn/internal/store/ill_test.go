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
