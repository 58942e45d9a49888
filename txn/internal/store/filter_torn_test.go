//go:build !race

// This test needs the emulator's own data races, and the race detector would report them.

package store

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestReadsAreNotTorn reads a row while another client adds and removes other columns: no read
// may miss a cell that exists all the time. Reads with a plain filter show that the emulator
// does tear reads. They are rare, so the test also looks at the form of the filters.
func TestReadsAreNotTorn(t *testing.T) {
	table := filterTable(t)
	ctx := t.Context()
	if one := runtime.GOMAXPROCS(0); one == 1 { // reads beside the writer need two
		runtime.GOMAXPROCS(2)
		defer runtime.GOMAXPROCS(one)
	}
	ts := filterBase.Cell()
	stable := format.Column{Family: "f", Qualifier: "m"}
	m := bigtable.NewMutation()
	for _, family := range []string{format.LockFamily, format.WriteFamily} {
		m.Set(family, stable.Key(), ts, nil)
	}
	m.Set(stable.Family, stable.Qualifier, ts, nil)
	if err := table.Apply(ctx, "row", m); err != nil {
		t.Fatal(err)
	}
	// A read of many columns is torn more often: plain ones are about once in 150 to
	// 500, measured on 2 busy cores.
	others := make([]format.Column, 0, 200)
	for i := range cap(others) {
		others = append(others, format.Column{Family: "f", Qualifier: fmt.Sprintf("%c%d", "ax"[i%2], i)})
	}
	// change adds or removes all other columns, in their order.
	change := func(add bool) error {
		m := bigtable.NewMutation()
		for _, c := range others {
			for _, family := range []string{format.LockFamily, format.WriteFamily, "f"} {
				qualifier := c.Key()
				if family == "f" {
					qualifier = c.Qualifier
				}
				if add {
					m.Set(family, qualifier, ts, nil)
				} else {
					m.DeleteCellsInColumn(family, qualifier)
				}
			}
		}
		return table.Apply(ctx, "row", m)
	}
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for add := true; ; add = !add {
			select {
			case <-done:
				return
			default:
			}
			if err := change(add); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer writer.Wait()
	defer close(done)

	want := []string{"_lock:f:m@0", "_write:f:m@0", "f:m@0"}
	torn := func(f bigtable.Filter) bool {
		row, err := table.ReadRow(ctx, "row", bigtable.RowFilter(f))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, c := range cells(row) {
			if slices.Contains(want, c) {
				found++
			}
		}
		return found != len(want)
	}
	plain := Chain(bigtable.PassAllFilter(), Latest)
	for n := 1; !long.Reduced() && !torn(plain); n++ { // how long that takes is luck
		if n == 1e6 {
			t.Fatalf("of %d plain reads none was torn: this test shows nothing any more", n)
		}
	}
	readTS := filterBase + 1
	for name, f := range map[string]bigtable.Filter{
		"column":         Selection{Columns: []format.Column{stable}}.VisibleAt(readTS, nil),
		"columns":        Selection{Columns: []format.Column{stable, others[0]}}.VisibleAt(readTS, nil),
		"family":         Selection{Ranges: []QualifierRange{{Family: "f"}}}.VisibleAt(readTS, nil),
		"whole row":      Selection{}.VisibleAt(readTS, nil),
		"named families": Selection{}.VisibleAt(readTS, []string{"f", "g"}),
	} {
		if !endsWithInterleave(f.String()) {
			t.Errorf("%s: the filter %v does not end with an Interleave, so the emulator can tear the read", name, f)
		}
		for range 1000 {
			if torn(f) {
				t.Errorf("%s: a read was torn", name)
				break
			}
		}
	}
}

// endsWithInterleave reports whether f is an Interleave, or a Chain whose last filter is one.
// Filters print as (a + b) and (a | b). The columns of this test have no such signs in
// their names.
func endsWithInterleave(f string) bool {
	f = strings.TrimSuffix(f, ")")
	depth := 0
	for i := len(f) - 1; i >= 0; i-- {
		switch {
		case f[i] == ')':
			depth++
		case f[i] == '(' && depth > 0:
			depth--
		case depth > 0:
		case f[i] == '+':
			return true
		case f[i] == '|':
			return endsWithInterleave(f[i+1:])
		}
	}
	return false
}
