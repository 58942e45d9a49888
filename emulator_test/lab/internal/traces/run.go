package traces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type options struct{ jaeger, otlp, images string }

// A backend is where the spans arrive.
type backend interface {
	traces(context.Context) (spans, error)
}

// run starts the processes, waits for their spans and checks them.
func run(ctx context.Context, o options, out, stderr io.Writer) error {
	var from backend
	service := fmt.Sprintf("traces-%d", time.Now().UnixNano())
	if o.jaeger != "" {
		from = &jaeger{o.jaeger, service}
	} else {
		r, err := newReceiver()
		if err != nil {
			return err
		}
		defer r.close()
		from, o.otlp = r, r.address
	}
	emulator, err := txntest.StartEmulator("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer emulator.Close()
	if err := createTables(ctx, emulator); err != nil {
		return err
	}
	env := append(os.Environ(), "OTEL_SERVICE_NAME="+service,
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT="+o.otlp)
	for _, role := range []string{"writer", "observer", "victim", "reader"} {
		if err := runChild(ctx, role, emulator.Addr(), env, stderr); err != nil {
			return fmt.Errorf("%s: %w", role, err)
		}
	}
	// The processes have sent all spans when they end. A backend may need a moment
	// until it returns them.
	var found report
	var last error
	for {
		all, err := from.traces(ctx)
		if err == nil {
			if found, err = check(all); err == nil {
				break
			}
		}
		last = err
		select {
		case <-time.After(200 * time.Millisecond):
			if o.jaeger == "" {
				return last
			}
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		}
	}
	fmt.Fprint(out, found.text)
	if o.images == "" {
		return nil
	}
	return draw(o.images, found)
}

func createTables(ctx context.Context, emulator *txntest.Emulator) error {
	conn, err := emulator.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bt, adminClient, err := txntest.Open(ctx, conn, project, instance)
	if err != nil {
		return err
	}
	defer func() { _, _ = bt.Close(), adminClient.Close() }()
	for _, spec := range []admin.TableSpec{
		{Name: accounts, Families: []string{"bal"}, Observed: []txn.Column{{Family: "bal", Qualifier: "usd"}}},
		{Name: ledger, Families: []string{"entry"}},
	} {
		if err := admin.InitTable(ctx, adminClient, bt, "", spec); err != nil {
			return err
		}
	}
	return nil
}

// runChild runs this program in a role until it ends. A victim runs until it is stuck,
// and is then killed.
func runChild(ctx context.Context, role, emulator string, env []string, stderr io.Writer) error {
	p, err := child.Start(ctx, child.Config{Name: role, Args: []string{"traces", "process", role, emulator}, Env: env, Stderr: stderr})
	if err != nil {
		return err
	}
	killed := false
	p.Each(func(line []byte) {
		if strings.TrimSpace(string(line)) == "stuck" {
			killed = true
			p.Kill()
		}
	})
	err = p.Wait()
	if role != "victim" {
		return err
	}
	if !killed {
		return errors.Join(errors.New("the victim did not reach its commit point"), err)
	}
	return nil
}

// draw writes the pictures.
func draw(dir string, r report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, p := range map[string]picture{
		"trace-of-a-commit.svg":   r.commit,
		"trace-of-a-recovery.svg": r.recovery,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), p.svg(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
