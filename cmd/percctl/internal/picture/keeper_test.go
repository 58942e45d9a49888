package picture_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

func keep(t *testing.T, timeout time.Duration) *picture.Keeper {
	t.Helper()
	k, _ := keepMetered(t, timeout)
	return k
}

func keepMetered(t *testing.T, timeout time.Duration) (*picture.Keeper, *watch.Meter) {
	t.Helper()
	var flags session.Flags
	meter := &watch.Meter{}
	cmd := &cobra.Command{}
	flags.Add(cmd, timeout)
	if err := cmd.ParseFlags([]string{"--embedded"}); err != nil {
		t.Fatal(err)
	}
	flags.Connect.Options = meter.DialOptions()
	k, err := picture.Keep(t.Context(), &flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k, meter
}

// TestKeeper: a session serves one question after the other, until one fails.
func TestKeeper(t *testing.T) {
	k := keep(t, 0)
	var last *session.Session
	failure := errors.New("broken")
	for i, test := range []struct {
		err  error
		same bool
	}{{nil, false}, {nil, true}, {failure, true}, {nil, false}} {
		var at *session.Session
		err := k.Do(t.Context(), func(_ context.Context, s *session.Session) error {
			at = s
			return test.err
		})
		if !errors.Is(err, test.err) || (at == last) != test.same {
			t.Errorf("question %d: %v, the same session: %v", i, err, at == last)
		}
		last = at
	}
	k.Close()
	if err := k.Do(t.Context(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("closed: %v", err)
	}
}

// TestKeeperEnds: a question ends with its time, with who asks it, and with the
// keeper.
func TestKeeperEnds(t *testing.T) {
	blocks := func(asked chan struct{}) func(context.Context, *session.Session) error {
		return func(ctx context.Context, _ *session.Session) error {
			close(asked)
			<-ctx.Done()
			return ctx.Err()
		}
	}
	var coded *cli.Error
	err := keep(t, 10*time.Millisecond).Do(t.Context(), func(ctx context.Context, _ *session.Session) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.As(err, &coded) || coded.Code != cli.ExitUnavailable || !strings.Contains(err.Error(), "--timeout 10ms expired") {
		t.Errorf("timeout: %v", err)
	}
	k := keep(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	asked, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- k.Do(ctx, blocks(asked)) }()
	<-asked
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("who asked went away: %v", err)
	}
	asked = make(chan struct{})
	go func() { ended <- k.Do(t.Context(), blocks(asked)) }()
	<-asked
	k.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("closed: %v", err)
	}
}
