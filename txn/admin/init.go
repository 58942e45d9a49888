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

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A TableSpec describes a table for [InitTable].
type TableSpec struct {
	// Name of the table.
	Name string
	// Families of the user's data to create where they are missing; those that
	// the table already has are kept, named here or not.
	Families []string
	// Observed columns: every commit of one sets its notify cell. Nil keeps what
	// the schema record says; anything else replaces it, but for the observers
	// that columns in both have.
	Observed []format.Column
}

// initTimeout bounds a request of InitTable, which has no Config.
const initTimeout = 20 * time.Second

// InitTable makes a table transactional: it creates the metadata table, the
// table and every family that is missing, checks that no family has a
// garbage-collection policy, and writes the table's schema record. Cells that
// are already in the table are not touched; to transactions they are data that
// was committed before all others (design §2). Running it again is harmless.
//
// bt and admin have to belong to the same instance; metadataTable is
// Config.MetadataTable, "" for its default. On an error, what was created so
// far stays, and InitTable can be run again.
func InitTable(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, metadataTable string, spec TableSpec) error {
	if metadataTable == "" {
		metadataTable = format.DefaultMetadataTable
	}
	if spec.Name == "" || spec.Name == metadataTable {
		return format.Invalidf("table name %q", spec.Name)
	}
	for _, f := range spec.Families {
		if f == "" || format.IsMetadataFamily(f) || f == format.AckFamily {
			return format.Invalidf("table %q: family %q cannot hold data", spec.Name, f)
		}
	}
	for _, c := range spec.Observed {
		if err := format.CheckColumn(c); err != nil {
			return err
		}
	}
	if err := checkExisting(ctx, admin, spec.Name); err != nil {
		return err
	}
	if err := createFamilies(ctx, admin, metadataTable, []string{store.OracleFamily, store.DeployFamily}); err != nil {
		return err
	}
	if err := createFamilies(ctx, admin, spec.Name, append(slices.Clone(spec.Families), format.MetadataFamilies...)); err != nil {
		return err
	}
	families, err := store.VerifyFamilies(ctx, admin, spec.Name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return store.ReplaceSchema(ctx, bt.OpenTable(metadataTable), metadataTable, spec.Name, initTimeout, func(record *recordpb.TableSchema) error {
		return spec.describe(record, families)
	})
}

// describe fills in the schema record of spec. Observers that columns already
// have stay.
func (spec TableSpec) describe(record *recordpb.TableSchema, families []string) error {
	record.FormatVersion = format.Version
	record.Families = slices.DeleteFunc(slices.Clone(families), func(f string) bool { return f == format.AckFamily })
	if spec.Observed == nil {
		return nil
	}
	old := record.Observed
	record.Observed = nil
	for _, c := range spec.Observed {
		if !slices.Contains(record.Families, c.Family) {
			return fmt.Errorf("txn: table %q: %w: observed column %s is in a family the table does not have", spec.Name, format.ErrSchema, c)
		}
		o := &recordpb.ObservedColumn{Column: &recordpb.Column{Family: c.Family, Qualifier: []byte(c.Qualifier)}}
		if i := slices.IndexFunc(old, func(was *recordpb.ObservedColumn) bool { return store.ColumnOf(was) == c }); i >= 0 {
			o = old[i]
		}
		record.Observed = append(record.Observed, o)
	}
	return nil
}

// checkExisting refuses a table with a garbage-collection policy before
// anything of it is changed.
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

// createFamilies creates the table and those of the families that it lacks.
// CreateColumnFamily is the one way that leaves a family without any
// garbage-collection rule (design §3).
func createFamilies(ctx context.Context, admin *bigtable.AdminClient, table string, families []string) error {
	info, err := admin.TableInfo(ctx, table)
	if status.Code(err) == codes.NotFound {
		err = admin.CreateTable(ctx, table)
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return store.WrapRPC(ctx, "create", table, err)
		}
		info, err = admin.TableInfo(ctx, table)
	}
	if err != nil {
		return store.WrapRPC(ctx, "describe", table, err)
	}
	for _, f := range families {
		exists := slices.ContainsFunc(info.FamilyInfos, func(i bigtable.FamilyInfo) bool { return i.Name == f })
		if exists {
			continue
		}
		if err := admin.CreateColumnFamily(ctx, table, f); err != nil && status.Code(err) != codes.AlreadyExists {
			return store.WrapRPC(ctx, "create family "+f, table, err)
		}
	}
	return nil
}
