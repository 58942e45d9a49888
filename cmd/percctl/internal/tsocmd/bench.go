package tsocmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type benchOptions struct {
	servers, clients, callers int
	duration                  time.Duration
	profiles                  string
	format                    cli.Format
}

func newBenchCmd(s *cli.Streams) *cobra.Command {
	opts := &benchOptions{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast timestamps are",
		Long: `Measure how fast timestamps are, on this machine: an emulator of Bigtable, server
processes and client processes are started, and callers in the clients ask for
one timestamp at a time, from one caller to --callers in all. In the same run:
a bare gRPC round trip to the leading server, and direct mode on the emulator.

timestamps_per_second of the json is the highest rate of served mode.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bench(cmd.Context(), s, opts) },
	}
	f := cmd.Flags()
	f.IntVar(&opts.servers, "servers", 1, "server processes; one leads")
	f.IntVar(&opts.clients, "clients", 1, "client processes")
	f.IntVar(&opts.callers, "callers", 4096, "callers at the end, in all clients together")
	f.DurationVar(&opts.duration, "duration", 2*time.Second, "how long each line of the table is measured")
	f.StringVar(&opts.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	return cmd
}

// benchReport is what bench prints.
type benchReport struct {
	TimestampsPerSecond float64     `json:"timestamps_per_second"`
	IdleP50             float64     `json:"idle_p50_us"`
	BareP50             float64     `json:"bare_round_trip_p50_us"`
	IdleToBare          float64     `json:"idle_to_bare"`
	Servers             int         `json:"servers"`
	Clients             int         `json:"clients"`
	CPUs                int         `json:"cpus"`
	Go                  string      `json:"go"`
	Lines               []benchLine `json:"lines"`
}

type benchLine struct {
	What     string  `json:"what"` // served, direct, bare
	Callers  int     `json:"callers"`
	Rate     float64 `json:"timestamps_per_second"` // of bare: round trips
	P50      float64 `json:"p50_us"`
	P90      float64 `json:"p90_us"`
	P99      float64 `json:"p99_us"`
	P999     float64 `json:"p999_us"`
	Batch    float64 `json:"batch_mean"`
	RPCs     float64 `json:"rpcs_per_million"` // to the oracle's server
	Bigtable float64 `json:"bigtable_writes_per_million"`
}

const (
	benchProject  = "bench"
	benchInstance = "bench"
	benchTable    = "percolator"
)

func bench(ctx context.Context, s *cli.Streams, opts *benchOptions) (err error) {
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
	b := &benchRun{opts: opts, err: s.Err}
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
	return printBench(s, r)
}

// benchRun is the processes of a benchmark.
type benchRun struct {
	opts     *benchOptions
	err      io.Writer
	emulator *txntest.Emulator
	servers  []*benchProcess
	clients  []*benchProcess
	addrs    []string
}

// benchProcess is this program, started again.
type benchProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Scanner
	stderr strings.Builder
}

func (b *benchRun) start(ctx context.Context) error {
	var err error
	if b.emulator, err = txntest.StartEmulator("127.0.0.1:0"); err != nil {
		return err
	}
	conn, err := b.emulator.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bt, admin, err := txntest.Open(ctx, conn, benchProject, benchInstance)
	if err != nil {
		return err
	}
	defer func() { _, _ = bt.Close(), admin.Close() }()
	if err := admin.CreateTable(ctx, benchTable); err != nil {
		return err
	}
	if err := admin.CreateColumnFamily(ctx, benchTable, "tso"); err != nil {
		return err
	}
	table := bt.Open(benchTable)
	if _, err := tso.SetMode(ctx, table, tso.RowConfig{}, tso.ModeServed); err != nil {
		return err
	}
	for i := range b.opts.servers {
		p, err := b.spawn(fmt.Sprint("server", i), "serve", "--listen", "127.0.0.1:0", "--project", benchProject, "--instance", benchInstance)
		if err != nil {
			return err
		}
		b.servers = append(b.servers, p)
		if !p.lines.Scan() {
			return fmt.Errorf("the server did not start: %s", p.stderr.String())
		}
		b.addrs = append(b.addrs, p.lines.Text())
	}
	for i := range b.opts.clients {
		p, err := b.spawn(fmt.Sprint("client", i), "bench-client", "--server", strings.Join(b.addrs, ","))
		if err != nil {
			return err
		}
		b.clients = append(b.clients, p)
	}
	return b.awaitLeader(ctx, table)
}

// awaitLeader returns once somebody leads.
func (b *benchRun) awaitLeader(ctx context.Context, table *bigtable.Table) error {
	c, err := tso.NewClient(tso.ClientConfig{Addresses: b.addrs})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Timestamp(ctx); err != nil {
		return coded(err)
	}
	_, err = tso.ReadRow(ctx, table, tso.RowConfig{})
	return err
}

func (b *benchRun) spawn(name string, args ...string) (*benchProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if b.opts.profiles != "" {
		args = append(args, "--cpu-profile", filepath.Join(b.opts.profiles, name+".pprof"))
	}
	p := &benchProcess{cmd: exec.Command(self, append([]string{"tso"}, args...)...)}
	p.cmd.Env = append(telemetry.NextChildEnv(), "BIGTABLE_EMULATOR_HOST="+b.emulator.Addr())
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewScanner(out)
	return p, p.cmd.Start()
}

func (b *benchRun) close() error {
	var err error
	for _, p := range append(b.clients, b.servers...) {
		_ = p.stdin.Close()
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		werr := p.cmd.Wait()
		var exit *exec.ExitError
		if errors.As(werr, &exit) && exit.ExitCode() == -1 {
			continue // by our signal, which came when it no longer listened for one
		}
		if werr != nil && err == nil {
			err = fmt.Errorf("a process of the benchmark: %w: %s", werr, p.stderr.String())
		}
	}
	if b.emulator != nil {
		b.emulator.Close()
	}
	return err
}

func (b *benchRun) measure(ctx context.Context) (benchReport, error) {
	r := benchReport{Servers: b.opts.servers, Clients: b.opts.clients, CPUs: runtime.NumCPU(), Go: runtime.Version()}
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
	// Who is asked to stop does not finish the line first.
	defer context.AfterFunc(ctx, func() {
		for _, c := range b.clients {
			_ = c.cmd.Process.Signal(syscall.SIGTERM)
		}
	})()
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

// step is finer where the peak is.
func step(callers int) int {
	if callers < 64 {
		return 4
	}
	return 2
}

// line measures one line of the table with all clients. It calls started when
// they have their orders.
func (b *benchRun) line(ctx context.Context, what string, callers int, started func()) (benchLine, error) {
	before, err := b.writes(ctx)
	if err != nil {
		return benchLine{}, err
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
		order, err := json.Marshal(benchOrder{what, n, b.opts.duration})
		if err != nil {
			return benchLine{}, err
		}
		if _, err := c.stdin.Write(append(order, '\n')); err != nil {
			return benchLine{}, err
		}
		orders++
	}
	started()
	var sum benchResult
	var rate float64
	for _, c := range b.clients[:orders] {
		if !c.lines.Scan() {
			return benchLine{}, fmt.Errorf("a client ended: %s", c.stderr.String())
		}
		var res benchResult
		if err := json.Unmarshal(c.lines.Bytes(), &res); err != nil {
			return benchLine{}, fmt.Errorf("a client answered %q: %w", c.lines.Text(), err)
		}
		if res.Error != "" {
			return benchLine{}, errors.New(res.Error)
		}
		rate += float64(res.Count) / res.Elapsed.Seconds()
		sum.add(res)
	}
	after, err := b.writes(ctx)
	if err != nil {
		return benchLine{}, err
	}
	line := benchLine{
		What: what, Callers: callers, Rate: rate,
		P50: sum.quantile(.5), P90: sum.quantile(.9), P99: sum.quantile(.99), P999: sum.quantile(.999),
	}
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

// writes is how often the servers have written to Bigtable.
func (b *benchRun) writes(ctx context.Context) (uint64, error) {
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

func printBench(s *cli.Streams, r benchReport) error {
	t := newTable(s.Out)
	t.row("ORACLE", "CALLERS", "PER SECOND", "P50 µs", "P90 µs", "P99 µs", "P99.9 µs", "BATCH", "RPCS/M", "BIGTABLE/M")
	f := func(v float64, prec int) string { return strconv.FormatFloat(v, 'f', prec, 64) }
	for _, l := range r.Lines {
		what := l.What
		batch, rpcs, writes := f(l.Batch, 1), f(l.RPCs, 0), f(l.Bigtable, 1)
		if what == "bare" {
			what, batch, rpcs, writes = "bare round trip", "", "", ""
		}
		t.row(what, strconv.Itoa(l.Callers), f(l.Rate, 0), f(l.P50, 0), f(l.P90, 0), f(l.P99, 0), f(l.P999, 0), batch, rpcs, writes)
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.Out, "\n%.2f million timestamps per second; idle p50 is %.2f times the bare round trip (%d CPUs, %d servers, %d clients, %s)\n",
		r.TimestampsPerSecond/1e6, r.IdleToBare, r.CPUs, r.Servers, r.Clients, r.Go)
	return err
}
