// Package families creates and removes families of tables. It imports store and format.
package families

import (
	"context"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Of returns the families of a table, in order of their names.
func Of(ctx context.Context, admin *bigtable.AdminClient, table string) ([]bigtable.FamilyInfo, error) {
	info, err := admin.TableInfo(ctx, table)
	if err != nil {
		return nil, store.WrapRPC(ctx, "describe", table, err)
	}
	slices.SortFunc(info.FamilyInfos, func(a, b bigtable.FamilyInfo) int { return strings.Compare(a.Name, b.Name) })
	return info.FamilyInfos, nil
}

// Create creates a table if it is missing, and the families that it lacks.
// It uses CreateColumnFamily, because that alone creates a family without any
// garbage-collection rule.
func Create(ctx context.Context, admin *bigtable.AdminClient, table string, families []string) error {
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

// DropMetadata drops the metadata families of a table.
func DropMetadata(ctx context.Context, admin *bigtable.AdminClient, table string) error {
	infos, err := Of(ctx, admin, table)
	if err != nil {
		return err
	}
	for _, f := range infos {
		if !slices.Contains(format.MetadataFamilies, f.Name) {
			continue
		}
		if err := admin.DeleteColumnFamily(ctx, table, f.Name); err != nil && status.Code(err) != codes.NotFound {
			return store.WrapRPC(ctx, "drop family "+f.Name, table, err)
		}
	}
	return nil
}
