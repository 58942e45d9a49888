package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// newWorkerCmd is the command that the coordinator starts its clients with.
func newWorkerCmd(s *cli.Streams) *cobra.Command {
	var at deployment
	var dir string
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "A client of percctl demo",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runWorker(cmd.Context(), at, dir, s)
		},
	}
	at.flags(cmd.Flags())
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the documents")
	return cmd
}

// A worker is one client: a process with its own connection, token and
// goroutines, that processes the documents it is given.
type worker struct {
	dir    string
	client *txn.Client

	mu  sync.Mutex
	out *json.Encoder
}

// runWorker serves orders until its input ends: the coordinator has nothing
// left, or is dead.
func runWorker(ctx context.Context, at deployment, dir string, s *cli.Streams) error {
	// Ctrl-C goes to every process of the terminal; it is the coordinator's to
	// handle. Any other signal ends a client like a crash.
	signal.Ignore(os.Interrupt)
	signal.Reset(syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	w := &worker{dir: dir, out: json.NewEncoder(s.Out)}
	crash := &crasher{stopped: func(p crashPoint, t time.Time) {
		w.report(report{Stopped: &stoppedReport{Point: p, At: t}})
	}}
	conn, err := at.connect(ctx, crash.dialOptions()...)
	if err != nil {
		return err
	}
	defer conn.close()
	if w.client, err = txn.NewClient(ctx, conn.bigtable, clientConfig(w.resolved)); err != nil {
		return err
	}
	w.report(report{Ready: &readyReport{Owner: w.client.Owner()}})

	var running sync.WaitGroup
	orders := json.NewDecoder(s.In)
	for {
		var o order
		if err = orders.Decode(&o); err != nil {
			break
		}
		if o.Crash != "" {
			crash.arm(o.Crash)
		}
		if d := o.Document; d != nil {
			running.Go(func() { w.process(ctx, d) })
		}
	}
	cancel()
	running.Wait()
	// The secondaries of what is committed; a coordinator that is dead took
	// the emulator with it.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, w.client.Close(ctx))
}

// process runs the transaction of one document and acknowledges it.
func (w *worker) process(ctx context.Context, d *documentOrder) {
	commitTS, err := w.update(ctx, string(d.Path), d.Hash)
	switch {
	case err == nil:
		w.report(report{Done: &doneReport{ID: d.ID, CommitTS: commitTS, Stats: w.client.Stats()}})
	case ctx.Err() == nil:
		w.report(report{Failed: &failedReport{Error: err.Error()}})
	}
}

func (w *worker) update(ctx context.Context, path, hash string) (commitTS tso.Timestamp, err error) {
	contents, err := os.ReadFile(filepath.Join(w.dir, filepath.FromSlash(path)))
	if err != nil {
		return 0, err
	}
	if digest(contents) != hash {
		return 0, fmt.Errorf("%s changed while the demo was running; give it a directory at rest", path)
	}
	return updateDocument(ctx, w.client, path, contents)
}

// resolved reports what was settled for others, before anything that depends
// on it is acknowledged.
func (w *worker) resolved(r txn.Resolution) {
	w.report(report{Resolved: &resolvedReport{
		Cell: r.Lock.Cell.String(), StartTS: r.Lock.StartTS, Owner: r.Lock.Owner, State: r.Status.State, At: time.Now(),
	}})
}

// report writes one line. It can fail only when the coordinator is dead, which
// the end of the input tells as well.
func (w *worker) report(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(r)
}
