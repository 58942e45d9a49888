//go:build browser && unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/browser"
)

// demoPage runs percctl demo --console, and returns the address of its page.
func demoPage(t *testing.T, args ...string) (url string) {
	t.Helper()
	out, errs := watch("never"), watch(" to watch")
	cmd := exec.Command("percctl", append([]string{"demo", "--console", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST=")
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the demo says:\n%s%s", out.String(), errs.String())
		}
	})
	errs.await(t)
	_, url, _ = strings.Cut(errs.String(), "open ")
	url, _, _ = strings.Cut(url, " to watch")
	return url
}

// TestDemoPage: a first-time reader opens the page of the demo, finds the lock of a client
// that died, looks at its transaction, and rolls it forward.
func TestDemoPage(t *testing.T) {
	p := browser.New(t)
	url := demoPage(t, "--limit", "60", "--kills", "0", "--workers", "1")
	p.Show(t, 1400, 1000, false)
	// The demo's own strands come and go; these are of its end.
	const card = `[...document.querySelectorAll('.need')].find((e) => e.textContent.includes('accounts/') || e.textContent.includes('2 transactions of dead clients hold 5 locks'))`
	p.Open(t, url, card)
	began := time.Now()
	p.Click(t, `.need .actions a`)
	p.Wait(t, `document.querySelector('.verdict')?.textContent.includes('roll forward')`)
	p.Click(t, `.verdict .actions button`)
	p.Wait(t, `document.querySelector('dialog .question') && document.querySelector('dialog pre').textContent.includes('to roll forward')`)
	p.Click(t, `dialog .actions button.primary`)
	p.Wait(t, `document.querySelector('dialog pre').textContent.includes('rolled forward')`)
	p.Click(t, `dialog .actions button`)
	p.Wait(t, `document.querySelector('.verdict h2')?.textContent === 'It has ended'`)
	t.Logf("it took %v", time.Since(began))
	if time.Since(began) > time.Minute {
		t.Errorf("it took %v", time.Since(began))
	}
	if faults := p.Faults(); len(faults) > 0 {
		t.Errorf("%q", faults)
	}
}

// TestPictures makes the pictures of the console in docs/images, with -update. They show
// a demo that runs, and the deployment of --embedded.
func TestPictures(t *testing.T) {
	if !*update {
		return
	}
	p := browser.New(t)
	url := demoPage(t, "--limit", "3500", "--seed", "7", "--kills", "12")
	shot := func(name, hash, ready string, width, height int, dark bool) {
		t.Helper()
		p.Show(t, width, height, dark)
		p.Open(t, url+hash, ready)
		var x bool
		p.Eval(t, `new Promise((r) => setTimeout(() => r(true), 2500))`, &x)
		p.Wait(t, ready)
		if err := os.WriteFile(filepath.Join("../../docs/images", name+".png"), p.Picture(t, width, height), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const graph = `document.querySelectorAll('.node.observer').length > 5 && document.querySelectorAll('.edge').length > 9`
	const labelled = graph + ` && document.querySelectorAll('.edge-label.warn').length > 1`
	const busy0 = `document.querySelector('.need') && document.querySelectorAll('.uplot').length > 4`
	const busy = `Number(document.querySelector('.stat-value')?.textContent.replace(/[^0-9.]/g, '')) > 0 && document.querySelector('.spark path')?.getAttribute('d').split('L').length > 6 && document.querySelector('.need') && !document.querySelector('.hint') && document.querySelectorAll('.uplot').length > 4`
	p.Show(t, 1400, 1000, false)
	p.Open(t, url, busy)
	shot("console", "", busy, 1360, 1010, false)
	shot("console-observers", "#/observers", labelled, 1360, 860, false)
	shot("console-observers-dark", "#/observers", labelled, 1360, 860, true)
	shot("console-observers-narrow", "#/observers", labelled, 500, 1010, false)
	p.Open(t, url, `document.querySelector('.stat')`)
	p.Wait(t, `document.querySelector('.title')?.textContent.includes('6 tables') && document.querySelector('.need')?.textContent.includes('2 transactions of dead clients hold 5')`)
	shot("console-dark", "", busy0, 1360, 1010, true)
	shot("console-narrow", "", busy0, 500, 1010, false)
	var cell, txn string
	p.Eval(t, `fetch('api/state').then((r) => r.json()).then((s) => { const q = new URLSearchParams({ primary: s.transactions[0].primary, start: s.transactions[0].start_ts }); return '#/txn?' + q; })`, &txn)
	cell = "#/row?table=accounts&row=bob"
	for _, page := range []struct{ name, hash, ready string }{
		{"tables", "#/tables?table=documents", `document.querySelector('canvas').onmousemove`},
		{"row", cell, `document.querySelector('.lanes')`},
		{"transaction", txn, `document.querySelector('.verdict')`},
	} {
		shot("console-"+page.name, page.hash, page.ready, 1360, 860, false)
		shot("console-"+page.name+"-dark", page.hash, page.ready, 1360, 860, true)
		shot("console-"+page.name+"-narrow", page.hash, page.ready, 500, 1010, false)
	}
	if faults := p.Faults(); len(faults) > 0 {
		t.Errorf("%q", faults)
	}
}
