package gc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// largeRows makes Bigtable return no row whose key begins with "large" together with its values, and no
// row whose key begins with "larger" together with its records.
func largeRows(refused *[]string) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &limiting{ClientStream: s, refused: refused}, err
	})
}

type limiting struct {
	grpc.ClientStream
	filter  string
	refused *[]string
}

func (s *limiting) SendMsg(m any) error {
	if r, ok := m.(*btpb.ReadRowsRequest); ok {
		s.filter = r.GetFilter().String()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *limiting) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	r, ok := m.(*btpb.ReadRowsResponse)
	if !ok || err != nil || !strings.Contains(s.filter, format.WriteFamily) {
		return err
	}
	values := strings.Count(s.filter, "strip_value_transformer") == 1 // of notify cells only
	for _, chunk := range r.Chunks {
		if key := string(chunk.RowKey); values && strings.HasPrefix(key, "large") || strings.HasPrefix(key, "larger") {
			*s.refused = append(*s.refused, key)
			return status.Errorf(codes.FailedPrecondition, "Read returned 269MB from row %q which exceeds the limit of 256MB", key)
		}
	}
	return nil
}

// TestLargeRows: a row that Bigtable does not return whole is collected without its values. If its
// records alone are too large, the run names it and continues, and the safe point moves.
func TestLargeRows(t *testing.T) {
	long.RacedAtNight(t)
	for _, changes := range []bool{false, true} {
		t.Run(fmt.Sprintf("follows changes %t", changes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newTable(t)
				cfg := gc.Config{Retention: retention}
				if changes {
					cfg.FullEvery = 24 * time.Hour
					<-time.After(retention + time.Minute)
					if _, err := gc.Run(t.Context(), env.Client, cfg); err != nil {
						t.Fatal(err)
					}
				}
				for _, value := range []string{"1", "2"} {
					for _, row := range []string{"bob", "large", "larger", "largest", "sue"} {
						set(t, env.Client, row, value)
					}
				}
				<-time.After(retention + time.Minute)
				var refused []string
				c := env.NewClient(txn.Config{TokenTTL: -1}, largeRows(&refused))
				plan, err := gc.Plan(t.Context(), c, cfg)
				want := []gc.SkippedRow{{Table: "a", Row: "larger", Reason: gc.SkippedLarge}}
				if err != nil || !slices.Equal(plan.Skipped, want) || plan.Total.Versions != 4 {
					t.Errorf("plan: %+v, %v", plan, err)
				}
				r, err := gc.Run(t.Context(), c, cfg)
				if err != nil || !r.Finished || r.Changes != changes || r.SafePoint <= r.Previous || r.Total.Rows != 5 || r.Total.Versions != 4 || r.Total.RowsSkipped != 1 || !slices.Equal(r.Skipped, want) {
					t.Errorf("%+v, %v", r, err)
				}
				if !slices.Contains(refused, "large") || !slices.Contains(refused, "larger") || !slices.Contains(refused, "largest") {
					t.Errorf("refused %q", refused)
				}
				s, err := gc.ReadStatus(t.Context(), c)
				if err != nil || !slices.Equal(s.Run.Skipped, want) {
					t.Errorf("status: %+v, %v", s, err)
				}
				// The row is named until a run that reads every row has collected it.
				if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, Restart: true}); err != nil {
					t.Fatal(err)
				}
				if s, err = gc.ReadStatus(t.Context(), c); err != nil || len(s.Run.Skipped) > 0 {
					t.Errorf("status afterwards: %+v, %v", s, err)
				}
			})
		})
	}
}
