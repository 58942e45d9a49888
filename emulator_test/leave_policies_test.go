package emulator_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// When a table becomes a plain one, its values last as long as they do in transactions, whatever
// policy the adoption has cleared: Bigtable deletes nothing that a transaction reads, unless the
// caller says so.
func TestPoliciesOfPlainTable(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	versions, age := bigtable.MaxVersionsPolicy(5), bigtable.MaxAgePolicy(time.Hour)
	const hour, long = time.Hour, 1000 * time.Hour
	for _, test := range []struct {
		prior     bigtable.GCPolicy
		after     time.Duration // expiry at the end
		old       bool          // RestoreOldPolicies
		want      string
		remains   bool // what transactions read after 3 h
		announced bool // as a deletion of what they read
	}{
		{prior: age, after: hour, want: "age() > 1h"},
		{prior: age, want: "<never>", remains: true},
		{prior: age, after: long, want: "age() > 1000h", remains: true},
		{prior: age, after: long, old: true, want: "age() > 1h", announced: true},
		{prior: age, old: true, want: "age() > 1h", announced: true},
		{prior: bigtable.MaxAgePolicy(long), after: hour, want: "age() > 1h"},
		{prior: bigtable.UnionPolicy(versions, age), want: "versions() > 5", remains: true},
		{prior: bigtable.UnionPolicy(versions, age), after: long, want: "(versions() > 5 || age() > 1000h)", remains: true},
		{prior: bigtable.IntersectionPolicy(versions, age), want: "(versions() > 5 && age() > 1h)", remains: true},
		{prior: bigtable.IntersectionPolicy(age, bigtable.MaxAgePolicy(2*hour)), want: "(versions() > 1 && age() > 1h && age() > 2h)", remains: true},
		{prior: versions, after: hour, want: "(versions() > 5 || age() > 1h)"},
		{prior: bigtable.NoGcPolicy(), after: hour, old: true, want: "age() > 1h"},
	} {
		for _, leaves := range []bool{true, false} {
			if reducedTo(2) > 1 && leaves == test.remains {
				continue
			}
			t.Run(fmt.Sprintf("%v, %v, %v, leaves %v", test.prior, test.after, test.old, leaves), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := newPlainRows(t, 1, txntest.WithoutTransport())
					if err := env.Admin.SetGCPolicy(t.Context(), "a", "g", test.prior); err != nil {
						t.Fatal(err)
					}
					cfg := adoptA(env)
					mustAdopt(t, env, cfg)
					c := env.NewClient(txn.Config{TokenTTL: -1})
					if err := admin.SetExpiry(t.Context(), c, "a", "g", test.after); err != nil {
						t.Fatal(err)
					}
					if leaves {
						if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
							tx.Table("a").Set("r000", "g", "q", []byte("keep"))
							return nil
						}); err != nil {
							t.Fatal(err)
						}
					}
					advance(3 * time.Hour)
					row, err := takeSnapshot(t, c).Table("a").ReadRow(t.Context(), "r000", txn.Families("g"))
					if reads := len(row["g"]) > 0; err != nil || reads != (test.after == 0 || test.after == long) {
						t.Fatalf("a transaction reads %v, %v", row, err)
					}
					cfg.RestoreOldPolicies = test.old
					leave := admin.LeaveConfig{Table: "a", RestoreOldPolicies: test.old}
					var plan []admin.FamilyPolicy
					if leaves {
						plan, err = admin.CheckLeave(t.Context(), env.Admin, env.Bigtable, c, leave)
					} else {
						plan, err = admin.CheckUndoAdoption(t.Context(), env.Admin, env.Bigtable, cfg)
					}
					if err != nil || len(plan) != 1 || plan[0].Family != "g" || plan[0].Expiry != test.after || plan[0].DeletesVisible() != test.announced {
						t.Fatalf("plan %+v, %v", plan, err)
					}
					if leaves {
						_, err = admin.Leave(t.Context(), env.Admin, env.Bigtable, c, leave)
					} else {
						err = admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, cfg, 0)
					}
					if err != nil {
						t.Fatal(err)
					}
					if _, f := dumpTable(t, env, "a"); f != "f <never>, g "+test.want || plan[0].Policy != strings.TrimPrefix(test.want, "<never>") {
						t.Errorf("families %s, want %s; plan %+v", f, test.want, plan)
					}
					advance(5 * time.Minute) // Bigtable collects
					cells, _ := dumpTable(t, env, "a")
					if got := strings.Contains(cells, `"g:`); got != test.remains {
						t.Errorf("Bigtable keeps the family's value: %v, want %v; cells:\n%s", got, test.remains, cells)
					}
				})
			})
		}
	}
}

// A table leaves although a family was removed since its adoption. If another operator changes an
// expiry after Leave has read it, Leave does not use the old one.
func TestLeaveAfterSchemaChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPlainRows(t, 1, txntest.WithoutTransport())
		for family, age := range map[string]time.Duration{"f": time.Hour, "g": 2 * time.Hour} {
			if err := env.Admin.SetGCPolicy(t.Context(), "a", family, bigtable.MaxAgePolicy(age)); err != nil {
				t.Fatal(err)
			}
		}
		mustAdopt(t, env, adoptA(env))
		c := env.NewClient(txn.Config{TokenTTL: -1})
		if err := env.Admin.DeleteColumnFamily(t.Context(), "a", "g"); err != nil {
			t.Fatal(err)
		}
		var changed error
		var once sync.Once
		bt, adminClient := env.Open(txntest.Intercept(func(call txntest.Call) error {
			if call.Row == "adoption/a" && call.Step != txntest.StepRead { // the schema record was read
				once.Do(func() { changed = admin.SetExpiry(t.Context(), c, "a", "f", 0) })
			}
			return nil
		})...)
		if _, err := leave(t.Context(), t, env, adminClient, bt); changed != nil || err == nil || !strings.Contains(err.Error(), "changed or removed its schema record") {
			t.Fatalf("%v; change of the expiry: %v", err, changed)
		}
		if _, err := leave(t.Context(), t, env, adminClient, bt); err != nil {
			t.Fatal(err)
		}
		if _, f := dumpTable(t, env, "a"); f != "f <never>" {
			t.Errorf("families %s", f)
		}
	})
}
