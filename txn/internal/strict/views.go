package strict

import (
	"context"
	"regexp"
	"slices"
	"strings"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// A View is an authorized view: the rows of a table that begin with a prefix, and some of its
// families.
type View struct {
	Prefix   string
	Families []string
}

// Views returns the front of a server that has authorized views, whose names are TABLE/VIEW.
// The caller has permissions on the views alone: requests for data of their tables are
// refused. https://cloud.google.com/bigtable/docs/authorized-views describes views. Which
// code a request gets that goes beyond a view, and that it may not delete whole rows, is
// assumed.
func Views(all map[string]View) front.Front {
	return front.Front{
		Unary: func(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
			if err := through(all, c.Request); err != nil {
				return nil, err
			}
			return next(ctx)
		},
		Request: func(_ context.Context, c *front.Call) error { return through(all, c.Request) },
	}
}

// through turns a request for a view into one for its table, if the view allows it.
func through(all map[string]View, m proto.Message) error {
	r, ok := m.(interface {
		GetTableName() string
		GetAuthorizedViewName() string
	})
	if !ok {
		return nil
	}
	table, name, isView := strings.Cut(r.GetAuthorizedViewName(), "/authorizedViews/")
	if !isView {
		short := r.GetTableName()[strings.LastIndexByte(r.GetTableName(), '/')+1:]
		for view := range all {
			if strings.HasPrefix(view, short+"/") {
				return status.Errorf(codes.PermissionDenied, "Access denied to table %s", short)
			}
		}
		return nil
	}
	v, ok := all[table[strings.LastIndexByte(table, '/')+1:]+"/"+name]
	if !ok {
		return status.Errorf(codes.NotFound, "Authorized view not found: %s", name)
	}
	switch r := m.(type) {
	case *btpb.ReadRowsRequest:
		r.TableName, r.AuthorizedViewName, r.Filter = table, "", v.only(r.Filter, true)
	case *btpb.SampleRowKeysRequest:
		r.TableName, r.AuthorizedViewName = table, ""
	case *btpb.MutateRowRequest:
		r.TableName, r.AuthorizedViewName = table, ""
		return v.check(r.RowKey, r.Mutations)
	case *btpb.CheckAndMutateRowRequest:
		r.TableName, r.AuthorizedViewName, r.PredicateFilter = table, "", v.only(r.PredicateFilter, false)
		return first(v.check(r.RowKey, r.TrueMutations), v.check(r.RowKey, r.FalseMutations))
	case *btpb.MutateRowsRequest:
		r.TableName, r.AuthorizedViewName = table, ""
		for _, e := range r.Entries {
			if err := v.check(e.RowKey, e.Mutations); err != nil {
				return err
			}
		}
	default:
		return status.Error(codes.Unimplemented, "strict: this request does not work through a view")
	}
	return nil
}

// only restricts a filter to the view.
func (v View) only(f *btpb.RowFilter, rows bool) *btpb.RowFilter {
	var names []string
	for _, name := range v.Families {
		names = append(names, regexp.QuoteMeta(name))
	}
	all := []*btpb.RowFilter{{Filter: &btpb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: strings.Join(names, "|")}}}
	if rows {
		all = append(all, &btpb.RowFilter{Filter: &btpb.RowFilter_RowKeyRegexFilter{RowKeyRegexFilter: []byte(regexp.QuoteMeta(v.Prefix) + `\C*`)}})
	}
	if f != nil {
		all = append(all, f)
	}
	return &btpb.RowFilter{Filter: &btpb.RowFilter_Chain_{Chain: &btpb.RowFilter_Chain{Filters: all}}}
}

// check refuses changes beyond the view.
func (v View) check(row []byte, all []*btpb.Mutation) error {
	if !strings.HasPrefix(string(row), v.Prefix) {
		return status.Errorf(codes.PermissionDenied, "The row %q is not in the authorized view", row)
	}
	for _, m := range all {
		family := m.GetSetCell().GetFamilyName() + m.GetDeleteFromColumn().GetFamilyName() + m.GetDeleteFromFamily().GetFamilyName()
		if !slices.Contains(v.Families, family) {
			return status.Errorf(codes.PermissionDenied, "The family %q is not in the authorized view", family)
		}
	}
	return nil
}
