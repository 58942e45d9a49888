package consolecmd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"path"
	"regexp"
	"strings"
	"testing"
)

// vendored are the libraries as the packages of npm have them: see app/vendor/README.md.
var vendored = map[string]string{
	"uplot.js":  "073f022c867cb9c40f0be28f5d680830857a5b3a04082c2473880c8328a12e04",
	"uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
	"dagre.js":  "cf85ac740ad206f01209bf030b903df8bebac87b965042de02b54d7e6a1e4055",
}

// TestVendored: libraries are what their packages have, and come with their licences.
func TestVendored(t *testing.T) {
	for name, want := range vendored {
		text, err := app.ReadFile("app/vendor/" + name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s: %s", name, got)
		}
		licence := strings.TrimSuffix(name, path.Ext(name)) + ".LICENSE"
		if text, err := app.ReadFile("app/vendor/" + licence); err != nil || !strings.Contains(string(text), "Permission is hereby granted") {
			t.Errorf("%s: %v", licence, err)
		}
	}
}

// TestOffline: the page loads nothing from elsewhere, imports only files that exist, and has
// neither inline scripts nor inline styles, which its policy refuses.
func TestOffline(t *testing.T) {
	imports := regexp.MustCompile(`(?m)(?:\sfrom |^import |src=|href=)['"]([^'"#]+)['"]`)
	inline := regexp.MustCompile(`<script>|<style|\son[a-z]+=["']|\sstyle=["']|innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`)
	n := 0
	err := fs.WalkDir(app, "app", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "/vendor/") {
			return err
		}
		text, err := app.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range imports.FindAllStringSubmatch(string(text), -1) {
			n++
			if _, err := app.ReadFile(path.Join("app", m[1])); err != nil {
				t.Errorf("%s imports %s: %v", name, m[1], err)
			}
		}
		if found := inline.FindString(string(text)); found != "" {
			t.Errorf("%s has %q", name, found)
		}
		for _, m := range regexp.MustCompile(`https?://[^'"\s)]+`).FindAllString(string(text), -1) {
			if m != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", name, m)
			}
		}
		return nil
	})
	if err != nil || n < 20 {
		t.Errorf("%d imports, %v", n, err)
	}
}

// TestContrast: every text colour of the palettes is readable on every ground it is used on.
func TestContrast(t *testing.T) {
	css, err := app.ReadFile("app/style.css")
	if err != nil {
		t.Fatal(err)
	}
	palettes := regexp.MustCompile(`(?s)color-scheme: (light|dark);(.*?)}`).FindAllStringSubmatch(string(css), -1)
	if len(palettes) != 3 {
		t.Fatalf("%d palettes", len(palettes))
	}
	for _, p := range palettes {
		colors := map[string]string{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+): (#[0-9a-f]{6})`).FindAllStringSubmatch(p[2], -1) {
			colors[m[1]] = m[2]
		}
		for _, pair := range []string{
			"text bg", "text panel", "text well", "muted bg", "muted panel", "muted well", "accent panel", "accent bg", "accent well", "on-accent accent",
			"good good-bg", "warn warn-bg", "bad bad-bg", "info info-bg", "good panel", "warn panel", "bad panel", "bad bg", "text warn-bg", "text bad-bg",
		} {
			a, b, _ := strings.Cut(pair, " ")
			if c := contrast(t, colors[a], colors[b]); c < 4.5 {
				t.Errorf("%s: %s: %.2f", p[1], pair, c)
			}
		}
		for i := 1; i <= 5; i++ {
			if c := contrast(t, colors[fmt.Sprint("c", i)], colors["panel"]); c < 3 {
				t.Errorf("%s: c%d on panel: %.2f", p[1], i, c)
			}
		}
	}
}

// contrast is the contrast ratio of WCAG 2.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	la, lb := luminance(t, a), luminance(t, b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func luminance(t *testing.T, color string) (l float64) {
	t.Helper()
	raw, err := hex.DecodeString(strings.TrimPrefix(color, "#"))
	if err != nil || len(raw) != 3 {
		t.Fatalf("color %q: %v", color, err)
	}
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		l += weight * linear(float64(raw[i])/255)
	}
	return l
}

func linear(v float64) float64 {
	if v <= 0.04045 {
		return v / 12.92
	}
	return math.Pow((v+0.055)/1.055, 2.4)
}
