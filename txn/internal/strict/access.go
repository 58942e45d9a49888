package strict

import (
	"context"
	"slices"
	"strings"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// prefix begins the names of the permissions that requests need.
const prefix = "bigtable.tables."

// A Guard returns the permissions below bigtable.tables that a token gives on a table, "" for
// the instance. An error refuses the token.
type Guard func(token, table string) (permissions []string, err error)

// Access returns the front that refuses requests for which the caller lacks a permission.
// Which request needs which permission is documented:
// https://cloud.google.com/bigtable/docs/audit-logging. The text of the refusal was seen:
// https://github.com/googleapis/java-bigtable/issues/32.
func Access(guard Guard) front.Front {
	return front.Front{
		Unary: func(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
			if err := allow(ctx, guard, c.Request); err != nil {
				return nil, err
			}
			if c.Request.ProtoReflect().Descriptor().FullName() == "google.iam.v1.TestIamPermissionsRequest" {
				return testPermissions(ctx, guard, c.Request.ProtoReflect())
			}
			return next(ctx)
		},
		Request: func(ctx context.Context, c *front.Call) error { return allow(ctx, guard, c.Request) },
	}
}

// needs returns the table of a request, and the permissions that it needs.
func needs(m proto.Message) (table string, permissions []string) {
	tables := func(name string, all ...string) (string, []string) { return name, all }
	switch r := m.(type) {
	case *btpb.ReadRowsRequest:
		return tables(r.TableName, "readRows")
	case *btpb.SampleRowKeysRequest:
		return tables(r.TableName, "sampleRowKeys")
	case *btpb.MutateRowRequest:
		return tables(r.TableName, "mutateRows")
	case *btpb.MutateRowsRequest:
		return tables(r.TableName, "mutateRows")
	case *btpb.CheckAndMutateRowRequest:
		return tables(r.TableName, "mutateRows")
	case *btpb.ReadModifyWriteRowRequest:
		return tables(r.TableName, "readRows", "mutateRows")
	case *btapb.DropRowRangeRequest:
		return tables(r.Name, "mutateRows")
	case *btapb.GetTableRequest:
		return tables(r.Name, "get")
	case *btapb.ModifyColumnFamiliesRequest:
		return tables(r.Name, "update")
	case *btapb.DeleteTableRequest:
		return tables(r.Name, "delete")
	case *btapb.CreateTableRequest:
		return tables("", "create")
	case *btapb.ListTablesRequest:
		return tables("", "list")
	}
	return "", nil
}

func allow(ctx context.Context, guard Guard, m proto.Message) error {
	table, needed := needs(m)
	has, err := granted(ctx, guard, table)
	if err != nil {
		return err
	}
	for _, p := range needed {
		if !slices.Contains(has, p) {
			return status.Errorf(codes.PermissionDenied, "Access denied. Missing IAM permission: %s.", prefix+p)
		}
	}
	return nil
}

func granted(ctx context.Context, guard Guard, table string) ([]string, error) {
	token := ""
	if all := metadata.ValueFromIncomingContext(ctx, "authorization"); len(all) > 0 {
		token = strings.TrimPrefix(all[0], "Bearer ")
	}
	return guard(token, table[strings.LastIndexByte(table, '/')+1:])
}

// testPermissions answers which of some permissions the caller has.
func testPermissions(ctx context.Context, guard Guard, m protoreflect.Message) (proto.Message, error) {
	fields := m.Descriptor().Fields()
	has, err := granted(ctx, guard, m.Get(fields.ByName("resource")).String())
	if err != nil {
		return nil, err
	}
	typ, err := protoregistry.GlobalTypes.FindMessageByName("google.iam.v1.TestIamPermissionsResponse")
	if err != nil {
		return nil, err
	}
	answer := typ.New()
	asked, list := m.Get(fields.ByName("permissions")).List(), answer.Mutable(typ.Descriptor().Fields().ByName("permissions")).List()
	for i := range asked.Len() {
		if p := asked.Get(i); slices.Contains(has, strings.TrimPrefix(p.String(), prefix)) {
			list.Append(p)
		}
	}
	return answer.Interface(), nil
}
