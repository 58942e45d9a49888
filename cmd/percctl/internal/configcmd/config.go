// Package configcmd is percctl config: where percctl takes its settings from.
package configcmd

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
)

// NewCmd returns the config command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("config", "Show the settings of percctl", "Show the settings of percctl. percctl help environment says where they come from.", newViewCmd(s))
}

var csvHeader = []string{"name", "value", "source"}

func newViewCmd(s *cli.Streams) *cobra.Command {
	var flags connect.Flags
	var format cli.Format
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Show each setting and where it came from",
		Long: `Show each setting and where it came from: a flag, an environment variable,
~/.cbtrc, or the default. The command connects to nothing, and does not read the
credentials file that it names.`,
		Example: `  percctl config view
  percctl config view --instance other -o json`,
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error { return view(s, &flags, format) },
	}
	flags.Add(cmd.Flags())
	flags.Oracle.Add(cmd.Flags())
	cli.FormatFlag(cmd, &format, cli.ListFormats...)
	cli.Prints(cmd, cli.ListOf[connect.Setting](csvHeader))
	return cmd
}

func view(s *cli.Streams, flags *connect.Flags, format cli.Format) error {
	settings, err := flags.Settings()
	if err != nil {
		return err
	}
	list := &cli.List[connect.Setting]{
		Out: s.Out, Format: format,
		Header:      csvHeader,
		TableHeader: []string{"SETTING", "VALUE", "SOURCE"},
		Rows:        func(v connect.Setting) [][]string { return [][]string{{v.Name, v.Value, v.Source}} },
		TableRows: func(v connect.Setting) [][]string {
			value := "-"
			if v.Value != "" {
				value = cli.Line(v.Value)
			}
			return [][]string{{v.Name, value, v.Source}}
		},
	}
	return list.All(settings)
}
