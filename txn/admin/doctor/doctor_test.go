package doctor_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// examine runs all checks and returns how each ended.
func examine(t *testing.T, d *doctor.Deployment, tables ...string) map[string]doctor.Result {
	t.Helper()
	end, err := d.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	d.Tables = tables
	calls := 0
	ended := map[string]doctor.Result{}
	for _, r := range doctor.Run(t.Context(), d, doctor.All(), func(int) { calls++ }) {
		ended[r.Check] = r
		for _, f := range r.Findings {
			if f.Check != r.Check || f.Subject == "" || f.What == "" || f.Why == "" || f.Fix == "" {
				t.Errorf("%s: an incomplete finding: %+v", r.Check, f)
			}
		}
	}
	if len(ended) != len(doctor.All()) {
		t.Errorf("%d results of %d checks", len(ended), len(doctor.All()))
	}
	return ended
}

// TestDeployment: a deployment in order has no findings, and a table that does not
// exist has one in each check that reads it.
func TestDeployment(t *testing.T) {
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("accounts", "bal")
	if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: env.Bigtable, Admin: env.Admin, Emulator: true, Rows: 100}
	for name, r := range examine(t, d, "accounts") {
		if r.State != doctor.OK && r.State != doctor.Skipped || r.Detail == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	all := examine(t, d, "accounts", "journal")
	for _, name := range []string{"schema records", "families"} {
		if r := all[name]; r.State != doctor.Found || len(r.Findings) != 1 || r.Findings[0].Subject != "journal" || r.Findings[0].Severity != doctor.Error {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if len(doctor.Tables()) >= len(doctor.All()) || slices.ContainsFunc(doctor.Tables(), func(c doctor.Check) bool { return all[c.Name].Check == "" }) {
		t.Error("the checks of tables are not a part of all")
	}
}

// TestWithoutMetadataTable: what is missing is a finding, and what needs a client is
// skipped.
func TestWithoutMetadataTable(t *testing.T) {
	env := txntest.New(t, txntest.Embedded())
	d := &doctor.Deployment{Bigtable: env.Bigtable, Admin: env.Admin, MetadataTable: "missing", Emulator: true, Rows: 100}
	all := examine(t, d)
	if d.Client != nil || !errors.Is(d.NoClient, txn.ErrNotInitialized) && !errors.Is(d.NoClient, tso.ErrNotInitialized) {
		t.Errorf("client %v, %v", d.Client, d.NoClient)
	}
	if r := all["metadata table"]; r.State != doctor.Found || r.Findings[0].Severity != doctor.Error {
		t.Errorf("metadata table: %+v", r)
	}
	if r := all["consistency"]; r.State != doctor.Skipped {
		t.Errorf("consistency: %+v", r)
	}
}
