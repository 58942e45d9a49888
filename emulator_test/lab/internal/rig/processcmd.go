package rig

import (
	"bufio"
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
)

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

// answerCPU answers each line of input with the CPU time that this process has used.
// After the line "profile FILE" it writes a CPU profile, until the line "end". The line
// "gc" collects garbage first.
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
		if lines.Text() == "gc" {
			runtime.GC()
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
