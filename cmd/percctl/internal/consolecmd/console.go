package consolecmd

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

// A Config says what a console shows and to whom.
type Config struct {
	Flags       session.Flags
	Picture     picture.Options
	Limits      picture.Limits
	Listen      string // host:port
	Refresh     time.Duration
	AllowWrites bool
	Metrics     []string // URLs
	TraceURL    string   // with {trace_id}
}

// A Console is a page that can be opened.
type Console struct {
	Config
	URL string

	listener net.Listener
	source   *live
	closers  []func()
}

// Open connects, reads what is small, and listens. What does not work at all fails here,
// and not on a page. Call Close when done.
func Open(ctx context.Context, cfg Config) (c *Console, err error) {
	c = &Console{Config: cfg}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	meter := &watch.Meter{}
	c.Flags.Connect.Options = meter.DialOptions()
	bt, admin, closeAll, err := c.Flags.Connect.Open(ctx)
	if err != nil {
		return c, err
	}
	c.closers = append(c.closers, closeAll)
	// Commands that the page runs, and sessions after a failure, use this connection.
	ctx, cancel := context.WithCancel(connect.Reuse(ctx, bt, admin))
	c.closers = append(c.closers, cancel)
	keeper, err := picture.Keep(ctx, &c.Flags)
	if err != nil {
		return c, err
	}
	c.closers = append(c.closers, keeper.Close)
	scanner := picture.NewScanner(keeper, c.Picture, meter, c.Limits)
	meter.Limit(scanner.Limits())
	scanner.Refresh = c.Refresh
	if scanner.Metrics, err = watch.NewMetrics(c.Metrics); err != nil {
		return c, err
	}
	if err := scanner.Open(ctx); err != nil {
		return c, err
	}
	c.source = &live{Scanner: scanner, keeper: keeper, commands: newCommands(ctx, &c.Flags)}
	// In reverse: commands end, and then what they use.
	c.closers = append(c.closers, c.source.commands.wait, cancel)
	go scanner.Run(ctx)
	return c, c.listen(ctx)
}

func (c *Console) listen(ctx context.Context) (err error) {
	var lc net.ListenConfig
	if c.listener, err = lc.Listen(ctx, "tcp", c.Listen); err != nil {
		return fmt.Errorf("--listen %s: %w", c.Listen, err)
	}
	// localhost is what this machine says that it is.
	if a, ok := c.listener.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return cli.Usagef("--listen %s: on this machine it is %s, which is not a loopback address", c.Listen, c.listener.Addr())
	}
	c.URL = "http://" + c.listener.Addr().String() + "/"
	return nil
}

// Serve serves the page until the context ends.
func (c *Console) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: newHandler(c.source, c.Config), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(c.listener) }()
	select {
	case <-ctx.Done():
		_ = server.Close()
		<-ended
		return nil
	case err := <-ended:
		return err
	}
}

// Close ends the console. A command that the page runs is interrupted.
func (c *Console) Close() {
	if c.listener != nil {
		_ = c.listener.Close()
	}
	for i := len(c.closers) - 1; i >= 0; i-- {
		c.closers[i]()
	}
}
