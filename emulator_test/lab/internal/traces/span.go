package traces

import (
	"slices"
	"time"
)

// A span is what a backend knows of a span.
type span struct {
	trace, id, parent string // in hexadecimal
	name, kind, scope string
	instance          string // of the service: one for each process
	start, end        time.Time
	attrs             map[string]string
	events            []event
	links             []link
}

type event struct {
	name string
	at   time.Time
}

type link struct{ trace, span string }

// spans are the spans of any number of traces.
type spans []*span

func (all spans) where(f func(*span) bool) spans {
	var found spans
	for _, s := range all {
		if f(s) {
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b *span) int { return a.start.Compare(b.start) })
	return found
}

func (all spans) of(trace string) spans {
	return all.where(func(s *span) bool { return s.trace == trace })
}

func (all spans) named(name string) spans {
	return all.where(func(s *span) bool { return s.name == name })
}

func (all spans) below(parent *span) spans {
	return all.where(func(s *span) bool { return s.trace == parent.trace && s.parent == parent.id })
}

// ours leaves out the spans of the libraries that this one uses.
func (all spans) ours() spans {
	return all.where(func(s *span) bool {
		const prefix = "github.com/percolator-bigtable/percolator/"
		return len(s.scope) > len(prefix) && s.scope[:len(prefix)] == prefix
	})
}
