package main

import (
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are all pages of the repository, as paths below its root.
func documents(t *testing.T) []string {
	t.Helper()
	pages := []string{"README.md", "CHANGELOG.md"}
	for _, dir := range []string{"docs", ".github"} {
		err := filepath.WalkDir(moduleRoot+dir, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".md") {
				pages = append(pages, strings.TrimPrefix(path, moduleRoot))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return pages
}

func page(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(moduleRoot + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func exists(path string) bool {
	_, err := os.Stat(moduleRoot + path)
	return err == nil
}

var (
	fences      = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```")
	codeSpans   = regexp.MustCompile("`[^`]*`")
	links       = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	headings    = regexp.MustCompile(`(?m)^#+ +(.*?) *$`)
	linkTargets = regexp.MustCompile(`\]\([^()\s]+\)`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)
)

// anchors are those that GitHub gives to the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range headings.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		name := strings.ToLower(linkTargets.ReplaceAllString(h[1], "]"))
		all[anchor(notInAnchor.ReplaceAllString(name, ""))] = true
	}
	return all
}

// TestLinksInDocs: every relative link of a page leads to a file of the
// repository, and to a heading that it has.
func TestLinksInDocs(t *testing.T) {
	t.Parallel()
	n := 0
	for _, from := range documents(t) {
		text := page(t, from)
		prose := codeSpans.ReplaceAllString(fences.ReplaceAllString(text, ""), "")
		for _, m := range links.FindAllStringSubmatch(prose, -1) {
			path, heading, hasHeading := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			n++
			target := from
			if path != "" {
				target = filepath.Join(filepath.Dir(from), path)
			}
			switch {
			case !exists(target):
				t.Errorf("%s: no file %s", from, m[1])
			case hasHeading && !anchors(page(t, target))[heading]:
				t.Errorf("%s: no heading %s", from, m[1])
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d links were found", n)
	}
}

// missing reports a name that does not exist.
func missing(t *testing.T, in, name string, exists bool) {
	t.Helper()
	if !exists {
		t.Errorf("%s: there is no %s", in, name)
	}
}

var pathNames = regexp.MustCompile("`((?:txn|tso|notify|cmd|docs|emulator_test)(?:/[\\w./-]+)?)`")

// placeholder is a part of a name that the reader replaces.
var placeholder = regexp.MustCompile(`NAME|YYYY`)

// TestFilesInDocs: packages and files that the pages name are there.
func TestFilesInDocs(t *testing.T) {
	t.Parallel()
	n := map[string]int{}
	for _, path := range documents(t) {
		for _, m := range pathNames.FindAllStringSubmatch(page(t, path), -1) {
			if placeholder.MatchString(m[1]) {
				continue
			}
			n[path]++
			missing(t, path, m[1], exists(m[1]))
		}
	}
	if found := n["docs/architecture.md"]; found < 50 {
		t.Errorf("docs/architecture.md: only %d names were found", found)
	}
}

var (
	testNames = regexp.MustCompile(`\b(?:Test|Fuzz|Example)[A-Z]\w*|\b[a-z_]+_test\.go\b`)
	testRuns  = regexp.MustCompile(`go test \./([\w/]+) -run (Test\w+)`)
	testFuncs = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)[A-Z]\w*)\(`)
)

// TestTestsInDocs: tests, and their files, that the pages name are there.
func TestTestsInDocs(t *testing.T) {
	t.Parallel()
	tests, placed := map[string]bool{}, map[string]bool{} // placed: by folder
	err := filepath.WalkDir(moduleRoot, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "_test.go") {
			tests[filepath.Base(path)] = true
			for _, m := range testFuncs.FindAllStringSubmatch(page(t, strings.TrimPrefix(path, moduleRoot)), -1) {
				tests[m[1]] = true
				placed[strings.TrimPrefix(filepath.Dir(path), moduleRoot)+" "+m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range documents(t) {
		for _, name := range testNames.FindAllString(page(t, path), -1) {
			n++
			if !tests[name] {
				t.Errorf("%s: there is no %s", path, name)
			}
		}
		for _, m := range testRuns.FindAllStringSubmatch(page(t, path), -1) {
			if dir, name := m[1], m[2]; !placed[dir+" "+name] {
				t.Errorf("%s: there is no %s in %s", path, name, dir)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d names were found", n)
	}
}

// apiPackages are the packages whose names the pages use, by the name in front
// of the dot.
var apiPackages = map[string]string{
	"txn": "txn", "format": "txn/format", "gc": "txn/gc", "admin": "txn/admin", "changes": "txn/changes", "jobs": "txn/jobs", "idempotency": "txn/idempotency",
	"conformance": "txn/admin/conformance", "doctor": "txn/admin/doctor", "capacity": "txn/admin/capacity", "txntest": "txn/txntest",
	"notify": "notify", "tso": "tso", "server": "tso/server",
}

// An api is the exported names of a package: "Name" and, for members of types,
// "Type.Member".
type api map[string]bool

func newAPI(files []*ast.File) api {
	names, embedded := api{}, map[string][]string{}
	for _, file := range files {
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
				} else {
					names[typeName(d.Recv.List[0].Type)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.ValueSpec:
						for _, id := range s.Names {
							names[id.Name] = true
						}
					case *ast.TypeSpec:
						names[s.Name.Name] = true
						for _, f := range members(s.Type) {
							for _, id := range f.Names {
								names[s.Name.Name+"."+id.Name] = true
							}
							if len(f.Names) == 0 {
								embedded[s.Name.Name] = append(embedded[s.Name.Name], typeName(f.Type))
							}
						}
					}
				}
			}
		}
	}
	for outer, inner := range embedded {
		for name := range maps.Clone(names) {
			if typ, member, ok := strings.Cut(name, "."); ok && slices.Contains(inner, typ) {
				names[outer+"."+member] = true
			}
		}
	}
	return names
}

// typeName is the name of a receiver's or embedded field's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func members(e ast.Expr) []*ast.Field {
	switch e := e.(type) {
	case *ast.StructType:
		return e.Fields.List
	case *ast.InterfaceType:
		return e.Methods.List
	}
	return nil
}

var (
	goBlocks  = regexp.MustCompile("(?ms)^```go\n.*?^```")
	qualified = regexp.MustCompile(`(^|[^\w./-])([a-z]+\.)?([A-Z]\w*)(\.[A-Z]\w*)?`)
)

// TestNamesInDocs: Go names in code of the pages are names of our packages:
// package.Name, package.Type.Member and Type.Member.
func TestNamesInDocs(t *testing.T) {
	t.Parallel()
	s := newSource(t)
	apis := map[string]api{}
	for name, path := range apiPackages {
		apis[name] = newAPI(s.files(s.module + "/" + path))
	}
	known := func(name string) bool {
		for _, a := range apis {
			if a[name] {
				return true
			}
		}
		return false
	}
	n := 0
	for _, path := range documents(t) {
		text := page(t, path)
		code := append(goBlocks.FindAllString(text, -1), codeSpans.FindAllString(fences.ReplaceAllString(text, ""), -1)...)
		for _, m := range qualified.FindAllStringSubmatch(strings.Join(code, "\n"), -1) {
			pkg, name, member := strings.TrimSuffix(m[2], "."), m[3], m[4]
			switch a, ours := apis[pkg]; {
			case ours:
				n++
				missing(t, path, pkg+"."+name+member, a[name] && known(name+member))
			case pkg == "" && member != "" && name+member != "MAJOR.MINOR":
				n++
				missing(t, path, name+member, known(name+member))
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d names were found", n)
	}
}
