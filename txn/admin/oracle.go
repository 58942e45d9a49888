package admin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// A NoTimestampsError says that no server of a served oracle gives timestamps. It does not match
// tso.ErrUnavailable, for which a client asks again until its context ends.
type NoTimestampsError struct {
	Address string // of the leader that the oracle's row names; may be empty
	Err     error  // why it does not answer; nil if no server leads
}

func (e *NoTimestampsError) Error() string {
	why := "no server leads"
	if e.Err != nil {
		why = strings.TrimPrefix(e.Err.Error(), "tso: ")
	}
	return "no timestamps: the oracle is in served mode, and " + why + ". " + NoTimestampsFix
}

// NoTimestampsFix says what to do.
const NoTimestampsFix = "Start a server with percctl tso serve, or change to direct mode with percctl tso mode direct"

// probeEvery is how often an Oracle looks for a server while none answers.
const probeEvery = 5 * time.Second

// An Oracle asks the servers of a deployment's oracle, for programs of operators. It follows a
// change of the leader's address. If no server ever answered, it fails with [*NoTimestampsError].
//
// A program that only reads needs no server: while none answers, Timestamp returns the highest
// timestamp that the oracle's row has. None above it was handed out, so a read there shows all
// commits. The next leader begins above it. Time stands still meanwhile: Missing says so.
type Oracle struct {
	// Table is the metadata table.
	Table bigtable.TableAPI
	// Servers returns a client of the servers of a row that names a leader, or has other addresses.
	Servers func(tso.RowState) (*tso.Client, error)
	// Reads says that the program only reads.
	Reads bool
	// Warn is called when servers stop to answer a program that only reads. Defaults to nothing.
	Warn func(error)

	mu       sync.Mutex
	client   *tso.Client
	address  string
	answered bool
	missing  error
	probing  bool
	probed   time.Time
	stop     context.CancelFunc
	work     sync.WaitGroup
	closed   bool
	old      []*tso.Client
}

var _ tso.Oracle = (*Oracle)(nil)

// Timestamp implements [tso.Oracle].
func (o *Oracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if o.Reads && o.Missing() != nil {
		o.probe()
		row, err := tso.ReadRow(ctx, o.Table, tso.RowConfig{})
		return row.Limit, err
	}
	ts, row, err := o.ask(ctx)
	if err == nil || !o.gone(err) || ctx.Err() != nil {
		return ts, err
	}
	missing := &NoTimestampsError{row.Address, nil}
	if o.servers() != nil {
		missing.Err = err
	}
	if !o.Reads {
		if o.hasAnswered() {
			return 0, err
		}
		return 0, missing
	}
	o.mu.Lock()
	first := o.missing == nil
	o.missing, o.probed = missing, time.Now()
	o.mu.Unlock()
	if first && o.Warn != nil {
		o.Warn(missing)
	}
	return row.Limit, nil
}

var errNoLeader = errors.New("no server leads")

// gone: no server answers, which may change.
func (o *Oracle) gone(err error) bool {
	return errors.Is(err, tso.ErrUnavailable) || errors.Is(err, errNoLeader)
}

// ask asks the servers that are known. If these do not answer, it asks the leader that the row names.
func (o *Oracle) ask(ctx context.Context) (ts tso.Timestamp, row tso.RowState, err error) {
	err = errNoLeader
	tried := o.servers()
	if tried != nil {
		if ts, err = tried.Timestamp(ctx); err == nil || !o.gone(err) {
			return ts, row, o.note(err)
		}
	}
	row, rowErr := tso.ReadRow(ctx, o.Table, tso.RowConfig{})
	if rowErr != nil {
		return 0, row, rowErr
	}
	switch c, dialErr := o.dial(row, tried); {
	case dialErr != nil:
		return 0, row, dialErr
	case c != nil:
		ts, err = c.Timestamp(ctx)
	}
	return ts, row, o.note(err)
}

// note notes that a server answers.
func (o *Oracle) note(err error) error {
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.answered, o.missing = true, nil
	}
	return err
}

// dial returns a client of the leader that the row names, or nil if that is the one that was tried.
func (o *Oracle) dial(row tso.RowState, tried *tso.Client) (*tso.Client, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, nil
	case o.client != tried:
		return o.client, nil // another caller has connected
	case row.Address == o.address && tried != nil:
		return nil, nil
	}
	c, err := o.Servers(row)
	if c == nil {
		return nil, err
	}
	if o.client != nil {
		o.old = append(o.old, o.client)
	}
	o.client, o.address = c, row.Address
	return c, nil
}

// probe looks for a server in the background.
func (o *Oracle) probe() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.probing || time.Since(o.probed) < probeEvery {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.probing, o.stop = true, cancel
	o.work.Go(func() {
		defer cancel()
		_, _, _ = o.ask(ctx)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.probing, o.probed = false, time.Now()
	})
}

// Missing returns why there are no timestamps at present, or nil.
func (o *Oracle) Missing() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missing
}

func (o *Oracle) hasAnswered() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answered
}

func (o *Oracle) servers() *tso.Client {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.client
}

// Stats counts what the client of the servers did.
func (o *Oracle) Stats() (s tso.ClientStats) {
	if c := o.servers(); c != nil {
		s = c.Stats()
	}
	return s
}

// Close closes the clients of the servers.
func (o *Oracle) Close() {
	o.mu.Lock()
	o.closed = true
	all := o.old
	if o.client != nil {
		all = append(all, o.client)
	}
	if o.stop != nil {
		o.stop()
	}
	o.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
	o.work.Wait()
}

// Now is the oracle's time, for ages. While there are no timestamps, it is this machine's time, unless
// the oracle's row is ahead of it.
func (o *Oracle) Now(ctx context.Context) (tso.Timestamp, error) {
	ts, err := o.Timestamp(ctx)
	if err == nil && o.Missing() != nil {
		ts = max(ts, tso.FromTime(time.Now()))
	}
	return ts, err
}
