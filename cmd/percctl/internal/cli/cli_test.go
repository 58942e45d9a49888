package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nil, ExitOK},
		{t.Context(), errors.New("broken"), ExitFailed},
		{t.Context(), fmt.Errorf("a: %w", Usagef("--n %d: it has to be positive", 0)), ExitUsage},
		{t.Context(), &Error{ExitFound, errors.New("2 violations")}, ExitFound},
		{t.Context(), fmt.Errorf("a: %w", context.DeadlineExceeded), ExitUnavailable},
		{t.Context(), fmt.Errorf("a: %w", status.Error(codes.Unavailable, "down")), ExitUnavailable},
		{t.Context(), status.Error(codes.PermissionDenied, "no"), ExitFailed},
		{interrupted, nil, ExitOK}, // it was done before
		{interrupted, context.Canceled, ExitInterrupted},
	} {
		if got := exitCode(test.ctx, test.err); got != test.want {
			t.Errorf("%v: exit code %d, want %d", test.err, got, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Deps:     []*debug.Module{{Path: "cloud.google.com/go/bigtable", Version: "v1.58.0"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	v := newVersion(info)
	v.Go = "go1.26"
	if got, want := v.String(), "percctl v1.2.3 (go1.26, revision abc with changes, Bigtable client v1.58.0)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := newVersion(nil).Version; got != "unknown" {
		t.Errorf("without build information: %q", got)
	}
}

// Anything but a terminal gets plain text.
func TestStyle(t *testing.T) {
	t.Parallel()
	if got := StyleFor(&bytes.Buffer{}).Bad("text"); got != "text" {
		t.Errorf("%q in a buffer", got)
	}
	if got := (Style{on: true}).Good("text"); got != "\x1b[32mtext\x1b[0m" {
		t.Errorf("%q on a terminal", got)
	}
}
