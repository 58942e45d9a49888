// Package house lists the packages of the module, what they import, and which structs keep a
// context. Its tests hold the direction of imports that docs/architecture.md shows.
package house

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/tools/go/packages"
)

// A Package is one package of the module without its tests and generated files.
type Package struct {
	Path    string
	Imports []string
	Files   []string
	// StoredContexts are struct fields of type context.Context.
	StoredContexts []string
	// HiddenFields are exported fields of structs that the package exports by an alias, without naming
	// them: the documentation of an alias does not list them.
	HiddenFields []string
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
	for i, file := range p.Syntax {
		name := p.CompiledGoFiles[i]
		if strings.HasSuffix(name, ".pb.go") {
			continue
		}
		m.Files = append(m.Files, filepath.Base(name))
		m.StoredContexts = append(m.StoredContexts, storedContexts(p, file)...)
		m.HiddenFields = append(m.HiddenFields, hiddenFields(p, file)...)
	}
	return m
}

func hiddenFields(p *packages.Package, file *ast.File) (hidden []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok {
			return true
		}
		for _, spec := range decl.Specs {
			alias, ok := spec.(*ast.TypeSpec)
			if !ok || !alias.Assign.IsValid() || !alias.Name.IsExported() {
				continue
			}
			st, ok := p.TypesInfo.TypeOf(alias.Type).Underlying().(*types.Struct)
			if !ok {
				continue
			}
			words := strings.FieldsFunc(decl.Doc.Text()+alias.Doc.Text(), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			for f := range st.Fields() {
				if f.Exported() && !slices.Contains(words, f.Name()) {
					hidden = append(hidden, p.Fset.Position(alias.Pos()).String()+": "+f.Name())
				}
			}
		}
		return true
	})
	return hidden
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
