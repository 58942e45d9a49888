package systematic

// What has no mutants, by rule: what only reports, reserves memory, rounds or is tuning.

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// shown are functions whose results only people read, and those that only trace or log.
var shown = regexp.MustCompile(`^(String|GoString|Error|LogValue|Format|log[A-Z]\w*|(begin|end|with)(Trace|Span)|measureEnd|annotate)$`)

// leftOut reports whether no test has to notice a change of n: it is a constant
// declaration, a log line, a span, a metric, the text of an error, a mutex, or only
// reserves memory. Missing mutexes are for the race detector.
func (f *finder) leftOut(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		return f.reports(n)
	case *ast.AssignStmt:
		return n.Tok != token.DEFINE && f.describes(n)
	case *ast.GenDecl:
		return n.Tok == token.CONST || n.Tok == token.TYPE
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		return ok && f.quiet(call)
	case *ast.DeferStmt:
		return f.quiet(n.Call) || f.frees(n.Call)
	case *ast.CallExpr:
		return f.quiet(n)
	}
	return false
}

// reports reports whether an if only decides about logs, spans and metrics, and calls nothing else.
func (f *finder) reports(n *ast.IfStmt) bool { return n.Init == nil && f.onlyReports(n) }

// onlyReports reports whether the blocks of an if have only logs, spans and metrics.
func (f *finder) onlyReports(n *ast.IfStmt) bool {
	quiet := func(b *ast.BlockStmt) bool {
		return len(b.List) > 0 && !slices.ContainsFunc(b.List, func(s ast.Stmt) bool {
			define, ok := s.(*ast.AssignStmt)
			return !f.leftOut(s) && (!ok || !f.describes(define))
		})
	}
	switch e := n.Else.(type) {
	case nil:
	case *ast.IfStmt:
		if !f.reports(e) {
			return false
		}
	case *ast.BlockStmt:
		if !quiet(e) {
			return false
		}
	}
	return quiet(n.Body)
}

// describes reports whether an assignment stores only what spans and metrics need, or
// reserves memory.
func (f *finder) describes(n *ast.AssignStmt) bool {
	for _, e := range n.Rhs {
		if call, ok := ast.Unparen(e).(*ast.CallExpr); !ok || !f.isTelling(call) && !f.reserves(call) {
			for _, l := range n.Lhs {
				if !f.isTelemetry(l) {
					return false
				}
			}
		}
	}
	return true
}

// isTelling reports whether a call is one of telemetry.
func (f *finder) isTelling(call *ast.CallExpr) bool {
	fn := f.callee(call)
	return fn != nil && f.aboutTelemetry(fn)
}

// reserves reports whether a call only decides how much memory is reserved.
func (f *finder) reserves(call *ast.CallExpr) bool {
	fn := f.callee(call)
	return fn != nil && slices.Contains([]string{"slices", "bytes", "strings"}, fn.Pkg().Path()) && slices.Contains([]string{"Grow", "Clip"}, fn.Name())
}

// isTelemetry reports whether e has a type of telemetry.
func (f *finder) isTelemetry(e ast.Expr) bool {
	t := f.pkg.TypesInfo.TypeOf(e)
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && f.aboutTelemetry(named.Obj())
}

// aboutTelemetry reports whether o is declared by a library of telemetry, or in a file about
// telemetry of the package.
func (f *finder) aboutTelemetry(o types.Object) bool {
	path := o.Pkg().Path()
	return path == "log/slog" || path == "runtime/trace" || strings.HasPrefix(path, "go.opentelemetry.io/") ||
		strings.HasSuffix(path, "/telemetry") || strings.HasSuffix(path, "tso/instrument") ||
		o.Pkg() == f.pkg.Types && about.MatchString(filepath.ToSlash(f.pkg.Fset.Position(o.Pos()).Filename))
}

// frees reports whether a deferred call only frees memory early.
func (f *finder) frees(call *ast.CallExpr) bool {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Stop" {
		of := types.TypeString(f.pkg.TypesInfo.TypeOf(s.X), nil)
		return of == "*time.Ticker" || of == "*time.Timer"
	}
	return types.TypeString(f.pkg.TypesInfo.TypeOf(call.Fun), nil) == "context.CancelFunc"
}

func (f *finder) quiet(call *ast.CallExpr) bool {
	if id, ok := ast.Unparen(call.Fun).(*ast.Ident); ok {
		if b, ok := f.pkg.TypesInfo.Uses[id].(*types.Builtin); ok {
			return b.Name() == "panic" || b.Name() == "make"
		}
	}
	fn := f.callee(call)
	if fn == nil {
		return false
	}
	switch fn.Pkg().Path() {
	case "fmt":
		return true
	case "errors":
		return fn.Name() == "New"
	case "sync":
		return slices.Contains([]string{"Lock", "Unlock", "RLock", "RUnlock"}, fn.Name())
	}
	return f.reserves(call) || f.aboutTelemetry(fn) || shown.MatchString(fn.Name())
}

// asksTelemetry reports whether e only says whether telemetry is on: a span that records, a
// logger that is enabled, an instrument that is there.
func (f *finder) asksTelemetry(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.UnaryExpr:
		return f.asksTelemetry(e.X)
	case *ast.CallExpr:
		return f.isTelling(e)
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			return f.asksTelemetry(e.X) && f.asksTelemetry(e.Y)
		}
		return f.isTelemetry(e.X)
	}
	return false
}

// isErrorCheck reports whether b compares an error with nil.
func (f *finder) isErrorCheck(b *ast.BinaryExpr) bool {
	return f.pkg.TypesInfo.Types[b.Y].IsNil() && isError(f.pkg.TypesInfo.TypeOf(b.X))
}

// isEmptiness reports whether b is len(x) > 0. With >= it is always true.
func (f *finder) isEmptiness(b *ast.BinaryExpr) bool {
	c, ok := b.X.(*ast.CallExpr)
	v := f.pkg.TypesInfo.Types[b.Y].Value
	return ok && f.textOf(c.Fun) == "len" && v != nil && v.String() == "0"
}

// isTime reports whether b compares a measured time, or two variable durations. One
// nanosecond more or less does not matter. The bounds of an option are constants, and matter.
func (f *finder) isTime(b *ast.BinaryExpr) bool {
	if types.TypeString(f.pkg.TypesInfo.TypeOf(b.X), nil) != "time.Duration" {
		return false
	}
	measured := f.pkg.TypesInfo.Types[b.Y].Value == nil
	ast.Inspect(b.X, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			fn := f.callee(call)
			measured = measured || fn != nil && fn.Pkg().Path() == "time" && slices.Contains([]string{"Since", "Until", "Sub"}, fn.Name())
		}
		return true
	})
	return measured
}

// isBytes reports whether e is a size in bytes: an estimate, in which one byte does not matter.
// The limits of what an application writes are exact.
func (f *finder) isBytes(e ast.Expr) bool {
	return f.pkg.Name != "format" && strings.Contains(strings.ToLower(f.textOf(e)), "bytes")
}

// isLarger reports whether b is the condition of if a < b { a = b }, which for equal operands
// changes nothing.
func (f *finder) isLarger(b *ast.BinaryExpr) bool {
	i, ok := f.parent(0).(*ast.IfStmt)
	if !ok || i.Cond != b || len(i.Body.List) != 1 {
		return false
	}
	a, ok := i.Body.List[0].(*ast.AssignStmt)
	if !ok || a.Tok != token.ASSIGN || len(a.Lhs) != 1 {
		return false
	}
	x, y, l, r := f.textOf(b.X), f.textOf(b.Y), f.textOf(a.Lhs[0]), f.textOf(a.Rhs[0])
	return l == x && r == y || l == y && r == x
}

// truncates reports whether a call rounds its timestamps to milliseconds, so that a microsecond more
// changes nothing.
func (f *finder) truncates(c *ast.CallExpr) bool {
	fn := f.callee(c)
	return fn != nil && slices.Contains([]string{"DeleteTimestampRange", "Set", "TimestampRangeFilterMicros"}, fn.Name())
}
