package store

import (
	"context"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
)

// A world has tables "a" and "b" and a metadata table, and lists the requests of one store.
type world struct {
	*worldtest.World
	now tso.Timestamp // of the oracle
}

var errApplied, errNever, denied, lost = worldtest.ErrApplied, worldtest.ErrNever, worldtest.Denied, worldtest.Lost

// inWorld runs f in a world.
func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	worldtest.Run(t, map[string][]string{"a": append([]string{"f"}, format.MetadataFamilies...), "b": {"f"}, format.DefaultMetadataTable: {DeployFamily}}, func(in *worldtest.World) {
		in.Name = func(kind, table, what string) (string, string) {
			if table == format.DefaultMetadataTable {
				table = "meta"
			}
			return kind, table + what
		}
		f(&world{in, filterBase})
	})
}

// store returns a store of the world.
func (w *world) store(cfg Config) *Store {
	w.Helper()
	if cfg.Backoff.Min == 0 {
		cfg.Backoff = Backoff{1, 1}
	}
	s, err := New(w.Context(), w, cfg)
	w.Must(err)
	s.Clock.Oracle = w
	w.Did()
	return s
}

// schema stores the schema record of table "a".
func (w *world) schema(m *recordpb.TableSchema) {
	w.Helper()
	m.FormatVersion = max(m.FormatVersion, format.Version)
	w.set(SchemaRowPrefix+"a", SchemaQualifier, format.Marshal(m))
}

// set stores a cell of the metadata table.
func (w *world) set(row, qualifier string, value []byte) {
	w.Helper()
	w.Set(format.DefaultMetadataTable, row, DeployFamily, qualifier, 0, value)
}

// get returns a cell of the metadata table.
func (w *world) get(row string) []byte {
	w.Helper()
	if cells := w.Row(format.DefaultMetadataTable, row)[DeployFamily]; len(cells) > 0 {
		return cells[0].Value
	}
	return nil
}

func (w *world) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := w.Fault(ctx, "oracle", ""); err != nil {
		return 0, err
	}
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.now++
	return w.now, nil
}
