package emulator_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// tried is how many schedules TestPassSchedules tries, unless they are reduced.
const tried = 200

var (
	schedules    = flag.Int("pass-schedules", tried, "how many schedules TestPassSchedules tries")
	scheduleSeed = flag.Uint64("pass-schedule-seed", 0, "seed of the first schedule; 0: random, or 1 if they are reduced")
)

// A schedule decides the order in which requests of some clients are applied, and in
// which their answers come back: each waits for its turn. A few requests are lost,
// duplicated or late.
type schedule struct {
	rnd *rand.Rand

	mu     sync.Mutex
	turns  []*turn
	late   []*turn // copies whose senders do not wait
	faults int     // how many may still happen
	log    []string
}

// A turn is a request or an answer that waits until the schedule lets it continue.
type turn struct {
	name    string
	request bool
	slow    bool // other turns often come first
	goOn    chan delivery
	apply   func() // applies a late request
}

// A delivery is what happens to a request.
type delivery int

const (
	delivered  delivery = iota
	slowAnswer          // delivered; the answer waits for a turn, too
	lostAnswer
	lost
	delayed    // an error for its sender, but applied later
	duplicated // delivered, and applied again later
)

func (f delivery) String() string {
	return [...]string{"", " (slow answer)", " (answer lost)", " (lost)", " (delayed)", " (duplicated)"}[f]
}

// wait waits for a turn.
func (s *schedule) wait(ctx context.Context, name string, request bool) (delivery, error) {
	t := &turn{name: name, request: request, goOn: make(chan delivery, 1)}
	s.mu.Lock()
	t.slow = s.rnd.IntN(5) == 0
	s.turns = append(s.turns, t)
	s.mu.Unlock()
	select {
	case f := <-t.goOn:
		return f, nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.turns = slices.DeleteFunc(s.turns, func(o *turn) bool { return o == t })
		return 0, status.FromContextError(ctx.Err()).Err()
	}
}

// next lets one of the waiting turns continue. It returns false if there is none.
func (s *schedule) next() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Concat(s.turns, s.late)
	if fast := slices.DeleteFunc(slices.Clone(all), func(t *turn) bool { return t.slow }); len(fast) > 0 && s.rnd.IntN(12) > 0 {
		all = fast
	}
	if len(all) == 0 {
		return false
	}
	t := all[s.rnd.IntN(len(all))]
	drop := func(o *turn) bool { return o == t }
	s.turns, s.late = slices.DeleteFunc(s.turns, drop), slices.DeleteFunc(s.late, drop)
	if t.apply != nil {
		s.log = append(s.log, t.name+" is applied late")
		t.apply()
		return true
	}
	f := delivered
	if t.request && s.rnd.IntN(4) == 0 {
		f = slowAnswer
	} else if t.request && s.faults > 0 && s.rnd.IntN(5) == 0 {
		s.faults--
		f = lostAnswer + delivery(s.rnd.IntN(4))
	}
	s.log = append(s.log, t.name+f.String())
	t.goOn <- f
	return true
}

func (s *schedule) unavailable(f delivery, name string) error {
	return status.Errorf(codes.Unavailable, "%s%v", name, f)
}

// dialOptions returns the options of one client.
func (s *schedule) dialOptions(client string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			c := txntest.Classify(method, req.(proto.Message))
			if c.Table != "a" {
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			name := fmt.Sprintf("%s: %s", client, c.Step)
			f, err := s.wait(ctx, name, true)
			if err != nil {
				return err
			}
			if f == delayed || f == duplicated {
				msg, answer := proto.Clone(req.(proto.Message)), proto.Clone(reply.(proto.Message))
				s.mu.Lock()
				s.late = append(s.late, &turn{name: name, slow: s.rnd.IntN(2) == 0, apply: func() { _ = invoke(context.Background(), method, msg, answer, cc) }})
				s.mu.Unlock()
			}
			if f == lost || f == delayed {
				return s.unavailable(f, name)
			}
			err = invoke(ctx, method, req, reply, cc, opts...)
			switch {
			case err == nil && f == lostAnswer:
				return s.unavailable(f, name)
			case err == nil && f == slowAnswer:
				_, err = s.wait(ctx, name+" answer", false)
			}
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			st, err := streamer(ctx, desc, cc, method, opts...)
			return &scheduledStream{ClientStream: st, schedule: s, client: client, method: method}, err
		}),
	}
}

type scheduledStream struct {
	grpc.ClientStream
	schedule       *schedule
	client, method string
	name           string
	delivery       delivery
}

func (s *scheduledStream) SendMsg(m any) error {
	if c := txntest.Classify(s.method, m.(proto.Message)); c.Table == "a" {
		var err error
		s.name = fmt.Sprintf("%s: %s %s", s.client, c.Step, c.Row)
		if s.delivery, err = s.schedule.wait(s.Context(), s.name, true); err != nil {
			return err
		}
		if s.delivery == lost || s.delivery == delayed {
			return s.schedule.unavailable(s.delivery, s.name)
		}
	}
	return s.ClientStream.SendMsg(m)
}

func (s *scheduledStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch f := s.delivery; {
	case f == lostAnswer:
		return s.schedule.unavailable(f, s.name)
	case f == slowAnswer:
		s.delivery = delivered
		if _, werr := s.schedule.wait(s.Context(), s.name+" answer", false); werr != nil {
			return werr
		}
	}
	return err
}

// A scheduledOracle is an oracle whose answers wait for their turn.
type scheduledOracle struct {
	tso.Oracle
	schedule *schedule
	client   string
}

func (o scheduledOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if _, err := o.schedule.wait(ctx, o.client+": timestamp", false); err != nil {
		return 0, err
	}
	ts, err := o.Oracle.Timestamp(ctx)
	if err == nil {
		_, err = o.schedule.wait(ctx, o.client+": timestamp answer", false)
	}
	return ts, err
}

// TestPassSchedules makes three readers, two of which pass locks, find the locks of one
// transaction. Requests and answers come in random order; some are lost, duplicated or
// late, heartbeats come between them, and ttls end. A snapshot shows the same at every
// read, and it shows the transaction's writes exactly if it is not older than the
// commit_ts.
func TestPassSchedules(t *testing.T) {
	long.Judged(t)
	t.Parallel()
	seed := *scheduleSeed
	raised, renewed := 0, 0
	tries := *schedules
	if long.Reduced() && tries == tried {
		tries, seed = 20, max(seed, 1)
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-pass-schedule-seed=%d", seed)
	for i := range tries {
		log, raises := trySchedule(t, seed+uint64(i))
		raised += raises
		if n := strings.Count(log, "writer: commit"); raises > 0 && n > 1 {
			renewed++
		}
		if t.Failed() {
			t.Fatalf("-pass-schedule-seed=%d:\n%s", seed+uint64(i), log)
		}
	}
	if tries >= 100 && (raised == 0 || renewed == 0) {
		t.Errorf("%d raises in %d schedules, %d with a second commit_ts: too few to test anything", raised, tries, renewed)
	}
}

var scheduledCells = []txn.Cell{
	{Table: "a", Row: "p", Family: "f", Qualifier: "q"}, {Table: "a", Row: "p", Family: "f", Qualifier: "other"}, {Table: "a", Row: "s", Family: "f", Qualifier: "q"},
}

// A scheduledRead is what one snapshot has shown.
type scheduledRead struct {
	snap   *txn.Snapshot
	values map[txn.Cell]string
}

// trySchedule runs one schedule. It returns the order of its requests, and how often
// readers raised a minimum commit_ts.
func trySchedule(t *testing.T, seed uint64) (log string, raises int) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 300))
		// The schedule has a source of its own, because the goroutines below use it.
		s := &schedule{rnd: rand.New(rand.NewPCG(rnd.Uint64(), 1)), faults: rnd.IntN(4)}
		local := tso.NewLocal(tso.LocalConfig{})
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{Oracle: local, TokenTTL: -1}))
		env.CreateTable("a", "f")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			for _, c := range scheduledCells[1:] {
				tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte("old"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		client := func(name string, pass bool) *txn.Client {
			cfg := txn.Config{Oracle: scheduledOracle{local, s, name}, TokenTTL: -1, LockTTL: 2 * time.Second, PassLocks: pass, SyncSecondaries: rnd.IntN(2) == 0}
			return env.NewClient(cfg, s.dialOptions(name)...)
		}
		var working sync.WaitGroup
		var mu sync.Mutex
		var shown []scheduledRead
		var startTS, commitTS tso.Timestamp
		writer := client("writer", true)
		settler := client("settler", rnd.IntN(2) == 0)
		patience := time.Hour
		if rnd.IntN(4) == 0 {
			patience = time.Duration(rnd.IntN(1000)) * time.Millisecond
		}
		working.Go(func() {
			tx, err := writer.Begin(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			for i, c := range scheduledCells {
				if i == 1 && seed%3 == 0 {
					tx.Table(c.Table).Delete(c.Row, c.Family, c.Qualifier)
				} else {
					tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte("new"))
				}
			}
			cctx, ccancel := context.WithTimeout(ctx, patience)
			defer ccancel()
			ts, err := tx.Commit(cctx)
			var u *txn.UndeterminedError
			for errors.As(err, &u) {
				var st txn.Status
				if st, err = settler.Settle(ctx, u); err == nil {
					ts = st.CommitTS
				}
			}
			if err != nil && !errors.Is(err, txn.ErrConflict) && cctx.Err() == nil {
				t.Errorf("commit: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			startTS, commitTS = tx.StartTS(), ts
		})
		readers := []*txn.Client{client("first", true), client("second", true), client("waiting", false)}
		for _, c := range readers {
			cells := slices.Clone(scheduledCells)
			rnd.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
			scan := rnd.IntN(4) == 0
			working.Go(func() {
				for range 2 {
					snap, err := c.Snapshot(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					r := scheduledRead{snap, map[txn.Cell]string{}}
					if scan {
						readScheduledRows(ctx, t, r)
					} else {
						readScheduledCells(ctx, t, r, cells)
					}
					mu.Lock()
					shown = append(shown, r)
					mu.Unlock()
				}
			})
		}
		finished := make(chan struct{})
		go func() { working.Wait(); close(finished) }()
		for turns, ended := 0, false; !ended; turns++ {
			synctest.Wait()
			select {
			case <-finished:
				ended = true
				continue
			default:
			}
			if turns > 2000 {
				t.Error("the schedule does not end")
				cancel()
				<-finished
				break
			}
			switch {
			case turns < 200 && rnd.IntN(40) == 0:
				s.log = append(s.log, "600 ms pass")
				advance(600 * time.Millisecond)
			case !s.next():
				advance(5 * time.Millisecond)
			}
		}
		// Now the late requests are applied, and the background does its work.
		for idle := 0; idle < 10; {
			synctest.Wait()
			if idle++; s.next() {
				idle = 0
			} else {
				advance(20 * time.Millisecond)
			}
		}
		for _, c := range readers {
			raises += int(c.Stats().Raises)
		}
		checkScheduled(ctx, t, env.Client, shown, startTS, commitTS)
		log = strings.Join(s.log, "\n")
	})
	return log, raises
}

func readScheduledCells(ctx context.Context, t *testing.T, r scheduledRead, cells []txn.Cell) {
	for _, c := range cells {
		v, _, err := r.snap.Table(c.Table).Get(ctx, c.Row, c.Family, c.Qualifier)
		if err != nil {
			t.Error(err)
		}
		r.values[c] = string(v)
	}
}

func readScheduledRows(ctx context.Context, t *testing.T, r scheduledRead) {
	for _, c := range scheduledCells {
		r.values[c] = ""
	}
	for row, err := range r.snap.Table("a").ReadRows(ctx, nil) {
		if err != nil {
			t.Error(err)
			return
		}
		for _, item := range row["f"] {
			_, q, _ := strings.Cut(item.Column, ":")
			r.values[txn.Cell{Table: "a", Row: row.Key(), Family: "f", Qualifier: q}] = string(item.Value)
		}
	}
}

// checkScheduled reads at the snapshots' timestamps again, after all requests, and
// compares.
func checkScheduled(ctx context.Context, t *testing.T, c *txn.Client, shown []scheduledRead, startTS, commitTS tso.Timestamp) {
	snap, err := c.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	now := scheduledRead{snap, map[txn.Cell]string{}}
	readScheduledCells(ctx, t, now, scheduledCells)
	committed := now.values[scheduledCells[0]] == "new"
	if committed != (commitTS > 0) {
		t.Errorf("the transaction that started at %d reports commit_ts %d; is it committed: %v", startTS, commitTS, committed)
	}
	for _, r := range append(shown, now) {
		again, err := c.Snapshot(ctx, txn.At(r.snap.ReadTS()))
		if err != nil {
			t.Fatal(err)
		}
		later := scheduledRead{again, map[txn.Cell]string{}}
		readScheduledCells(ctx, t, later, scheduledCells)
		for cell, v := range r.values {
			if later.values[cell] != v {
				t.Errorf("%s at %d was %q, and is %q; commit_ts %d", cell, r.snap.ReadTS(), v, later.values[cell], commitTS)
			}
		}
		if isNew := r.values[scheduledCells[0]] == "new"; isNew != (commitTS > 0 && commitTS <= r.snap.ReadTS()) || isNew != (r.values[scheduledCells[2]] == "new") {
			t.Errorf("at %d: %v; commit_ts %d", r.snap.ReadTS(), r.values, commitTS)
		}
	}
}
