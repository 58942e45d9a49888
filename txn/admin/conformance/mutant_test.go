package conformance_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// mutants are servers that break one assumption each.
func mutants() map[string]func() []front.Front {
	all := map[string]func() []front.Front{}
	for _, some := range []map[string]func() []front.Front{conditionalMutants, rowMutants, cellMutants, scanMutants, limitMutants} {
		maps.Copy(all, some)
	}
	return all
}

// TestMutants: for each assumption there is a server that breaks it, and exactly its test
// fails there. With -short no other test runs on that server.
func TestMutants(t *testing.T) {
	long.NotUnderRace(t, "it makes the emulator race on purpose")
	mutants := mutants()
	for id := range mutants {
		if !slices.ContainsFunc(conformance.All(), func(a conformance.Assumption) bool { return a.ID == id }) {
			t.Errorf("there is no assumption %s", id)
		}
	}
	for _, a := range conformance.All() {
		if a.ID == "removed-cells" {
			continue // TestRemovedCells has it in virtual time
		}
		t.Run(a.ID, func(t *testing.T) {
			t.Parallel()
			fronts, ok := mutants[a.ID]
			if !ok {
				t.Fatal("no server breaks it")
			}
			s := start(t, front.Options(append(fronts(), accounts, wholeReads)...)...)
			cfg := s.everything()
			if a.ID != "late-requests" { // that one waits for twice the time
				cfg.Duration = 30 * time.Second // found at once; Requests ends the others
			}
			for _, other := range conformance.All() {
				// Those of rareFaults send much, and find what other tests look for, too.
				slow := other.ID == "removed-cells" || slices.ContainsFunc(rareFaults, func(f rareFault) bool { return f.id == other.ID })
				if !long.Reduced() && !slow {
					cfg.Only = append(cfg.Only, other.ID)
				}
			}
			cfg.Only = append(cfg.Only, a.ID)
			r, err := conformance.Run(t.Context(), s.bt, s.admin, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := append(slices.Clone(r.Broken), r.Limits...); !slices.Equal(got, []string{a.ID}) {
				for _, x := range r.Results {
					if x.State == conformance.Broken || x.State == conformance.Limit {
						t.Errorf("%s is %s: %s", x.ID, x.State, x.Detail)
					}
				}
				t.Errorf("broken: %v, limits: %v; want only %s", r.Broken, r.Limits, a.ID)
			}
			want := conformance.Unsafe
			if a.Class == conformance.Optional {
				want = conformance.SafeWithLimits
			}
			if r.Verdict != want {
				t.Errorf("the verdict is %s, want %s", r.Verdict, want)
			}
			if a.ID != conformance.SingleRow && len(r.Untested) > 0 {
				t.Errorf("untested: %v", r.Untested)
			}
		})
	}
}

// TestStrict: the server of the mutants keeps everything without a fault. TestRemovedCells tests
// what depends on time.
func TestStrict(t *testing.T) {
	long.RacedAtNight(t)
	s := start(t, front.Options(strict.Front(strict.Config{}), accounts, wholeReads)...)
	cfg := s.everything()
	cfg.Only = timeless()
	r, err := conformance.Run(t.Context(), s.bt, s.admin, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != conformance.Safe || len(r.Kept) != len(cfg.Only) {
		t.Errorf("%s: broken %v, limits %v, untested %v", r.Verdict, r.Broken, r.Limits, r.Untested)
	}
}
