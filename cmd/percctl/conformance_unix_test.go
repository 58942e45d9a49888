//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/conformancecmd"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// conformanceOn returns a command against an emulator with these options, and clients of it.
func conformanceOn(t *testing.T, opts []grpc.ServerOption, args ...string) (*exec.Cmd, *bigtable.Client, *bigtable.AdminClient) {
	t.Helper()
	e, err := txntest.StartEmulator("127.0.0.1:0", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	conn, err := e.Dial()
	if err != nil {
		t.Fatal(err)
	}
	bt, admin, err := txntest.Open(t.Context(), conn, "p", "i")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = bt.Close()
		_ = admin.Close()
		_ = conn.Close()
	})
	cmd := exec.Command("percctl", append([]string{"conformance", "--yes", "--project", "p", "--instance", "i"}, args...)...)
	cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+e.Addr())
	return cmd, bt, admin
}

func noTables(t *testing.T, admin *bigtable.AdminClient) {
	t.Helper()
	if all, err := admin.Tables(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("tables are left: %v, %v", all, err)
	}
}

// TestConformanceUnsafe: where the app profile refuses conditional mutations, transactions
// are not safe, and the report says what to do.
func TestConformanceUnsafe(t *testing.T) {
	t.Parallel()
	cmd, _, admin := conformanceOn(t, txntest.Strict(""), "--only", "predicate-chain", "-o", "json")
	out, _ := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 6 {
		t.Errorf("exit code %d, want 6", code)
	}
	var r conformance.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r.Verdict != conformance.Unsafe || len(r.Broken) != 1 || r.Broken[0] != conformance.SingleRow || len(r.Untested) != 1 || !strings.Contains(r.Results[0].Advice, "gcloud bigtable app-profiles update") {
		t.Errorf("%s", out)
	}
	noTables(t, admin)
}

// TestConformanceLargeRow: percctl reads rows of 8 MB from an emulator, which sends each row in
// one answer.
func TestConformanceLargeRow(t *testing.T) {
	t.Parallel()
	cmd, _, admin := conformanceOn(t, txntest.Strict(), "--only", "row-8m")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	noTables(t, admin)
}

// stopConformance starts a long run, sends it a signal when its table is there, and returns
// its exit code.
func stopConformance(t *testing.T, cmd *exec.Cmd, ready func() bool, signal os.Signal) int {
	t.Helper()
	cmd.Args = append(cmd.Args, "--only", "linearizable", "--duration", "10m", "--requests", "100000000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for !ready() {
		if t.Context().Err() != nil {
			t.Fatal("no table was made")
		}
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// TestConformanceInterrupted: after Ctrl-C no table is left.
func TestConformanceInterrupted(t *testing.T) {
	t.Parallel()
	cmd, _, admin := conformanceOn(t, nil)
	code := stopConformance(t, cmd, func() bool {
		all, err := admin.Tables(t.Context())
		return err == nil && len(all) > 0
	}, syscall.SIGINT)
	if code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	noTables(t, admin)
}

// TestConformanceSoakInterrupted: an interrupt while transactions run leaves no table either.
func TestConformanceSoakInterrupted(t *testing.T) {
	t.Parallel()
	cmd, _, admin := conformanceOn(t, txntest.Strict(), "--only", "soak", "--soak", "10m")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for {
		// The scratch table of the first stage, and three of the second one.
		all, err := admin.Tables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 3 {
			break
		}
		<-time.After(100 * time.Millisecond) // the server permits 1,000 in a minute
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	noTables(t, admin)
}

// TestConformanceAnomalies: what transactions must not see makes a service unsafe. They run also after
// a broken assumption.
func TestConformanceAnomalies(t *testing.T) {
	long.Test(t, "transactions run until something is lost, which depends on the machine")
	t.Parallel()
	var n atomic.Int64
	// Some writes of data are acknowledged and lost.
	lose := grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*btpb.MutateRowRequest); ok && len(r.RowKey) > 2<<10 {
			return nil, status.Error(codes.InvalidArgument, "the row key is too long")
		}
		r, ok := req.(*btpb.CheckAndMutateRowRequest)
		if ok && strings.HasPrefix(string(r.RowKey), "list") && n.Add(1)%5 == 0 && len(r.TrueMutations) == 0 {
			return &btpb.CheckAndMutateRowResponse{}, nil
		}
		return handle(ctx, req)
	})
	// On a busy machine a few seconds are too short for anything to be lost.
	var cmd *exec.Cmd
	var admin *bigtable.AdminClient
	var out []byte
	var r conformancecmd.Report
	for length := 2 * time.Second; ; length *= 4 {
		cmd, _, admin = conformanceOn(t, []grpc.ServerOption{lose}, "--only", "row-key-4k,soak", "--soak", length.String(), "-o", "json")
		out, _ = cmd.Output()
		r = conformancecmd.Report{}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if r.Soak == nil || !r.Soak.Safe || r.Soak.Committed > 500 || length > time.Minute {
			break
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != 6 || r.Verdict != conformance.Unsafe || !slices.Equal(r.Broken, []string{"row-key-4k", "soak"}) || r.Soak == nil || r.Soak.Safe || len(r.Soak.Anomalies) == 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
	noTables(t, admin)
}

// TestConformanceKilled: --clean removes what a killed run left, and nothing else.
func TestConformanceKilled(t *testing.T) {
	t.Parallel()
	cmd, bt, admin := conformanceOn(t, nil)
	var left []string
	stopConformance(t, cmd, func() bool {
		var err error
		left, err = conformance.Remains(t.Context(), bt, admin)
		return err == nil && len(left) > 0
	}, syscall.SIGKILL)
	mine := conformance.TablePrefix + "mine"
	if err := admin.CreateTable(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	clean := exec.Command("percctl", "conformance", "--clean", "--yes", "--project", "p", "--instance", "i", "-o", "json")
	clean.Env = cmd.Env
	out, err := clean.Output()
	if err != nil || len(left) != 1 || !strings.Contains(string(out), left[0]) {
		t.Errorf("%v, left %v: %s", err, left, out)
	}
	if all, err := admin.Tables(t.Context()); err != nil || len(all) != 1 || all[0] != mine {
		t.Errorf("tables: %v, %v", all, err)
	}
}
