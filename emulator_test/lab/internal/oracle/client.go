package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An order says what a client process measures; it is a line of JSON.
type order struct {
	What     string
	Callers  int
	Duration time.Duration
	Work     time.Duration // after each timestamp
}

// A result is the answer to an order.
type result struct {
	Error        string
	Count        uint64
	Elapsed      time.Duration
	All          uint64        // timestamps including the warm-up, as in all fields below
	CPU          time.Duration // of the client process
	Requests     uint64        // batches
	BigtableRPCs uint64
	Latency      []uint64 // by bucketOf
}

// A client is one client process.
type client struct {
	emulator string
	servers  []string
}

func newClientCmd(s *cli.Streams) *cobra.Command {
	c := &client{}
	cmd := rig.ProcessCmd("client", "A client process of the benchmark", func(ctx context.Context) error { return c.run(ctx, s) })
	cmd.Flags().StringVar(&c.emulator, "emulator", "", "address of the emulator")
	cmd.Flags().StringSliceVar(&c.servers, "server", nil, "addresses of the servers")
	return cmd
}

// run carries out orders until its input ends.
func (c *client) run(ctx context.Context, s *cli.Streams) error {
	served, err := tso.NewClient(tso.ClientConfig{Addresses: c.servers})
	if err != nil {
		return err
	}
	defer func() { _ = served.Close() }()
	conn, err := txntest.Dial(c.emulator)
	if err != nil {
		return err
	}
	bt, adminClient, err := txntest.Open(ctx, conn, rig.Project, rig.Instance)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { _, _, _ = bt.Close(), adminClient.Close(), conn.Close() }()
	table := bt.Open(format.DefaultMetadataTable)
	// Direct mode uses a row of its own, because the oracle's row is in served mode.
	direct := tso.NewDirect(table, tso.DirectConfig{Row: "bench-direct"})
	defer func() { _ = direct.Close() }()

	orders, answers := json.NewDecoder(s.In), json.NewEncoder(s.Out)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var res result
		var err error
		used := cputime.Used()
		switch o.What {
		case "served":
			before := served.Stats()
			res, err = load(ctx, o, served.Timestamp)
			res.Requests = served.Stats().Requests - before.Requests
		case "direct":
			before := direct.Stats()
			res, err = load(ctx, o, direct.Timestamp)
			res.Requests = direct.Stats().Batches - before.Batches
			res.BigtableRPCs = direct.Stats().RPCs - before.RPCs
		case "bare":
			res, err = c.bare(ctx, o)
		}
		res.CPU = cputime.Used() - used
		if err != nil {
			res.Error = err.Error()
		}
		if err := answers.Encode(res); err != nil {
			return err
		}
	}
}

// bare measures round trips of gRPC alone: one message each way for a timestamp, on one
// stream of a plain connection. It is the floor of a request of [tso.Client].
func (c *client) bare(ctx context.Context, o order) (result, error) {
	leader := c.servers[0]
	for _, a := range c.servers {
		if st, err := tso.ServerStatus(ctx, tso.ClientConfig{Addresses: []string{a}}); err == nil && st.Leading {
			leader = a
		}
	}
	conn, err := grpc.NewClient(leader, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return result{}, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/percolator.tso.v1.Oracle/Timestamps")
	if err != nil {
		return result{}, err
	}
	// The wire's messages have the shape of this one: two integers, fields 1 and 2.
	req, res := timestamppb.Timestamp{Seconds: tso.FormatVersion, Nanos: 1}, timestamppb.Timestamp{}
	return load(ctx, o, func(context.Context) (tso.Timestamp, error) {
		_ = stream.SendMsg(&req) // RecvMsg returns the reason if this fails
		err := stream.RecvMsg(&res)
		return tso.Timestamp(res.Seconds), err
	})
}

// load makes callers request one timestamp at a time for a while, each with its own
// context. It checks that each caller gets larger and larger timestamps.
func load(ctx context.Context, o order, ask func(context.Context) (tso.Timestamp, error)) (result, error) {
	// Reading the clock twice takes as long as a timestamp of a large batch.
	every := uint64(1)
	if o.Callers > 64 {
		every = 64
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var stop atomic.Bool
	var failed error
	sum := result{}
	warm := time.Now().Add(o.Duration / 5)
	var measuring atomic.Bool
	first, once := make(chan struct{}), sync.Once{} // closed when a latency was measured
	for range o.Callers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			var last tso.Timestamp
			var count, all uint64
			latency := make([]uint64, buckets)
			for n := uint64(0); !stop.Load(); n++ {
				var start time.Time
				if n%every == 0 {
					start = time.Now()
				}
				ts, err := ask(ctx)
				if err == nil && ts <= last {
					err = fmt.Errorf("timestamp %d after %d", ts, last)
				}
				if err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					stop.Store(true)
					once.Do(func() { close(first) })
					return
				}
				last = ts
				all++
				if measuring.Load() {
					count++
					if n%every == 0 {
						latency[bucketOf(time.Since(start))]++
						once.Do(func() { close(first) })
					}
				}
				if o.Work > 0 {
					time.Sleep(o.Work)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(result{Count: count, All: all, Latency: latency})
		})
	}
	select {
	case <-time.After(time.Until(warm)):
	case <-ctx.Done():
	}
	measuring.Store(true)
	start := time.Now()
	select {
	case <-time.After(o.Duration):
	case <-ctx.Done():
	}
	select { // a machine may be so busy that nothing was measured yet
	case <-first:
	case <-ctx.Done():
	}
	measuring.Store(false)
	sum.Elapsed = time.Since(start)
	stop.Store(true)
	wg.Wait()
	return sum, failed
}

func (r *result) add(other result) {
	r.Count += other.Count
	r.All += other.All
	r.CPU += other.CPU
	r.Requests += other.Requests
	r.BigtableRPCs += other.BigtableRPCs
	if r.Latency == nil {
		r.Latency = make([]uint64, buckets)
	}
	for i, n := range other.Latency {
		r.Latency[i] += n
	}
}

// Latencies are counted in buckets: 16 for each power of two nanoseconds, so exact to 6 %.
const (
	perOctave = 16
	buckets   = 40 * perOctave
)

func bucketOf(d time.Duration) int {
	v := uint64(max(d, perOctave))
	octave := bits.Len64(v) - 5 // v>>octave is from 16 to 31
	return min(octave*perOctave+int(v>>octave)-perOctave, buckets-1)
}

// quantile returns a latency in microseconds.
func (r *result) quantile(q float64) float64 {
	var all uint64
	for _, n := range r.Latency {
		all += n
	}
	rank := uint64(q * float64(all))
	for i, n := range r.Latency {
		if n > rank {
			octave := i / perOctave
			return float64(uint64(i%perOctave+perOctave)<<octave) / 1000
		}
		rank -= n
	}
	return 0
}
