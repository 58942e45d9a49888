//go:build browser

// Package browser looks at the console in a real browser. Only tests import it, with the
// build tag browser: go test ./... does not compile what drives the browser.
package browser

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Required is the environment variable that makes a missing browser a failure.
const Required = "PERCCTL_BROWSER_REQUIRED"

// Find returns the path of Chromium.
func Find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no Chromium: install Debian's package chromium")
}

// A Page is a page in a browser.
type Page struct {
	ctx context.Context

	mu     sync.Mutex
	faults []string
}

// timeout bounds everything that is done with one page.
const timeout = 4 * time.Minute

// New starts a browser with an empty page. Without Chromium it skips the test, and says so;
// with the variable Required, the test fails.
func New(t *testing.T) *Page {
	t.Helper()
	path, err := Find()
	if err != nil {
		if os.Getenv(Required) != "" {
			t.Fatal(err)
		}
		t.Skipf("NOT CHECKED: %v", err)
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &Page{ctx: ctx}
	chromedp.ListenTarget(ctx, func(e any) {
		fault := ""
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			fault = "exception: " + e.ExceptionDetails.Error()
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
				fault = fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
			}
		}
		if fault != "" {
			p.mu.Lock()
			p.faults = append(p.faults, fault)
			p.mu.Unlock()
		}
	})
	if err := chromedp.Run(ctx, log.Enable()); err != nil {
		t.Fatal(err)
	}
	return p
}

// Show sets size and colours of the page.
func (p *Page) Show(t *testing.T, width, height int, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	p.run(t, emulation.SetDeviceMetricsOverride(int64(width), int64(height), 1, false),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
}

// Open opens an address, and waits until something is true of the page.
func (p *Page) Open(t *testing.T, url, ready string) {
	t.Helper()
	p.run(t, chromedp.Navigate("about:blank"), chromedp.Navigate(url))
	p.Wait(t, "document.documentElement.dataset.ready === '1'")
	p.Wait(t, ready)
}

// Wait waits until an expression is true.
func (p *Page) Wait(t *testing.T, expression string) {
	t.Helper()
	p.run(t, chromedp.Poll("Boolean("+expression+")", nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(3*time.Minute)))
}

// Eval evaluates an expression into a value.
func (p *Page) Eval(t *testing.T, expression string, v any) {
	t.Helper()
	p.run(t, chromedp.Evaluate(expression, v, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
}

// Type sends keys to what has the focus.
func (p *Page) Type(t *testing.T, keys string) {
	t.Helper()
	p.run(t, chromedp.KeyEvent(keys))
}

// Click clicks on the first element that a selector finds.
func (p *Page) Click(t *testing.T, selector string) {
	t.Helper()
	p.run(t, chromedp.Click(selector, chromedp.ByQuery))
}

// Picture is a picture of the page as PNG, no higher than height, with its 256 most frequent
// colours that differ, which makes it three times smaller.
func (p *Page) Picture(t *testing.T, width, height int) []byte {
	t.Helper()
	var raw []byte
	p.run(t, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		raw, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).WithCaptureBeyondViewport(false).WithClip(&page.Viewport{Width: float64(width), Height: float64(height), Scale: 1}).Do(ctx)
		return err
	}))
	small, err := reduce(raw)
	if err != nil {
		t.Fatal(err)
	}
	return small
}

func reduce(raw []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	counts := map[color.Color]int{}
	b := full.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			counts[full.At(x, y)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	var palette color.Palette
	for _, c := range colors {
		if len(palette) < 256 && (len(palette) == 0 || distance(c, palette[palette.Index(c)]) > 12) {
			palette = append(palette, c)
		}
	}
	small := image.NewPaletted(b, palette)
	draw.Draw(small, b, full, b.Min, draw.Src)
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small)
	return out.Bytes(), err
}

// distance is how much two colours differ, in steps of their 8-bit channels.
func distance(a, b color.Color) (d int) {
	r1, g1, b1, _ := a.RGBA()
	r2, g2, b2, _ := b.RGBA()
	for _, pair := range [][2]uint32{{r1, r2}, {g1, g2}, {b1, b2}} {
		d += int(max(pair[0], pair[1])-min(pair[0], pair[1])) >> 8
	}
	return d
}

// Faults are the exceptions and errors since the last call.
func (p *Page) Faults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.faults
	p.faults = nil
	return found
}

func (p *Page) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatalf("%v; the page says: %v", err, p.Faults())
	}
}
