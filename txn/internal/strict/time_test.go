package strict_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// TestRepeat: one of three mutations is applied once more before it is answered, but none
// with a timestamp of the server. Another client deletes the row in between, so only rows
// whose mutation was repeated are there.
func TestRepeat(t *testing.T) {
	remove := []*btpb.Mutation{{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: &btpb.Mutation_DeleteFromRow{}}}}
	other := front.Front{
		Unary: func(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
			answer, err := next(ctx)
			if r, ok := c.Request.(*btpb.MutateRowRequest); ok && err == nil {
				_, err = c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, Mutations: remove})
			}
			return answer, err
		},
		Answer: func(ctx context.Context, c *front.Call, answer proto.Message, send func(proto.Message) error) error {
			if r, ok := c.Request.(*btpb.MutateRowsRequest); ok {
				for _, e := range r.Entries {
					if _, err := c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: r.TableName, RowKey: e.RowKey, Mutations: remove}); err != nil {
						return err
					}
				}
			}
			return send(answer)
		},
	}
	conn := dial(t, strict.Config{Repeat: 3}, other)
	there := func(row string) bool {
		answer, err := btpb.NewBigtableClient(conn).CheckAndMutateRow(t.Context(), &btpb.CheckAndMutateRowRequest{TableName: table, RowKey: []byte(row), TrueMutations: remove})
		if err != nil {
			t.Fatal(err)
		}
		return answer.PredicateMatched
	}
	now := set("f", "q", "v")
	now.GetSetCell().TimestampMicros = -1
	for i := range 6 {
		if err := mutate(t.Context(), conn, fmt.Sprint("r", i), set("f", "q", "v")); err != nil {
			t.Fatal(err)
		}
		if err := mutate(t.Context(), conn, "now", now); err != nil {
			t.Fatal(err)
		}
		if got, want := there(fmt.Sprint("r", i)), i%3 == 2; got != want || there("now") {
			t.Errorf("mutation %d: repeated: %v, want %v", i, got, want)
		}
	}
	// Entries of mutations of many rows count as well. Each request has two; the third entry
	// is the first one of the second request, and the sixth the second one of the third.
	for i := range 3 {
		if err := bulk(t.Context(), conn, set("f", "q", "v")); err != nil {
			t.Fatal(err)
		}
		if first, second := there("right"), there("wrong"); first != (i == 1) || second != (i == 2) {
			t.Errorf("request %d: the first entry was repeated: %v, the second: %v", i, first, second)
		}
	}
}

// TestAdminTime: a new table cannot be used at once, and a request that changes two families
// changes one after the other.
func TestAdminTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dial(t, strict.Config{AdminTime: 5 * time.Second})
		if err := mutate(t.Context(), conn, "r", set("f", "q", "v")); status.Code(err) != codes.NotFound {
			t.Errorf("a mutation of the new table: %v", err)
		}
		<-time.After(5 * time.Second)
		if err := mutate(t.Context(), conn, "r", set("f", "q", "v")); err != nil {
			t.Errorf("after 5 s: %v", err)
		}
		done := make(chan error, 1)
		begun := time.Now()
		go func() {
			r := &btapb.ModifyColumnFamiliesRequest{Name: table}
			for _, id := range []string{"g", "h"} {
				r.Modifications = append(r.Modifications, &btapb.ModifyColumnFamiliesRequest_Modification{Id: id, Mod: &btapb.ModifyColumnFamiliesRequest_Modification_Create{Create: &btapb.ColumnFamily{}}})
			}
			_, err := btapb.NewBigtableTableAdminClient(conn).ModifyColumnFamilies(t.Context(), r)
			done <- err
		}()
		<-time.After(6 * time.Second)
		if err := mutate(t.Context(), conn, "r", set("g", "q", "v")); err != nil {
			t.Errorf("the first family: %v", err)
		}
		if err := mutate(t.Context(), conn, "r", set("h", "q", "v")); status.Code(err) != codes.NotFound {
			t.Errorf("the second family: %v", err)
		}
		if err := <-done; err != nil || time.Since(begun) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if err := mutate(t.Context(), conn, "r", set("h", "q", "v")); err != nil {
			t.Errorf("the second family in the end: %v", err)
		}
	})
}
