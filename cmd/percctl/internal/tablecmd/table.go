// Package tablecmd is percctl table: making tables transactional.
package tablecmd

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// NewCmd returns the table command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("table", "Make tables transactional, describe and verify them",
		`Make tables transactional, describe and verify them.

percctl table init creates a new table. percctl table adopt makes a table
transactional that is in use, in place, and percctl table unadopt undoes that. Once
transactions have written, percctl table leave makes it a plain table.`,
		newInitCmd(s), newAdoptCmd(s), newUnadoptCmd(s), newExpireCmd(s), newLeaveCmd(s), newDescribeCmd(s), newVerifyCmd(s))
}

type initOptions struct {
	streams  *cli.Streams
	connect  connect.Flags
	table    string
	families []string
	timeout  time.Duration
	format   cli.Format
}

// initialized is a table after percctl table init.
type initialized struct {
	Project       string `json:"project"`        // Google Cloud project
	Instance      string `json:"instance"`       // Bigtable instance
	Table         string `json:"table"`          // the table, which is transactional now
	MetadataTable string `json:"metadata_table"` // metadata table of the deployment
}

func newInitCmd(s *cli.Streams) *cobra.Command {
	o := &initOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "init TABLE",
		Short: "Create a transactional table, or add the metadata families to one",
		Long: `Create a transactional table, or make an existing one transactional. The command
creates what is missing of the metadata table, the table, its data families and the
metadata families (` + metadataFamilies + `), checks that
no family has a garbage-collection policy, and records the schema. Cells that are
in the table stay as they are and count as committed before every transaction. To
run the command twice is harmless. For a table that is in use, percctl table adopt
checks more.`,
		Example: `  percctl table init accounts --families bal,info --project my-project --instance my-instance`,
		Args:    cli.ExactArgs(1, "one, the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.table = args[0]
			return o.run(cmd.Context())
		},
	}
	o.connect.Add(cmd.Flags())
	o.connect.AddEmbedded(cmd.Flags())
	cmd.Flags().StringSliceVar(&o.families, "families", nil, "data families to create if they are missing, separated by commas")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 3*time.Minute, "stop after this time")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[initialized]())
	return cmd
}

func (o *initOptions) run(ctx context.Context) error {
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %v: it has to be positive", o.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err := o.connect.Answered(ctx, func(ctx context.Context) error {
		bt, adminClient, closeAll, err := o.connect.Open(ctx)
		if err != nil {
			return err
		}
		defer closeAll()
		return admin.InitTable(ctx, adminClient, bt, o.connect.MetadataTable, admin.TableSpec{Name: o.table, Families: o.families})
	})
	if errors.Is(err, txn.ErrInvalid) {
		return cli.Usagef("%w", err)
	}
	if err != nil {
		return err
	}
	r := initialized{o.connect.Project, o.connect.Instance, o.table, o.connect.MetadataTable}
	return cli.Print(o.streams.Out, o.format, r, cli.Textf("table %s is transactional (%v, metadata table %s)\n", o.table, &o.connect, r.MetadataTable))
}
