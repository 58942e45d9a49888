// Command platforms type-checks and vets the module in the working directory, tests included, for
// other platforms than this one. It reads the declarations of dependencies and compiles nothing: a
// build for each platform would take five minutes of processor time.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/stringintconv"
	"golang.org/x/tools/go/analysis/passes/unsafeptr"
	"golang.org/x/tools/go/packages"
)

// Of vet's analyzers, these depend on sizes or on files for a platform. All the rest find here what
// they find on any platform.
var analyzers = []*analysis.Analyzer{atomic.Analyzer, copylock.Analyzer, printf.Analyzer, shift.Analyzer, stringintconv.Analyzer, unsafeptr.Analyzer}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: platforms GOOS/GOARCH ...")
		os.Exit(2)
	}
	found := false
	for _, platform := range os.Args[1:] {
		problems, err := check(platform)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		for _, p := range problems {
			found = true
			fmt.Printf("%s: %s\n", platform, p)
		}
	}
	if found {
		os.Exit(1)
	}
}

func check(platform string) (problems []string, err error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return nil, fmt.Errorf("%q is no GOOS/GOARCH, such as linux/386", platform)
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	pkgs, err := packages.Load(&packages.Config{
		Mode:  packages.LoadAllSyntax,
		Tests: true,
		Env:   append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			own := strings.HasPrefix(name, dir+string(filepath.Separator))
			mode := parser.SkipObjectResolution
			if own {
				mode |= parser.ParseComments
			}
			f, err := parser.ParseFile(fset, name, src, mode)
			if f != nil && !own {
				for _, d := range f.Decls {
					if d, ok := d.(*ast.FuncDecl); ok {
						d.Body = nil
					}
				}
			}
			return f, err
		},
	}, "./...")
	if err != nil {
		return nil, err
	}
	if len(pkgs) == 0 {
		return nil, fmt.Errorf("%s: no packages", platform)
	}
	// The main packages of tests are generated.
	pkgs = slices.DeleteFunc(pkgs, func(p *packages.Package) bool { return strings.HasSuffix(p.PkgPath, ".test") })
	packages.Visit(pkgs, nil, func(p *packages.Package) {
		p.IllTyped = false // in dependencies, imports are not used
		if slices.Contains(pkgs, p) {
			for _, e := range p.Errors {
				problems = append(problems, e.Error())
			}
		}
	})
	if len(problems) > 0 {
		return problems, nil
	}
	graph, err := checker.Analyze(analyzers, pkgs, nil)
	if err != nil {
		return nil, err
	}
	for _, a := range graph.Roots {
		if a.Err != nil {
			return nil, fmt.Errorf("%s: %s: %w", platform, a, a.Err)
		}
		for _, d := range a.Diagnostics {
			problems = append(problems, fmt.Sprintf("%s: %s", a.Package.Fset.Position(d.Pos), d.Message))
		}
	}
	return problems, nil
}
