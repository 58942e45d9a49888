package doctor_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestHangingClient: a client that stops between its prewrites and its commit is a finding after a
// minute, with its process and its transaction, although its token is fresh. The operator declares
// it dead: its transaction is rolled back, and its commit gets a conflict.
func TestHangingClient(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var ahead atomic.Int64
	cfg := txn.Config{TokenTTL: 10 * time.Minute, LockTTL: time.Hour}
	cfg.Oracle = tso.NewLocal(tso.LocalConfig{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{Oracle: cfg.Oracle, TokenTTL: time.Hour}))
	env.CreateTable("a", "f")
	faults := txntest.NewFaults(t)
	stopped := faults.OnStep(txntest.StepCommit, txntest.Hold)
	tx, err := env.NewClient(cfg, faults.DialOptions()...).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("a").Set("r", "f", "q", []byte("v"))
	tx.Table("a").Set("s", "f", "q", []byte("v"))
	ended := make(chan error, 1)
	go func() { _, err := tx.Commit(ctx); ended <- err }()
	<-stopped.Fired()

	find := func() (found []doctor.Finding) {
		t.Helper()
		d := &doctor.Deployment{Client: env.Client, Bigtable: env.Bigtable, Admin: env.Admin, Tables: []string{"a"}, Rows: 100}
		for _, c := range doctor.All() {
			if c.Name != "stranded locks" {
				continue
			}
			for _, r := range doctor.Run(ctx, d, []doctor.Check{c}, nil) {
				if r.State == doctor.Failed {
					t.Fatal(r.Detail)
				}
				found = append(found, r.Findings...)
			}
		}
		return found
	}
	if found := find(); len(found) > 0 {
		t.Errorf("at once: %+v", found)
	}
	ahead.Store(int64(2 * time.Minute))
	primary := format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "q"}
	found := find()
	if len(found) != 1 || !strings.Contains(found[0].What, ", pid ") || !strings.Contains(found[0].What, "2 locks of the transaction with primary "+primary.String()) || !strings.HasSuffix(found[0].Fix, "lock resolve --transaction "+primary.String()+" "+tx.StartTS().String()+" --owner-dead") {
		t.Errorf("after two minutes: %+v", found)
	}

	lock := format.Lock{Cell: primary, Primary: primary, StartTS: tx.StartTS()}
	if s, err := admin.Resolve(ctx, env.Client, lock); err != nil || s.State != format.StateLocked {
		t.Errorf("without the operator's word: %v, %v", s.State, err)
	}
	admin.DeclareDead(env.Client, tx.StartTS())
	if s, err := admin.Resolve(ctx, env.Client, lock); err != nil || s.State != format.StateRolledBack {
		t.Errorf("declared dead: %v, %v", s.State, err)
	}
	stopped.Release()
	if err := <-ended; !errors.Is(err, txn.ErrConflict) {
		t.Errorf("the owner was alive, and its commit returned %v", err)
	}
}
