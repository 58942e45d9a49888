package store

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A world is an emulator with tables "a" and "b" and a metadata table, and lists the requests of one
// store. Virtual time passes in it.
type world struct {
	*testing.T
	bt    *bigtable.Client
	admin *bigtable.AdminClient

	serving  sync.Mutex // the emulator races with itself where reads meet writes
	mu       sync.Mutex
	requests []string
	// faults are the errors of the next requests of a kind; nil sends one, errApplied sends it and
	// loses the answer, and errNever blocks until its context ends.
	faults map[string][]error
	now    tso.Timestamp // of the oracle
}

var (
	errApplied = status.Error(codes.Unavailable, "applied")
	errNever   = errors.New("never answered")
	denied     = status.Error(codes.PermissionDenied, "denied")
	lost       = status.Error(codes.Unavailable, "lost")
)

// inWorld runs f in a world.
func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	t.Setenv("BIGTABLE_EMULATOR_HOST", "") // the client would connect there, too
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, faults: map[string][]error{}, now: filterBase}
		pipe := bufconn.Listen(1 << 20)
		server, err := bttest.NewServerWithListener(pipe)
		w.must(err)
		conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(w.adminRequest))
		w.must(err)
		defer server.Close()
		defer pipe.Close()
		defer conn.Close()
		w.admin, err = bigtable.NewAdminClient(t.Context(), "p", "i", option.WithGRPCConn(conn))
		w.must(err)
		for table, families := range map[string][]string{"a": append([]string{"f"}, format.MetadataFamilies...), "b": {"f"}, format.DefaultMetadataTable: {DeployFamily}} {
			conf := &bigtable.TableConf{TableID: table, ColumnFamilies: map[string]bigtable.Family{}}
			for _, family := range families {
				conf.ColumnFamilies[family] = bigtable.Family{GCPolicy: bigtable.NoGcPolicy()}
			}
			w.must(w.admin.CreateTableFromConf(t.Context(), conf))
		}
		w.bt, err = bigtable.NewClientWithConfig(t.Context(), "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}, DisableSession: true}, option.WithGRPCConn(conn))
		w.must(err)
		defer w.bt.Close()
		f(w)
		for kind, left := range w.faults {
			if len(left) > 0 {
				t.Errorf("%d faults of %q have not fired", len(left), kind)
			}
		}
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// store returns a store of the world.
func (w *world) store(cfg Config) *Store {
	w.Helper()
	if cfg.Backoff.Min == 0 {
		cfg.Backoff = Backoff{1, 1}
	}
	s, err := New(w.Context(), w, cfg)
	w.must(err)
	s.Clock.Oracle = w
	w.did()
	return s
}

// schema stores the schema record of table "a".
func (w *world) schema(m *recordpb.TableSchema) {
	w.Helper()
	m.FormatVersion = max(m.FormatVersion, format.Version)
	w.set(SchemaRowPrefix+"a", SchemaQualifier, format.Marshal(m))
}

// set stores a cell of the metadata table.
func (w *world) set(row, qualifier string, value []byte) {
	w.Helper()
	m := bigtable.NewMutation()
	m.Set(DeployFamily, qualifier, 0, value)
	defer w.serve()()
	w.must(w.bt.Open(format.DefaultMetadataTable).Apply(w.Context(), row, m))
}

// get returns a cell of the metadata table.
func (w *world) get(row string) []byte {
	w.Helper()
	defer w.serve()()
	r, err := w.bt.Open(format.DefaultMetadataTable).ReadRow(w.Context(), row)
	w.must(err)
	if len(r[DeployFamily]) == 0 {
		return nil
	}
	return r[DeployFamily][0].Value
}

func (w *world) serve() (done func()) {
	w.serving.Lock()
	return w.serving.Unlock
}

// did returns the requests since the last call.
func (w *world) did() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.requests, ", ")
	w.requests = nil
	return all
}

// expect compares the requests since the last call.
func (w *world) expect(what, want string) {
	w.Helper()
	if got := w.did(); got != want {
		w.Errorf("%s: requests %q, want %q", what, got, want)
	}
}

// fail sets the errors of the next requests of a kind.
func (w *world) fail(kind string, errs ...error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[kind] = errs
}

// fault notes a request, and returns its error.
func (w *world) fault(ctx context.Context, kind, request string) error {
	w.mu.Lock()
	w.requests = append(w.requests, strings.TrimSpace(kind+" "+request))
	var err error
	if all := w.faults[kind]; len(all) > 0 {
		err, w.faults[kind] = all[0], all[1:]
	}
	w.mu.Unlock()
	if err == errNever {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (w *world) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := w.fault(ctx, "oracle", ""); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now++
	return w.now, nil
}

func (w *world) adminRequest(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/GetTable") {
		if err := w.fault(ctx, "describe", ""); err != nil {
			return err
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (w *world) OpenTable(name string) bigtable.TableAPI {
	short := name
	if name == format.DefaultMetadataTable {
		short = "meta"
	}
	return &spied{w.bt.OpenTable(name), short, w}
}

// A spied table lists requests in its world.
type spied struct {
	bigtable.TableAPI
	name string
	w    *world
}

func (s *spied) ReadRow(ctx context.Context, row string, opts ...bigtable.ReadOption) (bigtable.Row, error) {
	if err := s.w.fault(ctx, "read", s.name+"/"+row); err != nil {
		return nil, err
	}
	defer s.w.serve()()
	return s.TableAPI.ReadRow(ctx, row, opts...)
}

func (s *spied) ReadRows(ctx context.Context, rows bigtable.RowSet, f func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	if err := s.w.fault(ctx, "scan", s.name+fmt.Sprint(rows)); err != nil {
		return err
	}
	defer s.w.serve()()
	return s.TableAPI.ReadRows(ctx, rows, f, opts...)
}

func (s *spied) Apply(ctx context.Context, row string, m *bigtable.Mutation, opts ...bigtable.ApplyOption) error {
	err := s.w.fault(ctx, "change", s.name+"/"+row)
	if err != nil && !errors.Is(err, errApplied) {
		return err
	}
	defer s.w.serve()()
	if applyErr := s.TableAPI.Apply(ctx, row, m, opts...); applyErr != nil {
		return applyErr
	}
	return err
}

func (s *spied) ApplyBulk(ctx context.Context, rows []string, ms []*bigtable.Mutation, opts ...bigtable.ApplyOption) ([]error, error) {
	if err := s.w.fault(ctx, "bulk", s.name+fmt.Sprint(rows)); err != nil {
		return nil, err
	}
	defer s.w.serve()()
	return s.TableAPI.ApplyBulk(ctx, rows, ms, opts...)
}

// after lets virtual time pass, and waits for what is done meanwhile.
func (w *world) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
