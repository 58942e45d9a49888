package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type profileOptions struct {
	streams  *cli.Streams
	callers  int
	duration time.Duration
	keep     string
	format   cli.Format
}

func newProfileCmd(s *cli.Streams) *cobra.Command {
	o := &profileOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "Show which part of an operation's CPU time goes to which library",
		Long: `Show, from CPU profiles of the client process and of the emulator, which part of an
operation's CPU time goes where, raw and ours: to this library, the Bigtable client,
gRPC, protobuf and the network, the emulator's rows and filters, and the Go runtime's
garbage collection and scheduling. Time in the standard library and for memory counts
for its caller.`,
		Example: `  lab bench profile --keep /tmp/profiles`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(rig.Between("callers", o.callers, 1, 4096), rig.CheckDuration("duration", o.duration)); err != nil {
				return err
			}
			if info, err := os.Stat(o.keep); o.keep != "" && (err != nil || !info.IsDir()) {
				return cli.Usagef("--keep %s: name a directory that exists", o.keep)
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.callers, "callers", 32, "concurrent callers, in one client process")
	f.DurationVar(&o.duration, "duration", 2*time.Second, "how long to profile each operation")
	f.StringVar(&o.keep, "keep", "", "keep the profiles in this directory, for go tool pprof")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A profileReport is what lab bench profile prints.
type profileReport struct {
	Machine rig.Machine   `json:"machine"` // where and when
	Callers int           `json:"callers"` // concurrent
	Lines   []profileLine `json:"lines"`   // two for each kind of work: raw and ours
}

// A profileLine is one kind of operation. CPU time is in microseconds for each
// operation.
type profileLine struct {
	Name     string  `json:"name"`                // of the kind
	Raw      bool    `json:"raw"`                 // without transactions
	Client   float64 `json:"client_us"`           // of the client process; the next four are its parts
	Library  float64 `json:"library_us"`          // this library's
	Bigtable float64 `json:"bigtable_us"`         // the Bigtable client's
	GRPC     float64 `json:"grpc_us"`             // gRPC, protobuf and the network, of the client process
	Runtime  float64 `json:"runtime_us"`          // garbage collection and scheduling, of the client process
	Emulator float64 `json:"emulator_us"`         // of the emulator's process; the next three are its parts
	Rows     float64 `json:"rows_us"`             // its rows and filters
	EmuGRPC  float64 `json:"emulator_grpc_us"`    // gRPC, protobuf and the network
	EmuRun   float64 `json:"emulator_runtime_us"` // garbage collection and scheduling
}

// A profiled is one kind of operation, raw and ours.
type profiled struct {
	name, table, raw, op string
	batch                int
}

func (o *profileOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *profileOptions) report(ctx context.Context) (rep profileReport, err error) {
	rep = profileReport{Machine: rig.ThisMachine(), Callers: o.callers, Lines: []profileLine{}}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "lab-bench-"); err != nil {
			return rep, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	with := shared{streams: o.streams, callers: o.callers}
	tables := map[string]rig.TableSpec{}
	for _, name := range []string{"cells", "written"} {
		tables[name] = rig.TableSpec{Name: name, Rows: 10_000, Columns: 1, Bytes: 100}
	}
	r, err := with.open(ctx, tables["cells"], tables["written"])
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, p := range []profiled{
		{"read of one cell", "cells", "raw-get", "get", 0},
		{"read of one row", "cells", "raw-row", "row", 0},
		{"read of 100 rows", "cells", "raw-rows", "rows", 100},
		{"scan of 1000 rows", "cells", "raw-scan", "scan", 1000},
		{"write of one cell", "written", "raw-write", "write", 0},
		{"write of ten rows", "written", "raw-commit", "writes", 10},
		{"write of 100 rows", "written", "raw-commit", "writes", 100},
	} {
		for _, op := range []string{p.raw, p.op} {
			rig.Progress(o.streams, "%s, %s", p.name, op)
			t := with.on(tables[p.table], op, p.batch)
			t.Duration = o.duration
			file := op
			if p.op == "writes" {
				file += fmt.Sprint(p.batch)
			}
			line, err := profileTask(ctx, r, t, filepath.Join(dir, file))
			if err != nil {
				return rep, err
			}
			line.Name, line.Raw = p.name, op == p.raw
			rep.Lines = append(rep.Lines, line)
		}
	}
	return rep, r.Check(ctx, "cells", "written")
}

// profileTask carries out a task with profiles of client and emulator.
func profileTask(ctx context.Context, r *rig.Run, t rig.Task, file string) (line profileLine, err error) {
	t.Profile = file + "-client.pprof"
	emulator := file + "-emulator.pprof"
	if _, err := r.Send("profile " + emulator); err != nil {
		return line, errors.Join(ctx.Err(), err)
	}
	m, err := r.Measure(ctx, 0, t)
	if err != nil {
		return line, err
	}
	if _, err := r.Send("end"); err != nil {
		return line, errors.Join(ctx.Err(), err)
	}
	client, err := shares(t.Profile)
	if err != nil {
		return line, err
	}
	server, err := shares(emulator)
	if err != nil {
		return line, err
	}
	line.Client, line.Emulator = m.Micros(m.CPU), m.Micros(m.Emulator)
	line.Library, line.Bigtable = line.Client*client[partLibrary], line.Client*client[partBigtable]
	line.GRPC, line.Runtime = line.Client*client[partGRPC], line.Client*client[partRuntime]
	line.Rows, line.EmuGRPC, line.EmuRun = line.Emulator*server[partEmulator], line.Emulator*server[partGRPC], line.Emulator*server[partRuntime]
	return line, nil
}

func (r profileReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "OPERATION", "", "CLIENT µs", "LIBRARY", "BIGTABLE CLIENT", "gRPC", "RUNTIME", "EMULATOR µs", "ROWS, FILTERS", "gRPC", "RUNTIME")
	for _, l := range r.Lines {
		who := "ours"
		if l.Raw {
			who = "raw"
		}
		cli.WriteRow(t, l.Name, who, cli.Fixed(l.Client, 1), cli.Fixed(l.Library, 1), cli.Fixed(l.Bigtable, 1), cli.Fixed(l.GRPC, 1), cli.Fixed(l.Runtime, 1), cli.Fixed(l.Emulator, 1), cli.Fixed(l.Rows, 1), cli.Fixed(l.EmuGRPC, 1), cli.Fixed(l.EmuRun, 1))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nCPU time for an operation, %d callers.\n%s\n", r.Callers, r.Machine)
	return err
}
