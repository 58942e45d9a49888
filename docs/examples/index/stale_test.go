package index

import (
	"context"
	"errors"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
)

// TestStaleRuns: a document leaves its cluster while a run for the cluster is
// under way. The run must not commit, even where it writes no cell that the
// clusterer writes: the document's row, and the row that is served under its
// name, belong to its next cluster by then.
func TestStaleRuns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		id   string
		have table
	}{
		{"elector", table{}},
		{"exporter", table{"dups/" + H1 + "/cluster:canonical": "a"}},
	} {
		t.Run(test.id, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			put(t, env.Client, table{"documents/a/parsed:hash": H2, "documents/a/cluster:hash": H1, "dups/" + H1 + "/member:a": ""})
			put(t, env.Client, test.have)
			tx, err := env.Client.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			for _, o := range Observers() {
				if o.ID == test.id {
					err = o.Observe(t.Context(), tx, txn.Cell{Table: Dups, Row: H1, Family: o.Column.Family, Qualifier: o.Column.Qualifier})
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
				return cluster(ctx, tx, txn.Cell{Table: Documents, Row: "a", Family: parsedHash.Family, Qualifier: parsedHash.Qualifier})
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
				t.Errorf("the run for the cluster that the document has left: %v; want a conflict", err)
			}
		})
	}
}
