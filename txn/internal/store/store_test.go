package store

import (
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
)

func TestConfigDefaults(t *testing.T) {
	want := Config{
		MetadataTable: format.DefaultMetadataTable, RPCTimeout: 20 * time.Second, SchemaMaxAge: time.Minute,
		Backoff: Backoff{Min: 2 * time.Millisecond, Max: time.Second}, Parallelism: 64, BackgroundBytes: 64 << 20, BackgroundTimeout: time.Minute,
	}
	set := Config{
		MetadataTable: "m", RPCTimeout: 1, SchemaMaxAge: 2, Backoff: Backoff{Min: 3, Max: 4}, Parallelism: 5, BackgroundBytes: 6, BackgroundTimeout: 7,
	}
	for _, tt := range []struct{ cfg, want Config }{{Config{}, want}, {set, set}} {
		got, err := tt.cfg.withDefaults()
		if got.Logger == nil {
			t.Error("no logger")
		}
		if got.Logger = nil; err != nil || got != tt.want {
			t.Errorf("%+v: %v, want %+v", got, err, tt.want)
		}
	}
}
