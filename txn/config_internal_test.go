package txn

import (
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
)

func TestConfigDefaults(t *testing.T) {
	for _, tt := range []struct{ cfg, want Config }{
		{Config{}, Config{LockTTL: 10 * time.Second, TokenTTL: 5 * time.Second, LatchWait: time.Second, PrefetchBytes: 64 << 10}},
		{Config{LockTTL: time.Millisecond, TokenTTL: -1, LatchWait: -1, PrefetchBytes: -1, BatchReads: 1}, Config{LockTTL: time.Millisecond, TokenTTL: -1, LatchWait: -1, PrefetchBytes: -1, BatchReads: 1}},
		{Config{LockTTL: format.MaxLockTTL, TokenTTL: 1, LatchWait: 1, PrefetchBytes: 1}, Config{LockTTL: format.MaxLockTTL, TokenTTL: 1, LatchWait: 1, PrefetchBytes: 1}},
	} {
		if got, err := tt.cfg.withDefaults(); err != nil || got != tt.want {
			t.Errorf("%+v: %v, want %+v", got, err, tt.want)
		}
	}
}
