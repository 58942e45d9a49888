package admin

import (
	"context"
	"fmt"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An adoption is a table that is being adopted, or whose adoption is being undone,
// with the stored state of that.
type adoption struct {
	cfg   *AdoptConfig
	admin *bigtable.AdminClient
	// The adoption makes its requests without a Client, which needs the metadata
	// table. That table may be missing here.
	requests *store.Store
	table    *store.Table
	meta     *store.Table
}

func newAdoption(admin *bigtable.AdminClient, bt *bigtable.Client, cfg *AdoptConfig) (*adoption, error) {
	if cfg.MetadataTable == "" {
		cfg.MetadataTable = format.DefaultMetadataTable
	}
	if cfg.Table == "" || cfg.Table == cfg.MetadataTable {
		return nil, invalidf("table name %q", cfg.Table)
	}
	if admin == nil || bt == nil {
		return nil, invalidf("nil Bigtable client")
	}
	for _, c := range cfg.Observed {
		if err := format.CheckColumn(c); err != nil {
			return nil, err
		}
	}
	if cfg.SampleRows < 0 {
		return nil, invalidf("AdoptConfig.SampleRows is %d; set it to a positive number, or to 0 for 20,000", cfg.SampleRows)
	}
	if cfg.SampleRows == 0 {
		cfg.SampleRows = 20_000
	}
	requests, err := store.NewRequests(bt, store.Config{MetadataTable: cfg.MetadataTable, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	return &adoption{cfg: cfg, admin: admin, requests: requests, table: requests.NewTable(cfg.Table), meta: requests.NewTable(cfg.MetadataTable)}, nil
}

// families returns the table's families in order of their names.
func (a *adoption) families(ctx context.Context) ([]bigtable.FamilyInfo, error) {
	return families.Of(ctx, a.admin, a.cfg.Table)
}

// The stored state of an interrupted adoption or undo is a row of the metadata
// table. Its cells have timestamp 0.
const (
	adoptionRowPrefix = "adoption/"
	adoptingQualifier = "adopting" // the schema record to write, with the policies to clear
	undoingQualifier  = "undoing"  // the schema record that was removed
	leavingQualifier  = "leaving"  // the schema record of a table that leaves
	droppingQualifier = "dropping" // the families are being dropped; the undo cannot be stopped
	leftPrefix        = "left/"    // and a key: from there to the key in the value, all rows have left
)

// adoptionState is what the metadata table says about a table.
type adoptionState struct {
	schema, adopting, undoing, leaving *recordpb.TableSchema
	schemaBytes                        []byte
	dropping                           bool
	left                               []store.KeyRange
}

// prior is the record of an interrupted adoption or undo; nil if there is none.
func (s *adoptionState) prior() *recordpb.TableSchema {
	if s.undoing != nil {
		return s.undoing
	}
	return s.adopting
}

// state reads the stored state. If there is no metadata table, it is empty.
func (a *adoption) state(ctx context.Context) (*adoptionState, error) {
	s := &adoptionState{}
	filter := store.Interleave(store.WholeFamily(store.DeployFamily))
	for _, key := range []string{store.SchemaRowPrefix + a.cfg.Table, adoptionRowPrefix + a.cfg.Table} {
		row, err := a.meta.ReadRow(ctx, key, filter)
		for _, e := range store.RPCErrors(err) {
			if status.Code(e) == codes.NotFound {
				return s, nil // no metadata table yet
			}
		}
		if err != nil {
			return nil, err
		}
		for _, item := range row[store.DeployFamily] {
			if start, ok := strings.CutPrefix(item.Column, store.DeployFamily+":"+leftPrefix); ok {
				s.left = append(s.left, store.KeyRange{Start: start, End: string(item.Value)})
				continue
			}
			m := &recordpb.TableSchema{}
			if err := proto.Unmarshal(item.Value, m); err != nil {
				return nil, fmt.Errorf("admin: table %q: %w: %s in row %s of metadata table %q does not parse: %w", a.cfg.Table, format.ErrCorrupt, item.Column, key, a.cfg.MetadataTable, err)
			}
			switch item.Column {
			case store.DeployFamily + ":" + store.SchemaQualifier:
				s.schema, s.schemaBytes = m, item.Value
			case store.DeployFamily + ":" + adoptingQualifier:
				s.adopting = m
			case store.DeployFamily + ":" + undoingQualifier:
				s.undoing = m
			case store.DeployFamily + ":" + leavingQualifier:
				s.leaving = m
			case store.DeployFamily + ":" + droppingQualifier:
				s.dropping = true
			}
		}
	}
	return s, nil
}

// putState stores a record in the state of the adoption.
func (a *adoption) putState(ctx context.Context, qualifier string, record *recordpb.TableSchema) error {
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, qualifier, 0, format.Marshal(record))
	_, err := a.meta.Apply(ctx, []store.RowMutation{{Row: adoptionRowPrefix + a.cfg.Table, Mut: m, Ops: 1}})
	return err
}

// end removes what is stored about a table that is plain again. Without this, an adoption by an
// older release would make the journal of the table look complete too early.
func (a *adoption) end(ctx context.Context) error {
	if err := journal.Forget(ctx, a.meta, a.cfg.Table); err != nil {
		return err
	}
	return a.dropState(ctx)
}

// dropState removes the state of the adoption.
func (a *adoption) dropState(ctx context.Context) error {
	m := bigtable.NewMutation()
	m.DeleteCellsInFamily(store.DeployFamily)
	_, err := a.meta.Apply(ctx, []store.RowMutation{{Row: adoptionRowPrefix + a.cfg.Table, Mut: m, Ops: 1}})
	return err
}

// plainPolicies returns the policies that the families get when the table is plain again.
func (a *adoption) plainPolicies(ctx context.Context, record *recordpb.TableSchema) ([]FamilyPolicy, error) {
	infos, err := a.families(ctx)
	return plainPolicies(record, infos, a.cfg.RestoreOldPolicies), err
}

// restorePolicies gives the families these policies.
func (a *adoption) restorePolicies(ctx context.Context, record *recordpb.TableSchema) error {
	policies, err := a.plainPolicies(ctx, record)
	if err != nil {
		return err
	}
	return setPolicies(ctx, a.admin, a.cfg.Table, policies)
}

// removeSchema removes the table's schema record if it is still the one that was read: it says
// how long values last.
func (a *adoption) removeSchema(ctx context.Context, read []byte) error {
	same := store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, store.SchemaQualifier), store.ExactValue(read)))
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(store.DeployFamily, store.SchemaQualifier)
	matched, err := a.meta.CheckAndMutate(ctx, store.SchemaRowPrefix+a.cfg.Table, same, m, nil)
	switch {
	case err != nil:
		return fmt.Errorf("%w; table %q: its schema record may be removed", err, a.cfg.Table)
	case !matched:
		return fmt.Errorf("admin: table %q: another client changed or removed its schema record", a.cfg.Table)
	}
	return nil
}

// putSchema writes the table's schema record if there is none.
func (a *adoption) putSchema(ctx context.Context, record *recordpb.TableSchema) error {
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, store.SchemaQualifier, 0, format.Marshal(record))
	// Whether the condition held does not matter. Either way there is a record now.
	_, err := a.meta.CheckAndMutate(ctx, store.SchemaRowPrefix+a.cfg.Table, store.Interleave(store.ExactColumn(store.DeployFamily, store.SchemaQualifier)), nil, m)
	return err
}
