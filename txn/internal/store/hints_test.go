package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A carrier notes the hints that it is given, and delivers hints.
type carrier struct {
	published, deliver []tso.Hint
	topics             []string
	err                error
}

func (c *carrier) PublishHints(hints ...tso.Hint) { c.published = append(c.published, hints...) }

func (c *carrier) SubscribeHints(_ context.Context, topics []string, deliver func(tso.Hint)) error {
	c.topics = topics
	for _, h := range c.deliver {
		deliver(h)
	}
	return c.err
}

// TestHints: a hint goes to one watcher of this process, or to the carrier, once for each registration.
func TestHints(t *testing.T) {
	column, pattern := format.Column{Family: "f", Qualifier: "qq"}, format.Column{Family: "f*", Qualifier: "q"}
	cell := format.Cell{Table: "t", Row: "row", Family: "f", Qualifier: "qq"}
	byColumn, byPattern := tso.Hint{Topic: "t\x00f:qq", Key: "row"}, tso.Hint{Topic: "t\x00f*:q", Key: "\x02qqrow"}
	c := &carrier{}
	h := &Hints{Carrier: c, registered: func(got format.Cell) []format.Column {
		if got != cell {
			t.Errorf("looked for %v", got)
		}
		return []format.Column{column, pattern}
	}}
	h.Publish()
	h.Publish(cell)
	if !slices.Equal(c.published, []tso.Hint{byColumn, byPattern}) {
		t.Errorf("published %q", c.published)
	}
	c.published = nil
	takes := []bool{false, false}
	got := []int{0, 0}
	var stops []func()
	for i := range takes {
		stops = append(stops, h.Watch(func(format.Cell) bool { got[i]++; return takes[i] }))
	}
	h.Publish(cell)
	if !slices.Equal(got, []int{1, 1}) || len(c.published) != 2 {
		t.Errorf("watchers that take nothing: %v, published %q", got, c.published)
	}
	c.published, got, takes = nil, []int{0, 0}, []bool{true, true}
	h.Publish(cell, cell)
	if got[0]+got[1] != 2 || len(c.published) != 0 {
		t.Errorf("watchers that take all: %v, published %q", got, c.published)
	}
	stops[1]()
	got = []int{0, 0}
	h.Publish(cell)
	stops[0]()
	if h.Carrier = nil; !slices.Equal(got, []int{1, 0}) {
		t.Errorf("after one has stopped: %v", got)
	}
	h.Publish(cell)
	if got[0] != 1 || len(c.published) != 0 {
		t.Errorf("without watchers and carrier: %v, published %q", got, c.published)
	}

	// What the carrier delivers becomes cells again. A hint that names none is left out.
	ended := errors.New("ended")
	*c = carrier{err: ended, deliver: []tso.Hint{byColumn, byPattern, {Topic: "t\x00f:qq"}, {Topic: "t\x00f*:q"}, {Topic: "t\x00nothing"}, {Topic: "t"},
		{Topic: "t\x00f*:q", Key: "\x06qqrow"}, {Topic: "t\x00f*:q", Key: "\x05qqrow"}, {Topic: "t\x00f*:q", Key: "\x02aarow"}, {Topic: "t\x00f*:q", Key: "\xff"}, {Topic: "t\x00f*:"}, {Topic: "t\x00f*:", Key: strings.Repeat("\xff", 11)}, {Topic: "t\x00f*:", Key: "\x00row"}}}
	var cells []format.Cell
	subscribe := func(columns map[string][]format.Column) error {
		cells = nil
		return h.Subscribe(t.Context(), columns, func(c format.Cell) { cells = append(cells, c) })
	}
	columns := map[string][]format.Column{"t": {column, pattern}}
	if err := subscribe(columns); err != nil || c.topics != nil {
		t.Errorf("without a carrier: %v, topics %q", err, c.topics)
	}
	h.Carrier = c
	if err := subscribe(nil); err != nil || c.topics != nil {
		t.Errorf("no columns: %v, topics %q", err, c.topics)
	}
	err := subscribe(columns)
	whole, empty := cell, format.Cell{Table: "t", Row: "row", Family: "f"}
	whole.Qualifier, whole.Row = "qqrow", ""
	noRow := cell
	noRow.Row = ""
	if want := []format.Cell{cell, cell, noRow, whole, empty}; !errors.Is(err, ended) || !slices.Equal(c.topics, []string{byColumn.Topic, byPattern.Topic}) || !slices.Equal(cells, want) {
		t.Errorf("%v, topics %q, cells %q, want %q", err, c.topics, cells, want)
	}
}
