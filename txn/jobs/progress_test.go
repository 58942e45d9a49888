package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A job does not begin again without a word because the values of its progress expire, because
// of an operator or an adoption.
func TestProgressHasToLast(t *testing.T) {
	long.RacedAtNight(t)
	stopped := errors.New("stopped")
	for _, adopted := range []bool{false, true} {
		t.Run(fmt.Sprintf("adopted: %v", adopted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newEnv(t, 100)
				job := newJob()
				expire := func(after time.Duration) {
					t.Helper()
					if err := admin.SetExpiry(t.Context(), env.Client, job.Progress, job.Family, after); err != nil {
						t.Fatal(err)
					}
				}
				run := func(stopAfter int) error {
					n := 0
					_, err := job.Run(t.Context(), env.Client, func(ctx context.Context, tx *txn.Txn, row bigtable.Row) error {
						if n++; n > stopAfter {
							return stopped
						}
						return increment(ctx, tx, row)
					})
					return err
				}
				refused := func(n int) {
					t.Helper()
					if err := run(n); !errors.Is(err, txn.ErrSchema) {
						t.Errorf("a job whose progress expires: %v", err)
					}
					if s, err := job.Status(t.Context(), env.Client); !errors.Is(err, txn.ErrSchema) {
						t.Errorf("its status: %+v, %v", s, err)
					}
				}
				if adopted {
					job.Progress = "old"
					if err := env.Admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "old", ColumnFamilies: map[string]bigtable.Family{"job": {GCPolicy: bigtable.MaxAgePolicy(time.Hour)}}}); err != nil {
						t.Fatal(err)
					}
					cfg := admin.AdoptConfig{Table: "old", ClearPolicies: true, Instance: fmt.Sprintf("projects/%s/instances/%s", env.Project, env.Instance)}
					plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, cfg)
					if err == nil {
						err = admin.Adopt(t.Context(), env.Admin, env.Bigtable, cfg, plan)
					}
					if err != nil {
						t.Fatal(err)
					}
					refused(50)
					expire(0)
				}
				if err := run(50); !errors.Is(err, stopped) {
					t.Fatal(err)
				}
				expire(time.Hour)
				<-time.After(2 * time.Hour)
				refused(100)
				expire(0)
				if err := run(100); err != nil {
					t.Error(err)
				}
				wantValues(t, env.Client, 100, func(string) string { return "1" })
				// In a run that is under way, an expiry is the reason why a position is missing.
				if err := job.Forget(t.Context(), env.Client); err != nil {
					t.Fatal(err)
				}
				job.Report = func(s jobs.Status) {
					if s.Rows > 50 {
						expire(time.Hour)
						<-time.After(2 * time.Hour)
					}
				}
				if err := run(100); !errors.Is(err, txn.ErrSchema) {
					t.Errorf("a run during which its progress expires: %v", err)
				}
				expire(0)
			})
		})
	}
}
