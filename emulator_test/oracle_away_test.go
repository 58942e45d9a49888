package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An awayOracle has no server that answers before a time. Like tso.Client, it says so after 10 s.
type awayOracle struct {
	tso.Oracle
	until time.Time
}

func (o awayOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if !time.Now().Before(o.until) {
		return o.Oracle.Timestamp(ctx)
	}
	select {
	case <-time.After(min(10*time.Second, time.Until(o.until)+time.Second)):
		return 0, &tso.UnavailableError{Waited: 10 * time.Second}
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// While no server of the oracle answers, a transaction waits within its deadline, and says in the end
// why. One that has taken locks keeps them.
func TestOracleAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		oracle := &awayOracle{Oracle: env.Oracle()}
		c := env.NewClient(txn.Config{TokenTTL: -1, Oracle: oracle})
		mustSet(t, c, "1", "bob", "joe")

		oracle.until = time.Now().Add(30 * time.Second)
		began := time.Now()
		mustSet(t, c, "2", "bob", "joe")
		if d := time.Since(began); d < 30*time.Second || d > 32*time.Second {
			t.Errorf("a transaction took %v", d)
		}

		tx := beginSet(t, c, "3", "bob", "joe")
		oracle.until = time.Now().Add(30 * time.Second)
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		wantValue(t, takeSnapshot(t, env.Client), "joe", "3")

		oracle.until = time.Now().Add(30 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := tryUpdate(ctx, c, "4", "bob"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tso.ErrUnavailable) {
			t.Errorf("after its deadline: %v", err)
		}
	})
}
