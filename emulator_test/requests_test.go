package emulator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// oneTrip is how long each request takes in TestRequestsOfOperations.
const oneTrip = 10 * time.Millisecond

// TestRequestsOfOperations is the budget of every operation: testdata/requests.txt lists what it
// returned to a new client, how many requests it sent, how many of them one after the other (trips),
// and what the client's Stats counted; then the same once more. A mistake in what a client remembers,
// asks twice or counts changes no result, and shows here. Requests that no caller waits for
// are counted, too, but not their trips.
func TestRequestsOfOperations(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	var out strings.Builder
	all := damagedOperations()
	delete(all, "write collection") // its reads of the safe point come at any time
	for _, name := range slices.Sorted(maps.Keys(all)) {
		synctest.Test(t, func(t *testing.T) {
			env := newAcknowledged(t)
			env.CreateTable("b", "f")
			writeRequests(t, &out, env, operation{name: name, call: all[name]})
		})
	}
	for _, op := range slices.Concat(operations(), packageOperations(), budgetOperations()) {
		if all[op.name] != nil || all["write "+op.name] != nil || op.ahead || op.token || strings.HasPrefix(op.name, "scan, owner") {
			continue // some of its requests come at any time, or it resolves two locks at a time
		}
		synctest.Test(t, func(t *testing.T) { writeRequests(t, &out, newOperated(t, op), op) })
	}
	compareWith(t, "testdata/requests.txt", out.String())
}

func writeRequests(t *testing.T, out io.Writer, env *txntest.Env, op operation) {
	var mu sync.Mutex
	var requests map[string]int
	c := env.NewClient(txn.Config{TokenTTL: -1}, slices.Concat(txntest.Intercept(func(call txntest.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if requests != nil {
			requests[fmt.Sprintf("%s %s", cmp.Or(call.Step, "other"), call.Method)]++
		}
		return nil
	}), slow(oneTrip), []grpc.DialOption{unsampled()})...)
	count := func() string {
		mu.Lock()
		requests = map[string]int{}
		mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		before, began := statsOf(c), time.Now()
		result := outcomeOf(op.call(ctx, c))
		list := []string{fmt.Sprintf("%v trips", float64(time.Since(began))/float64(oneTrip))}
		advance(time.Second) // what it does in the background
		mu.Lock()
		defer mu.Unlock()
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
		return strings.ReplaceAll(result, "\x00", `\x00`) + ": " + strings.Join(list, ", ")
	}
	fmt.Fprintf(out, "%s\n\tfirst: %s\n\tagain: %s\n", op.name, count(), count())
}

// budgetOperations are of sizes that no other operation has.
func budgetOperations() []operation {
	write := func(tables []string, rows, columns int) func(context.Context, *txn.Client) (any, error) {
		return func(ctx context.Context, c *txn.Client) (any, error) {
			_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				for _, table := range tables {
					for r := range rows {
						for q := range columns {
							tx.Table(table).Set(fmt.Sprintf("row%d", r), "f", fmt.Sprintf("q%d", q), []byte("v"))
						}
					}
				}
				return nil
			})
			return nil, err
		}
	}
	return []operation{
		{name: "get of a primary, its owner died before the commit", left: txntest.StepCommit, call: func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			v, _, err := s.Table("a").Get(ctx, "bob", "f", "q")
			return string(v), err
		}},
		{name: "write nothing", call: write(nil, 0, 0)},
		{name: "write ten columns of one row", call: write([]string{"a"}, 1, 10)},
		{name: "write ten rows", call: write([]string{"a"}, 10, 1)},
		{name: "write ten rows in each of two tables", call: write([]string{"a", "b"}, 10, 3)},
		{name: "write 50 rows", call: write([]string{"a"}, 50, 1)},
		{name: "write 50 observed rows", call: func(ctx context.Context, c *txn.Client) (any, error) {
			_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				for r := range 50 {
					tx.Table("a").Set(fmt.Sprintf("row%d", r), "f", "seen", []byte("v"))
				}
				return nil
			})
			return nil, err
		}},
		{name: "read what the transaction wrote", call: func(ctx context.Context, c *txn.Client) (any, error) {
			tx, err := c.Begin(ctx)
			if err != nil {
				return nil, err
			}
			defer tx.Rollback()
			tx.Table("a").Set("r", "f", "q", []byte("own"))
			v, _, err := tx.Table("a").Get(ctx, "r", "f", "q")
			return string(v), err
		}},
		{name: "snapshots of timestamps that the client has seen", call: func(ctx context.Context, c *txn.Client) (any, error) {
			now, err := c.Timestamp(ctx)
			for i := range tso.Timestamp(2) {
				if err != nil {
					break
				}
				var s *txn.Snapshot
				if s, err = c.Snapshot(ctx, txn.At(now-i)); err == nil {
					_, _, err = s.Table("a").Get(ctx, "bob", "f", "q")
				}
			}
			return nil, err
		}},
		{name: "read a list of 300 rows", call: func(ctx context.Context, c *txn.Client) (any, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			rows := make(bigtable.RowList, 300)
			for i := range rows {
				rows[i] = fmt.Sprintf("row%d", i)
			}
			return nil, errorOf(s.Table("a").ReadRows(ctx, rows))
		}},
	}
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
