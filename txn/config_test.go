package txn_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

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
	_, err := txn.NewClient(t.Context(), env.Bigtable, txn.Config{MeterProvider: brokenMeters{}})
	wantError(t, err, errMeter, "txn: metrics")
	c, err := txn.NewClient(t.Context(), struct{ txn.Tables }{env.Bigtable}, txn.Config{}) // not a pointer
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := env.Client.Update(t.Context(), func(ctx context.Context, _ *txn.Txn) error {
		if txn.AttemptOf(ctx) != 1 || ctx != t.Context() {
			t.Errorf("the context of the first run is another one, of run %d", txn.AttemptOf(ctx))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if n := txn.AttemptOf(t.Context()); n != 1 {
		t.Errorf("outside of Update, run %d", n)
	}
}

var errMeter = errors.New("no instrument")

// brokenMeters fail to make counters.
type (
	brokenMeters struct{ noop.MeterProvider }
	brokenMeter  struct{ noop.Meter }
)

func (brokenMeters) Meter(string, ...metric.MeterOption) metric.Meter { return brokenMeter{} }

func (brokenMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errMeter
}
