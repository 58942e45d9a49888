//go:build browser

package consolecmd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/emulator_test/browser"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// overlaps are the labels of the graph's edges that cover a node or another label, or that
// the page cuts off, and the texts of all labels.
const overlaps = `(() => {
	const labels = [...document.querySelectorAll('.edge-label')], nodes = [...document.querySelectorAll('.node rect')];
	const box = (e) => e.getBoundingClientRect(), bad = [];
	const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
	labels.forEach((l, i) => {
		const b = box(l), s = box(l.ownerSVGElement);
		if ([...nodes, ...labels.slice(i + 1)].some((o) => meet(b, box(o)))) bad.push(l.textContent + ' collides');
		if (b.left < s.left || b.right > s.right || b.top < s.top || b.bottom > s.bottom) bad.push(l.textContent + ' is cut off');
	});
	return { bad, labels: labels.map((l) => l.getAttribute('class') + ': ' + l.textContent), height: box(document.querySelector('.edge-label')).height };
})()`

// TestEdgeLabels: the edge from a column to its observer says what is pending and for how
// long, how often the observer runs if metrics tell, what fails, and dead letters.
func TestEdgeLabels(t *testing.T) {
	long.NotUnderRace(t, "TestPages looks at pages, too")
	p := browser.New(t)
	for _, runs := range []map[string]float64{nil, {"observer": 2.5}} {
		url, _ := serve(t, &fake{tables: 6, runs: runs}, Config{})
		for _, width := range []int{1300, 500} {
			p.Show(t, width, 900, width == 500)
			p.Open(t, url+"/#/observers", `document.querySelectorAll('.edge-label').length > 5`)
			var seen struct {
				Bad, Labels []string
				Height      float64
			}
			p.Eval(t, overlaps, &seen)
			if len(seen.Bad) > 0 || seen.Height < 8 {
				t.Errorf("at %d, %v runs: %q, %v high", width, runs, seen.Bad, seen.Height)
			}
			for _, want := range []string{"edge-label warn: 5 pending, 5 s", "edge-label bad: 2 failing", "edge-label bad: 1 dead letter"} {
				if !slices.Contains(seen.Labels, want) {
					t.Errorf("at %d: no %q in %q", width, want, seen.Labels)
				}
			}
			n := 0
			for _, l := range seen.Labels {
				if strings.Contains(l, "runs/s") {
					n++
				}
				if strings.Contains(l, ": 0 ") {
					t.Errorf("at %d: %q", width, l)
				}
			}
			if want := 6 * len(runs); n != want {
				t.Errorf("at %d: %d labels with runs, want %d", width, n, want)
			}
		}
	}
}

// TestWords: durations have one format, a verdict says of which locks, timestamps are also
// on narrow pages, and an action makes the checks run again.
func TestWords(t *testing.T) {
	p := browser.New(t)
	f := &fake{tables: 1, transactions: 2, locks: 3}
	url, _ := serve(t, f, Config{AllowWrites: true})
	p.Show(t, 500, 900, false)
	p.Open(t, url+"/#/txn?primary=t/r/f:q&start=7", `document.querySelector('.verdict h2')?.textContent === 'A resolver would roll its 3 locks forward'`)
	shown := func(title string) string {
		return fmt.Sprintf(`[...document.querySelectorAll('th')].find((e) => e.textContent === %q)?.offsetWidth > 0`, title)
	}
	p.Wait(t, shown("Timestamp"))
	p.Open(t, url+"/#/row?table=t&row=r", shown("Timestamp"))
	p.Open(t, url+"/#/", `document.querySelector('.checks') && [...document.querySelectorAll('.stat')].some((e) => e.innerText.includes('Oldest lock\n1 min 39 s'))`)
	p.Show(t, 1300, 900, false)
	p.Wait(t, `[...document.querySelectorAll('.stat-value')].every((e) => e.scrollWidth <= e.clientWidth)`)
	if f.again.Load() != 0 {
		t.Error("the checks ran again without a reason")
	}
	p.Click(t, `.need .actions button`)
	p.Wait(t, `document.querySelector('dialog .question')`)
	p.Click(t, `dialog .actions button.primary`)
	p.Wait(t, `!document.querySelector('dialog .question') && document.querySelector('.checks').parentElement.innerText.includes('made at') && performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/api/doctor')).length > 1`)
	if n := f.again.Load(); n != 1 {
		t.Errorf("after an action the checks ran %d times", n)
	}
	if faults := p.Faults(); len(faults) > 0 {
		t.Errorf("%q", faults)
	}
}
