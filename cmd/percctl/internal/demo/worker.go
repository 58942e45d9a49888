package demo

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// newWorkerCmd is the command with which the coordinator starts a worker.
func newWorkerCmd(s *cli.Streams) *cobra.Command {
	var at deployment
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "A worker of percctl demo",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context(), at, s) },
	}
	at.flags(cmd.Flags())
	return cmd
}

// reporting is the time between two reports of what a worker has done.
const reporting = 100 * time.Millisecond

// A reporter writes reports.
type reporter struct {
	mu  sync.Mutex
	out *json.Encoder
}

// report writes one line. It can fail only if the coordinator is dead, and then the
// input ends, too.
func (r *reporter) report(line report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(line)
}

// runWorker runs the observers until its input ends, because the coordinator has
// nothing left to do or is dead.
func runWorker(ctx context.Context, at deployment, s *cli.Streams) (err error) {
	out := &reporter{out: json.NewEncoder(cli.Raw(s.Out))}
	var client *txn.Client
	var worker *notify.Worker
	now := func() stats { return stats{worker.Stats(), client.Stats()} }
	crash := &crasher{stopped: func(p crashPoint, t time.Time) {
		out.report(report{Stopped: &stoppedReport{Point: p, At: t, Stats: now()}})
	}}
	ctx, cancel := child.Attend(ctx, s.In, func(line []byte) {
		var o order
		if json.Unmarshal(line, &o) == nil {
			crash.arm(o.Crash)
		}
	})
	defer cancel()
	conn, err := at.connect(ctx, crash.dialOptions()...)
	if err != nil {
		return err
	}
	defer conn.close()
	if client, err = txn.NewClient(ctx, conn.bigtable, clientConfig()); err != nil {
		return err
	}
	admin.OnResolve(client, func(r format.Resolution) {
		// Reported before anything that depends on it.
		out.report(report{Resolved: &resolvedReport{
			Cell: r.Lock.Cell.String(), StartTS: r.Lock.StartTS, Owner: r.Lock.Owner, State: r.Status.State, At: time.Now(),
		}})
	})
	// Commit the secondaries. If the coordinator is dead, the emulator is, too.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	if worker, err = notify.NewWorker(client, workerConfig()); err != nil {
		return err
	}
	if err := index.Handle(worker); err != nil {
		return err
	}
	out.report(report{Ready: &readyReport{Owner: admin.Owner(client)}})

	var reports sync.WaitGroup
	reports.Go(func() {
		tick := time.NewTicker(reporting)
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-tick.C:
				st := now()
				out.report(report{Stats: &st})
			case <-ctx.Done():
			}
		}
	})
	err = worker.Run(ctx)
	cancel()
	reports.Wait()
	last := now()
	out.report(report{Stats: &last})
	return err
}
