// Package connect finds the Bigtable instance that a command works on, and
// opens clients for it.
package connect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/pflag"
	"google.golang.org/api/option"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/txn"
)

// Flags say where Bigtable is. A flag comes before its environment variable,
// and that before ~/.cbtrc, the configuration of cbt.
type Flags struct {
	Project, Instance, AppProfile, MetadataTable string

	creds, endpoint string
}

// Add adds the flags to a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Project, "project", "", "Google Cloud project of the Bigtable instance (PERCCTL_PROJECT, GOOGLE_CLOUD_PROJECT, project in ~/.cbtrc)")
	flags.StringVar(&f.Instance, "instance", "", "Bigtable instance (PERCCTL_INSTANCE, instance in ~/.cbtrc)")
	flags.StringVar(&f.AppProfile, "app-profile", "", "app profile: single-cluster routing, single-row transactions allowed (PERCCTL_APP_PROFILE)")
	flags.StringVar(&f.MetadataTable, "metadata-table", "", "metadata table of the deployment (PERCCTL_METADATA_TABLE; default "+txn.DefaultMetadataTable+")")
}

// Resolve fills in what no flag gave. It fails, with a message that says what
// to set, when project or instance are not to be found.
func (f *Flags) Resolve() error {
	rc, err := readCbtrc()
	if err != nil {
		return err
	}
	first := func(value *string, others ...string) {
		for _, o := range others {
			if *value == "" {
				*value = o
			}
		}
	}
	first(&f.Project, os.Getenv("PERCCTL_PROJECT"), os.Getenv("GOOGLE_CLOUD_PROJECT"), rc["project"])
	first(&f.Instance, os.Getenv("PERCCTL_INSTANCE"), rc["instance"])
	first(&f.AppProfile, os.Getenv("PERCCTL_APP_PROFILE"))
	first(&f.MetadataTable, os.Getenv("PERCCTL_METADATA_TABLE"), txn.DefaultMetadataTable)
	f.creds, f.endpoint = rc["creds"], rc["data-endpoint"]
	if f.Project == "" || f.Instance == "" {
		return cli.Usagef("no Bigtable instance: set --project and --instance (or PERCCTL_PROJECT and PERCCTL_INSTANCE, or ~/.cbtrc; with BIGTABLE_EMULATOR_HOST any names will do). To try without one: percctl demo")
	}
	return nil
}

// readCbtrc reads ~/.cbtrc: lines of key = value. A missing file is empty.
func readCbtrc() (map[string]string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, nil //nolint:nilerr // without a home there is no file in it
	}
	path := filepath.Join(home, ".cbtrc")
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	rc := map[string]string{}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, cli.Usagef("%s:%d: %q is not of the form key = value", path, n, line)
		}
		rc[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return rc, lines.Err()
}

func (f *Flags) options(endpoint string) []option.ClientOption {
	var opts []option.ClientOption
	if f.creds != "" {
		opts = append(opts, option.WithAuthCredentialsFile(option.ServiceAccount, f.creds))
	}
	if endpoint != "" {
		opts = append(opts, option.WithEndpoint(endpoint))
	}
	return opts
}

// Open connects to the data and the admin service. Call the function it
// returns when done.
func (f *Flags) Open(ctx context.Context) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
	if err := f.Resolve(); err != nil {
		return nil, nil, nil, err
	}
	fail := func(err error) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
		return nil, nil, nil, &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("connecting to Bigtable, project %s, instance %s: %w", f.Project, f.Instance, err)}
	}
	bt, err := bigtable.NewClientWithConfig(ctx, f.Project, f.Instance, bigtable.ClientConfig{
		AppProfile:      f.AppProfile,
		MetricsProvider: bigtable.NoopMetricsProvider{},
		DisableSession:  true,
	}, f.options(f.endpoint)...)
	if err != nil {
		return fail(err)
	}
	admin, err := bigtable.NewAdminClient(ctx, f.Project, f.Instance, f.options("")...)
	if err != nil {
		return fail(errors.Join(err, bt.Close()))
	}
	return bt, admin, func() {
		_ = bt.Close()
		_ = admin.Close()
	}, nil
}

// String names the instance, for messages.
func (f *Flags) String() string { return fmt.Sprintf("project %s, instance %s", f.Project, f.Instance) }
