package strict_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const (
	instance = "projects/p/instances/i"
	table    = instance + "/tables/t"
)

// dial starts a strict server that has a table t with a family f.
func dial(t *testing.T, cfg strict.Config, behind ...front.Front) *grpc.ClientConn {
	t.Helper()
	e, err := txntest.StartEmulator("", front.Options(append([]front.Front{strict.Front(cfg)}, behind...)...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	conn, err := e.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := btapb.NewBigtableTableAdminClient(conn).CreateTable(t.Context(), &btapb.CreateTableRequest{
		Parent: instance, TableId: "t", Table: &btapb.Table{ColumnFamilies: map[string]*btapb.ColumnFamily{"f": {}}},
	}); err != nil {
		t.Fatal(err)
	}
	return conn
}

func set(family, qualifier, value string) *btpb.Mutation {
	return &btpb.Mutation{Mutation: &btpb.Mutation_SetCell_{SetCell: &btpb.Mutation_SetCell{FamilyName: family, ColumnQualifier: []byte(qualifier), TimestampMicros: 1000, Value: []byte(value)}}}
}

func mutate(ctx context.Context, conn *grpc.ClientConn, row string, all ...*btpb.Mutation) error {
	_, err := btpb.NewBigtableClient(conn).MutateRow(ctx, &btpb.MutateRowRequest{TableName: table, RowKey: []byte(row), Mutations: all})
	return err
}

func check(ctx context.Context, conn *grpc.ClientConn, yes ...*btpb.Mutation) error {
	_, err := btpb.NewBigtableClient(conn).CheckAndMutateRow(ctx, &btpb.CheckAndMutateRowRequest{TableName: table, RowKey: []byte("r"), AppProfileId: "wide", TrueMutations: yes})
	return err
}

func read(ctx context.Context, conn *grpc.ClientConn, rows *btpb.RowSet, f *btpb.RowFilter) error {
	stream, err := btpb.NewBigtableClient(conn).ReadRows(ctx, &btpb.ReadRowsRequest{TableName: table, Rows: rows, Filter: f})
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// bulk sends one entry that is right and one that has these changes, and returns the error of
// the second. The first must be applied.
func bulk(ctx context.Context, conn *grpc.ClientConn, all ...*btpb.Mutation) error {
	stream, err := btpb.NewBigtableClient(conn).MutateRows(ctx, &btpb.MutateRowsRequest{TableName: table, Entries: []*btpb.MutateRowsRequest_Entry{
		{RowKey: []byte("right"), Mutations: []*btpb.Mutation{set("f", "q", "v")}}, {RowKey: []byte("wrong"), Mutations: all},
	}})
	var second error
	for err == nil {
		var r *btpb.MutateRowsResponse
		r, err = stream.Recv()
		for _, e := range r.GetEntries() {
			switch of := status.FromProto(e.Status).Err(); {
			case e.Index == 1:
				second = of
			case of != nil:
				return fmt.Errorf("the entry that is right: %w", of)
			}
		}
	}
	if err != io.EOF {
		return err
	}
	return second
}

func nested(depth int) *btpb.RowFilter {
	f := &btpb.RowFilter{Filter: &btpb.RowFilter_PassAllFilter{PassAllFilter: true}}
	for range depth - 1 {
		f = &btpb.RowFilter{Filter: &btpb.RowFilter_Interleave_{Interleave: &btpb.RowFilter_Interleave{Filters: []*btpb.RowFilter{f, {Filter: &btpb.RowFilter_BlockAllFilter{BlockAllFilter: true}}}}}}
	}
	return f
}

func family(name string) *btpb.RowFilter {
	return &btpb.RowFilter{Filter: &btpb.RowFilter_ColumnRangeFilter{ColumnRangeFilter: &btpb.ColumnRange{FamilyName: name}}}
}

func columns(bytes int) *btpb.RowFilter {
	return &btpb.RowFilter{Filter: &btpb.RowFilter_ColumnQualifierRegexFilter{ColumnQualifierRegexFilter: []byte(strings.Repeat("q", bytes))}}
}

func keys(n int) *btpb.RowSet {
	all := &btpb.RowSet{}
	for i := range n {
		all.RowKeys = append(all.RowKeys, fmt.Appendf(nil, "%01000d", i))
	}
	return all
}

func create(ctx context.Context, conn *grpc.ClientConn, name string) error {
	_, err := btapb.NewBigtableTableAdminClient(conn).CreateTable(ctx, &btapb.CreateTableRequest{Parent: instance, TableId: name, Table: &btapb.Table{}})
	return err
}

func addFamily(ctx context.Context, conn *grpc.ClientConn, name string) error {
	_, err := btapb.NewBigtableTableAdminClient(conn).ModifyColumnFamilies(ctx, &btapb.ModifyColumnFamiliesRequest{Name: table, Modifications: []*btapb.ModifyColumnFamiliesRequest_Modification{
		{Id: name, Mod: &btapb.ModifyColumnFamiliesRequest_Modification_Create{Create: &btapb.ColumnFamily{}}}}})
	return err
}

// cases have for each rule requests that it refuses, and the nearest ones that it allows.
var cases = map[string]struct {
	refused, allowed func(context.Context, *grpc.ClientConn) error
}{
	strict.EmptyCondition: {
		func(ctx context.Context, c *grpc.ClientConn) error { return check(ctx, c) },
		func(ctx context.Context, c *grpc.ClientConn) error { return check(ctx, c, set("f", "q", "v")) },
	},
	strict.EmptyMutation: {
		func(ctx context.Context, c *grpc.ClientConn) error { return bulk(ctx, c) },
		func(ctx context.Context, c *grpc.ClientConn) error { return bulk(ctx, c, set("f", "q", "")) },
	},
	strict.ManyChanges: {
		func(ctx context.Context, c *grpc.ClientConn) error {
			return mutate(ctx, c, "r", many(100_001)...)
		},
		func(ctx context.Context, c *grpc.ClientConn) error {
			return mutate(ctx, c, "r", many(100_000)...)
		},
	},
	strict.RowKey: {
		func(ctx context.Context, c *grpc.ClientConn) error {
			return mutate(ctx, c, strings.Repeat("r", 4<<10+1), set("f", "q", "v"))
		},
		func(ctx context.Context, c *grpc.ClientConn) error {
			return mutate(ctx, c, strings.Repeat("r", 4<<10), set("f", "q", "v"))
		},
	},
	strict.Qualifier: {
		func(ctx context.Context, c *grpc.ClientConn) error {
			return bulk(ctx, c, set("f", strings.Repeat("q", 16<<10+1), "v"))
		},
		func(ctx context.Context, c *grpc.ClientConn) error {
			return bulk(ctx, c, set("f", strings.Repeat("q", 16<<10), "v"))
		},
	},
	strict.Value: {
		func(ctx context.Context, c *grpc.ClientConn) error {
			return mutate(ctx, c, "r", set("f", "q", strings.Repeat("v", 100<<20+1)))
		},
		func(ctx context.Context, c *grpc.ClientConn) error {
			return mutate(ctx, c, "r", set("f", "q", strings.Repeat("v", 100<<20)))
		},
	},
	strict.FilterSize: {
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, nil, columns(20_480)) },
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, nil, columns(20_470)) },
	},
	strict.FilterDepth: {
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, nil, nested(21)) },
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, nil, nested(20)) },
	},
	strict.ReadSize: {
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, keys(530), nil) },
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, keys(500), nil) },
	},
	strict.UnknownFamily: {
		func(ctx context.Context, c *grpc.ClientConn) error { return bulk(ctx, c, set("none", "q", "v")) },
		func(ctx context.Context, c *grpc.ClientConn) error { return bulk(ctx, c, set("f", "q", "v")) },
	},
	strict.FilterFamily: {
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, nil, family("none")) },
		func(ctx context.Context, c *grpc.ClientConn) error { return read(ctx, c, nil, family("f")) },
	},
	strict.FamilyName: {
		func(ctx context.Context, c *grpc.ClientConn) error { return addFamily(ctx, c, "a/b") },
		func(ctx context.Context, c *grpc.ClientConn) error { return addFamily(ctx, c, "a-b") },
	},
	strict.TableName: {
		func(ctx context.Context, c *grpc.ClientConn) error { return create(ctx, c, strings.Repeat("t", 51)) },
		func(ctx context.Context, c *grpc.ClientConn) error { return create(ctx, c, strings.Repeat("t", 50)) },
	},
	strict.Tables: {
		func(ctx context.Context, c *grpc.ClientConn) error {
			if err := errors.Join(create(ctx, c, "u1"), create(ctx, c, "u2")); err != nil {
				return fmt.Errorf("the second and third table: %v", err)
			}
			return create(ctx, c, "u3")
		},
		func(context.Context, *grpc.ClientConn) error { return nil }, // u1 and u2 were made
	},
	strict.RowSize: {
		func(ctx context.Context, c *grpc.ClientConn) error { return fill(ctx, c, 3) },
		func(ctx context.Context, c *grpc.ClientConn) error { return fill(ctx, c, 2) },
	},
	strict.AdminQuota: {
		func(ctx context.Context, c *grpc.ClientConn) error { return families(ctx, c, 100) },
		func(context.Context, *grpc.ClientConn) error { return nil }, // 99 were made
	},
	strict.SingleRow: {
		func(ctx context.Context, c *grpc.ClientConn) error { return check(ctx, c, set("f", "q", "v")) },
		func(ctx context.Context, c *grpc.ClientConn) error { return mutate(ctx, c, "r", set("f", "q", "v")) },
	},
}

// fill writes and reads a row with n values of 1 MB.
func fill(ctx context.Context, conn *grpc.ClientConn, n int) error {
	for i := range n {
		if err := mutate(ctx, conn, fmt.Sprint("full", n), set("f", fmt.Sprint("q", i), strings.Repeat("v", 1<<20))); err != nil {
			return fmt.Errorf("a write: %v", err)
		}
	}
	return read(ctx, conn, &btpb.RowSet{RowKeys: [][]byte{fmt.Append(nil, "full", n)}}, nil)
}

// families adds n families. The table was made before.
func families(ctx context.Context, conn *grpc.ClientConn, n int) error {
	for i := range n {
		if err := addFamily(ctx, conn, fmt.Sprint("n", i)); err != nil {
			if i < n-1 {
				err = fmt.Errorf("family %d: %v", i, err)
			}
			return err
		}
	}
	return nil
}

func many(n int) (all []*btpb.Mutation) {
	m := &btpb.Mutation{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: &btpb.Mutation_DeleteFromRow{}}}
	for range n {
		all = append(all, m)
	}
	return all
}

// TestRules: each rule refuses a request with its code, allows the nearest one that Cloud
// Bigtable allows, and can be turned off.
func TestRules(t *testing.T) {
	for _, r := range strict.Rules {
		t.Run(r.ID, func(t *testing.T) {
			t.Parallel()
			if r.Text == "" || !strings.Contains(r.Source, "https://") && !strings.HasPrefix(r.Source, "assumed") {
				t.Errorf("the source %q is neither public nor marked as assumed", r.Source)
			}
			c, ok := cases[r.ID]
			if !ok {
				t.Fatal("no test")
			}
			cfg := strict.Config{}
			switch r.ID {
			case strict.Tables:
				cfg.MaxTables = 3
			case strict.RowSize:
				cfg.MaxRow = 2 << 20
			}
			if r.ID == strict.SingleRow {
				cfg.SeveralClusters = []string{"wide"}
			}
			on := dial(t, cfg)
			if err := c.refused(t.Context(), on); status.Code(err) != r.Code {
				t.Errorf("refused with %v, want the code %s", err, r.Code)
			}
			if err := c.allowed(t.Context(), on); err != nil {
				t.Errorf("what is allowed: %v", err)
			}
			cfg.Without = []string{r.ID}
			if err := c.refused(t.Context(), dial(t, cfg)); status.Code(err) == r.Code {
				t.Errorf("without the rule: %v", err)
			}
		})
	}
}
