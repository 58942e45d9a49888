//go:build browser

package consolecmd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/percolator-bigtable/percolator/emulator_test/browser"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// hashes are the pages, and what is there once they are shown.
var hashes = []struct{ name, hash, ready string }{
	{"overview", "#/", `document.querySelector('.stat-value') && document.querySelector('.checks')`},
	{"row", "#/row?table=t&row=r", `document.querySelector('.lanes, .empty')`},
	{"transaction", "#/txn?primary=t/r/f:q&start=7", `document.querySelector('.verdict')`},
	{"transactions", "#/txn", `document.querySelector('table, .empty')`},
	{"observers", "#/observers", `document.querySelectorAll('.card').length > 1`},
	{"tables", "#/tables", `document.querySelector('.facts dd') && document.querySelector('main table, main .empty')`},
}

// TestPages opens every page in a browser, wide and narrow, light and dark: with nothing,
// with a little, with 10,000 locks and 200 tables, and with hostile names. Nothing fails,
// runs off, or becomes markup.
func TestPages(t *testing.T) {
	p := browser.New(t)
	for _, f := range []*fake{
		{}, {tables: 2, transactions: 2, locks: 3}, {tables: 200, transactions: 100, locks: 100}, {tables: 3, transactions: 3, locks: 3, name: hostile},
		{tables: 200, transactions: 1, locks: 10_000},
	} {
		url, _ := serve(t, f, Config{AllowWrites: f.name != "", Metrics: []string{"http://localhost:1/metrics"}, TraceURL: "http://localhost:1/trace/{trace_id}"})
		what := fmt.Sprintf("%d tables, %d transactions, hostile %v", f.tables, f.transactions, f.name != "")
		for _, page := range hashes {
			widths := []int{1300, 360}
			if testing.Short() {
				widths = widths[:1] // the server notices no difference
			}
			for _, width := range widths {
				p.Show(t, width, 900, width == 360)
				p.Open(t, url+"/"+page.hash, page.ready)
				var seen struct {
					Width, Inner int
					Off          []string
					Hacked       bool
					Controls     bool
					Unnamed      []string
				}
				p.Eval(t, look, &seen)
				if seen.Width > seen.Inner || len(seen.Off) > 0 {
					t.Errorf("%s of %s at %d: %d wide, these run off: %q", page.name, what, width, seen.Width, seen.Off)
				}
				if seen.Hacked || seen.Controls || len(seen.Unnamed) > 0 {
					t.Errorf("%s of %s at %d: hacked %v, controls %v, without a name %q", page.name, what, width, seen.Hacked, seen.Controls, seen.Unnamed)
				}
				if faults := p.Faults(); len(faults) > 0 {
					t.Errorf("%s of %s at %d: %q", page.name, what, width, faults)
				}
			}
		}
	}
}

// TestFirstPass: what has not been read yet is not in order. The checks may know more than
// the first pass, and a card may be newer than the checks.
func TestFirstPass(t *testing.T) {
	long.NotUnderRace(t, "TestPages looks at pages, too")
	p := browser.New(t)
	for _, f := range []struct {
		fake        *fake
		check       string // what to click on before
		words, none []string
	}{
		{&fake{tables: 1, first: true}, "", []string{"Nothing found so far", "first pass", "No lock found so far", "after the first pass"}, []string{"healthy", "No transaction holds", "needs attention"}},
		{&fake{tables: 1, first: true}, ".head > button", []string{"One thing needs attention", "table0: 9 locks of dead clients"}, []string{"healthy"}},
		{&fake{tables: 1, first: true, transactions: 2, locks: 3}, ".head > button", []string{"One thing needs attention", "At least 2 transactions of dead clients hold 6 locks"}, []string{"table0: 9 locks"}},
		{&fake{tables: 1, transactions: 101, locks: 1}, "", []string{"At least 100 transactions of dead clients hold 100 locks", "found since"}, nil},
		{&fake{tables: 1, transactions: 2, locks: 3}, "", []string{"\n2 transactions of dead clients hold 6 locks", "found since"}, []string{"At least"}},
		{&fake{tables: 1}, "", []string{"Nothing needs attention", "healthy", "No transaction holds a lock", "stranded locks\nok"}, []string{"so far", "first pass", "found since"}},
	} {
		url, _ := serve(t, f.fake, Config{})
		p.Show(t, 500, 900, false)
		p.Open(t, url+"/#/", `document.querySelector('.stat-value')`)
		if f.check != "" {
			p.Click(t, f.check)
			p.Wait(t, `document.querySelector('.checks')`)
		}
		for _, words := range f.words {
			p.Wait(t, fmt.Sprintf("document.querySelector('main').innerText.includes(%q)", words))
		}
		var text string
		p.Eval(t, `document.querySelector('main').innerText`, &text)
		for _, words := range f.none {
			if strings.Contains(text, words) {
				t.Errorf("%+v: %q in %s", f.fake, words, text)
			}
		}
		p.Open(t, url+"/#/tables", `document.querySelector('main td')`)
		var row string
		p.Eval(t, `document.querySelector('main tbody tr').innerText`, &row)
		if n := strings.Count(row, "≥ 0"); n != 3 && f.fake.first || n != 0 && !f.fake.first {
			t.Errorf("%+v: %q", f.fake, row)
		}
		p.Open(t, url+"/#/", `document.querySelector('.hint')`)
		var hint, plots int
		p.Eval(t, `document.querySelector('.hint').childNodes.length`, &hint)
		p.Show(t, 1300, 900, false)
		p.Eval(t, `new Set([...document.querySelectorAll('.strip:not([hidden]) .plot')].map((e) => e.getBoundingClientRect().top)).size`, &plots)
		if hint != 2 || plots != 1 {
			t.Errorf("%+v: the hint has %d parts, the charts are at %d heights", f.fake, hint, plots)
		}
	}
}

// look finds what runs off the page, what became markup, and controls without a name.
const look = `(() => {
	const inner = document.documentElement.clientWidth, off = [];
	for (const e of document.querySelectorAll('body *')) {
		if (e.closest('.scroll, .skip, .plot, dialog, svg')) continue;
		const r = e.getBoundingClientRect();
		if (r.width && (r.right > inner + 1 || r.left < -1)) off.push(e.tagName + '.' + e.className);
	}
	const unnamed = [...document.querySelectorAll('button, a, input, canvas, [role=slider]')].filter((e) => !e.closest('.plot') && !(e.textContent.trim() || e.getAttribute('aria-label') || e.title)).map((e) => e.outerHTML);
	return {
		width: document.documentElement.scrollWidth, inner, off: off.slice(0, 5), hacked: 'hacked' in window || !!document.querySelector('main script, main img'),
		controls: /[\u001b\u202e]/.test(document.body.innerText), unnamed,
	};
})()`

// TestKeys: pages, the snapshot's line and the colours can be used with a keyboard alone.
func TestKeys(t *testing.T) {
	long.NotUnderRace(t, "TestPages looks at pages, too")
	p := browser.New(t)
	url, _ := serve(t, &fake{tables: 2, transactions: 2, locks: 2}, Config{})
	p.Show(t, 1300, 900, false)
	p.Open(t, url+"/#/", `document.querySelector('.stat')`)
	for i, page := range []string{"Overview", "Row", "Transaction", "Observers", "Tables"} {
		p.Type(t, fmt.Sprint(i+1))
		p.Wait(t, fmt.Sprintf(`document.querySelector('nav [aria-current]')?.textContent === %q`, page))
	}
	p.Type(t, "t")
	p.Wait(t, `document.documentElement.dataset.theme === 'dark'`)
	p.Type(t, "/")
	p.Wait(t, `document.activeElement.type === 'search'`)
	p.Open(t, url+"/#/row?table=t&row=r", `document.querySelector('.cursor')`)
	var before, after string
	p.Eval(t, `(() => { const c = document.querySelector('.cursor'); c.focus(); return c.getAttribute('aria-valuenow'); })()`, &before)
	p.Type(t, kb.ArrowLeft)
	p.Eval(t, `document.querySelector('.cursor').getAttribute('aria-valuenow')`, &after)
	if before == after {
		t.Errorf("the line stays at %s", before)
	}
	p.Open(t, url+"/#/tables", `document.querySelector('canvas').onkeydown`)
	p.Eval(t, `(() => { document.querySelector('canvas').focus(); return document.activeElement.tagName; })()`, &before)
	tips := map[string]bool{}
	for _, key := range []string{kb.ArrowUp, kb.ArrowLeft, kb.ArrowLeft, kb.ArrowDown, kb.ArrowDown} { // the first chooses the newest, the last changes nothing
		p.Type(t, key)
		p.Eval(t, `document.querySelector('.tip').textContent`, &after)
		tips[after] = strings.Contains(after, " locks, 1 pending") || strings.Contains(after, " locks, 2 pending")
	}
	if len(tips) != 4 || slices.Contains(slices.Collect(maps.Values(tips)), false) {
		t.Errorf("focus on %s, %v", before, tips)
	}
	if faults := p.Faults(); len(faults) > 0 {
		t.Errorf("%q", faults)
	}
}
