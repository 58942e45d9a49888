package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Commands are those that a Run starts its processes with; they are below bench.
func Commands(s *cli.Streams) []*cobra.Command {
	return []*cobra.Command{newWorkerCmd(s), newEmulatorCmd(s), newOracleCmd(s), newStubCmd(s)}
}

// end ends a process; one that an interrupt has ended did what it should.
func end(p *child.Process) error {
	if err := p.End(endTimeout); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// ProcessCmd is the command of one kind of process, which may be profiled.
func ProcessCmd(use, short string, run func(ctx context.Context) error) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:    use,
		Short:  short,
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, err := cli.StartProfile(profile)
			if err != nil {
				return err
			}
			defer stop()
			return run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	return cmd
}

// newEmulatorCmd is the emulator's process: it prints its address, and for each
// line that it reads the CPU time it has used, and ends with its standard input.
func newEmulatorCmd(s *cli.Streams) *cobra.Command {
	return ProcessCmd("emulator", "The emulator process of a measurement", func(context.Context) error {
		e, err := txntest.StartEmulator("127.0.0.1:0")
		if err != nil {
			return err
		}
		defer e.Close()
		fmt.Fprintln(s.Out, e.Addr())
		return tellCPU(s)
	})
}

// tellCPU answers each line with the CPU time that this process has used, until
// there are no more. After the line "profile FILE" a CPU profile is taken, until
// the line "end".
func tellCPU(s *cli.Streams) error {
	stop := func() {}
	defer func() { stop() }()
	lines := bufio.NewScanner(s.In)
	for lines.Scan() {
		file, profile := strings.CutPrefix(lines.Text(), "profile ")
		if profile || lines.Text() == "end" {
			stop()
			stop = func() {}
		}
		if profile {
			var err error
			if stop, err = cli.StartProfile(file); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(s.Out, cputime.Used().Nanoseconds()); err != nil {
			return err
		}
	}
	return lines.Err()
}
