// Package worldtest lets tests of single packages run over Bigtable's emulator in virtual time: it
// lists the requests of a client, and any of them can fail.
package worldtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Faults of a request.
var (
	// ErrApplied sends a mutation, and loses the answer.
	ErrApplied = status.Error(codes.Unavailable, "applied")
	// ErrNever blocks until the request's context ends.
	ErrNever = errors.New("never answered")
	Denied   = status.Error(codes.PermissionDenied, "denied")
	Lost     = status.Error(codes.Unavailable, "lost")
)

// A World is an emulator with some tables, and lists the requests of a client that opens them here.
type World struct {
	*testing.T
	// Client and Admin send requests that are not listed, but for the description of a table.
	Client *bigtable.Client
	Admin  *bigtable.AdminClient
	// Name returns the kind of a request, by which faults find it, and how the list shows it. The kind
	// is read, scan, change, bulk or describe, as it is called with, or another one. A request
	// without a kind is not listed.
	Name func(kind, table, what string) (as, shown string)

	serving sync.Mutex // the emulator races with itself where reads meet writes

	Mu       sync.Mutex
	Requests []string
	// Faults are the errors of the next requests of a kind; nil sends one. Those that are left at the
	// end of the test fail it.
	Faults map[string][]error
	// OnRequest is called with the number of each request. It may be nil.
	OnRequest func(n int)
}

// Run runs f in a world with tables, which have these families.
func Run(t *testing.T, tables map[string][]string, f func(w *World)) {
	t.Helper()
	t.Setenv("BIGTABLE_EMULATOR_HOST", "") // the client would connect there, too
	synctest.Test(t, func(t *testing.T) {
		w := &World{T: t, Faults: map[string][]error{}, Name: func(kind, table, what string) (string, string) { return kind, table + what }}
		pipe := bufconn.Listen(1 << 20)
		server, err := bttest.NewServerWithListener(pipe)
		w.Must(err)
		conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(w.describe))
		w.Must(err)
		defer server.Close()
		defer pipe.Close()
		defer conn.Close()
		w.Admin, err = bigtable.NewAdminClient(t.Context(), "p", "i", option.WithGRPCConn(conn))
		w.Must(err)
		for table, families := range tables {
			conf := &bigtable.TableConf{TableID: table, ColumnFamilies: map[string]bigtable.Family{}}
			for _, family := range families {
				conf.ColumnFamilies[family] = bigtable.Family{GCPolicy: bigtable.NoGcPolicy()}
			}
			w.Must(w.Admin.CreateTableFromConf(t.Context(), conf))
		}
		w.Client, err = bigtable.NewClientWithConfig(t.Context(), "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}, DisableSession: true}, option.WithGRPCConn(conn))
		w.Must(err)
		defer w.Client.Close()
		f(w)
		for kind, left := range w.Faults {
			if len(left) > 0 {
				t.Errorf("%d faults of %q have not fired", len(left), kind)
			}
		}
	})
}

// Must fails the test if err is not nil.
func (w *World) Must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// Set stores one cell without the library.
func (w *World) Set(table, row, family, qualifier string, ts bigtable.Timestamp, value []byte) {
	w.Helper()
	m := bigtable.NewMutation()
	m.Set(family, qualifier, ts, value)
	defer w.Serve()()
	w.Must(w.Client.Open(table).Apply(w.Context(), row, m))
}

// Row reads a row without the library.
func (w *World) Row(table, row string) bigtable.Row {
	w.Helper()
	defer w.Serve()()
	r, err := w.Client.Open(table).ReadRow(context.WithoutCancel(w.Context()), row)
	w.Must(err)
	return r
}

// Cells lists the cells of a table without the library. Timestamps count from base.
func (w *World) Cells(table string, base tso.Timestamp) string {
	w.Helper()
	var cells []string
	defer w.Serve()()
	w.Must(w.Client.Open(table).ReadRows(w.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		var row []string
		for family, items := range r {
			for _, it := range items {
				ts := tso.FromCell(it.Timestamp)
				at := fmt.Sprint(int64(it.Timestamp))
				if ts > base {
					at = fmt.Sprint(ts - base)
				}
				if l, err := format.DecodeLock(format.Cell{Table: table, Row: r.Key(), Family: "f", Qualifier: "q"}, ts, it.Value); family == format.LockFamily && err == nil && l.MinCommitTS > ts {
					at += fmt.Sprintf(" min %d", l.MinCommitTS-base)
					if l.Sealed {
						at += " sealed"
					}
				}
				row = append(row, fmt.Sprintf("%s@%s", strings.TrimSuffix(strings.TrimPrefix(it.Column, "_"), ":f:q"), at))
			}
		}
		slices.Sort(row)
		cells = append(cells, r.Key()+"("+strings.Join(row, " ")+")")
		return true
	}))
	return strings.Join(cells, " ")
}

// Serve lets one request through, until done.
func (w *World) Serve() (done func()) {
	w.serving.Lock()
	return w.serving.Unlock
}

// Did returns the requests since the last call.
func (w *World) Did() []string {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	all := w.Requests
	w.Requests = nil
	return all
}

// Expect compares the requests since the last call.
func (w *World) Expect(what, want string) {
	w.Helper()
	if got := strings.Join(w.Did(), ", "); got != want {
		w.Errorf("%s: requests %q, want %q", what, got, want)
	}
}

// Inject sets the errors of the next requests of a kind.
func (w *World) Inject(kind string, errs ...error) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Faults[kind] = errs
}

// Note adds a line to the requests.
func (w *World) Note(what string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Requests = append(w.Requests, what)
	if w.OnRequest != nil {
		w.OnRequest(len(w.Requests))
	}
}

// Fault notes a request, and returns its error.
func (w *World) Fault(ctx context.Context, kind, shown string) error {
	w.Note(strings.TrimSpace(kind + " " + shown))
	w.Mu.Lock()
	var err error
	if all := w.Faults[kind]; len(all) > 0 {
		err, w.Faults[kind] = all[0], all[1:]
	}
	w.Mu.Unlock()
	if err == ErrNever {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (w *World) request(ctx context.Context, kind, table, what string) error {
	kind, shown := w.Name(kind, table, what)
	if kind == "" {
		return nil
	}
	return w.Fault(ctx, kind, shown)
}

func (w *World) describe(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/GetTable") {
		if err := w.request(ctx, "describe", "", ""); err != nil {
			return err
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// After lets virtual time pass, and waits for what is done meanwhile.
func (w *World) After(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// OpenTable opens a table whose requests the world lists.
func (w *World) OpenTable(name string) bigtable.TableAPI {
	return &listed{w.Client.OpenTable(name), name, w}
}

type listed struct {
	bigtable.TableAPI
	name string
	w    *World
}

func (l *listed) ReadRow(ctx context.Context, row string, opts ...bigtable.ReadOption) (bigtable.Row, error) {
	if err := l.w.request(ctx, "read", l.name, "/"+row); err != nil {
		return nil, err
	}
	defer l.w.Serve()()
	return l.TableAPI.ReadRow(ctx, row, opts...)
}

// ReadRows calls f after the request: f may send another one.
func (l *listed) ReadRows(ctx context.Context, rows bigtable.RowSet, f func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	if err := l.w.request(ctx, "scan", l.name, fmt.Sprint(rows)); err != nil {
		return err
	}
	var all []bigtable.Row
	done := l.w.Serve()
	err := l.TableAPI.ReadRows(ctx, rows, func(r bigtable.Row) bool { all = append(all, r); return true }, opts...)
	done()
	for _, r := range all {
		if !f(r) {
			return nil
		}
	}
	return err
}

func (l *listed) Apply(ctx context.Context, row string, m *bigtable.Mutation, opts ...bigtable.ApplyOption) error {
	err := l.w.request(ctx, "change", l.name, "/"+row)
	if err != nil && !errors.Is(err, ErrApplied) {
		return err
	}
	defer l.w.Serve()()
	if applyErr := l.TableAPI.Apply(ctx, row, m, opts...); applyErr != nil {
		return applyErr
	}
	return err
}

func (l *listed) ApplyBulk(ctx context.Context, rows []string, ms []*bigtable.Mutation, opts ...bigtable.ApplyOption) ([]error, error) {
	if err := l.w.request(ctx, "bulk", l.name, fmt.Sprint(rows)); err != nil {
		return nil, err
	}
	defer l.w.Serve()()
	return l.TableAPI.ApplyBulk(ctx, rows, ms, opts...)
}
