// Package oracle is the command lab oracle, which measures how fast the timestamp
// oracle is. command.go starts servers and clients, and adds up the clients' results;
// client.go is what a client does.
package oracle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type options struct {
	servers, clients, callers int
	duration, work            time.Duration
	profiles                  string
	format                    cli.Format
}

// NewCmd returns the oracle command.
func NewCmd(s *cli.Streams) *cobra.Command {
	opts := &options{}
	cmd := &cobra.Command{
		Use:   "oracle",
		Short: "Measure how fast the oracle hands out timestamps",
		Long: `Measure how fast the timestamp oracle is on this machine. The command starts an emulator
of Bigtable, server processes and client processes. Callers in the clients request
one timestamp at a time; their number grows from one to --callers. For comparison it
measures direct mode on the emulator, and bare messages to the leader: one each way on a
gRPC stream, which is the least that a request can cost.

The JSON field timestamps_per_second at the top is the highest rate of served mode.`,
		Example: `  lab oracle
  lab oracle --clients 2 --servers 3 -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return opts.run(cmd.Context(), s) },
	}
	f := cmd.Flags()
	f.IntVar(&opts.servers, "servers", 1, "number of server processes; one leads")
	f.IntVar(&opts.clients, "clients", 1, "number of client processes")
	f.IntVar(&opts.callers, "callers", 4096, "largest number of callers, in all clients together")
	f.DurationVar(&opts.duration, "duration", 2*time.Second, "how long to measure each line of the table")
	f.DurationVar(&opts.work, "work", 0, "how long a caller pauses after each timestamp")
	f.StringVar(&opts.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	cmd.AddCommand(newClientCmd(s))
	return cmd
}

// A report is what lab oracle prints.
type report struct {
	TimestampsPerSecond float64 `json:"timestamps_per_second"`
	IdleP50             float64 `json:"idle_p50_us"`
	BareP50             float64 `json:"bare_round_trip_p50_us"`
	IdleToBare          float64 `json:"idle_to_bare"`
	Servers             int     `json:"servers"`
	Clients             int     `json:"clients"`
	CPUs                int     `json:"cpus"`
	Go                  string  `json:"go"`
	Lines               []line  `json:"lines"`
}

type line struct {
	What     string  `json:"what"` // served, direct, bare
	Callers  int     `json:"callers"`
	Rate     float64 `json:"timestamps_per_second"` // for bare: round trips a second
	P50      float64 `json:"p50_us"`
	P90      float64 `json:"p90_us"`
	P99      float64 `json:"p99_us"`
	P999     float64 `json:"p999_us"`
	Batch    float64 `json:"batch_mean"`
	CPU      float64 `json:"client_cpu_ns"`    // processor time of the client for a timestamp or a round trip
	RPCs     float64 `json:"rpcs_per_million"` // to the oracle's server
	Bigtable float64 `json:"bigtable_writes_per_million"`
}

func (opts *options) run(ctx context.Context, s *cli.Streams) (err error) {
	for _, n := range []struct {
		flag       string
		value, max int
	}{{"servers", opts.servers, 16}, {"clients", opts.clients, 64}, {"callers", opts.callers, 1_000_000}} {
		if n.value < 1 || n.value > n.max {
			return cli.Usagef("--%s is %d; it has to be from 1 to %d", n.flag, n.value, n.max)
		}
	}
	if opts.duration < 10*time.Millisecond {
		return cli.Usagef("--duration is %s; it has to be at least 10ms", opts.duration)
	}
	b := &run{opts: opts, err: s.Err}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	r, err := b.measure(ctx)
	if err != nil {
		return err
	}
	if opts.format == cli.JSON {
		return json.NewEncoder(s.Out).Encode(r)
	}
	return printReport(s, r)
}

// A run has the processes of a measurement.
type run struct {
	opts     *options
	err      io.Writer
	emulator *txntest.Emulator
	servers  []*child.Process
	clients  []*child.Process
	addrs    []string
}

func (b *run) start(ctx context.Context) error {
	var err error
	if b.emulator, err = txntest.StartEmulator("127.0.0.1:0"); err != nil {
		return err
	}
	conn, err := b.emulator.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bt, adminClient, err := txntest.Open(ctx, conn, rig.Project, rig.Instance)
	if err != nil {
		return err
	}
	defer func() { _, _ = bt.Close(), adminClient.Close() }()
	if err := adminClient.CreateTable(ctx, format.DefaultMetadataTable); err != nil {
		return err
	}
	if err := adminClient.CreateColumnFamily(ctx, format.DefaultMetadataTable, "tso"); err != nil {
		return err
	}
	table := bt.Open(format.DefaultMetadataTable)
	if _, err := tso.SetMode(ctx, table, tso.RowConfig{}, tso.ModeServed); err != nil {
		return err
	}
	for i := range b.opts.servers {
		p, err := b.spawn(ctx, fmt.Sprint("server", i), "bench", "oracle", "--emulator", b.emulator.Addr())
		if err != nil {
			return err
		}
		b.servers = append(b.servers, p)
		address, err := p.Line()
		if err != nil {
			return err
		}
		b.addrs = append(b.addrs, address)
	}
	for i := range b.opts.clients {
		p, err := b.spawn(ctx, fmt.Sprint("client", i), "oracle", "client", "--emulator", b.emulator.Addr(), "--server", strings.Join(b.addrs, ","))
		if err != nil {
			return err
		}
		b.clients = append(b.clients, p)
	}
	return b.awaitLeader(ctx, table)
}

// awaitLeader waits until a server leads.
func (b *run) awaitLeader(ctx context.Context, table *bigtable.Table) error {
	c, err := tso.NewClient(tso.ClientConfig{Addresses: b.addrs})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Timestamp(ctx); err != nil {
		return err
	}
	_, err = tso.ReadRow(ctx, table, tso.RowConfig{})
	return err
}

func (b *run) spawn(ctx context.Context, name string, args ...string) (*child.Process, error) {
	if b.opts.profiles != "" {
		args = append(args, "--cpu-profile", filepath.Join(b.opts.profiles, name+".pprof"))
	}
	return child.Start(ctx, child.Config{Name: name, Args: args})
}

// ending is how long a process may take to end.
const ending = 30 * time.Second

func (b *run) close() error {
	var errs []error
	for _, p := range append(b.clients, b.servers...) {
		// After an interrupt, SIGTERM also ends a process that does not handle it yet.
		if err := p.End(ending); !p.Killed() {
			errs = append(errs, err)
		}
	}
	if b.emulator != nil {
		b.emulator.Close()
	}
	return errors.Join(errs...)
}

func (b *run) measure(ctx context.Context) (report, error) {
	r := report{Servers: b.opts.servers, Clients: b.opts.clients, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	type point struct {
		what    string
		callers int
	}
	points := []point{{"bare", 1}}
	for n := 1; ; n *= step(n) {
		n = min(n, b.opts.callers)
		points = append(points, point{"served", n})
		if n == b.opts.callers {
			break
		}
	}
	points = append(points, point{"direct", 1}, point{"direct", min(64, b.opts.callers)}, point{"direct", b.opts.callers})
	for i, p := range points {
		line, err := b.line(ctx, p.what, p.callers, func() {
			fmt.Fprintf(b.err, "\r%2d of %d: %s, %d callers ", i+1, len(points), p.what, p.callers)
		})
		if err != nil {
			fmt.Fprintln(b.err)
			return r, cmp.Or(ctx.Err(), err)
		}
		r.Lines = append(r.Lines, line)
		switch {
		case p.what == "bare":
			r.BareP50 = line.P50
		case p.what == "served" && p.callers == 1:
			r.IdleP50 = line.P50
		}
		if p.what == "served" {
			r.TimestampsPerSecond = max(r.TimestampsPerSecond, line.Rate)
		}
	}
	fmt.Fprintf(b.err, "\r%40s\r", "")
	r.IdleToBare = r.IdleP50 / r.BareP50
	return r, nil
}

// step returns the distance to the next number of callers. It is smaller near the
// highest rate.
func step(callers int) int {
	if callers < 64 {
		return 4
	}
	return 2
}

// line measures one line of the table with all clients. It calls started when the
// clients have their orders.
func (b *run) line(ctx context.Context, what string, callers int, started func()) (line, error) {
	if err := b.rest(ctx); err != nil {
		return line{}, err
	}
	before, err := b.writes(ctx)
	if err != nil {
		return line{}, err
	}
	orders := 0
	for i, c := range b.clients {
		n := callers / len(b.clients)
		if i < callers%len(b.clients) {
			n++
		}
		if n == 0 {
			break
		}
		if err := c.Send(order{what, n, b.opts.duration, b.opts.work}); err != nil {
			return line{}, err
		}
		orders++
	}
	started()
	var sum result
	var rate float64
	for _, c := range b.clients[:orders] {
		var res result
		if err := c.Receive(&res); err != nil {
			return line{}, err
		}
		if res.Error != "" {
			return line{}, errors.New(res.Error)
		}
		rate += float64(res.Count) / res.Elapsed.Seconds()
		sum.add(res)
	}
	after, err := b.writes(ctx)
	if err != nil {
		return line{}, err
	}
	line := line{
		What: what, Callers: callers, Rate: rate,
		P50: sum.quantile(.5), P90: sum.quantile(.9), P99: sum.quantile(.99), P999: sum.quantile(.999),
	}
	line.CPU = float64(sum.CPU) / float64(max(sum.All, 1))
	if sum.All > 0 && what != "bare" {
		million := float64(sum.All) / 1e6
		line.Batch = float64(sum.All) / float64(max(sum.Requests, 1))
		line.RPCs = float64(sum.Requests) / million
		line.Bigtable = float64(after-before) / million
		if what == "direct" {
			line.RPCs, line.Bigtable = 0, float64(sum.BigtableRPCs)/million
		}
	}
	return line, nil
}

// rest waits until the clock has caught up with oracle time: a server slows down
// clients that are far ahead, and lines before this one must not slow it down.
func (b *run) rest(ctx context.Context) error {
	for _, a := range b.addrs {
		st, err := tso.ServerStatus(ctx, tso.ClientConfig{Addresses: []string{a}})
		if err != nil {
			return err
		}
		if !st.Leading {
			continue
		}
		t := time.NewTimer(-st.Lag())
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// writes returns how often the servers have written to Bigtable.
func (b *run) writes(ctx context.Context) (uint64, error) {
	var n uint64
	for _, a := range b.addrs {
		st, err := tso.ServerStatus(ctx, tso.ClientConfig{Addresses: []string{a}})
		if err != nil {
			return 0, err
		}
		n += st.BigtableWrites
	}
	return n, nil
}

func printReport(s *cli.Streams, r report) error {
	t := cli.NewTable(s.Out)
	cli.WriteRow(t, "ORACLE", "CALLERS", "PER SECOND", "P50 µs", "P90 µs", "P99 µs", "P99.9 µs", "CPU ns", "BATCH", "RPCS/M", "BIGTABLE/M")
	f := cli.Fixed
	for _, l := range r.Lines {
		what := l.What
		batch, rpcs, writes := f(l.Batch, 1), f(l.RPCs, 0), f(l.Bigtable, 1)
		if what == "bare" {
			what, batch, rpcs, writes = "bare round trip", "", "", ""
		}
		cli.WriteRow(t, what, strconv.Itoa(l.Callers), f(l.Rate, 0), f(l.P50, 0), f(l.P90, 0), f(l.P99, 0), f(l.P999, 0), f(l.CPU, 0), batch, rpcs, writes)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.Out, "\n%.2f million timestamps per second; idle p50 is %.2f times the bare round trip (%d CPUs, %d servers, %d clients, %s)\n",
		r.TimestampsPerSecond/1e6, r.IdleToBare, r.CPUs, r.Servers, r.Clients, r.Go)
	return err
}
