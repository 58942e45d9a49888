package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// A version is what the Go tool recorded in the binary.
type version struct {
	Version  string `json:"version"`                   // version of the module; (devel) in a build from a checkout
	Revision string `json:"revision,omitempty"`        // commit that it was built from
	Time     string `json:"time,omitempty"`            // time of the commit
	Modified bool   `json:"modified"`                  // whether the checkout had uncommitted changes
	Go       string `json:"go"`                        // version of Go
	Bigtable string `json:"bigtable_client,omitempty"` // version of the Bigtable client library
}

// NewVersionCmd returns the version command of percctl.
func NewVersionCmd(s *Streams) *cobra.Command {
	var format Format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of percctl",
		Long:  "Print the version of percctl, as the Go tool recorded it in the binary.",
		Example: `  percctl version
  percctl version -o json`,
		Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v := newVersion(info)
			return Print(s.Out, format, v, Textf("%v\n", v))
		},
	}
	FormatFlag(cmd, &format, ObjectFormats...)
	Prints(cmd, ObjectOf[version]())
	return cmd
}

// addVersionFlag adds --version, which prints the same line as percctl version.
// The flag is ours because cobra's own would take -v as well.
func addVersionFlag(root *cobra.Command) {
	info, _ := debug.ReadBuildInfo()
	root.Version = newVersion(info).String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version and exit")
}

func newVersion(info *debug.BuildInfo) version {
	v := version{Version: "unknown", Go: runtime.Version()}
	if info == nil {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	for _, d := range info.Deps {
		if d.Path == "cloud.google.com/go/bigtable" {
			v.Bigtable = d.Version
		}
	}
	return v
}

func (v version) String() string {
	text := fmt.Sprintf("percctl %s (%s", v.Version, v.Go)
	if v.Revision != "" {
		text += ", revision " + v.Revision
		if v.Modified {
			text += " with changes"
		}
	}
	if v.Bigtable != "" {
		text += ", Bigtable client " + v.Bigtable
	}
	return text + ")"
}
