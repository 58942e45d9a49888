package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// answer runs a command against an address, and returns its exit code and its errors.
func answer(t *testing.T, address, line string) (int, string) {
	t.Helper()
	t.Setenv("BIGTABLE_EMULATOR_HOST", address)
	t.Setenv("PERCCTL_PROJECT", fixtureProject)
	t.Setenv("PERCCTL_INSTANCE", fixtureInstance)
	var errs bytes.Buffer
	code := program.Main(strings.Fields(line), &cli.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &errs})
	return code, errs.String()
}

// TestNobodyListens: no service is at the address. The message names it, before the
// deadlines of commands and requests.
func TestNobodyListens(t *testing.T) {
	for _, line := range []string{
		"get accounts/bob/bal:usd", "check --all", "doctor", "gc run --yes", "top --once",
		"table init x", "table adopt x --yes", "tso now", "tso mode", "tso status",
	} {
		code, errs := answer(t, "127.0.0.1:1", line)
		want := ": the emulator at 127.0.0.1:1, project proj, instance inst: connection refused; start the emulator, or unset BIGTABLE_EMULATOR_HOST for Cloud Bigtable\n"
		if code != cli.ExitUnavailable || !strings.HasPrefix(errs, "percctl ") || !strings.HasSuffix(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("percctl %s: exit code %d: %s", line, code, errs)
		}
	}
}

// TestNobodyAnswers: a process listens at the address and does not answer.
func TestNobodyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, line := range []string{"get accounts/bob/bal:usd", "lock list --all", "top --once", "notify list", "worker list"} {
		code, errs := answer(t, l.Addr().String(), line+" --timeout 300ms")
		if code != cli.ExitUnavailable || !strings.Contains(errs, "--timeout 300ms expired") || strings.Contains(errs, "rpc error") {
			t.Errorf("percctl %s: exit code %d: %s", line, code, errs)
		}
	}
}

// TestRefused: the service refuses the account.
func TestRefused(t *testing.T) {
	var refuse atomic.Uint32
	f, err := newFixture(t.Context(), t,
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if code := codes.Code(refuse.Load()); code != codes.OK {
				return status.Error(code, "the service's reason")
			}
			return next(srv, s)
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if code := codes.Code(refuse.Load()); code != codes.OK {
				return nil, status.Error(code, "the service's reason")
			}
			return next(ctx, req)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for code, advice := range map[codes.Code]string{
		codes.PermissionDenied: "permission denied: the service's reason\nthe account may not do this: grant it roles/bigtable.user",
		codes.Unauthenticated:  "unauthenticated: the service's reason\nthe credentials are missing, expired or not for this service: run gcloud auth application-default login",
	} {
		refuse.Store(uint32(code))
		for _, line := range []string{"get accounts/bob/bal:usd", "tso now"} {
			exit, errs := answer(t, f.emulator.Addr(), line)
			want := "the emulator at " + f.emulator.Addr() + ", project proj, instance inst: "
			if exit == cli.ExitOK || !strings.Contains(errs, want) || !strings.Contains(errs, advice) || strings.Contains(errs, "rpc error") {
				t.Errorf("%v: percctl %s: exit code %d: %s", code, line, exit, errs)
			}
		}
		refuse.Store(uint32(codes.OK))
	}
}
