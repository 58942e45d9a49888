package strict

import (
	"context"
	"slices"
	"strings"

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

// needed are the permissions that requests need, by the name of the request.
var needed = map[protoreflect.Name][]string{
	"ReadRowsRequest":             {"readRows"},
	"SampleRowKeysRequest":        {"sampleRowKeys"},
	"MutateRowRequest":            {"mutateRows"},
	"MutateRowsRequest":           {"mutateRows"},
	"CheckAndMutateRowRequest":    {"mutateRows"},
	"ReadModifyWriteRowRequest":   {"readRows", "mutateRows"},
	"DropRowRangeRequest":         {"mutateRows"},
	"GetTableRequest":             {"get"},
	"ModifyColumnFamiliesRequest": {"update"},
	"DeleteTableRequest":          {"delete"},
	"CreateTableRequest":          {"create"},
	"ListTablesRequest":           {"list"},
}

// tableOf returns the table of a request, "" for the instance.
func tableOf(m proto.Message) string {
	switch r := m.(type) {
	case interface{ GetTableName() string }:
		return r.GetTableName()
	case interface{ GetName() string }:
		return r.GetName()
	}
	return ""
}

func allow(ctx context.Context, guard Guard, m proto.Message) error {
	has, err := granted(ctx, guard, tableOf(m))
	if err != nil {
		return err
	}
	for _, p := range needed[m.ProtoReflect().Descriptor().Name()] {
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
