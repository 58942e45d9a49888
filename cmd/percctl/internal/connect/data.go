package connect

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// Given reports whether there is an instance to connect to, once flags,
// environment and ~/.cbtrc were looked at.
func (f *Flags) Given() bool { return f.Resolve() == nil }

// OpenData connects to the data service alone, which needs fewer permissions
// than Open. The client has to be closed.
func (f *Flags) OpenData(ctx context.Context) (*bigtable.Client, error) {
	if err := f.Resolve(); err != nil {
		return nil, err
	}
	bt, err := bigtable.NewClientWithConfig(ctx, f.Project, f.Instance, bigtable.ClientConfig{
		AppProfile:      f.AppProfile,
		MetricsProvider: bigtable.NoopMetricsProvider{},
		DisableSession:  true,
	}, f.options(f.endpoint)...)
	if err != nil {
		return nil, &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("connecting to Bigtable, %v: %w", f, err)}
	}
	return bt, nil
}
