// Package house measures the layout of the module: which package may import which, how
// large a package is, and how its files depend on each other. Its test holds the bounds
// that docs/architecture.md promises.
package house

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A Package is one package of the module without its tests and generated files.
type Package struct {
	Path    string
	Imports []string
	Files   []string
	Lines   int
	// Cycle is the largest set of files that depend on each other, directly or not: a
	// file depends on those that declare the types, functions, methods, fields,
	// variables and constants it uses.
	Cycle []string
	// Strays are methods that are in another file than their type.
	Strays []string
	// StoredContexts are struct fields of type context.Context.
	StoredContexts []string
}

// Load measures the packages that match the patterns, in the module at dir.
func Load(dir string, patterns ...string) ([]Package, error) {
	cfg := &packages.Config{Dir: dir, Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedExportFile}
	loaded, err := packages.Load(cfg, patterns...)
	if err != nil {
		return nil, err
	}
	var all []Package
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		all = append(all, measure(p))
	}
	return all, nil
}

func measure(p *packages.Package) Package {
	m := Package{Path: p.PkgPath}
	for path := range p.Imports {
		m.Imports = append(m.Imports, path)
	}
	slices.Sort(m.Imports)
	edges := map[string]map[string]bool{}
	for i, file := range p.Syntax {
		name := p.CompiledGoFiles[i]
		if strings.HasSuffix(name, ".pb.go") {
			continue
		}
		m.Files = append(m.Files, filepath.Base(name))
		m.Lines += p.Fset.File(file.Pos()).LineCount()
		edges[name] = uses(p, file, name)
		m.Strays = append(m.Strays, strays(p, file, name)...)
		m.StoredContexts = append(m.StoredContexts, storedContexts(p, file)...)
	}
	m.Cycle = largestCycle(edges)
	return m
}

func fileOf(p *packages.Package, o types.Object) string {
	return p.Fset.Position(o.Pos()).Filename
}

// uses returns the other files of the package that a file depends on.
func uses(p *packages.Package, file *ast.File, name string) map[string]bool {
	to := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		o := p.TypesInfo.Uses[id]
		if o == nil || o.Pkg() != p.Types || !lasting(p, o) {
			return true
		}
		if f := fileOf(p, o); f != name && f != "" {
			to[f] = true
		}
		return true
	})
	return to
}

// lasting reports whether o is declared at package level, or is a field or method.
func lasting(p *packages.Package, o types.Object) bool {
	switch o := o.(type) {
	case *types.Var:
		return o.IsField() || o.Parent() == p.Types.Scope()
	case *types.Func:
		return true
	case *types.TypeName, *types.Const:
		return o.Parent() == p.Types.Scope()
	}
	return false
}

func strays(p *packages.Package, file *ast.File, name string) (found []string) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		method, _ := p.TypesInfo.Defs[f.Name].(*types.Func)
		if method == nil {
			continue
		}
		recv := method.Signature().Recv().Type()
		if ptr, ok := recv.(*types.Pointer); ok {
			recv = ptr.Elem()
		}
		named, ok := recv.(*types.Named)
		if ok && fileOf(p, named.Obj()) != name {
			found = append(found, named.Obj().Name()+"."+method.Name()+" in "+filepath.Base(name))
		}
	}
	return found
}

func storedContexts(p *packages.Package, file *ast.File) (found []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		st, ok := n.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range st.Fields.List {
			if t := p.TypesInfo.TypeOf(f.Type); t != nil && t.String() == "context.Context" {
				found = append(found, p.Fset.Position(f.Pos()).String())
			}
		}
		return true
	})
	return found
}

// largestCycle is the largest strongly connected component of more than one file
// (Tarjan, "Depth-first search and linear graph algorithms", 1972).
func largestCycle(edges map[string]map[string]bool) (largest []string) {
	index, low, onStack := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, onStack[v] = append(stack, v), true
		for w := range edges[v] {
			switch {
			case edges[w] == nil:
			case index[w] == 0:
				visit(w)
				low[v] = min(low[v], low[w])
			case onStack[w]:
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		var cycle []string
		for {
			w := stack[len(stack)-1]
			stack, onStack[w] = stack[:len(stack)-1], false
			cycle = append(cycle, filepath.Base(w))
			if w == v {
				break
			}
		}
		if len(cycle) > 1 && len(cycle) > len(largest) {
			largest = cycle
		}
	}
	for v := range edges {
		if index[v] == 0 {
			visit(v)
		}
	}
	slices.Sort(largest)
	return largest
}
