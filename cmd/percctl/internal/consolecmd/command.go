// Package consolecmd is percctl console: a deployment as a web page for this machine. The
// page is in app, and asks the handler for JSON.
package consolecmd

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

// readTimeout is the default of --timeout, which bounds one read.
const readTimeout = 30 * time.Second

type options struct {
	session.Options
	config Config
}

// NewCmd returns the console command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "console [TABLE…]",
		Short: "Show a deployment as a web page on this machine",
		Long: `Show a deployment as a web page, until Ctrl-C (exit status 0). The page has the health
of the deployment and what needs attention, the versions of a row over time, the cells of
a transaction and what a resolver would do, the graph of observers, and the tables with
the keys that are busy. Without TABLE, it covers all tables of the deployment. The command
prints the address of the page as soon as you can open it. /picture.json at that address
has the fields that percctl top -o json prints.

All viewers share one scanner. It reads rows with locks or notifications again and again,
and all other rows in turn, within --max-requests and --max-bytes. The page shows what it
costs, and how old the oldest part is. While nobody looks, it reads nothing.

Commits, conflicts and latencies are known to clients alone. --metrics names a Prometheus,
or the /metrics endpoints of clients, which the page then shows. Without it, the page says
that they are missing.

The page only reads, unless you add --allow-writes. Then it offers to resolve locks,
replay and park changes, and collect garbage: it shows the plan of the command, and asks.

The page has no login. Every user of this machine can read it, and use it with
--allow-writes, but no other machine: the command listens only on loopback addresses. It
refuses requests whose Host is not a loopback address with its port. Otherwise a web site
could read the page through a name that it resolves to 127.0.0.1. It refuses changes that
another web site asks for. Do not forward the port to other people; a forwarded port works
only under the same number.`,
		Example: `  percctl console
  percctl console --listen 127.0.0.1:0 --max-bytes 10000000
  percctl console --metrics http://prometheus:9090 --allow-writes
  percctl console --embedded`,
		RunE: o.RunsAlone(o.run),
	}
	o.Setup(cmd, s, readTimeout, cli.ObjectOf[started]())
	f := cmd.Flags()
	f.StringVar(&o.config.Listen, "listen", "127.0.0.1:7080", "loopback address and port to listen on (port 0: any free port)")
	f.DurationVar(&o.config.Refresh, "refresh", 2*time.Second, "how often the page is brought up to date")
	f.BoolVar(&o.config.AllowWrites, "allow-writes", false, "let the page resolve locks, replay and park changes, and collect garbage")
	f.StringArrayVar(&o.config.Metrics, "metrics", nil, "URL of a Prometheus, or of the /metrics endpoint of a client; may be repeated")
	f.StringVar(&o.config.TraceURL, "trace-url", "", "address of a trace in your trace back end, with {trace_id} for its id")
	o.config.Picture.Add(cmd, &o.Options, "page", 100)
	o.config.Limits.Add(cmd, &o.Options)
	cli.AtLeast(&o.Checks, "refresh", &o.config.Refresh, time.Second, "at least 1s")
	o.Require(func() error { return checkListen(o.config.Listen) }, func() error {
		if _, err := watch.NewMetrics(o.config.Metrics); err != nil {
			return cli.Usagef("--metrics %w", err)
		}
		return nil
	})
	return cmd
}

// checkListen refuses what others than this machine can reach.
func checkListen(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return cli.Usagef("--listen %s: it has to be host:port: %w", listen, err)
	}
	if !loopback(host) {
		return cli.Usagef("--listen %s: it has to be a loopback address such as 127.0.0.1 or [::1], because the page has no login", listen)
	}
	return nil
}

// loopback reports whether a host is this machine, and not a name from DNS.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// A started is printed when the page can be opened.
type started struct {
	Project  string `json:"project"`  // Google Cloud project
	Instance string `json:"instance"` // Bigtable instance
	URL      string `json:"url"`      // address of the page
}

func (o *options) run(ctx context.Context) error {
	o.config.Flags = o.Flags
	c, err := Open(ctx, o.config)
	if err != nil {
		return err
	}
	defer c.Close()
	up := started{c.Flags.Connect.Project, c.Flags.Connect.Instance, c.URL}
	if err := o.Print(up, cli.Textf("%v\n", up.URL)); err != nil {
		return err
	}
	fmt.Fprintf(o.Streams.Err, "showing project %s, instance %s; stop with Ctrl-C\n", up.Project, up.Instance)
	return c.Serve(ctx) // Ctrl-C is how it ends
}
