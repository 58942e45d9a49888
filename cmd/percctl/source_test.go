package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A source finds the comments of types in the source files of this module. Types
// are found by the import path and the name that reflect says.
type source struct {
	t        *testing.T
	module   string // its path
	packages map[string][]*ast.File
}

const moduleRoot = "../../"

func newSource(t *testing.T) *source {
	t.Helper()
	mod, err := os.ReadFile(moduleRoot + "go.mod")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(mod), "\n")
	return &source{t, strings.TrimSpace(strings.TrimPrefix(first, "module ")), map[string][]*ast.File{}}
}

// files are those of a package, without tests.
func (s *source) files(pkg string) []*ast.File {
	s.t.Helper()
	if files, ok := s.packages[pkg]; ok {
		return files
	}
	dir, ok := strings.CutPrefix(pkg, s.module+"/")
	if !ok {
		s.t.Fatalf("package %s is not of this module: its types have no comments here", pkg)
	}
	paths, err := filepath.Glob(filepath.Join(moduleRoot, dir, "*.go"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			s.t.Fatal(err)
		}
		s.packages[pkg] = append(s.packages[pkg], file)
	}
	return s.packages[pkg]
}

// find returns a struct type and its comment.
func (s *source) find(t reflect.Type) (*ast.StructType, string) {
	s.t.Helper()
	var found *ast.StructType
	comment := ""
	for _, file := range s.files(t.PkgPath()) {
		ast.Inspect(file, func(n ast.Node) bool {
			g, ok := n.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				return true
			}
			for _, spec := range g.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok && spec.Name.Name == t.Name() {
					if st, ok := spec.Type.(*ast.StructType); ok {
						found, comment = st, g.Doc.Text()
						if spec.Doc != nil {
							comment = spec.Doc.Text()
						}
					}
				}
			}
			return true
		})
	}
	if found == nil {
		s.t.Fatalf("type %s is not in the source of %s", t.Name(), t.PkgPath())
	}
	return found, comment
}

// typeComment is the first paragraph of a type's comment.
func (s *source) typeComment(t reflect.Type) string {
	_, comment := s.find(t)
	comment, _, _ = strings.Cut(comment, "\n\n")
	return comment
}

// fieldComment is the comment at the end of a field's line, or the one above it.
func (s *source) fieldComment(t reflect.Type, name string) string {
	st, _ := s.find(t)
	for _, f := range st.Fields.List {
		if !slices.ContainsFunc(f.Names, func(id *ast.Ident) bool { return id.Name == name }) {
			continue
		}
		if f.Comment != nil {
			return f.Comment.Text()
		}
		return f.Doc.Text()
	}
	return ""
}

// values are the constants of a string type; nil for other types.
func (s *source) values(t reflect.Type) (all []string) {
	if t.Kind() != reflect.String || t.PkgPath() == "" {
		return nil
	}
	for _, file := range s.files(t.PkgPath()) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == t.Name() {
				for _, v := range spec.Values {
					if lit, ok := v.(*ast.BasicLit); ok {
						text, _ := strconv.Unquote(lit.Value)
						all = append(all, text)
					}
				}
			}
			return true
		})
	}
	return slices.DeleteFunc(all, func(v string) bool { return v == "" })
}

// jsonTypes are the struct types of percctl's packages, and of those that it is made
// of, with fields for JSON, as
// import path and name.
func (s *source) jsonTypes(t *testing.T) (all []string) {
	t.Helper()
	own, err := filepath.Glob(moduleRoot + "cmd/percctl/internal/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	shared, err := filepath.Glob(moduleRoot + "txn/admin/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(own, shared...) {
		dir, file := filepath.Split(strings.TrimPrefix(filepath.ToSlash(path), moduleRoot))
		dir = strings.TrimSuffix(dir, "/")
		if strings.HasSuffix(file, "_test.go") || slices.Contains(notOutput, filepath.Base(dir)+"/"+file) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := spec.Type.(*ast.StructType); ok && hasJSON(st) {
				all = append(all, s.module+"/"+dir+"."+spec.Name.Name)
			}
			return true
		})
	}
	return all
}

func hasJSON(st *ast.StructType) bool {
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err == nil && !slices.Contains([]string{"", "-"}, reflect.StructTag(tag).Get("json")) {
			return true
		}
	}
	return false
}
