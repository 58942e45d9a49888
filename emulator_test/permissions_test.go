package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An account is a kind of program, with the permissions that it needs.
type account struct {
	who         string
	permissions []string // below bigtable.tables
	role        string   // the predefined role that contains them
	// metadata: it needs them on the metadata table alone.
	metadata bool
	// journal: its tables have a journal of pending work.
	journal bool
	run     func(context.Context, *bigtable.Client, *bigtable.AdminClient) error
}

var accounts = []account{
	{"client", []string{"mutateRows", "readRows"}, "roles/bigtable.user", false, false, func(ctx context.Context, bt *bigtable.Client, _ *bigtable.AdminClient) error {
		return transact(ctx, bt, txn.Config{})
	}},
	{"client with `Config.Admin`", []string{"get", "mutateRows", "readRows"}, "roles/bigtable.user", false, false, func(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient) error {
		return transact(ctx, bt, txn.Config{Admin: adminClient})
	}},
	{"worker", []string{"mutateRows", "readRows", "sampleRowKeys"}, "roles/bigtable.user", false, false, work},
	{"oracle server (`percctl tso serve`)", []string{"mutateRows", "readRows"}, "roles/bigtable.user", true, false, serveOracle},
	{"garbage collection (`percctl gc run`)", []string{"get", "mutateRows", "readRows"}, "roles/bigtable.user", false, false, func(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient) error {
		return withClient(ctx, bt, txn.Config{Admin: adminClient}, func(c *txn.Client) error {
			_, err := gc.Run(ctx, c, gc.Config{Retention: time.Hour})
			return err
		})
	}},
	{"operator who makes tables transactional (`percctl table init`, `adopt`)", []string{"create", "get", "mutateRows", "readRows", "update"}, "roles/bigtable.admin", false, false, func(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient) error {
		return admin.InitTable(ctx, adminClient, bt, "", admin.TableSpec{Name: "new", Families: []string{"f"}})
	}},
	{"`percctl conformance`", []string{"create", "delete", "get", "mutateRows", "readRows", "sampleRowKeys", "update"}, "roles/bigtable.admin", false, false, func(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient) error {
		r, err := conformance.Run(ctx, bt, adminClient, conformance.Config{Only: []string{"predicate-chain", "sampled-keys", "policy-reported"}})
		if err == nil && r.Verdict != conformance.Safe {
			for _, x := range r.Results {
				err = errors.Join(err, errors.New(x.Detail))
			}
		}
		return err
	}},
}

// logged keeps what a program that runs for long logs, instead of ending.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) failure(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("%s; log: %s", text, l.text.String())
}

func withClient(ctx context.Context, bt *bigtable.Client, cfg txn.Config, f func(*txn.Client) error) error {
	c, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(ctx))
}

// transact reads, writes and scans.
func transact(ctx context.Context, bt *bigtable.Client, cfg txn.Config) error {
	return withClient(ctx, bt, cfg, func(c *txn.Client) error {
		_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			for _, row := range []string{"r1", "r2"} {
				if _, _, err := tx.Table("a").Get(ctx, row, "f", "q"); err != nil {
					return err
				}
				tx.Table("a").Set(row, "f", "q", []byte("v"))
			}
			return nil
		})
		if err != nil {
			return err
		}
		s, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		rows := 0
		for _, err := range s.Table("a").ReadRows(ctx, nil) {
			if err != nil {
				return err
			}
			rows++
		}
		if rows != 2 {
			return fmt.Errorf("%d rows", rows)
		}
		return nil
	})
}

// work writes an observed cell, and runs its observer.
func work(ctx context.Context, bt *bigtable.Client, _ *bigtable.AdminClient) error {
	var log logged
	return withClient(ctx, bt, txn.Config{Logger: log.logger()}, func(c *txn.Client) error {
		w, err := notify.NewWorker(c, notify.Config{NoHints: true})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		ran := false
		if err := w.Handle("o", "a", txn.Column{Family: "f", Qualifier: "seen"}, notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error {
			ran = true
			cancel()
			return nil
		})); err != nil {
			return err
		}
		if _, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("r", "f", "seen", []byte("v"))
			return nil
		}); err != nil {
			return err
		}
		if err := w.Run(ctx); err != nil || ran {
			return err
		}
		return log.failure("the observer did not run")
	})
}

// serveOracle serves timestamps until it leads.
func serveOracle(ctx context.Context, bt *bigtable.Client, _ *bigtable.AdminClient) error {
	meta := bt.OpenTable(format.DefaultMetadataTable)
	var log logged
	s, err := server.New(meta, server.Config{Address: "oracle:1", Logger: log.logger()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, bufconn.Listen(1<<16)) }()
	for range 60 {
		row, err := tso.ReadRow(ctx, meta, tso.RowConfig{})
		if err != nil {
			return errors.Join(err, stopped(cancel, served))
		}
		if row.Address == "oracle:1" && !row.Released {
			return stopped(cancel, served)
		}
		select {
		case err := <-served:
			return err
		case <-time.After(time.Second):
		}
	}
	return errors.Join(log.failure("the server did not become the leader"), stopped(cancel, served))
}

func stopped(cancel context.CancelFunc, done <-chan error) error {
	cancel()
	return <-done
}

// bearer sends a token.
type bearer string

func (b bearer) options() []grpc.DialOption {
	with := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+string(b))
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(with(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return streamer(with(ctx), desc, cc, method, opts...)
		}),
	}
}

// runAs runs a program with some permissions on a new deployment.
func (a account) runAs(t *testing.T, has []string) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := []txntest.Option{txntest.Embedded(), txntest.WithServerOptions(txntest.Permissions(func(token, table string) ([]string, error) {
			switch {
			case token == "": // the test's own clients
				return []string{"readRows", "mutateRows", "sampleRowKeys", "get", "create", "update", "delete", "list"}, nil
			case a.metadata && table != format.DefaultMetadataTable:
				return nil, nil
			}
			return has, nil
		})...)}
		if !a.journal {
			opts = append(opts, txntest.WithoutJournal())
		}
		env := txntest.New(t, opts...)
		env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f"}, Observed: []txn.Column{{Family: "f", Qualifier: "seen"}}})
		if a.metadata {
			mode := func(m tso.Mode) {
				if _, err := tso.SetMode(t.Context(), env.Bigtable.OpenTable(format.DefaultMetadataTable), tso.RowConfig{}, m); err != nil {
					t.Fatal(err)
				}
			}
			mode(tso.ModeServed)
			defer mode(tso.ModeDirect) // for the consistency check
		}
		bt, adminClient := env.Open(bearer("program").options()...)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		err = a.run(ctx, bt, adminClient)
	})
	return err
}

// TestPermissions: each kind of program works with exactly the permissions that
// docs/security.md lists. With one less, it fails, and the error names the permission.
func TestPermissions(t *testing.T) {
	doc, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range accounts {
		t.Run(a.who, func(t *testing.T) {
			where := "all"
			if a.metadata {
				where = "the metadata table"
			}
			if row := fmt.Sprintf("| %s | `%s` | %s | `%s` |", a.who, strings.Join(a.permissions, "`, `"), where, a.role); !strings.Contains(string(doc), row+"\n") {
				t.Errorf("docs/security.md lacks the line\n%s", row)
			}
			if err := a.runAs(t, a.permissions); err != nil {
				t.Errorf("with its permissions: %v", err)
			}
			for i, p := range a.permissions {
				err := a.runAs(t, slices.Delete(slices.Clone(a.permissions), i, i+1))
				if err == nil || !strings.Contains(err.Error(), "Missing IAM permission: bigtable.tables."+p+".") {
					t.Errorf("without %s: %v", p, err)
				}
			}
		})
	}
}

// TestPermissionsWithJournal: programs whose tables have a journal need no further permission. Without
// sampleRowKeys a worker finds its work, but cannot sweep.
func TestPermissionsWithJournal(t *testing.T) {
	for _, a := range accounts {
		a.journal = true
		if err := a.runAs(t, a.permissions); err != nil {
			t.Errorf("%s: %v", a.who, err)
		}
		if a.who != "worker" {
			continue
		}
		for _, p := range []string{"mutateRows", "readRows"} {
			if err := a.runAs(t, []string{p, "sampleRowKeys"}); err == nil {
				t.Errorf("a worker with %s and sampleRowKeys alone ran", p)
			}
		}
		if err := a.runAs(t, []string{"mutateRows", "readRows"}); err != nil {
			t.Errorf("a worker without sampleRowKeys: %v", err)
		}
	}
}
