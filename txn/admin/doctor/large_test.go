package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// TestObserversOfLargeTables: tables whose notifications cannot be read in time do not hide that observers
// of other tables have no workers. The check ends in its time, with a bounded number of requests.
func TestObserversOfLargeTables(t *testing.T) {
	long.RacedAtNight(t)
	const tables = 20
	synctest.Test(t, func(t *testing.T) {
		cfg := model.Config{Nodes: 3, Tables: map[string]model.Table{}}
		d := &doctor.Deployment{Project: "p", Instance: "i", Emulator: true, Rows: 100}
		for i := range tables {
			d.Tables = append(d.Tables, fmt.Sprintf("docs-%02d", i))
			cfg.Tables[d.Tables[i]] = model.Table{Bytes: 1e12, Splits: model.HexSplits("", 10)}
		}
		cluster := model.New(cfg)
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutQuota(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		for _, table := range d.Tables {
			env.CreateTable(table, "f")
			if err := changes.RegisterObserver(t.Context(), env.Client, table, txn.Column{Family: "f", Qualifier: "q"}, "o", false); err != nil {
				t.Fatal(err)
			}
		}
		d.Bigtable, d.Admin = env.Open(cluster.Client("doctor")...)
		end, err := d.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		began, found := time.Now(), 0
		result := doctor.Run(t.Context(), d, slices.DeleteFunc(doctor.All(), func(c doctor.Check) bool { return c.Name != "observers" }), nil)[0]
		for _, f := range result.Findings {
			if strings.HasPrefix(f.What, "no live worker") {
				found++
			}
		}
		if took := time.Since(began); found != tables || took > 3*time.Minute || !strings.Contains(result.Detail, "were not read to their end") {
			t.Errorf("%d findings in %v: %s", found, took, result.Detail)
		}
		if n := cluster.Sum(model.All).Requests; n > 30*tables {
			t.Errorf("%d requests", n)
		}
	})
}
