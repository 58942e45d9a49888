package admin

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A TableSpec describes a table for [InitTable].
type TableSpec struct {
	// Name of the table.
	Name string
	// Families are the families of data to create if they are missing. The table
	// keeps all families that it has.
	Families []string
	// Observed are the observed columns: every commit of one sets its notify cell.
	// Nil keeps those of the schema record. Other values replace them, and columns
	// that stay keep their observers.
	Observed []format.Column
}

// initTimeout limits a request of InitTable, which has no Config.
const initTimeout = 20 * time.Second

// InitTable makes a table transactional. It creates the metadata table, the table
// and the families that are missing, and writes the table's schema record. It
// changes no existing cell; to transactions, existing data was committed before
// everything else. To call it again is harmless. For a table with data that
// programs use, prefer [Adopt], which plans first and records the time.
//
// bt and admin must be clients of the same instance. metadataTable is
// Config.MetadataTable of the deployment, or "" for its default. InitTable fails
// with txn.ErrSchema if a family has a garbage-collection policy, or the table is
// leaving, and changes nothing then. After another error, what was created stays; call it again to
// continue.
func InitTable(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, metadataTable string, spec TableSpec) error {
	cfg := &AdoptConfig{Table: spec.Name, MetadataTable: metadataTable, Observed: spec.Observed}
	a, err := newAdoption(admin, bt, cfg)
	if err != nil {
		return err
	}
	metadataTable = cfg.MetadataTable
	for _, f := range spec.Families {
		if f == "" || format.IsMetadataFamily(f) || f == format.AckFamily {
			return invalidf("table %q: family %q is reserved and cannot contain data", spec.Name, f)
		}
	}
	if state, err := a.state(ctx); err != nil {
		return err
	} else if state.leaving != nil || state.dropping {
		return fmt.Errorf("admin: table %q: %w: it is leaving, or its adoption is being undone; let Leave (percctl table leave) or UndoAdoption (percctl table unadopt) complete first", spec.Name, format.ErrSchema)
	}
	if err := checkExisting(ctx, admin, spec.Name); err != nil {
		return err
	}
	if err := families.Create(ctx, admin, metadataTable, []string{store.OracleFamily, store.DeployFamily}); err != nil {
		return err
	}
	if err := families.Create(ctx, admin, spec.Name, slices.Concat(spec.Families, format.MetadataFamilies)); err != nil {
		return err
	}
	families, err := store.VerifyFamilies(ctx, admin, spec.Name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	meta := bt.OpenTable(metadataTable)
	return store.ReplaceSchema(ctx, meta, metadataTable, spec.Name, initTimeout, func(record *recordpb.TableSchema) error {
		before := record.Journal
		if err := spec.describe(record, families); err != nil || record.Journal == before || record.Journal != recordpb.Journal_JOURNAL_LATER {
			return err
		}
		// The table may have had a journal before it left the deployment. Only a sweep from
		// now on makes the new one complete.
		m := bigtable.NewMutation()
		m.DeleteRow()
		rctx, cancel := context.WithTimeout(ctx, initTimeout)
		defer cancel()
		return store.WrapRPC(ctx, "removal of the sweep's record", metadataTable, meta.Apply(rctx, journal.SweepRow(spec.Name), m))
	})
}

// describe fills in the schema record of spec. Columns keep their observers, and
// patterns stay.
func (spec TableSpec) describe(record *recordpb.TableSchema, families []string) error {
	switch {
	case record.FormatVersion == 0:
		record.Journal = recordpb.Journal_JOURNAL_ALWAYS
	case record.Journal == recordpb.Journal_JOURNAL_NONE:
		record.Journal = recordpb.Journal_JOURNAL_LATER
	}
	record.Families = slices.DeleteFunc(slices.Clone(families), func(f string) bool { return f == format.AckFamily })
	if spec.Observed == nil {
		return nil
	}
	old := record.Observed
	record.Observed = slices.DeleteFunc(slices.Clone(old), func(o *recordpb.ObservedColumn) bool { return !store.ColumnOf(o).IsPattern() })
	for _, c := range spec.Observed {
		if !slices.Contains(record.Families, c.Family) {
			return fmt.Errorf("admin: table %q: %w: observed column %s is in a family the table does not have", spec.Name, format.ErrSchema, c)
		}
		o := &recordpb.ObservedColumn{Column: &recordpb.Column{Family: c.Family, Qualifier: []byte(c.Qualifier)}}
		if i := slices.IndexFunc(old, func(was *recordpb.ObservedColumn) bool { return store.ColumnOf(was) == c }); i >= 0 {
			o = old[i]
		}
		record.Observed = append(record.Observed, o)
	}
	return nil
}

// checkExisting fails with ErrSchema if a table exists and has a garbage-collection
// policy.
func checkExisting(ctx context.Context, admin *bigtable.AdminClient, table string) error {
	info, err := admin.TableInfo(ctx, table)
	switch {
	case status.Code(err) == codes.NotFound:
		return nil
	case err != nil:
		return store.WrapRPC(ctx, "describe", table, err)
	}
	for _, f := range info.FamilyInfos {
		if err := store.CheckPolicy(table, f); err != nil {
			return err
		}
	}
	return nil
}
