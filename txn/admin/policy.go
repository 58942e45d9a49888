package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// policyText is a family's policy as text; "" for none.
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

// policyReason says why a policy has to go.
func policyReason(f bigtable.FamilyInfo) string {
	if f.GCPolicy == store.EmptyPolicy {
		return "an empty garbage-collection rule, as `cbt createfamily` and `cbt createtable` make it on the emulator; the emulator's collector can lose acknowledged writes of such a family"
	}
	return fmt.Sprintf("the garbage-collection policy %q, which would delete live versions", f.GCPolicy)
}

// clearPolicy leaves a family of a table without a garbage-collection rule.
// instance is [AdoptConfig.Instance].
func clearPolicy(ctx context.Context, admin *bigtable.AdminClient, instance, table, family string) error {
	if err := admin.SetGCPolicy(ctx, table, family, bigtable.NoGcPolicy()); err != nil {
		return store.WrapRPC(ctx, "clear the garbage-collection policy of family "+family, table, err)
	}
	infos, err := families.Of(ctx, admin, table)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(infos, func(f bigtable.FamilyInfo) bool { return f.Name == family })
	if i < 0 || infos[i].GCPolicy != store.EmptyPolicy {
		return nil
	}
	if instance == "" {
		if err := store.CheckPolicy(table, infos[i]); err != nil {
			return fmt.Errorf("%w; to clear a policy there, set AdoptConfig.Instance", err)
		}
		return nil
	}
	// The emulator keeps the empty rule, and its collector would use it. AdminClient
	// cannot send a family without a rule, but the client below it can.
	_, err = admin.TableAdminClientV2().ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{
		Name: instance + "/tables/" + table,
		Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{{
			Id:         family,
			Mod:        &adminpb.ModifyColumnFamiliesRequest_Modification_Update{Update: &adminpb.ColumnFamily{}},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"gc_rule"}},
		}},
	})
	return store.WrapRPC(ctx, "clear the garbage-collection policy of family "+family, table, err)
}

// A FamilyPolicy says which garbage-collection policy a family gets when its table becomes a
// plain one, by [Leave] or [UndoAdoption].
type FamilyPolicy struct {
	Family string
	// Prior is the policy that the adoption cleared; "" for none.
	Prior string
	// Expiry is how long values last now, see [SetExpiry]; 0: without limit.
	Expiry time.Duration
	// Policy is the policy that the family gets; "" for none.
	Policy string
	// MaxAge is the age from which Bigtable deletes the newest value of a column under Policy;
	// 0: never.
	MaxAge time.Duration

	rule *recordpb.GCRule
}

// DeletesVisible reports whether Bigtable deletes values under the policy that transactions read
// now.
func (p FamilyPolicy) DeletesVisible() bool {
	return p.MaxAge > 0 && (p.Expiry == 0 || p.MaxAge < p.Expiry)
}

// plainPolicies returns the policies of a table that becomes a plain one, of the families that it
// still has. If old is set, they are those from before the adoption. Otherwise, values last as
// long as they do now: if the expiry of a family has changed since, it replaces the maximum age.
func plainPolicies(record *recordpb.TableSchema, infos []bigtable.FamilyInfo, old bool) (policies []FamilyPolicy) {
	expiries := store.ExpiriesOf(record)
	old = old || record.AdoptedTs == 0 // the adoption was interrupted before it set expiries
	for _, f := range infos {
		p := FamilyPolicy{Family: f.Name, Expiry: time.Duration(expiries[f.Name].After) * time.Microsecond}
		for _, r := range record.PriorPolicies {
			if r.Family == f.Name {
				p.rule, p.Prior = r.Rule, decodePolicy(r.Rule).String()
			}
		}
		after := p.Expiry.Microseconds()
		if expiryOf(p.rule) != after && (!old || p.rule == nil) {
			if p.rule = withoutExpiry(p.rule); after > 0 {
				age := &recordpb.GCRule{MaxAgeMicros: after}
				switch {
				case p.rule == nil:
					p.rule = age
				case len(p.rule.Union) > 0:
					p.rule = &recordpb.GCRule{Union: append(slices.Clone(p.rule.Union), age)}
				default:
					p.rule = &recordpb.GCRule{Union: []*recordpb.GCRule{p.rule, age}}
				}
			}
		}
		if p.rule != nil {
			p.Policy, p.MaxAge = decodePolicy(p.rule).String(), format.Micros(expiryOf(p.rule))
		}
		if p.Prior != "" || p.Policy != "" {
			policies = append(policies, p)
		}
	}
	return policies
}

// setPolicies gives the families of a table their policies.
func setPolicies(ctx context.Context, admin *bigtable.AdminClient, table string, policies []FamilyPolicy) error {
	for _, p := range policies {
		if p.rule == nil {
			continue
		}
		if err := admin.SetGCPolicy(ctx, table, p.Family, decodePolicy(p.rule)); err != nil {
			return store.WrapRPC(ctx, "set the garbage-collection policy of family "+p.Family, table, err)
		}
	}
	return nil
}

// addPolicies adds the policies of families to the recorded ones. It keeps what is
// recorded already, because that is from before any policy was cleared.
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

// encodePolicy returns the record of a policy, or nil for a kind of policy that this
// library does not know.
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
