package doctor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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
	var last doctor.Progress
	ended := map[string]doctor.Result{}
	for _, r := range doctor.Run(t.Context(), d, doctor.All(), func(p doctor.Progress) {
		if p.Part < last.Part-1e-9 || p.Done < last.Done || p.Done+len(p.Running) > len(doctor.All()) {
			t.Errorf("%+v after %+v", p, last)
		}
		last = p
	}) {
		ended[r.Check] = r
		for _, f := range r.Findings {
			if f.Check != r.Check || f.Subject == "" || f.What == "" || f.Why == "" || f.Fix == "" {
				t.Errorf("%s: an incomplete finding: %+v", r.Check, f)
			}
		}
	}
	if last.Done != len(ended) || last.Part < 1-1e-9 || len(last.Running) > 0 {
		t.Errorf("at the end: %+v", last)
	}
	if len(ended) != len(doctor.All()) {
		t.Errorf("%d results of %d checks", len(ended), len(doctor.All()))
	}
	return ended
}

// TestDeployment: a deployment in order has no findings, and a table that does not
// exist has one in each check that reads it.
func TestDeployment(t *testing.T) {
	long.RacedAtNight(t)
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

// strand lets a client die in a commit.
func strand(t *testing.T, dead *txn.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := dead.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		return nil
	}); !errors.Is(err, txn.ErrUndetermined) {
		t.Fatalf("a commit that is not sent: %v", err)
	}
}

// TestRecentDeath: as soon as other clients may resolve the locks of a dead client, the
// check does not call them in order, and after a minute they are a warning.
func TestRecentDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("accounts", "bal")
		faults := txntest.ChooseFaults(func(c txntest.Call) (txntest.Action, time.Duration, bool) {
			return txntest.Crash, 0, txntest.Classify(c.Method, c.Request).Step == txntest.StepCommit
		})
		dead := env.NewClient(txn.Config{LockTTL: 5 * time.Second}, faults.DialOptions()...)
		strand(t, dead)
		d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: env.Bigtable, Admin: env.Admin, Emulator: true, Rows: 100}
		for _, want := range []struct {
			after    time.Duration
			state    doctor.State
			severity doctor.Severity
			detail   string
		}{
			{time.Second, doctor.OK, "", "0 of 1 lock in 1 table"},
			{20 * time.Second, doctor.Found, doctor.Note, "1 of 1 lock in 1 table"},
			{2 * time.Minute, doctor.Found, doctor.Warning, "1 of 1 lock in 1 table"},
		} {
			<-time.After(want.after)
			r := examine(t, d, "accounts")["stranded locks"]
			if r.State != want.state || r.Detail != want.detail || len(r.Findings) > 1 || len(r.Findings) == 1 && r.Findings[0].Severity != want.severity {
				t.Errorf("after %v: %+v", want.after, r)
			}
		}
	})
}

// TestRemovedToken: a lock that is to live for an hour, and whose owner's token was removed, is stranded
// after a minute.
func TestRemovedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("accounts", "bal")
		faults := txntest.NewFaults(t)
		commit := faults.OnStep(txntest.StepCommit, txntest.Crash)
		dead := env.NewClient(txn.Config{TokenTTL: time.Minute, LockTTL: time.Hour}, faults.DialOptions()...)
		strand(t, dead)
		<-commit.Fired()
		faults.Kill()
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open("percolator").Apply(t.Context(), "worker/"+admin.Owner(dead), m); err != nil {
			t.Fatal(err)
		}
		d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: env.Bigtable, Admin: env.Admin, Emulator: true, Rows: 100}
		if r := examine(t, d, "accounts")["stranded locks"]; r.State != doctor.OK || r.Detail != "0 of 1 lock in 1 table" {
			t.Errorf("at once: %+v", r)
		}
		<-time.After(2 * time.Minute)
		if r := examine(t, d, "accounts")["stranded locks"]; r.State != doctor.Found || len(r.Findings) != 1 || r.Findings[0].Severity != doctor.Warning {
			t.Errorf("after two minutes: %+v", r)
		}
		for v, err := range admin.Check(t.Context(), env.Client, "accounts", nil) {
			t.Error(v, err)
		}
	})
}

// TestInterruptedLeave: only the command that makes a table plain can continue, so the check names it.
func TestInterruptedLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
		env.CreateTable("accounts", "bal")
		leave := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := admin.Leave(ctx, env.Admin, env.Bigtable, env.NewClient(txn.Config{TokenTTL: -1}), admin.LeaveConfig{Table: "accounts", ClientsStopped: true})
			return err
		}
		unfinished := func() doctor.Result {
			d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: env.Bigtable, Admin: env.Admin, Emulator: true, Rows: 100}
			return examine(t, d)["adoptions"]
		}
		if err := leave(time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("within a minute: %v", err)
		}
		if r := unfinished(); len(r.Findings) != 1 || r.Findings[0].Subject != "accounts" || r.Findings[0].Fix != "percctl table leave accounts, which continues" {
			t.Errorf("interrupted: %+v", r)
		}
		if err := leave(10 * time.Minute); err != nil {
			t.Fatal(err)
		}
		if r := unfinished(); r.State != doctor.OK {
			t.Errorf("completed: %+v", r)
		}
	})
}

// TestTableThatTakesTooLong: a table whose reads do not end makes the checks that read tables
// partial. They find what they would have found in the other tables.
func TestTableThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		tables := []string{"accounts", "endless", "journal"}
		for _, name := range tables {
			env.CreateTable(name, "bal")
		}
		dead := env.NewClient(txn.Config{}, txntest.ChooseFaults(func(c txntest.Call) (txntest.Action, time.Duration, bool) {
			return txntest.Crash, 0, txntest.Classify(c.Method, c.Request).Step == txntest.StepCommit
		}).DialOptions()...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := dead.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("journal").Set("bob", "bal", "usd", []byte("10"))
			return nil
		}); !errors.Is(err, txn.ErrUndetermined) {
			t.Fatalf("a commit that is not sent: %v", err)
		}
		<-time.After(time.Hour)

		faults := txntest.NewFaults(t)
		slow := faults.On("a read of the table", func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			return ok && strings.HasSuffix(r.GetTableName(), "/endless")
		}, txntest.Crash, 0)
		bt, btAdmin := env.Open(faults.DialOptions()...)
		d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: bt, Admin: btAdmin, Emulator: true, Rows: 100}
		all := examine(t, d, tables...)
		<-slow.Fired()
		for _, name := range []string{"stranded locks", "raw writes", "consistency"} {
			r := all[name]
			want := doctor.Partial
			if name == "stranded locks" {
				want = doctor.Found
				if len(r.Findings) != 1 || r.Findings[0].Subject != "journal" {
					t.Errorf("%s: %+v", name, r.Findings)
				}
			}
			if r.State != want || !strings.Contains(r.Detail, "after 2m0s, 1 of 3 tables were not read to their end") {
				t.Errorf("%s: %+v", name, r)
			}
		}
	})
}
