package conformance

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"
)

// tables are assumptions about the admin service.
var tables = []Assumption{
	{
		ID: "family-added", Group: "Tables", Class: Required,
		Title:  "A family that is added to a table with data can be used at once.",
		Used:   "adoption of tables (`txn/admin/adopt.go`)",
		Source: adminAPI + "#modifycolumnfamiliesrequest",
		Breaks: "Tables with data cannot become transactional.",
		Advice: "Wait, and repeat. If it stays so, create tables with percctl table init.",
		cost:   cost{requests: 3, bytes: 16 << 10},
		test: func(ctx context.Context, t *trial) error {
			if err := t.administer(ctx, func(ctx context.Context) error { return t.admin.CreateColumnFamily(ctx, t.name, "added") }); err != nil {
				return err
			}
			row := t.row("r")
			if err := t.apply(ctx, row, changes().set("added", "a", 1, "v")); err != nil {
				return brokenf("a mutation of the added family is refused: %v", err)
			}
			return t.expect(ctx, "a read of the added family", row, wholeFamily("added"), cell{"added", "a", 1, "v"})
		},
	},
	{
		ID: "policy-reported", Group: "Tables", Class: Required,
		Title:  "The admin service says which family has a garbage-collection policy.",
		Used:   "clients refuse tables with policies (`txn/admin/policy.go`)",
		Source: adminAPI + "#columnfamily",
		Breaks: "Bigtable deletes live versions and locks, and no client warns.",
		Advice: "Look at the policies by other means: no family of a transactional table may have one.",
		cost:   cost{requests: 6, bytes: 16 << 10},
		test:   testPolicy,
	},
	{
		ID: "policy-empty", Group: "Tables", Class: Required,
		Title:  "A family whose policy is replaced by the empty one keeps all versions.",
		Used:   "adoption removes policies in this way (`txn/admin/policy.go`)",
		Source: adminAPI + "#gcrule",
		Breaks: "Bigtable deletes live versions and locks of adopted tables.",
		Advice: "Do not adopt tables that have a policy. Create tables with percctl table init, and copy the data.",
		cost:   cost{requests: 6, bytes: 16 << 10},
		test:   testEmptyPolicy,
	},
}

// noPolicy is how Bigtable's client writes that a family has no policy.
const noPolicy = "<never>"

// withTable runs f with another scratch table: an emulator that has a policy may lose writes.
func withTable(ctx context.Context, t *trial, f func(name string) error) (err error) {
	name := t.name + "-p"
	if err := t.administer(ctx, func(ctx context.Context) error { return createScratch(ctx, t.bt, t.admin, name) }); err != nil {
		return err
	}
	defer func() {
		if e := removeScratch(ctx, t.bt, t.admin, name); e != nil && err == nil {
			err = fmt.Errorf("removing table %s: %w", name, e)
		}
	}()
	return f(name)
}

func setPolicy(ctx context.Context, t *trial, table string, p bigtable.GCPolicy) error {
	return t.administer(ctx, func(ctx context.Context) error { return t.admin.SetGCPolicy(ctx, table, family2, p) })
}

func testPolicy(ctx context.Context, t *trial) error {
	return withTable(ctx, t, func(name string) error {
		if err := setPolicy(ctx, t, name, bigtable.MaxVersionsPolicy(7)); err != nil {
			return err
		}
		policies := map[string]string{}
		if err := t.administer(ctx, func(ctx context.Context) error {
			info, err := t.admin.TableInfo(ctx, name)
			if err != nil {
				return err
			}
			for _, f := range info.FamilyInfos {
				policies[f.Name] = f.GCPolicy
			}
			return nil
		}); err != nil {
			return err
		}
		if p, ok := policies[family1]; !ok || p != noPolicy {
			return brokenf("a family without a policy is reported with %q", p)
		}
		if policies[family2] != "versions() > 7" {
			return brokenf("a family with a policy of 7 versions is reported with %q", policies[family2])
		}
		return nil
	})
}

func testEmptyPolicy(ctx context.Context, t *trial) error {
	return withTable(ctx, t, func(name string) error {
		for _, p := range []bigtable.GCPolicy{bigtable.MaxVersionsPolicy(1), bigtable.NoGcPolicy()} {
			if err := setPolicy(ctx, t, name, p); err != nil {
				return err
			}
		}
		own := t.table
		t.table = t.bt.Open(name)
		defer func() { t.table = own }()
		c, want := changes(), []cell{}
		for ms := int64(1); ms <= 5; ms++ {
			c.set(family2, "a", ms, "v")
			want = append(want, cell{family2, "a", ms, "v"})
		}
		if err := t.apply(ctx, t.row("r"), c); err != nil {
			return err
		}
		return t.expect(ctx, "a family with the empty policy", t.row("r"), nil, want...)
	})
}
