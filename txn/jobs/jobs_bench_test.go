package jobs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// BenchmarkJob measures a job that rewrites 100,000 rows, with an emulator in a process of its
// own, and compares it with ApplyBulk of the same values into a plain table:
//
//	go test ./txn/jobs -run '^$' -bench Job -benchtime 1x
func BenchmarkJob(b *testing.B) {
	const rows, chunk = 100_000, 10_000
	env := txntest.New(b, txntest.WithoutCheck())
	env.CreateTable("jobs", "job")
	env.CreateTable("plain", "f")
	env.CreateTable("t", "f")
	value := make([]byte, 100)
	key := func(i int) string { return fmt.Sprintf("row%06d", i) }
	_, err := admin.BulkLoad(b.Context(), env.Client, "t", func(yield func(admin.BulkRow, error) bool) {
		for i := range rows {
			if !yield(admin.BulkRow{Row: key(i), Cells: []admin.BulkCell{{Family: "f", Qualifier: "q", Value: value}}}, nil) {
				return
			}
		}
	}, admin.BulkConfig{Idle: true})
	if err != nil {
		b.Fatal(err)
	}
	plain := env.Bigtable.Open("plain")
	for n := 0; b.Loop(); n++ {
		began := time.Now()
		for i := 0; i < rows; i += chunk {
			var keys []string
			var muts []*bigtable.Mutation
			for j := i; j < i+chunk; j++ {
				m := bigtable.NewMutation()
				m.Set("f", "q", bigtable.Now(), value)
				keys, muts = append(keys, key(j)), append(muts, m)
			}
			if _, err := plain.ApplyBulk(b.Context(), keys, muts); err != nil {
				b.Fatal(err)
			}
		}
		bulk := time.Since(began)
		began = time.Now()
		job := jobs.Job{Name: fmt.Sprint("job", n), Table: "t", Progress: "jobs", Family: "job"}
		s, err := job.Run(b.Context(), env.Client, func(_ context.Context, tx *txn.Txn, row bigtable.Row) error {
			tx.Table("t").Set(row.Key(), "f", "q", value)
			return nil
		})
		if err != nil || s.Rows != rows {
			b.Fatal(s, err)
		}
		took := time.Since(began)
		b.ReportMetric(took.Seconds(), "job-s")
		b.ReportMetric(bulk.Seconds(), "ApplyBulk-s")
		b.ReportMetric(float64(took)/float64(bulk), "ratio")
	}
}
