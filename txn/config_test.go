package txn_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

func TestConfigIsChecked(t *testing.T) {
	env := txntest.New(t)
	// The first word of a case's name is the field that the error must name.
	for name, cfg := range map[string]txn.Config{
		"LockTTL":               {LockTTL: -1},
		"LockTTL 1ns":           {LockTTL: 1},
		"LockTTL without limit": {LockTTL: math.MaxInt64}, // the lock had expired when it was written
		"LockTTL below 1ms":     {LockTTL: time.Millisecond - 1},
		"LockTTL above a day":   {LockTTL: 24*time.Hour + 1},
		"RPCTimeout":            {RPCTimeout: -1},
		"Parallelism":           {Parallelism: -1},
		"BatchReads":            {BatchReads: -1},
		"BackgroundBytes":       {BackgroundBytes: -1},
		"BackgroundTimeout":     {BackgroundTimeout: -1},
		"SchemaMaxAge":          {SchemaMaxAge: -1},
		"Backoff.Min":           {Backoff: txn.Backoff{Min: -1}},
		"Backoff.Max":           {Backoff: txn.Backoff{Max: -1}},
	} {
		_, err := txn.NewClient(t.Context(), env.Bigtable, cfg)
		wantError(t, err, txn.ErrInvalid, strings.Fields(name)[0])
	}
	for _, none := range []txn.Tables{nil, (*bigtable.Client)(nil)} {
		_, err := txn.NewClient(t.Context(), none, txn.Config{})
		wantError(t, err, txn.ErrInvalid)
	}
}
