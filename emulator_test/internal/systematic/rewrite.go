package systematic

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// mutated returns the file's text with all its mutants, each switched on by its number.
func (s *source) mutated(importPath string) string {
	wraps := slices.Clone(s.wraps)
	// The outer ones first, and the earlier ones around the later ones.
	slices.SortStableFunc(wraps, func(a, b wrap) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	swaps := slices.Clone(s.swaps)
	slices.SortFunc(swaps, func(a, b swap) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	var open []wrap
	at := 0
	// text writes the source until offset to.
	text := func(to int) {
		for len(swaps) > 0 && swaps[0].from < to {
			out.Write(s.text[at:swaps[0].from])
			out.WriteString(swaps[0].text)
			at, swaps = swaps[0].to, swaps[1:]
		}
		out.Write(s.text[at:max(at, to)])
		at = max(at, to)
	}
	closeUntil := func(to int) {
		for len(open) > 0 && open[len(open)-1].to <= to {
			last := open[len(open)-1]
			open = open[:len(open)-1]
			text(last.to)
			out.WriteString(last.after)
		}
	}
	name := int(s.file.Name.End()) - s.base
	text(name)
	fmt.Fprintf(&out, "; import %s %q", pkgName, importPath)
	for _, w := range wraps {
		closeUntil(w.from)
		text(w.from)
		out.WriteString(w.before)
		open = append(open, w)
	}
	closeUntil(len(s.text))
	text(len(s.text))
	return out.String()
}
