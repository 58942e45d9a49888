package doctor

import (
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestWaitsSince: only changes that an observer has not handled count.
func TestWaitsSince(t *testing.T) {
	t.Parallel()
	triggers := []format.NotifyCell{{TS: 10}, {TS: 20}, {TS: 30}}
	for name, test := range map[string]struct {
		acks     map[string]tso.Timestamp
		failures map[string]format.Failure
		want     tso.Timestamp
	}{
		"never run":         {nil, nil, 10},
		"one is behind":     {map[string]tso.Timestamp{"a": 35, "b": 15}, nil, 20},
		"all have seen it":  {map[string]tso.Timestamp{"a": 35, "b": 35}, nil, 0},
		"it fails":          {map[string]tso.Timestamp{"a": 35}, map[string]format.Failure{"b": {ChangeTS: 30, NotBefore: 99}}, 10},
		"given up":          {map[string]tso.Timestamp{"a": 35}, map[string]format.Failure{"b": {ChangeTS: 30, NotBefore: format.Never}}, 0},
		"an older given up": {map[string]tso.Timestamp{"a": 35}, map[string]format.Failure{"b": {ChangeTS: 20, NotBefore: format.Never}}, 10},
		"the newest alone":  {map[string]tso.Timestamp{"a": 29, "b": 29}, nil, 30},
	} {
		seen := changes.Observation{ChangeTS: 30, Observers: []string{"a", "b"}, Triggers: triggers, Acks: test.acks, Failures: test.failures}
		if got := waitsSince(&seen); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
