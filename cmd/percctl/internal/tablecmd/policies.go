package tablecmd

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/txn/admin"
)

// A plainPolicy is the garbage-collection policy of a family when its table is a plain one.
type plainPolicy struct {
	Family  string  `json:"family"`                 // name of the family
	Prior   string  `json:"prior_policy"`           // policy that the adoption cleared; empty if there was none
	Expiry  float64 `json:"expiry_seconds"`         // how long values last now; 0 if there is no limit
	Policy  string  `json:"policy"`                 // policy that the family gets; empty if it gets none
	MaxAge  float64 `json:"max_age_seconds"`        // age from which Bigtable deletes the newest value of a column under it; 0 if it never does
	Deletes bool    `json:"deletes_visible_values"` // whether this deletes values that transactions read now
}

func addRestoreOldPolicies(f *pflag.FlagSet, v *bool) {
	f.BoolVar(v, "restore-old-policies", false, "restore the policies of before the adoption unchanged, also if they delete values that transactions read now")
}

func plainPolicies(policies []admin.FamilyPolicy) []plainPolicy {
	out := []plainPolicy{}
	for _, p := range policies {
		out = append(out, plainPolicy{p.Family, p.Prior, p.Expiry.Seconds(), p.Policy, p.MaxAge.Seconds(), p.DeletesVisible()})
	}
	return out
}

// text says what Bigtable deletes under the policy.
func (p plainPolicy) text(w io.Writer) error {
	policy, deletes := "garbage-collection policy "+p.Policy, "Bigtable deletes no newest value"
	if p.Policy == "" {
		policy = "no garbage-collection policy"
	}
	switch {
	case p.Deletes:
		deletes = fmt.Sprintf("Bigtable DELETES values after %s, and transactions read them now: they last %s", lasts(p.MaxAge), lasts(p.Expiry))
	case p.MaxAge > 0:
		deletes = fmt.Sprintf("Bigtable deletes values after %s; transactions see them for %s", lasts(p.MaxAge), lasts(p.Expiry))
	}
	before := ""
	if p.Prior != "" && p.Prior != p.Policy {
		before = fmt.Sprintf(" (before the adoption: %s; since then, the expiry has changed)", p.Prior)
	}
	_, err := fmt.Fprintf(w, "  family %s: to get %s%s; %s\n", p.Family, policy, before, deletes)
	return err
}
