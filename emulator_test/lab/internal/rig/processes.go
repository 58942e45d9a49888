package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
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
