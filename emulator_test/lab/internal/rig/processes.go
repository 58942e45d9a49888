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

// Commands are the hidden commands below bench with which a Run starts its processes.
func Commands(s *cli.Streams) []*cobra.Command {
	return []*cobra.Command{newWorkerCmd(s), newEmulatorCmd(s), newOracleCmd(s), newStubCmd(s)}
}

// end ends a process. It is no error if an interrupt has ended it.
func end(p *child.Process) error {
	if err := p.End(endTimeout); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// ProcessCmd makes the command of one kind of process, which can write a CPU profile.
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

// newEmulatorCmd makes the command of the emulator's process. It prints its address,
// and for each line of input the CPU time that it has used. It ends when its standard
// input does.
func newEmulatorCmd(s *cli.Streams) *cobra.Command {
	return ProcessCmd("emulator", "The emulator process of a measurement", func(context.Context) error {
		e, err := txntest.StartEmulator("127.0.0.1:0")
		if err != nil {
			return err
		}
		defer e.Close()
		fmt.Fprintln(s.Out, e.Addr())
		return answerCPU(s)
	})
}

// answerCPU answers each line of input with the CPU time that this process has used.
// After the line "profile FILE" it writes a CPU profile, until the line "end".
func answerCPU(s *cli.Streams) error {
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
