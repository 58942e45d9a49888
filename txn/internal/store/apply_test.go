package store

import (
	"context"
	"errors"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A bulkAPI records how many rows each MutateRows request has.
type bulkAPI struct {
	bigtable.TableAPI
	rows []int
	fail int // the request that fails, from 1
}

func (a *bulkAPI) ApplyBulk(_ context.Context, rows []string, _ []*bigtable.Mutation, _ ...bigtable.ApplyOption) ([]error, error) {
	a.rows = append(a.rows, len(rows))
	if len(a.rows) == a.fail {
		return nil, errors.New("injected")
	}
	return nil, nil
}

// TestApplyKeepsTheLimit: a request has as many changes as Bigtable allows, and no more. A single
// row is not divided. A request that fails does not stop the next ones.
func TestApplyKeepsTheLimit(t *testing.T) {
	const most = format.MaxMutations
	for _, tt := range []struct {
		ops, want []int
		fail      int
	}{
		{ops: []int{most / 2, most / 2, 1}, want: []int{2, 1}},
		{ops: []int{most / 2, most/2 + 1, 1}, want: []int{1, 2}},
		{ops: []int{most + 1, 1, most}, want: []int{1, 1, 1}, fail: 2},
	} {
		api := &bulkAPI{fail: tt.fail}
		metrics, err := telemetry.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := &Store{Metrics: metrics}
		s.Config.RPCTimeout = 1 << 40
		table := &Table{Name: "t", API: api, store: s}
		var muts []RowMutation
		for _, ops := range tt.ops {
			muts = append(muts, RowMutation{Row: "r", Ops: ops})
		}
		failed, err := table.Apply(t.Context(), muts)
		if !slices.Equal(api.rows, tt.want) || (err != nil) != (tt.fail > 0) || len(failed) > 1 || (len(failed) > 0) != (tt.fail > 0) {
			t.Errorf("changes %v: requests of %v rows, want %v; %d failed: %v", tt.ops, api.rows, tt.want, len(failed), err)
		}
	}
}
