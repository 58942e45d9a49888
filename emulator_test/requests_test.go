package emulator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestRequestsOfOperations counts the requests of every operation of a new client, and says what it
// returned, and what the client's Stats count. testdata/requests.txt lists them. A mistake in what a
// client remembers, asks twice or counts changes no result, and shows here.
func TestRequestsOfOperations(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	all := damagedOperations()
	delete(all, "write collection") // its reads of the safe point come at any time
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		synctest.Test(t, func(t *testing.T) {
			env := newAcknowledged(t) // two locks would be resolved in any order
			env.CreateTable("b", "f")
			var mu sync.Mutex
			var requests map[string]int
			c := env.NewClient(txn.Config{TokenTTL: -1}, append(txntest.Intercept(func(call txntest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if requests != nil {
					requests[fmt.Sprintf("%s %s", cmp.Or(call.Step, "other"), call.Method)]++
				}
				return nil
			}), unsampled())...)
			count := func() string {
				mu.Lock()
				requests = map[string]int{}
				mu.Unlock()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				before := statsOf(c)
				result := outcomeOf(all[name](ctx, c))
				synctest.Wait() // what it does in the background
				mu.Lock()
				defer mu.Unlock()
				var list []string
				for _, r := range slices.Sorted(maps.Keys(requests)) {
					list = append(list, fmt.Sprintf("%d %s", requests[r], r))
				}
				requests = nil
				after := statsOf(c)
				for _, k := range slices.Sorted(maps.Keys(after)) {
					if n := after[k] - before[k]; n != 0 && k != "background_bytes" {
						list = append(list, fmt.Sprintf("%s=%d", k, n))
					}
				}
				return result + ": " + strings.Join(list, ", ")
			}
			fmt.Fprintf(&out, "%s\n\tfirst: %s\n\tagain: %s\n", name, count(), count())
		})
	}
	compareWith(t, "testdata/requests.txt", out.String())
}

// statsOf returns the counters of a client by their names.
func statsOf(c *txn.Client) (all map[string]int64) {
	b, err := json.Marshal(c.Stats())
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		panic(err)
	}
	return all
}

// unsampled drops the answers to SampleRowKeys, so that each table is read in one piece and not
// divided at its last row.
func unsampled() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, d, cc, method, opts...)
		if err == nil && strings.HasSuffix(method, "/SampleRowKeys") {
			s = drained{s}
		}
		return s, err
	})
}

type drained struct{ grpc.ClientStream }

func (d drained) RecvMsg(m any) error {
	for {
		if err := d.ClientStream.RecvMsg(m); err != nil {
			return err
		}
	}
}
