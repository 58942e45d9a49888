package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// stubTS is the commit_ts of the stub's cells: long ago.
const stubTS = 1_700_000_000_000_000

// newStubCmd makes the command of the stub's process, which answers as the emulator's
// does.
func newStubCmd(s *cli.Streams) *cobra.Command {
	return ProcessCmd("stub", "The stub process of a measurement", func(context.Context) (err error) {
		columns := []txn.Column{{Family: Family, Qualifier: ColumnOf(0)}}
		stub, err := txntest.StartStub("127.0.0.1:0",
			txntest.StubTable{Name: "cells", Columns: columns, Value: make([]byte, 100), CommitTS: stubTS},
			txntest.StubTable{Name: "cells-raw", Columns: columns, Value: make([]byte, 100)})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stub.Close()) }()
		fmt.Fprintln(s.Out, stub.Addr())
		return answerCPU(s)
	})
}
