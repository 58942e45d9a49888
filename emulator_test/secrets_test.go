package emulator_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A lockedBuffer is a buffer that several loggers may share.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestNoValuesInLogsAndErrors writes secret values under faults that cause every kind
// of error and warning. No secret may appear in a log, at any level, or in an error.
func TestNoValuesInLogsAndErrors(t *testing.T) {
	long.Test(t, "one of five requests fails by chance")
	const secret = "correct horse battery staple"
	env := txntest.New(t)
	env.CreateTable("a", "f")
	var logged lockedBuffer
	chaos := workload.NewChaos(1, 0.2, 50*time.Millisecond)
	cfg := workloadConfig()
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := env.NewClient(cfg, chaos.DialOptions()...)
	var errs strings.Builder
	var working sync.WaitGroup
	var mu sync.Mutex
	for i := range 4 {
		working.Go(func() {
			for range 15 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
					if _, _, err := tx.Table("a").Get(ctx, "r", "f", "q"); err != nil {
						return err
					}
					tx.Table("a").Set("r", "f", "q", []byte(secret))
					tx.Table("a").Set(fmt.Sprint("r", i), "f", "q", []byte(secret))
					return nil
				})
				cancel()
				mu.Lock()
				fmt.Fprintln(&errs, err)
				mu.Unlock()
			}
		})
	}
	working.Wait()
	chaos.Heal()
	if !strings.Contains(errs.String(), "injected fault") && !strings.Contains(errs.String(), "deadline") {
		t.Errorf("no error mentions a fault:\n%s", &errs)
	}
	for name, text := range map[string]string{"log": logged.String(), "errors": errs.String()} {
		if strings.Contains(text, secret) || strings.Contains(text, "correct") {
			t.Errorf("the %s contains a secret value:\n%s", name, text)
		}
	}
}
