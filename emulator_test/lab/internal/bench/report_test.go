package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// Ratios compare rates of the same round, so it changes nothing if the machine is twice
// as fast in one round. A comparison may be with half the rate of the raw operation.
func TestFigure(t *testing.T) {
	t.Parallel()
	round := func(ops int, cpu time.Duration) rig.Measured {
		return rig.Measured{Ops: ops, Elapsed: time.Second, CPU: cpu}
	}
	raw := []rig.Measured{round(100, time.Second), round(200, time.Second), round(100, 2*time.Second)}
	ours := []rig.Measured{round(40, time.Second), round(80, time.Second), round(30, 2*time.Second)}
	for _, tt := range []struct {
		halved    bool
		ratio, by float64
	}{{false, .4, .4}, {true, .8, .8}} {
		f := newFigure(comparison{figure: "f", halved: tt.halved}, member{"ours", rig.Task{Callers: 3}}, ours, raw)
		if f.Ratio != tt.ratio || math.Abs(f.CPURatio-tt.by) > 1e-9 || f.Raw != 100 || f.Ours != 40 || f.Ops != 150 || f.RawOps != 400 || f.Rounds != 3 {
			t.Errorf("%+v", f)
		}
	}
}

// Every kind of transaction that bench trips counts, except scans, has a plan to
// compare it with.
func TestEveryCountedKindIsPlanned(t *testing.T) {
	t.Parallel()
	left := len(planned)
	for _, k := range tripsKinds() {
		if _, ok := planned[k.name]; ok {
			left--
		} else if !strings.HasPrefix(k.name, "scan") {
			t.Errorf("%s is counted, but has no plan", k.name)
		}
	}
	if left != 0 {
		t.Errorf("%d kinds have a plan, but are not counted", left)
	}
}
