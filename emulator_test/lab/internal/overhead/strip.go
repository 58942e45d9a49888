package overhead

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// telemetryFiles make spans and metrics. Their functions become empty.
var telemetryFiles = []string{
	"txn/deferredtrace.go",
	"txn/internal/telemetry/metrics.go", "txn/internal/telemetry/reads.go", "txn/internal/telemetry/secondaries.go", "txn/internal/telemetry/trace.go", "txn/internal/telemetry/transactions.go",
	"tso/internal/telemetry/telemetry.go", "tso/server/metrics.go", "notify/telemetry.go",
}

// kept functions make what other code uses, or have other callers.
var kept = []string{
	"NewTracing", "Off", "NewMetrics", "NewTransactions", "errorType", "ErrorType",
}

// packages are those that call telemetry.
var packages = []string{
	"txn", "txn/internal/latch", "txn/internal/recovery", "txn/internal/store", "txn/internal/telemetry",
	"tso", "tso/internal/telemetry", "tso/server", "notify",
}

// strip writes copies of the module's files without telemetry into dir, with an overlay
// for go build that replaces the module's files. It returns the overlay's path, how
// many functions became empty, and how many reads of the clock were removed.
func strip(module, dir string) (overlay string, emptied, clocks int, err error) {
	for _, name := range telemetryFiles {
		if _, err := os.Stat(filepath.Join(module, name)); err != nil {
			return "", 0, 0, fmt.Errorf("a file with telemetry has moved: %w", err)
		}
	}
	replace := map[string]string{}
	for _, pkg := range packages {
		names, err := filepath.Glob(filepath.Join(module, pkg, "*.go"))
		if err != nil {
			return "", 0, 0, err
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return "", 0, 0, err
			}
			done := 0
			if slices.Contains(telemetryFiles, pkg+"/"+filepath.Base(name)) {
				done = empty(file)
				emptied += done
			} else {
				done = stopClocks(file)
				clocks += done
			}
			if done == 0 {
				continue
			}
			var text bytes.Buffer
			if err := format.Node(&text, files, file); err != nil {
				return "", 0, 0, fmt.Errorf("%s: %w", name, err)
			}
			to := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+"_"+filepath.Base(name))
			if err := os.WriteFile(to, text.Bytes(), 0o666); err != nil {
				return "", 0, 0, err
			}
			replace[name] = to
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", 0, 0, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, emptied, clocks, os.WriteFile(overlay, text, 0o666)
}

// empty makes functions return at once, with the context that they got and zero values.
// Imports are still used.
func empty(file *ast.File) (n int) {
	var used []ast.Expr
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || slices.Contains(kept, f.Name.Name) {
			continue
		}
		n++
		// The old body becomes a function that is never called.
		used = append(used, &ast.FuncLit{Type: &ast.FuncType{Params: params(f), Results: f.Type.Results}, Body: f.Body})
		f.Body = &ast.BlockStmt{List: []ast.Stmt{&ast.ReturnStmt{Results: results(f)}}}
	}
	for _, u := range used {
		file.Decls = append(file.Decls, &ast.GenDecl{Tok: token.VAR, Specs: []ast.Spec{&ast.ValueSpec{Names: []*ast.Ident{ast.NewIdent("_")}, Values: []ast.Expr{u}}}})
	}
	file.Comments = nil // their positions are those of the old text
	return n
}

// params returns the parameters of a function, its receiver first.
func params(f *ast.FuncDecl) *ast.FieldList {
	all := &ast.FieldList{}
	if f.Recv != nil {
		all.List = append(all.List, f.Recv.List...)
		if len(f.Recv.List[0].Names) == 0 {
			all.List[0] = &ast.Field{Names: []*ast.Ident{ast.NewIdent("_")}, Type: f.Recv.List[0].Type}
		}
	}
	all.List = append(all.List, f.Type.Params.List...)
	return all
}

// results returns the context of a function's parameters, and zero values.
func results(f *ast.FuncDecl) (all []ast.Expr) {
	if f.Type.Results == nil {
		return nil
	}
	for _, field := range f.Type.Results.List {
		for range max(1, len(field.Names)) {
			all = append(all, zero(f, field.Type))
		}
	}
	return all
}

func zero(f *ast.FuncDecl, t ast.Expr) ast.Expr {
	if s, ok := t.(*ast.SelectorExpr); ok && s.Sel.Name == "Context" {
		for _, p := range f.Type.Params.List {
			if s, ok := p.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Context" && len(p.Names) > 0 {
				return ast.NewIdent(p.Names[0].Name)
			}
		}
	}
	if fn, ok := t.(*ast.FuncType); ok && fn.Params.NumFields() == 0 && fn.Results.NumFields() == 0 {
		return &ast.FuncLit{Type: &ast.FuncType{Params: &ast.FieldList{}}, Body: &ast.BlockStmt{}} // a caller may call it
	}
	return &ast.StarExpr{X: &ast.CallExpr{Fun: ast.NewIdent("new"), Args: []ast.Expr{t}}}
}

// stopClocks removes reads of the clock that only telemetry uses.
func stopClocks(file *ast.File) (n int) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		var reads []*ast.AssignStmt
		uses, passed := map[string]int{}, map[string]int{}
		ast.Inspect(f.Body, func(node ast.Node) bool {
			switch x := node.(type) {
			case *ast.AssignStmt:
				if len(x.Lhs) == 1 && len(x.Rhs) == 1 && x.Tok == token.DEFINE && isNow(x.Rhs[0]) {
					reads = append(reads, x)
				}
			case *ast.CallExpr:
				if path := selectors(x.Fun); strings.Contains(path, ".metrics.") || strings.Contains(path, ".Metrics.") || strings.Contains(path, ".tel.") || strings.HasPrefix(path, "tel.") {
					for _, arg := range x.Args {
						if id, ok := arg.(*ast.Ident); ok {
							passed[id.Name]++
						}
					}
				}
			case *ast.Ident:
				uses[x.Name]++
			}
			return true
		})
		defined := map[string]int{}
		for _, l := range reads {
			defined[l.Lhs[0].(*ast.Ident).Name]++
		}
		for _, l := range reads {
			name := l.Lhs[0].(*ast.Ident).Name
			if uses[name] == passed[name]+defined[name] {
				l.Rhs[0] = &ast.CompositeLit{Type: &ast.SelectorExpr{X: ast.NewIdent("time"), Sel: ast.NewIdent("Time")}}
				n++
			}
		}
	}
	return n
}

func isNow(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && selectors(call.Fun) == "time.Now"
}

// selectors returns a.b.c as text, and "" for any other expression.
func selectors(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return selectors(x.X) + "." + x.Sel.Name
	}
	return ""
}
