package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestOperationsThatCannotBegin: no operation does anything after Close, or with a context that has
// ended. It says so at once.
func TestOperationsThatCannotBegin(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	closed := func(c *txn.Client) {
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, of := range map[string]struct {
		ctx     context.Context
		prepare func(*txn.Client)
		want    error
	}{
		"closed":  {t.Context(), closed, txn.ErrClosed},
		"context": {ended, func(*txn.Client) {}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newComplete(t)
				before := fmt.Sprint(storedColumns(t, env, "a", format.DefaultMetadataTable))
				all := damagedOperations()
				delete(all, "AdvisoryLocks") // they are not the client's
				for op, call := range all {
					c := env.NewClient(txn.Config{TokenTTL: -1})
					of.prepare(c)
					began := time.Now()
					if result, err := call(of.ctx, c); !errors.Is(err, of.want) || time.Since(began) > 0 {
						t.Errorf("%s: %v, %v after %v", op, result, err, time.Since(began))
					}
				}
				if after := fmt.Sprint(storedColumns(t, env, "a", format.DefaultMetadataTable)); after != before {
					t.Errorf("it changed %s to %s", before, after)
				}
			})
		})
	}
}
