package systematic

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A Mutant is one small change of the source.
type Mutant struct {
	// ID is its number in the test binaries.
	ID int `json:"-"`
	// File in the module, with slashes.
	File string `json:"file"`
	Line int    `json:"line"`
	// Func is the function or method.
	Func     string `json:"func"`
	Operator string `json:"operator"`
	// Change says what is changed, in Go.
	Change string `json:"change"`
}

// The operators.
const (
	Always   = "always"   // a condition holds always
	Never    = "never"    // a condition holds never; of err != nil: the error is ignored
	Bound    = "bound"    // < becomes <=, and so on
	Dropped  = "dropped"  // a statement is left out
	NoError  = "no error" // nil is returned instead of an error
	Constant = "constant" // an integer is one larger, a bool is negated
	Sign     = "sign"     // + becomes -
	Extreme  = "extreme"  // max becomes min
)

// Key names a mutant without its line, so that it stays the same while other code
// changes.
func (m Mutant) Key() string { return m.File + " " + m.Func + ": " + m.Change }

// A source is one file with its mutants.
type source struct {
	path  string
	text  []byte
	file  *ast.File
	base  int // of the file in the file set
	wraps []wrap
	swaps []swap
}

// A wrap puts text around a part of the source, a swap replaces a part that contains no
// other.
type (
	wrap struct {
		from, to      int
		before, after string
	}
	swap struct {
		from, to int
		text     string
	}
)

// A finder finds the mutants of one file.
type finder struct {
	*source
	pkg  *packages.Package
	name string // of the file in the module
	next func(Mutant) int
	fn   string
	// stack are the nodes around the present one.
	stack []ast.Node
}

// find returns the mutants of files in the module at root, and the files' sources with
// their changes. The patterns match names in the module.
func find(root string, files func(string) bool, dirs ...string) (mutants []Mutant, sources []*source, err error) {
	cfg := &packages.Config{Dir: root, Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedExportFile}
	loaded, err := packages.Load(cfg, dirs...)
	if err != nil {
		return nil, nil, err
	}
	same := map[string]int{}
	slices.SortFunc(loaded, func(a, b *packages.Package) int { return strings.Compare(a.PkgPath, b.PkgPath) })
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, nil, p.Errors[0]
		}
		for i, file := range p.Syntax {
			path := p.CompiledGoFiles[i]
			name, err := filepath.Rel(root, path)
			if err != nil {
				return nil, nil, err
			}
			name = filepath.ToSlash(name)
			if !files(name) {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, nil, err
			}
			src := &source{path: path, text: text, file: file, base: p.Fset.File(file.Pos()).Base()}
			f := finder{source: src, pkg: p, name: name, next: func(m Mutant) int {
				m.ID = len(mutants)
				same[m.Key()]++
				if n := same[m.Key()]; n > 1 {
					m.Change += fmt.Sprintf(" #%d", n)
				}
				mutants = append(mutants, m)
				return m.ID
			}}
			for _, d := range file.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && !shown.MatchString(fn.Name.Name) {
					f.fn = funcName(fn)
					ast.Inspect(fn, f.visit)
				}
			}
			if len(src.wraps)+len(src.swaps) > 0 {
				sources = append(sources, src)
			}
		}
	}
	return mutants, sources, nil
}

func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	return types.ExprString(t) + "." + fn.Name.Name
}

func (f *finder) visit(n ast.Node) bool {
	if n == nil {
		f.stack = f.stack[:len(f.stack)-1]
		return true
	}
	if f.leftOut(n) {
		return false
	}
	switch n := n.(type) {
	case *ast.BlockStmt:
		f.statements(n, n.List)
	case *ast.CaseClause:
		f.statements(n, n.Body)
		if s, ok := f.parent(1).(*ast.SwitchStmt); ok && s.Tag == nil {
			for _, e := range n.List {
				f.condition(e, true, true)
			}
		}
	case *ast.CommClause:
		f.statements(n, n.Body)
	case *ast.IfStmt:
		if n.Init == nil || !f.onlyReports(n) { // what Init calls may matter
			f.condition(n.Cond, true, true)
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			// A loop without an end finds only timeouts.
			f.condition(n.Cond, false, true)
		}
	case *ast.ReturnStmt:
		f.results(n)
	case *ast.AssignStmt:
		for _, e := range n.Rhs {
			f.computed(e)
		}
	case *ast.KeyValueExpr:
		f.computed(n.Value)
	case *ast.CallExpr:
		for _, e := range n.Args {
			f.computed(e)
		}
		f.extreme(n)
	case *ast.BinaryExpr:
		f.binary(n)
	}
	if e, ok := n.(ast.Expr); ok && f.constant(e) {
		return false
	}
	f.stack = append(f.stack, n)
	return true
}

// parent returns the n-th node around the present one, counted from 0.
func (f *finder) parent(n int) ast.Node {
	if n >= len(f.stack) {
		return nil
	}
	return f.stack[len(f.stack)-1-n]
}

// callee is the function that is called, or nil if it has no name in a package.
func (f *finder) callee(call *ast.CallExpr) *types.Func {
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return nil
	}
	if fn, ok := f.pkg.TypesInfo.Uses[id].(*types.Func); ok && fn.Pkg() != nil {
		return fn
	}
	return nil
}

func (f *finder) pos(p token.Pos) int { return int(p) - f.base }

func (f *finder) textOf(n ast.Node) string { return string(f.text[f.pos(n.Pos()):f.pos(n.End())]) }

// short is n's text in one line.
func (f *finder) short(n ast.Node) string {
	text := f.textOf(n)
	if i := strings.Index(text, "{\n"); i >= 0 {
		text = text[:i] + "{…"
	}
	return strings.Join(strings.Fields(text), " ")
}

// add adds a mutant and returns its number.
func (f *finder) add(n ast.Node, operator, change string) int {
	return f.next(Mutant{File: f.name, Line: f.pkg.Fset.Position(n.Pos()).Line, Func: f.fn, Operator: operator, Change: change})
}

func (f *finder) wrap(n ast.Node, before, after string) {
	f.wraps = append(f.wraps, wrap{f.pos(n.Pos()), f.pos(n.End()), before, after})
}

// name of the mutation package in mutated files.
const pkgName = "mutation_"

func call(function string, id int) string { return fmt.Sprintf("%s.%s(%d", pkgName, function, id) }

// condition adds the mutants of a condition, and of its operands: a test has to notice
// if an operand is missing. A negated condition is no mutant of its own, because it is
// always or never on the first value that matters.
func (f *finder) condition(e ast.Expr, always, never bool) {
	e = ast.Unparen(e)
	if tv := f.pkg.TypesInfo.Types[e]; tv.Value != nil || !isBool(tv.Type) || f.asksTelemetry(e) {
		return
	}
	text := f.short(e)
	if b, ok := e.(*ast.BinaryExpr); ok {
		switch b.Op {
		case token.LAND: // true for each operand implies true for the whole
			f.operands(b, token.LAND)
			always = false
		case token.LOR:
			f.operands(b, token.LOR)
			never = false
		case token.NEQ:
			always = always && !f.isErrorCheck(b)
		case token.EQL:
			never = never && !f.isErrorCheck(b)
		}
	}
	if always {
		f.wrap(e, "("+call("On", f.add(e, Always, text+" → true"))+") || (", "))")
	}
	if never {
		f.wrap(e, "(!"+call("On", f.add(e, Never, text+" → false"))+") && (", "))")
	}
}

// operands leaves out one operand of op at a time.
func (f *finder) operands(b *ast.BinaryExpr, op token.Token) {
	for _, e := range []ast.Expr{b.X, b.Y} {
		e = ast.Unparen(e)
		if inner, ok := e.(*ast.BinaryExpr); ok && inner.Op == op {
			f.operands(inner, op)
			continue
		}
		f.condition(e, op == token.LAND, op == token.LOR)
	}
}

func isBool(t types.Type) bool {
	b, ok := t.(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// computed adds the mutants of a bool that is assigned or returned.
func (f *finder) computed(e ast.Expr) {
	switch ast.Unparen(e).(type) {
	case *ast.BinaryExpr, *ast.CallExpr, *ast.UnaryExpr:
		f.condition(e, true, true)
	}
}

func (f *finder) results(r *ast.ReturnStmt) {
	for _, e := range r.Results {
		f.computed(e)
		// If the return is all that an if does, the condition has a mutant already.
		_, inIf := f.parent(1).(*ast.IfStmt)
		if tv := f.pkg.TypesInfo.Types[e]; isError(tv.Type) && !tv.IsNil() && !inIf {
			f.wrap(e, call("Error", f.add(e, NoError, "return "+f.short(e)+" → nil"))+", ", ")")
		}
	}
}

// statements leaves out one statement of a block at a time.
func (f *finder) statements(block ast.Node, list []ast.Stmt) {
	for _, s := range list {
		if f.leftOut(s) || !f.droppable(block, s, len(list) == 1) {
			continue
		}
		f.wrap(s, "if !"+call("On", f.add(s, Dropped, f.short(s)+" dropped"))+") { ", " }")
	}
}

func (f *finder) droppable(block ast.Node, s ast.Stmt, only bool) bool {
	if parent, ok := f.parent(0).(*ast.IfStmt); ok && only && parent.Body == block {
		return false // as if the condition never held
	}
	switch s := s.(type) {
	case *ast.ExprStmt, *ast.SendStmt, *ast.IncDecStmt, *ast.GoStmt, *ast.DeferStmt, *ast.RangeStmt:
		return true
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE {
			return false
		}
		for _, e := range s.Lhs {
			if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
				return true
			}
		}
		_, ok := ast.Unparen(s.Rhs[0]).(*ast.CallExpr)
		return ok
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE || s.Tok == token.BREAK
	case *ast.ReturnStmt:
		return !f.ends(block, s)
	}
	return false
}

// ends reports whether s is in the last statement of a function with results: without
// its return, that function may not compile.
func (f *finder) ends(block ast.Node, s ast.Stmt) bool {
	path := append(slices.Clip(f.stack), block, s)
	for i := len(path) - 1; i >= 0; i-- {
		var results *ast.FieldList
		switch fn := path[i].(type) {
		case *ast.FuncDecl:
			results = fn.Type.Results
		case *ast.FuncLit:
			results = fn.Type.Results
		default:
			continue
		}
		body := path[i+1].(*ast.BlockStmt)
		return results != nil && body.List[len(body.List)-1] == path[i+2]
	}
	return true
}

var bounds = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}

func (f *finder) binary(b *ast.BinaryExpr) {
	tv := f.pkg.TypesInfo.Types[b]
	if tv.Value != nil {
		return
	}
	at := f.pos(b.OpPos)
	from, to := f.pos(b.Pos()), f.pos(b.End())
	if other, ok := bounds[b.Op]; ok {
		text := f.textOf(b)
		if strings.Contains(text, "func(") || strings.Contains(text, "//") || f.isEmptiness(b) || f.isTime(b) || f.isLarger(b) || f.isBytes(b.X) {
			return
		}
		changed := string(f.text[from:at]) + other + string(f.text[at+len(b.Op.String()):to])
		id := f.add(b, Bound, f.short(b)+" → "+other)
		f.wrap(b, "("+call("On", id)+") && ("+changed+") || !"+call("On", id)+") && (", "))")
		return
	}
	if basic, ok := tv.Type.Underlying().(*types.Basic); !ok || basic.Info()&types.IsInteger == 0 {
		return
	}
	for op, function := range map[token.Token]string{token.ADD: "Add", token.SUB: "Sub"} {
		if b.Op == op {
			other := map[string]string{"Add": "-", "Sub": "+"}[function]
			f.wrap(b, call(function, f.add(b, Sign, f.short(b)+" → "+other))+", ", ")")
			f.swaps = append(f.swaps, swap{at, at + 1, ","})
		}
	}
}

func (f *finder) extreme(c *ast.CallExpr) {
	id, ok := c.Fun.(*ast.Ident)
	if !ok || len(c.Args) != 2 || f.pkg.TypesInfo.Types[c].Value != nil {
		return
	}
	b, ok := f.pkg.TypesInfo.Uses[id].(*types.Builtin)
	if !ok {
		return
	}
	for name, function := range map[string]string{"max": "Max", "min": "Min"} {
		if b.Name() == name {
			other := map[string]string{"max": "min", "min": "max"}[name]
			f.swaps = append(f.swaps, swap{f.pos(c.Pos()), f.pos(c.Lparen) + 1, call(function, f.add(c, Extreme, f.short(c)+" → "+other)) + ", "})
		}
	}
}

// constant adds the mutants of a constant expression, and reports whether e is one.
func (f *finder) constant(e ast.Expr) bool {
	tv := f.pkg.TypesInfo.Types[e]
	if tv.Value == nil {
		return false
	}
	if r, ok := f.parent(0).(*ast.ReturnStmt); ok && f.fails(r) {
		return true
	}
	if c, ok := f.parent(0).(*ast.CallExpr); ok && f.truncates(c) {
		return true
	}
	change := func(from, to string) string {
		text := from
		if p := f.parent(0); p != nil && p.End()-p.Pos() < 120 {
			text = f.short(p) + ": " + from
		}
		return text + " → " + to
	}
	if basic, ok := tv.Type.Underlying().(*types.Basic); ok {
		lit, isLit := e.(*ast.BasicLit)
		switch {
		case basic.Info()&types.IsBoolean != 0:
			if id, ok := e.(*ast.Ident); ok && (id.Name == "true" || id.Name == "false") {
				other := map[string]string{"true": "false", "false": "true"}[id.Name]
				f.wrap(e, "(", " != "+call("On", f.add(e, Constant, change(id.Name, other)))+"))")
			}
		case isLit && lit.Kind == token.INT && f.nameable(tv.Type):
			f.wrap(e, call("Plus1", f.add(e, Constant, change(lit.Value, lit.Value+"+1")))+", "+f.typeName(tv.Type)+"(", "))")
		}
	}
	return true
}

// fails reports whether r returns an error. Callers then ignore its other results.
func (f *finder) fails(r *ast.ReturnStmt) bool {
	tv := f.pkg.TypesInfo.Types[r.Results[len(r.Results)-1]]
	return !tv.IsNil() && types.AssignableTo(tv.Type, types.Universe.Lookup("error").Type())
}

// nameable reports whether a constant of type t has a mutant. A duration is a matter of
// tuning.
func (f *finder) nameable(t types.Type) bool {
	basic, ok := t.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsInteger == 0 || basic.Info()&types.IsUntyped != 0 || f.typeName(t) == "" {
		return false
	}
	switch p := f.parent(0).(type) {
	case *ast.CaseClause, *ast.ArrayType:
		return false
	case *ast.BinaryExpr:
		// On the values that matter, == and != are then always or never; x < 1 is x <= 0.
		if slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.GEQ}, p.Op) || f.isBytes(p.X) {
			return false
		}
	}
	return types.TypeString(t, nil) != "time.Duration"
}

// typeName is how the file names t, or nothing.
func (f *finder) typeName(t types.Type) string {
	named, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return t.String()
	}
	p := named.Obj().Pkg()
	if p == f.pkg.Types {
		return named.Obj().Name()
	}
	for _, spec := range f.file.Imports {
		if name := f.pkg.TypesInfo.PkgNameOf(spec); name != nil && name.Imported() == p {
			return name.Name() + "." + named.Obj().Name()
		}
	}
	return ""
}
