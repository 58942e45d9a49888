package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/tso"
)

const (
	// servers of timestamps, one of which leads.
	servers = 2
	// lease is how long timestamps are missing when the leader is killed.
	lease = time.Second
)

// oracles are the servers of timestamps. Only one goroutine at a time uses them.
type oracles struct {
	*fleet
	table bigtable.TableAPI
	procs [servers]*child.Process

	killed, stopped int // leaders
}

// start has the deployment served, and fills in the addresses of the servers.
func (o *oracles) start(ctx context.Context) error {
	if _, err := tso.SetMode(ctx, o.table, tso.RowConfig{}, tso.ModeServed); err != nil {
		return err
	}
	for range servers {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		o.at.Oracles = append(o.at.Oracles, lis.Addr().String())
		if err := lis.Close(); err != nil { // the server and its successors use the address
			return err
		}
	}
	for i := range o.procs {
		if err := o.serve(i); err != nil {
			return errors.Join(err, o.stop())
		}
	}
	return nil
}

// serve starts the i-th server, and returns when it listens.
func (o *oracles) serve(i int) error {
	p, err := o.fleet.start(fmt.Sprintf("server %d of timestamps", i+1), o.opts.workers+1+i, spec{Listen: o.at.Oracles[i]})
	if err != nil {
		return err
	}
	o.procs[i] = p
	_, err = p.Line()
	return err
}

// failOver ends the leader, and starts it again once it has ended. It kills the
// leader, or asks it to stop, which hands over at once.
func (o *oracles) failOver(ctx context.Context, kill bool) error {
	state, err := tso.ReadRow(ctx, o.table, tso.RowConfig{})
	if err != nil {
		return err
	}
	i := slices.Index(o.at.Oracles, state.Address)
	if i < 0 || state.Released {
		return nil // no server leads yet
	}
	p := o.procs[i]
	if kill {
		o.killed++
		o.event("killed server %d of timestamps, which led in epoch %d", i+1, state.Epoch)
		p.Kill()
	} else {
		o.stopped++
		o.event("stopped server %d of timestamps, which led in epoch %d", i+1, state.Epoch)
		p.CloseInput()
	}
	_ = p.Wait() // it was killed, or its error is on standard error
	return o.serve(i)
}

// stop ends all of them.
func (o *oracles) stop() error {
	for _, p := range o.procs {
		if p != nil {
			p.CloseInput()
		}
	}
	var errs []error
	for _, p := range o.procs {
		if p != nil {
			errs = append(errs, p.End(leaving))
		}
	}
	return errors.Join(errs...)
}
