// Package txntest helps to test code that uses transactions: it starts
// Bigtable's emulator inside the test's process, with transactional tables, a
// timestamp oracle and a client, and checks the stored state when the test
// ends.
//
//	func TestTransfer(t *testing.T) {
//		env := txntest.New(t)
//		env.CreateTable("accounts", "bal")
//		_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
//			tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
//			return nil
//		})
//		…
//	}
//
// [New] makes the environment. [NewFaults] drops, delays and duplicates requests, to
// test what your program does if a network or a client fails; example_test.go has a complete test.
// [StartEmulator] and
// [StartStub] are for programs that are not tests.
//
// If BIGTABLE_EMULATOR_HOST is set, tests use that emulator, each in an instance of
// its own. Under the race detector the emulator inside the process handles one
// request at a time, because it has races itself. An emulator in another process (go
// tool emulator) finds more of the races of your program.
//
// In a testing/synctest bubble, call New inside the bubble. Time is virtual there, so
// no test waits until a lock expires. New then starts an emulator inside the process, as with [Embedded].
//
// The emulator inside the process refuses what Cloud Bigtable refuses and the emulator by
// itself accepts: see [Strict].
//
// The package never connects to Cloud Bigtable. docs/testing.md describes the tests
// of this library.
package txntest

import (
	"cmp"
	"context"
	"crypto/rand"
	"net"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// An Env is an emulator with a client. The end of the test closes both.
type Env struct {
	// Client is a transaction client made with the Config given by
	// [WithConfig].
	Client *txn.Client
	// Bigtable and Admin use the same tables without transactions.
	Bigtable *bigtable.Client
	Admin    *bigtable.AdminClient
	// Project and Instance name the instance of all these clients.
	Project, Instance string

	t      testing.TB
	opts   options
	dial   func(...grpc.DialOption) (*grpc.ClientConn, error)
	conn   func(context.Context) (net.Conn, error)
	tables []string
}

type options struct {
	config         txn.Config
	embedded       bool
	server         []grpc.ServerOption
	dial           []grpc.DialOption
	unsafe         bool
	withoutJournal bool
	lenient        bool
	without        []string  // rules of Strict
	maxRow         int       // of Strict; 0: Bigtable's
	shortcut       *shortcut // nil without
}

// An Option configures New.
type Option func(*options)

// WithConfig sets the configuration of Env.Client. If its Admin is nil, New sets it, so
// that the client verifies tables.
func WithConfig(c txn.Config) Option { return func(o *options) { o.config = c } }

// Embedded starts an emulator inside the process even if BIGTABLE_EMULATOR_HOST is
// set.
func Embedded() Option { return func(o *options) { o.embedded = true } }

// WithoutJournal lets tables have no journal of pending work, as tables that release 0.1 made.
func WithoutJournal() Option { return func(o *options) { o.withoutJournal = true } }

// WithServerOptions passes options, for example interceptors, to the emulator. It
// implies [Embedded].
func WithServerOptions(opts ...grpc.ServerOption) Option {
	return func(o *options) { o.server, o.embedded = append(o.server, opts...), true }
}

// WithDialOptions passes options, for example interceptors, to the connection of
// Env.Client.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, opts...) }
}

// WithoutCheck skips the consistency check at the end, for tests that damage the
// stored state on purpose.
func WithoutCheck() Option { return func(o *options) { o.unsafe = true } }

// New starts an emulator and a client. At the end of the test it runs the consistency
// check over every table that CreateTable or InitTable made, fails the test at a
// violation, and closes everything.
func New(t testing.TB, opts ...Option) *Env {
	t.Helper()
	e := &Env{t: t, Project: "test", Instance: "test-" + strings.ToLower(rand.Text()[:10])}
	for _, o := range opts {
		o(&e.opts)
	}
	// In a bubble of testing/synctest, time begins in the year 2000, and stands still while a
	// connection to another process is read.
	bubble := time.Now().Year() == 2000
	if host := emulatorHost(); host != "" && !e.opts.embedded && !bubble {
		e.dial = func(opts ...grpc.DialOption) (*grpc.ClientConn, error) { return Dial(host, opts...) }
		e.conn = func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", host) }
	} else {
		server := e.opts.server
		var rules front.Front
		if !e.opts.lenient {
			rules = strict.Front(strict.Config{Without: e.opts.without, MaxRow: e.opts.maxRow, Repeat: repeat})
			server = append(server, front.Options(rules)...)
		}
		if e.opts.shortcut != nil {
			e.opts.shortcut.rules = rules
			server = append(server, e.opts.shortcut.serverOptions()...)
		}
		emulator, err := StartEmulator("", server...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(emulator.Close)
		e.dial, e.conn = emulator.Dial, emulator.connect
		if short := e.opts.shortcut; short != nil {
			e.dial = func(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
				return emulator.Dial(append(opts, short.dialOptions()...)...)
			}
		}
	}
	dial := e.dial
	e.dial = func(opts ...grpc.DialOption) (*grpc.ClientConn, error) { return dial(append(opts, sampling())...) }
	// Env.Bigtable and Env.Admin are for inspecting the tables, so without faults.
	e.Bigtable, e.Admin = e.Open()
	ctx, cancel := e.context()
	defer cancel()
	if err := admin.InitTable(ctx, e.Admin, e.Bigtable, e.opts.config.MetadataTable, admin.TableSpec{Name: "scratch"}); err != nil {
		t.Fatal(err)
	}
	e.Client = e.NewClient(e.opts.config, e.opts.dial...)
	t.Cleanup(e.check)
	return e
}

// Open returns Bigtable clients over a new connection.
func (e *Env) Open(opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient) {
	e.t.Helper()
	conn, err := e.dial(opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := e.context()
	defer cancel()
	bt, btAdmin, err := Open(ctx, conn, e.Project, e.Instance)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = bt.Close()
		_ = btAdmin.Close()
		_ = conn.Close()
	})
	return bt, btAdmin
}

// Connect opens a network connection to the emulator, for a dialer (see
// [grpc.WithContextDialer]) that wraps it.
func (e *Env) Connect(ctx context.Context) (net.Conn, error) { return e.conn(ctx) }

// NewClient makes another client over a new connection, as another process would. If
// cfg.Admin is nil, NewClient sets it.
func (e *Env) NewClient(cfg txn.Config, opts ...grpc.DialOption) *txn.Client {
	e.t.Helper()
	bt, btAdmin := e.Open(opts...)
	if cfg.Admin == nil {
		cfg.Admin = btAdmin
	}
	ctx, cancel := e.context()
	defer cancel()
	c, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		// A client with faults may fail to close. Then it leaves locks, as a dead
		// client does.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// CreateTable makes a transactional table.
func (e *Env) CreateTable(name string, families ...string) {
	e.t.Helper()
	e.InitTable(admin.TableSpec{Name: name, Families: families})
}

// InitTable makes a transactional table from a full description.
func (e *Env) InitTable(spec admin.TableSpec) {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	if err := admin.InitTable(ctx, e.Admin, e.Bigtable, e.opts.config.MetadataTable, spec); err != nil {
		e.t.Fatal(err)
	}
	if e.opts.withoutJournal {
		e.removeJournal(ctx, spec.Name)
	}
	e.tables = append(e.tables, spec.Name)
}

// removeJournal makes a table as release 0.1 makes it.
func (e *Env) removeJournal(ctx context.Context, table string) {
	e.t.Helper()
	meta := cmp.Or(e.opts.config.MetadataTable, format.DefaultMetadataTable)
	if err := store.ReplaceSchema(ctx, e.Bigtable.OpenTable(meta), meta, table, time.Minute, func(m *recordpb.TableSchema) error {
		m.Journal = recordpb.Journal_JOURNAL_NONE
		return nil
	}); err != nil {
		e.t.Fatal(err)
	}
}

// Oracle returns an oracle like the clients' default one: direct mode on the
// deployment's metadata table.
func (e *Env) Oracle() *tso.Direct {
	meta := e.opts.config.MetadataTable
	if meta == "" {
		meta = format.DefaultMetadataTable
	}
	o := tso.NewDirect(e.Bigtable.OpenTable(meta), tso.DirectConfig{})
	e.t.Cleanup(func() { _ = o.Close() })
	return o
}

// Check runs the consistency check over every table that CreateTable or InitTable made,
// and fails the test at a violation.
func (e *Env) Check() {
	e.t.Helper()
	bt, btAdmin := e.Open()
	ctx, cancel := e.context()
	defer cancel()
	c, err := txn.NewClient(ctx, bt, txn.Config{MetadataTable: e.opts.config.MetadataTable, Oracle: e.opts.config.Oracle, Admin: btAdmin, TokenTTL: -1})
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	for _, table := range e.tables {
		for v, err := range admin.Check(ctx, c, table, nil) {
			if err != nil {
				e.t.Fatalf("consistency check of table %s: %v", table, err)
			}
			e.t.Errorf("consistency check: %v", v)
		}
	}
}

func (e *Env) check() {
	if !e.opts.unsafe {
		e.Check()
	}
}

func (e *Env) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}
