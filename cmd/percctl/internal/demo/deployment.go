package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Short, so that the locks of a killed client are resolved while one watches. A live
// client renews its token every half second.
const (
	lockTTL  = 3 * time.Second
	tokenTTL = 1500 * time.Millisecond
)

// setupTimeout bounds what should take milliseconds: the Bigtable client retries without limit.
const setupTimeout = 10 * time.Second

func clientConfig() txn.Config {
	return txn.Config{LockTTL: lockTTL, TokenTTL: tokenTTL, BatchReads: 1}
}

// workerConfig has the workers look for work all the time. The defaults are for large
// tables, where each scan costs money.
func workerConfig() notify.Config {
	return notify.Config{
		Finder:       &notify.Scanner{MinInterval: 1000 * time.Millisecond, MaxInterval: 2000 * time.Millisecond},
		LockTTL:      lockTTL,
		Backoff:      txn.Backoff{Min: 20 * time.Millisecond, Max: time.Second},
		DrainTimeout: 2 * time.Second,
	}
}

// A deployment says where the tables are.
type deployment struct {
	address, project, instance string
}

func (d *deployment) flags(f *pflag.FlagSet) {
	f.StringVar(&d.address, "emulator", "", "address of the emulator")
	f.StringVar(&d.project, "project", "", "project of the tables")
	f.StringVar(&d.instance, "instance", "", "instance of the tables")
}

// args are the flags for a client.
func (d *deployment) args() []string {
	return []string{"--emulator", d.address, "--project", d.project, "--instance", d.instance}
}

// A connection to a deployment.
type connection struct {
	grpc     *grpc.ClientConn
	bigtable *bigtable.Client
	admin    *bigtable.AdminClient
}

func (d *deployment) connect(ctx context.Context, opts ...grpc.DialOption) (*connection, error) {
	conn, err := txntest.Dial(d.address, opts...)
	if err != nil {
		return nil, err
	}
	c := &connection{grpc: conn}
	if c.bigtable, c.admin, err = txntest.Open(ctx, conn, d.project, d.instance); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// close ends the connection. Its errors do not matter any more.
func (c *connection) close() {
	_ = c.bigtable.Close()
	_ = c.admin.Close()
	_ = c.grpc.Close()
}

// deploy chooses the emulator: the one that BIGTABLE_EMULATOR_HOST names, or one
// inside this process, which workers reach over the loopback interface. The instance
// is new, so that several demos can use one emulator. stop ends what deploy started.
func deploy(ctx context.Context) (d deployment, external bool, stop func(), err error) {
	d = deployment{
		address:  os.Getenv("BIGTABLE_EMULATOR_HOST"),
		project:  "percolator",
		instance: "demo-" + strings.ToLower(rand.Text()[:8]),
	}
	if d.address != "" {
		// The Bigtable client would retry a wrong address for a long time.
		dialer := net.Dialer{Timeout: setupTimeout}
		conn, err := dialer.DialContext(ctx, "tcp", d.address)
		if err != nil {
			return d, true, nil, &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("no emulator answers at BIGTABLE_EMULATOR_HOST: %w; start one there, or unset it to use one inside the process", err)}
		}
		return d, true, func() {}, conn.Close()
	}
	emulator, err := txntest.StartEmulator("127.0.0.1:0")
	if err != nil {
		return d, false, nil, err
	}
	d.address = emulator.Addr()
	return d, false, emulator.Close, nil
}

// createTables makes the tables transactional.
func (d *deployment) createTables(ctx context.Context, c *connection) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setupTimeout, errors.New("no answer"))
	defer cancel()
	for _, spec := range index.Tables {
		if err := admin.InitTable(ctx, c.admin, c.bigtable, "", spec); err != nil {
			return fmt.Errorf("creating table %s on the emulator at %s: %w", spec.Name, d.address, err)
		}
	}
	return nil
}
