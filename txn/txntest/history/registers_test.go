package history

import "testing"

// TestRegisterAnomalies proves that the checker of registers finds each anomaly in a
// history made for it, and finds nothing in a history that differs only in the anomaly.
func TestRegisterAnomalies(t *testing.T) {
	for _, tc := range []struct {
		name       string
		bad, clean string
		want       Kind
	}{
		{"G0", `ok 1 9 r:x: w:x:1 r:y:=2 w:y:1
			ok 2 8 r:x:=1 w:x:2 w:y:2`, `ok 1 3 r:x: w:x:1 r:y: w:y:1
			ok 4 8 r:x:=1 w:x:2 w:y:2`, G0},
		{"G1a", `fail 1 0 w:x:1
			ok 2 2 r:x:=1`, `ok 1 1 w:x:1
			ok 2 2 r:x:=1`, G1a},
		{"G1b", `ok 1 2 w:x:1 w:x:2
			ok 3 3 r:x:=1`, `ok 1 2 w:x:1 w:x:2
			ok 3 3 r:x:=2`, G1b},
		{"G1c", `ok 1 8 w:x:1 r:y:=1
			ok 2 9 w:y:1 r:x:=1`, `ok 1 8 w:x:1 r:y:=1
			ok 2 9 w:y:1 r:x:`, G1c},
		{"garbage", `ok 1 2 w:x:1
			ok 3 3 r:x:=7`, `ok 1 2 w:x:1
			ok 3 3 r:x:=1`, Garbage},
		{"internal", `ok 1 2 w:x:1 r:x:=2
			ok 3 4 w:x:2`, `ok 1 2 w:x:1 r:x:=1
			ok 3 4 w:x:2`, Internal},
		{"not repeatable", `ok 1 2 w:x:1
			ok 1 9 r:x:=1 r:x:`, `ok 1 2 w:x:1
			ok 1 9 r:x: r:x:`, Internal},
		{"lost update", `ok 1 2 w:x:1
			ok 3 8 r:x:=1 w:x:2
			ok 4 9 r:x:=1 w:x:3`, `ok 1 2 w:x:1
			ok 3 5 r:x:=1 w:x:2
			ok 6 9 r:x:=2 w:x:3`, LostUpdate},
		{"lost update of nothing", `ok 3 8 r:x: w:x:2
			ok 4 9 r:x: w:x:3`, `ok 3 8 r:x: w:x:2
			ok 4 9 r:x: w:y:3`, LostUpdate},
		{"read skew", `ok 1 5 w:x:1 w:y:1
			ok 2 7 r:x:=1 r:y:`, `ok 1 5 w:x:1 w:y:1
			ok 2 7 r:x:=1 r:y:=1`, GSingle},
		{"read skew of a register that is known to follow", `ok 1 2 w:x:1 w:y:1
			ok 3 9 r:x:=1 w:x:2 w:y:2
			ok 4 8 r:x:=2 r:y:=1`, `ok 1 2 w:x:1 w:y:1
			ok 3 9 r:x:=1 w:x:2 w:y:2
			ok 4 8 r:x:=2 r:y:=2`, GSingle},
		{"long fork", `ok 1 9 w:x:1
			ok 2 8 w:y:1
			ok 3 7 r:x:=1 r:y:
			ok 4 6 r:x: r:y:=1`, `ok 1 9 w:x:1
			ok 2 8 w:y:1
			ok 3 7 r:x:=1 r:y:
			ok 4 6 r:x:=1 r:y:=1`, GNonadjacent},
		{"write skew", `ok 1 8 r:x: w:y:1
			ok 2 9 r:y: w:x:1`, `ok 1 8 r:x: w:y:1
			ok 2 9 r:y:=1 w:x:1`, G2Item},
		{"stale read", `ok 1 2 w:x:1
			ok 3 3 r:x:`, `ok 1 4 w:x:1
			ok 3 3 r:x:`, StaleRead},
		{"stale read of a replaced number", `ok 1 2 w:x:1
			ok 3 4 w:x:2
			ok 5 5 r:x:=1`, `ok 1 2 w:x:1
			ok 3 6 w:x:2
			ok 5 5 r:x:=1`, StaleRead},
		{"a read misses what must come before an acknowledged commit", `killed 1 0 w:x:1 w:y:1
			ok 3 4 r:y:=1 w:y:2
			ok 5 5 r:x:
			ok 9 9 r:x:=1 r:y:=2`, `killed 1 0 w:x:1 w:y:1
			ok 3 7 r:y:=1 w:y:2
			ok 2 2 r:x:
			ok 9 9 r:x:=1 r:y:=2`, RealTime},
		{"half a commit of a killed client", `killed 1 0 w:x:1 w:y:1
			ok 5 7 r:x:=1 r:y:`, `killed 1 0 w:x:1 w:y:1
			ok 5 7 r:x:=1 r:y:=1`, GSingle},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if found := CheckRegisters(story(t, tc.bad)); !kinds(found)[tc.want] {
				t.Errorf("not found: %s; found:\n%s", tc.want, describe(found))
			}
			if found := CheckRegisters(story(t, tc.clean)); len(found) > 0 {
				t.Errorf("found in a clean history:\n%s", describe(found))
			}
		})
	}
}

// TestRegistersAndLists: each checker ignores the other one's operations.
func TestRegistersAndLists(t *testing.T) {
	h := story(t, `ok 1 2 a:x:1 w:y:1
		ok 3 4 r:x:1 r:y:=1 a:x:2 w:y:2
		ok 5 5 r:x:1,2 r:y:=2 r:z:`)
	if found := Serializable.Check(h); len(found) > 0 {
		t.Errorf("found in a clean history:\n%s", describe(found))
	}
}
