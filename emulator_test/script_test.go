package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/cockroachdb/datadriven"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// runScript runs one interleaving, which is written as text (testdata/hazards), in
// virtual time: nothing waits for a real clock, and a lock's ttl ends when the
// script advances the time.
//
// Commands:
//
//	table NAME family… [observed=f:q]    create a transactional table
//	plain TABLE ROW COLUMN VALUE         write without a transaction
//	client NAME [ttl=D] [token=D] [background=D] [rpc=D] [sync] [pass]  a client with a connection of its own
//	fault NAME CLIENT STEP ACTION [row=R] [times=N]
//	                                     arm a fault; the test fails if it never fires
//	begin TXN CLIENT                     start a transaction
//	set|delete|lock TXN CELL [VALUE]     buffer a write
//	get TXN CELL                         read in the transaction
//	commit TXN [timeout=D]               commit and print the outcome
//	start TXN [until=FAULT]              commit in the background until the fault fires
//	wait TXN                             wait for that commit and print the outcome
//	kill CLIENT                          its requests under way fail, and it sends nothing more
//	disarm FAULT                         let the fault not fire any more
//	await FAULT                          wait until the fault has fired
//	release FAULT                        let the held request continue, and wait until it was applied
//	read CLIENT CELL                     read in a snapshot taken now
//	start-read NAME CLIENT CELL [until=FAULT], wait NAME
//	settle CLIENT TXN                    settle an unknown outcome
//	resolve CLIENT TABLE                 resolve every lock as an operator does
//	start-resolve NAME CLIENT TABLE until=FAULT, wait NAME
//	advance D                            let virtual time pass
//	dump TABLE ROW                       print stored cells: family, column, time, meaning
//	hold NAME CLIENT, unhold NAME        take a snapshot with Hold, and release it
//	read-at CLIENT NAME|TXN CELL         read in that snapshot, or in one at the transaction's start
//	gc CLIENT [retention=D] [timeout=D] [plain] [restart]  collect garbage and print the report
//	start-gc NAME CLIENT [retention=D] until=FAULT, wait NAME
//	status CLIENT TXN                    the status of a transaction
//	calls CLIENT                         the steps of its requests since the last calls
//	clock [below=D]                      note the virtual time; print if less than D has passed since the last note
//	check                                the consistency check
//
// Timestamps print as s(TXN) and c(TXN): start_ts and commit_ts.
func runScript(t *testing.T, path string) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{
			t: t, env: txntest.New(t, txntest.Embedded()),
			clients: map[string]*scriptClient{}, txns: map[string]*scriptTxn{},
			faults: map[string]*txntest.Rule{}, reads: map[string]chan string{}, snaps: map[string]*txn.Snapshot{},
			disarmed: map[string]*atomic.Bool{},
			names:    map[tso.Timestamp]string{},
		}
		datadriven.RunTestAny(t, path, func(t testing.TB, d *datadriven.TestData) string {
			var out []string
			lines := strings.Split(strings.TrimSpace(d.Input), "\n")
			if d.Cmd != "do" {
				t.Fatalf("%s: commands must follow a line do", d.Pos)
			}
			for _, line := range lines {
				line, _, _ = strings.Cut(line, "#")
				if line = strings.TrimSpace(line); line == "" {
					continue
				}
				if res := s.command(strings.Fields(line)); res != "" {
					out = append(out, res)
				}
			}
			return strings.Join(out, "\n") + "\n"
		})
		for _, c := range s.clients {
			c.cancel()
		}
	})
}

type script struct {
	t       *testing.T
	env     *txntest.Env
	clients map[string]*scriptClient
	txns    map[string]*scriptTxn
	faults  map[string]*txntest.Rule
	reads   map[string]chan string
	snaps   map[string]*txn.Snapshot

	disarmed map[string]*atomic.Bool
	names    map[tso.Timestamp]string
	clock    time.Time
}

type scriptClient struct {
	*txn.Client
	faults *txntest.Faults
	ctx    context.Context
	cancel context.CancelFunc
}

type scriptTxn struct {
	*txn.Txn
	client *scriptClient
	result chan string
	err    error
}

// args splits positional arguments from key=value options.
func args(fields []string) (pos []string, opts map[string]string) {
	opts = map[string]string{}
	for _, f := range fields {
		if k, v, ok := strings.Cut(f, "="); ok {
			opts[k] = v
		} else {
			pos = append(pos, f)
		}
	}
	return pos, opts
}

func (s *script) command(fields []string) string {
	name := fields[0]
	pos, opts := args(fields[1:])
	duration := func(key string) time.Duration {
		if opts[key] == "" {
			return 0
		}
		d, err := time.ParseDuration(opts[key])
		s.must(err)
		return d
	}
	switch name {
	case "table":
		spec := admin.TableSpec{Name: pos[0], Families: pos[1:]}
		if o := opts["observed"]; o != "" {
			c, err := format.ParseColumn(o)
			s.must(err)
			spec.Observed = append(spec.Observed, c)
		}
		s.env.InitTable(spec)
	case "plain":
		c, err := format.ParseColumn(pos[2])
		s.must(err)
		m := bigtable.NewMutation()
		m.Set(c.Family, c.Qualifier, bigtable.Now(), []byte(pos[3]))
		s.must(s.env.Bigtable.Open(pos[0]).Apply(s.t.Context(), pos[1], m))
	case "client":
		c := &scriptClient{faults: txntest.NewFaults(s.t)}
		cfg := txn.Config{LockTTL: duration("ttl"), TokenTTL: duration("token"), BackgroundTimeout: duration("background"), RPCTimeout: duration("rpc"), SyncSecondaries: slices.Contains(pos, "sync"), PassLocks: slices.Contains(pos, "pass")}
		if cfg.TokenTTL == 0 {
			cfg.TokenTTL = -1 // locks have only their ttl, unless the script asks for tokens
		}
		c.Client = s.env.NewClient(cfg, c.faults.DialOptions()...)
		txntest.Patient(c.Client) // scripts hold prewrites back
		// Longer than any script, so that a wait without end fails.
		c.ctx, c.cancel = context.WithTimeout(s.t.Context(), 2*time.Hour)
		s.clients[pos[0]] = c
	case "fault":
		return s.arm(pos, opts)
	case "begin":
		c := s.client(pos[1])
		tx, err := c.Begin(c.ctx)
		s.must(err)
		s.txns[pos[0]] = &scriptTxn{Txn: tx, client: c, result: make(chan string, 1)}
		s.names[tx.StartTS()] = "s(" + pos[0] + ")"
	case "set", "delete", "lock", "get":
		return s.access(name, pos)
	case "commit":
		tx := s.txns[pos[0]]
		ctx := tx.client.ctx
		if d := duration("timeout"); d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		return s.commit(ctx, pos[0])
	case "start":
		tx := s.txns[pos[0]]
		go func() { tx.result <- s.commit(tx.client.ctx, pos[0]) }()
		return s.until(opts["until"], tx.result)
	case "start-read":
		ch := make(chan string, 1)
		s.reads[pos[0]] = ch
		go func() { ch <- s.read(pos[1], pos[2]) }()
		return s.until(opts["until"], ch)
	case "start-resolve":
		ch := make(chan string, 1)
		s.reads[pos[0]] = ch
		go func() { ch <- s.resolve(s.client(pos[1]), pos[2]) }()
		return s.until(opts["until"], ch)
	case "gc":
		return s.collect(pos[0], pos[1:], opts)
	case "start-gc":
		ch := make(chan string, 1)
		s.reads[pos[0]] = ch
		go func() { ch <- s.collect(pos[1], pos[2:], opts) }()
		return s.until(opts["until"], ch)
	case "status":
		return s.status(s.client(pos[0]), pos[1])
	case "hold":
		return s.hold(pos[0], s.client(pos[1]))
	case "unhold":
		s.snaps[pos[0]].Release()
	case "read-at":
		return s.readAt(s.client(pos[0]), pos[1], pos[2])
	case "wait":
		if ch := s.reads[pos[0]]; ch != nil {
			return <-ch
		}
		return <-s.txns[pos[0]].result
	case "kill":
		s.client(pos[0]).faults.Kill()
		s.client(pos[0]).cancel()
		synctest.Wait()
	case "await":
		<-s.faults[pos[0]].Fired()
		synctest.Wait()
	case "release":
		s.faults[pos[0]].Release()
		synctest.Wait()
	case "read":
		return s.read(pos[0], pos[1])
	case "settle":
		return s.settle(s.client(pos[0]), pos[1])
	case "resolve":
		return s.resolve(s.client(pos[0]), pos[1])
	case "advance":
		d, err := time.ParseDuration(pos[0])
		s.must(err)
		<-time.After(d) // virtual time
	case "dump":
		return s.dump(pos[0], pos[1])
	case "disarm":
		s.disarmed[pos[0]].Store(true)
	case "calls":
		var steps []string
		for _, c := range s.client(pos[0]).faults.Calls() {
			if c.Step == txntest.StepSafePoint {
				continue // the client sends these at its own times
			}
			steps = append(steps, string(c.Step))
		}
		s.client(pos[0]).faults.Reset()
		return strings.Join(steps, ", ")
	case "clock":
		if limit := duration("below"); limit > 0 {
			if d := time.Since(s.clock); d >= limit {
				return fmt.Sprintf("%v since the last clock", d)
			}
			return "less than " + limit.String()
		}
		s.clock = time.Now()
	case "check":
		synctest.Wait()
		s.env.Check()
		return "consistent"
	default:
		s.t.Fatalf("unknown command %q", name)
	}
	return ""
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) client(name string) *scriptClient {
	c := s.clients[name]
	if c == nil {
		s.t.Fatalf("no client %q", name)
	}
	return c
}

var actions = map[string]txntest.Action{
	"drop-request": txntest.DropRequest, "drop-response": txntest.DropResponse,
	"duplicate": txntest.Duplicate, "echo": txntest.Echo, "delay": txntest.Delay, "hold": txntest.Hold,
	"hold-response": txntest.HoldResponse, "cut": txntest.CutStream, "crash": txntest.Crash,
}

func (s *script) arm(pos []string, opts map[string]string) string {
	step := txntest.Step(strings.ReplaceAll(pos[2], "-", " "))
	action, ok := actions[pos[3]]
	if !ok {
		s.t.Fatalf("unknown action %q", pos[3])
	}
	times := 1
	if n := opts["times"]; n != "" {
		var err error
		times, err = strconv.Atoi(n)
		s.must(err)
	}
	disarmed := &atomic.Bool{}
	s.disarmed[pos[0]] = disarmed
	s.faults[pos[0]] = s.client(pos[1]).faults.On(pos[0], func(c txntest.Call) bool {
		return !disarmed.Load() && c.Step == step && (opts["row"] == "" || opts["row"] == c.Row)
	}, action, times)
	return ""
}

// until waits until a fault fires, or the operation that should fire it ends. Without a
// fault it waits until all goroutines are idle.
func (s *script) until(fault string, result chan string) string {
	if fault == "" {
		synctest.Wait()
		return ""
	}
	r := s.faults[fault]
	if r == nil {
		s.t.Fatalf("no fault %q", fault)
	}
	select {
	case <-r.Fired():
		synctest.Wait()
		return ""
	case res := <-result:
		result <- res
		return "ended before " + fault + ": " + res
	}
}

func (s *script) access(op string, pos []string) string {
	cell, err := format.ParseCell(pos[1])
	s.must(err)
	tx := s.txns[pos[0]]
	tbl := tx.Table(cell.Table)
	switch op {
	case "set":
		tbl.Set(cell.Row, cell.Family, cell.Qualifier, []byte(pos[2]))
	case "delete":
		tbl.Delete(cell.Row, cell.Family, cell.Qualifier)
	case "lock":
		tbl.Lock(cell.Row, cell.Family, cell.Qualifier)
	case "get":
		v, ok, err := tbl.Get(tx.client.ctx, cell.Row, cell.Family, cell.Qualifier)
		return s.value(v, ok, err)
	}
	return ""
}

func (s *script) value(v []byte, ok bool, err error) string {
	switch {
	case errors.Is(err, txn.ErrTooOld):
		return "too old"
	case err != nil:
		return s.rename(err.Error())
	case !ok:
		return "absent"
	}
	return fmt.Sprintf("%q", v)
}

func (s *script) commit(ctx context.Context, name string) string {
	tx := s.txns[name]
	ts, err := tx.Commit(ctx)
	tx.err = err
	var c *txn.ConflictError
	switch {
	case err == nil:
		s.names[ts] = "c(" + name + ")"
		return name + " committed"
	case errors.As(err, &c):
		return fmt.Sprintf("%s conflict: %s on %s", name, c.Reason, c.Cell)
	case errors.Is(err, txn.ErrUndetermined):
		var u *txn.UndeterminedError
		if errors.As(err, &u) {
			s.names[u.CommitTS] = "c(" + name + ")"
		}
		return fmt.Sprintf("%s undetermined (deadline exceeded: %v, canceled: %v)", name, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled))
	case errors.Is(err, txn.ErrTooOld):
		return name + " too old"
	case errors.Is(err, context.Canceled):
		return name + " canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return name + " deadline exceeded"
	}
	return name + " failed: " + s.rename(err.Error())
}

func (s *script) read(client, arg string) string {
	c := s.client(client)
	cell, err := format.ParseCell(arg)
	s.must(err)
	snap, err := c.Snapshot(c.ctx)
	if err != nil {
		return err.Error()
	}
	return s.value(snap.Table(cell.Table).Get(c.ctx, cell.Row, cell.Family, cell.Qualifier))
}

func (s *script) settle(c *scriptClient, name string) string {
	var u *txn.UndeterminedError
	if !errors.As(s.txns[name].err, &u) {
		s.t.Fatalf("%s is not undetermined: %v", name, s.txns[name].err)
	}
	// Only what another process would know.
	st, err := c.Settle(c.ctx, &txn.UndeterminedError{Primary: u.Primary, StartTS: u.StartTS, CommitTS: u.CommitTS})
	if errors.Is(err, txn.ErrTooOld) {
		return "undetermined: too old"
	}
	if err != nil {
		return s.rename(err.Error())
	}
	if st.State == txn.StateCommitted {
		return fmt.Sprintf("%v at %s", st.State, s.ts(st.CommitTS))
	}
	return st.State.String()
}

func (s *script) resolve(c *scriptClient, table string) string {
	var out []string
	for l, err := range admin.Locks(c.ctx, c.Client, table, nil) {
		if err != nil {
			return err.Error()
		}
		st, err := admin.Resolve(c.ctx, c.Client, l)
		if err != nil {
			return err.Error()
		}
		out = append(out, fmt.Sprintf("%s of %s: %v", l.Cell, s.ts(l.StartTS), st.State))
	}
	if len(out) == 0 {
		return "no locks"
	}
	return strings.Join(out, "\n")
}

func (s *script) ts(ts tso.Timestamp) string {
	if n := s.names[ts]; n != "" {
		return n
	}
	return "?"
}

// rename replaces the timestamps in a message by their names.
func (s *script) rename(msg string) string {
	for ts, n := range s.names {
		msg = strings.ReplaceAll(msg, ts.String(), n)
	}
	return msg
}

func (s *script) dump(table, row string) string {
	synctest.Wait()
	r, err := s.env.Bigtable.Open(table).ReadRow(context.Background(), row, bigtable.RowFilter(
		bigtable.InterleaveFilters(bigtable.PassAllFilter(), bigtable.BlockAllFilter())))
	s.must(err)
	var out []string
	for family, items := range r {
		for _, it := range items {
			ts := "@" + it.Timestamp.Time().UTC().Format(time.DateOnly)
			if it.Timestamp >= 1e17 {
				ts = s.ts(tso.FromCell(it.Timestamp))
			}
			line := fmt.Sprintf("%s %s", it.Column, ts)
			if !strings.HasPrefix(family, "_") {
				line += fmt.Sprintf(" %q", it.Value)
			}
			out = append(out, line)
		}
	}
	sort.Strings(out)
	if len(out) == 0 {
		return row + ": nothing"
	}
	return strings.Join(out, "\n")
}
