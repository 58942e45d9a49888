package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const (
	hotLists  = 5 // of each of two tables
	documents = 8
	observer  = "conformance"
	// settleTimeout bounds what follows after the faults: waiting for locks and observers, and
	// reading everything.
	settleTimeout = 2 * time.Minute
)

var (
	docIn   = txn.Column{Family: conformance.Family, Qualifier: "in"}
	docSeen = txn.Column{Family: conformance.Family, Qualifier: "seen"}
	docOut  = txn.Column{Family: conformance.Family, Qualifier: "out"}
)

// soak is one run.
type soak struct {
	cfg       Config
	connect   conformance.Connect
	metadata  string // tables
	docs      string
	lists     []cell
	meter     meter
	order     order
	processes atomic.Int64
	observed  atomic.Int64

	mu      sync.Mutex
	rnd     *rand.Rand
	records []history.Record
	faults  map[string]int
}

// open returns a client whose timestamps are checked, and what ends its oracle.
func (s *soak) open(ctx context.Context, bt *bigtable.Client) (*txn.Client, func(), error) {
	oracle := tso.NewDirect(bt.OpenTable(s.metadata), tso.DirectConfig{})
	c, err := txn.NewClient(ctx, bt, txn.Config{
		MetadataTable: s.metadata, Oracle: s.order.watch(oracle), LockTTL: lockTTL, TokenTTL: tokenTTL, PassLocks: true,
	})
	if err != nil {
		_ = oracle.Close()
		return nil, nil, err
	}
	return c, func() { _ = oracle.Close() }, nil
}

func (s *soak) doc(i int) cell {
	return cell{Table: s.docs, Row: fmt.Sprintf("doc%d", i), Family: docIn.Family, Qualifier: docIn.Qualifier}
}

func (s *soak) record(r history.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
}

func (s *soak) fault(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[kind]++
}

// spent reports whether the transactions under faults have sent as much as they may.
func (s *soak) spent() bool {
	return max(s.meter.n.Load(), s.meter.bytes.Load()/bytesOfRequest) > s.cfg.most()
}

// random returns a source of its own for a goroutine.
func (s *soak) random() *rand.Rand {
	s.mu.Lock()
	defer s.mu.Unlock()
	return rand.New(rand.NewPCG(s.rnd.Uint64(), s.rnd.Uint64()))
}

// Run makes the tables, runs transactions and observers on them under faults, checks their
// history, measures transactions, and removes the tables, also if the context ends. If only
// the removal fails, it returns the report and the error.
func Run(ctx context.Context, connect conformance.Connect, cfg Config) (r *Report, err error) {
	cfg = cfg.withDefaults()
	s := &soak{cfg: cfg, connect: connect, rnd: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), faults: map[string]int{}}
	s.metadata, s.docs = cfg.Prefix+"-meta", cfg.Prefix+"-docs"
	second := cfg.Prefix + "-lists"
	for i := range hotLists {
		for _, table := range []string{s.docs, second} {
			s.lists = append(s.lists, cell{Table: table, Row: fmt.Sprintf("list%d", i), Family: conformance.Family, Qualifier: "list"})
		}
	}
	begun := time.Now()
	bt, adminClient, end, err := connect(ctx, s.meter.options()...)
	if err != nil {
		return nil, err
	}
	defer end()
	r = &Report{Tables: []string{s.metadata, s.docs, second}, Anomalies: []string{}, Ratios: []Ratio{}}
	for _, name := range r.Tables {
		if err := conformance.Create(ctx, bt, adminClient, name); err != nil {
			return nil, err
		}
		defer func() {
			if e := conformance.Remove(context.WithoutCancel(ctx), bt, adminClient, name); e != nil {
				err = errors.Join(err, fmt.Errorf("soak: table %s is left: %w", name, e))
			}
		}()
	}
	client, closeOracle, err := s.setUp(ctx, bt, adminClient, r.Tables[1:])
	if client != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTTL)
			defer cancel()
			_ = client.Close(ctx)
			closeOracle()
		}()
	}
	if err == nil {
		cfg.Progress("transactions under faults")
		err = s.disturb(ctx)
	}
	if err == nil {
		cfg.Progress("checking the history")
		err = s.finish(ctx, client, r)
	}
	// What ends a run early may be what an anomaly led to.
	if err != nil && ctx.Err() == nil {
		if found := s.checkHistory(r); found || impossible(err) {
			r.Anomalies, err = append(r.Anomalies, err.Error()), nil
		}
	}
	if err != nil {
		return nil, err
	}
	s.count(r)
	if r.Safe {
		cfg.Progress("measuring")
		if r.Ratios, err = measure(ctx, s, client, bt.Open(second)); err != nil {
			return nil, err
		}
	}
	r.Requests, r.Bytes, r.Seconds = int(s.meter.n.Load()), s.meter.bytes.Load(), time.Since(begun).Seconds()
	return r, nil
}

// impossible reports whether an error shows data that no client writes, or that a part of it
// is gone: nothing collects garbage here. Other errors may come from the network.
func impossible(err error) bool {
	return errors.Is(err, txn.ErrCorrupt) || errors.Is(err, tso.ErrCorrupt) || errors.Is(err, txn.ErrUndetermined) && status.Code(err) == codes.Unknown &&
		!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// setUp makes the tables transactional.
func (s *soak) setUp(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient, tables []string) (*txn.Client, func(), error) {
	for _, name := range tables {
		spec := admin.TableSpec{Name: name, Families: []string{conformance.Family}}
		if name == s.docs {
			spec.Observed = []txn.Column{docIn}
		}
		if err := admin.InitTable(ctx, adminClient, bt, s.metadata, spec); err != nil {
			return nil, nil, err
		}
	}
	client, closeOracle, err := s.open(ctx, bt)
	if err != nil {
		return nil, nil, err
	}
	// Before the first change: a writer needs to know the observed columns.
	return client, closeOracle, changes.RegisterObserver(ctx, client, s.docs, docIn, observer, false)
}

// disturb runs clients for the duration. It kills some and lets others stand still.
func (s *soak) disturb(ctx context.Context) (err error) {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Duration)
	defer cancel()
	running, stop := context.WithCancelCause(outer)
	defer stop(nil)
	// An error that faults do not explain ends the run.
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	all := make([]*client, s.cfg.Clients)
	var dead []*client
	defer func() {
		for _, c := range slices.Concat(all, dead) {
			if c != nil {
				c.stop()
				c.faults.heal()
				c.end()
			}
		}
	}()
	for i := range all {
		if all[i], err = start(running, s, fail); err != nil {
			return err
		}
	}
	rnd := s.random()
	pace := time.NewTicker(max(s.cfg.Duration/12, time.Millisecond))
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return outer.Err()
		case <-pace.C:
		}
		if s.spent() {
			return nil
		}
		i := rnd.IntN(len(all))
		if n%2 == 0 {
			s.fault("pause")
			all[i].faults.pause(min(longestPause, s.cfg.Duration/3))
			continue
		}
		s.fault("kill")
		all[i].faults.kill()
		all[i].stop()
		dead = append(dead, all[i])
		if all[i], err = start(running, s, fail); err != nil {
			all[i] = nil
			return err
		}
	}
}

// finish waits until nothing is under way, reads everything a last time, and checks what
// happened.
func (s *soak) finish(ctx context.Context, client *txn.Client, r *Report) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := s.settle(ctx, client, r.Tables[1:]); err != nil {
		return err
	}
	last := &worker{soak: s, client: client, rnd: s.random(), process: int(s.processes.Add(1))}
	if err := last.readAll(ctx); err != nil {
		return err
	}
	if n := len(s.records); n == 0 || s.records[n-1].Type != history.OK {
		return errors.New("soak: the last read of all rows failed")
	}
	for _, table := range r.Tables[1:] {
		for v, err := range admin.Check(ctx, client, table, nil) {
			if err != nil {
				return err
			}
			r.Anomalies = append(r.Anomalies, "consistency check: "+v.String())
		}
	}
	wrong, err := s.verifyObserved(ctx, client)
	if err != nil {
		return err
	}
	r.Anomalies = append(r.Anomalies, wrong...)
	s.checkHistory(r)
	return nil
}

// checkHistory adds the anomalies of what transactions saw so far, and of all timestamps. It reports
// whether there are any.
func (s *soak) checkHistory(r *Report) bool {
	found := s.order.anomalies()
	for _, a := range history.SnapshotIsolation.Check(s.records) {
		found = append(found, a.String())
	}
	r.Anomalies = append(r.Anomalies, found...)
	return len(found) > 0
}

// count fills in what happened.
func (s *soak) count(r *Report) {
	r.Safe, r.Observed = len(r.Anomalies) == 0, s.observed.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Faults = maps.Clone(s.faults)
	for _, rec := range s.records {
		switch rec.Type {
		case history.Invoke:
			r.Transactions++
		case history.OK:
			r.Committed++
		case history.Fail:
			r.Failed++
		case history.Info:
			r.Unknown++
		}
	}
}

// settle runs the observer until no change waits for it, and resolves what dead clients left.
func (s *soak) settle(ctx context.Context, client *txn.Client, tables []string) error {
	rctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- observe(rctx, s, client) }()
	_, err := notify.Wait(ctx, client, notify.WaitConfig{})
	cancel()
	if err := cmp.Or(err, expected(<-done)); err != nil {
		return fmt.Errorf("soak: waiting for the observer: %w", err)
	}
	for _, table := range tables {
		if err := resolveAll(ctx, client, table); err != nil {
			return fmt.Errorf("soak: resolving the locks of table %s: %w", table, err)
		}
	}
	return nil
}

// resolveAll resolves the locks of a table. A transaction that locks the cell waits for a ttl
// that has not ended.
func resolveAll(ctx context.Context, client *txn.Client, table string) error {
	for {
		var left []format.Lock
		for l, err := range admin.Locks(ctx, client, table, nil) {
			if err != nil {
				return err
			}
			left = append(left, l)
		}
		if len(left) == 0 {
			return nil
		}
		for _, l := range left {
			st, err := admin.Resolve(ctx, client, l)
			if err != nil {
				return err
			}
			if st.State == txn.StateCommitted || st.State == txn.StateRolledBack {
				continue
			}
			if _, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				tx.Table(table).Lock(l.Cell.Row, l.Cell.Family, l.Cell.Qualifier)
				return nil
			}); err != nil {
				return err
			}
		}
	}
}

// verifyObserved returns documents whose changes the observer did not see exactly once.
func (s *soak) verifyObserved(ctx context.Context, client *txn.Client) (wrong []string, err error) {
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for row, err := range snapshot.Table(s.docs).ReadRows(ctx, bigtable.PrefixRange("doc")) {
		if err != nil {
			return nil, err
		}
		cells := map[string]bigtable.ReadItem{}
		for _, item := range row[docIn.Family] {
			cells[strings.TrimPrefix(item.Column, docIn.Family+":")] = item
		}
		in, seen, out := cells[docIn.Qualifier], cells[docSeen.Qualifier], cells[docOut.Qualifier]
		list, err := decode(seen.Value)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Sprintf("row %s: the observer's list: %v", row.Key(), err))
		case !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) < len(list):
			wrong = append(wrong, fmt.Sprintf("row %s: a change had two effects, the observer ran at %v", row.Key(), list))
		case list[len(list)-1] != int64(in.Timestamp) || string(in.Value) != string(out.Value):
			wrong = append(wrong, fmt.Sprintf("row %s: the last change is at %d, the last one observed at %d", row.Key(), in.Timestamp, list[len(list)-1]))
		}
	}
	return wrong, nil
}
