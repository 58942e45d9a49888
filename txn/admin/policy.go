package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// This file clears garbage-collection policies when a table is adopted, and
// brings them back when that is undone.

// policyText is a family's policy for people; "" for none.
func policyText(f bigtable.FamilyInfo) string {
	switch f.GCPolicy {
	case store.NoPolicy:
		return ""
	case store.EmptyPolicy:
		if store.CheckPolicy("", f) != nil {
			return "(an empty rule)"
		}
	}
	return f.GCPolicy
}

// clearPolicy leaves a family without a garbage-collection rule.
func (a *adopter) clearPolicy(ctx context.Context, family string) error {
	if err := a.admin.SetGCPolicy(ctx, a.cfg.Table, family, bigtable.NoGcPolicy()); err != nil {
		return store.WrapRPC(ctx, "clear the garbage-collection policy of family "+family, a.cfg.Table, err)
	}
	infos, err := a.describe(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(infos, func(f bigtable.FamilyInfo) bool { return f.Name == family })
	if i < 0 || infos[i].GCPolicy != store.EmptyPolicy {
		return nil
	}
	if a.cfg.Instance == "" {
		if err := store.CheckPolicy(a.cfg.Table, infos[i]); err != nil {
			return fmt.Errorf("%w; to clear a policy there, set AdoptConfig.Instance", err)
		}
		return nil
	}
	// The emulator keeps the empty rule, which arms its collector (design §9).
	// AdminClient cannot send none at all, the client below it can.
	_, err = a.admin.TableAdminClientV2().ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{
		Name: a.cfg.Instance + "/tables/" + a.cfg.Table,
		Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{{
			Id:         family,
			Mod:        &adminpb.ModifyColumnFamiliesRequest_Modification_Update{Update: &adminpb.ColumnFamily{}},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"gc_rule"}},
		}},
	})
	return store.WrapRPC(ctx, "clear the garbage-collection policy of family "+family, a.cfg.Table, err)
}

// addPolicies adds the policies of families to those that are recorded. What
// was recorded first counts: it was there before anything was cleared.
func addPolicies(recorded []*recordpb.PriorPolicy, infos []bigtable.FamilyInfo) []*recordpb.PriorPolicy {
	for _, f := range infos {
		if f.GCPolicy == store.NoPolicy || f.GCPolicy == store.EmptyPolicy || slices.Contains(format.MetadataFamilies, f.Name) {
			continue
		}
		known := slices.ContainsFunc(recorded, func(p *recordpb.PriorPolicy) bool { return p.Family == f.Name })
		if rule := encodePolicy(f.FullGCPolicy); rule != nil && !known {
			recorded = append(recorded, &recordpb.PriorPolicy{Family: f.Name, Rule: rule})
		}
	}
	return recorded
}

// encodePolicy is nil for a policy of no kind that this library knows.
func encodePolicy(p bigtable.GCPolicy) *recordpb.GCRule {
	all := func(children []bigtable.GCPolicy) (rules []*recordpb.GCRule) {
		for _, c := range children {
			rules = append(rules, encodePolicy(c))
		}
		if slices.Contains(rules, nil) {
			return nil
		}
		return rules
	}
	switch p := p.(type) {
	case bigtable.MaxVersionsGCPolicy:
		return &recordpb.GCRule{MaxVersions: int64(p)}
	case bigtable.MaxAgeGCPolicy:
		return &recordpb.GCRule{MaxAgeMicros: time.Duration(p).Microseconds()}
	case bigtable.UnionGCPolicy:
		if rules := all(p.Children); rules != nil {
			return &recordpb.GCRule{Union: rules}
		}
	case bigtable.IntersectionGCPolicy:
		if rules := all(p.Children); rules != nil {
			return &recordpb.GCRule{Intersection: rules}
		}
	}
	return nil
}

func decodePolicy(r *recordpb.GCRule) bigtable.GCPolicy {
	all := func(rules []*recordpb.GCRule) (children []bigtable.GCPolicy) {
		for _, r := range rules {
			children = append(children, decodePolicy(r))
		}
		return children
	}
	switch {
	case r.GetMaxVersions() > 0:
		return bigtable.MaxVersionsPolicy(int(r.GetMaxVersions()))
	case r.GetMaxAgeMicros() > 0:
		return bigtable.MaxAgePolicy(time.Duration(r.GetMaxAgeMicros()) * time.Microsecond)
	case len(r.GetUnion()) > 0:
		return bigtable.UnionPolicy(all(r.GetUnion())...)
	case len(r.GetIntersection()) > 0:
		return bigtable.IntersectionPolicy(all(r.GetIntersection())...)
	}
	return bigtable.NoGcPolicy()
}
