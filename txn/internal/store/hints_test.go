package store

import (
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestHints: a hint goes to watchers of this process until one takes it.
func TestHints(t *testing.T) {
	cell := format.Cell{Table: "t", Row: "row", Family: "f", Qualifier: "q"}
	h := &Hints{}
	h.Publish(cell)
	takes, got := []bool{false, false}, []int{0, 0}
	var stops []func()
	for i := range takes {
		stops = append(stops, h.Watch(func(got1 format.Cell) bool {
			if got1 == cell {
				got[i]++
			}
			return takes[i]
		}))
	}
	h.Publish()
	h.Publish(cell)
	if !slices.Equal(got, []int{1, 1}) {
		t.Errorf("watchers that take nothing: %v", got)
	}
	got, takes = []int{0, 0}, []bool{true, true}
	h.Publish(cell, cell)
	if got[0]+got[1] != 2 {
		t.Errorf("watchers that take all: %v", got)
	}
	stops[1]()
	got = []int{0, 0}
	h.Publish(cell)
	stops[0]()
	h.Publish(cell)
	if !slices.Equal(got, []int{1, 0}) {
		t.Errorf("after one has stopped, and then the other: %v", got)
	}
}
