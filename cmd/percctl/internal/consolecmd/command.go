// Package consolecmd is percctl console: a deployment as a small web page for
// this machine.
package consolecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
)

// pageTimeout is the default of --timeout, which bounds one page.
const pageTimeout = 30 * time.Second

type options struct {
	session.Options
	picture picture.Options
	listen  string
	refresh time.Duration
}

// NewCmd returns the console command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "console [TABLE…]",
		Short: "Show a deployment as a web page on this machine",
		Long: `Show a deployment as a web page, until Ctrl-C (exit status 0). The page has locks by
transaction with what resolving them would do, observers with their lag, dead
letters, the oracle, garbage collection, and the history of a row. Without TABLE, it
covers all tables of the deployment. The command prints the address of the page as
soon as you can open it. /picture.json at that address is what percctl top -o json
prints. The page needs no JavaScript.

The page only reads: it serves GET and HEAD requests, and has no buttons that change
anything. It has no login. Every user of this machine can read it, but no other
machine: the command listens only on loopback addresses. It refuses requests whose
Host is not a loopback address with its port. Otherwise a web site could read the
page through a name that it resolves to 127.0.0.1. Do not forward the port to other
people; a forwarded port works only under the same number.

Each load of the page reads the locks and notifications of the tables, at most once
per second: see percctl top for the cost. --timeout is per page.`,
		Example: `  percctl console
  percctl console --listen 127.0.0.1:0 --refresh 30s
  percctl console --embedded`,
		RunE: o.RunsAlone(o.run),
	}
	o.Setup(cmd, s, pageTimeout, cli.ObjectOf[started]())
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:7080", "loopback address and port to listen on (port 0: any free port)")
	cmd.Flags().DurationVar(&o.refresh, "refresh", 5*time.Second, "interval after which the page reloads itself (0: never)")
	o.picture.Add(cmd, &o.Options, "page", 100)
	o.Require(o.check)
	return cmd
}

func (o *options) check() error {
	if o.refresh < 0 || (o.refresh > 0 && o.refresh < time.Second) {
		return cli.Usagef("--refresh %v: it has to be at least 1s, or 0 for never", o.refresh)
	}
	return checkListen(o.listen)
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
	k, err := picture.Keep(ctx, &o.Flags)
	if err != nil {
		return err
	}
	defer k.Close()
	// What does not work at all is said here, and not on a page.
	src := &live{keeper: k, options: o.picture}
	p, err := src.Picture(ctx)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", o.listen, err)
	}
	// localhost is what this machine says that it is.
	if a, ok := lis.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		_ = lis.Close()
		return cli.Usagef("--listen %s: on this machine it is %s, which is not a loopback address", o.listen, lis.Addr())
	}
	server := &http.Server{
		Handler: newHandler(src, o.refresh), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	up := started{p.Project, p.Instance, "http://" + lis.Addr().String() + "/"}
	if err := o.Print(up, cli.Textf("%v\n", up.URL)); err != nil {
		_ = server.Close()
		<-ended
		return err
	}
	fmt.Fprintf(o.Streams.Err, "showing project %s, instance %s; stop with Ctrl-C\n", p.Project, p.Instance)
	select {
	case <-ctx.Done():
		_ = server.Close() // it only reads: nothing is lost
		<-ended
		return nil // Ctrl-C is how it ends
	case err := <-ended:
		return err
	}
}

// errNotFound: there is nothing in the row.
var errNotFound = errors.New("nothing is stored in this row")
