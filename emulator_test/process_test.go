package emulator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

const (
	// clientEnv contains a clientSpec, and turns the test binary into a client.
	clientEnv = "PERCOLATOR_TEST_CLIENT"
	// seedEnv is the seed of the workloads, to repeat a run.
	seedEnv = "PERCOLATOR_TEST_SEED"
)

// workloadConfig has a short ttl, so that the locks of killed clients soon expire.
func workloadConfig() txn.Config {
	return txn.Config{
		LockTTL:  time.Second,
		TokenTTL: 500 * time.Millisecond,
		Backoff:  txn.Backoff{Max: 50 * time.Millisecond},
	}
}

// A clientSpec says what a client process does.
type clientSpec struct {
	Addr, Project, Instance string
	Workload                string
	// Process is the first worker's process number in the history. The other
	// workers have the numbers after it.
	Process, Stride, Workers int
	Seed                     uint64
	// Before its StopAt-th request of StopStep the process stops, and waits to
	// be killed. 0: it does not stop.
	StopStep txntest.Step
	StopAt   int
}

// A clientMessage is one line from a client process.
type clientMessage struct {
	Record  *history.Record `json:",omitempty"`
	Stopped bool            `json:",omitempty"`
}

// runClientProcess is the main function of a client process. It works until its
// standard input is closed, and returns the exit status.
func runClientProcess(spec string) int {
	var s clientSpec
	err := json.Unmarshal([]byte(spec), &s)
	if err == nil {
		err = s.run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "client process:", err)
		return 1
	}
	return 0
}

// outsideTest lets Faults be used outside of a test.
type outsideTest struct{ testing.TB }

func (outsideTest) Cleanup(func()) {}

func (s *clientSpec) run(stdin io.Reader, stdout io.Writer) error {
	ctx := context.Background()
	var mu sync.Mutex
	send := func(m clientMessage) {
		b, err := json.Marshal(m)
		if err != nil {
			panic(err) // a history.Record always marshals
		}
		mu.Lock()
		defer mu.Unlock()
		// An error means that the test process, which reads this, has ended. There is
		// no one to report it to.
		_, _ = stdout.Write(append(b, '\n'))
	}
	faults := txntest.NewFaults(outsideTest{})
	if s.StopAt > 0 {
		n := 0
		r := faults.On("stop", func(c txntest.Call) bool {
			if c.Step == s.StopStep {
				n++
			}
			return c.Step == s.StopStep && n == s.StopAt
		}, txntest.Hold, 1)
		go func() {
			<-r.Fired()
			send(clientMessage{Stopped: true})
		}()
	}
	conn, err := txntest.Dial(s.Addr, faults.DialOptions()...)
	if err != nil {
		return err
	}
	bt, _, err := txntest.Open(ctx, conn, s.Project, s.Instance)
	if err != nil {
		return err
	}
	client, err := txn.NewClient(ctx, bt, workloadConfig())
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(stop)
	}()
	if s.Workload == observerWorkload {
		return s.runObservers(ctx, client, stop)
	}
	load := workload.Named(s.Workload)
	errs := make(chan error, s.Workers)
	for i := range s.Workers {
		w := &workload.Worker{
			Client:  client,
			Rand:    rand.New(rand.NewPCG(s.Seed, uint64(i))),
			Record:  func(r history.Record) { send(clientMessage{Record: &r}) },
			Process: s.Process + i,
			Stride:  s.Stride,
			Options: load.Options,
		}
		go func() {
			for {
				select {
				case <-stop:
					errs <- nil
					return
				default:
				}
				if err := load.Step(ctx, w); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for range s.Workers {
		select {
		case err := <-errs:
			if err != nil {
				return err
			}
		case <-abandoned(stop):
			return errors.New("this process stopped and was not killed: the test has ended")
		}
	}
	cctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return client.Close(cctx)
}

// abandoned returns a channel that is closed some time after the end of the standard
// input. By then the test would have killed a process that has stopped.
func abandoned(stop <-chan struct{}) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		<-stop
		<-time.After(time.Minute)
		close(over)
	}()
	return over
}

// recorder collects the history of a test.
type recorder struct {
	mu      sync.Mutex
	records []history.Record
	open    map[int]history.Record // transactions that have not ended, by process number
	count   map[history.Type]int
	changed chan struct{}       // has room for one signal
	stopped chan *clientProcess // clients that reached their stop
	ended   chan *clientProcess
}

func newRecorder() *recorder {
	return &recorder{open: map[int]history.Record{}, count: map[history.Type]int{}, changed: make(chan struct{}, 1), stopped: make(chan *clientProcess, 100), ended: make(chan *clientProcess, 100)}
}

func (r *recorder) record(rec history.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
	r.count[rec.Type]++
	if rec.Type == history.Invoke {
		r.open[rec.Process] = rec
	} else {
		delete(r.open, rec.Process)
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// died ends the transactions of a killed client as unknown. Its process numbers are the
// first ones, and those that follow at distances of the stride.
func (r *recorder) died(s clientSpec) {
	r.mu.Lock()
	var left []history.Record
	for process, invoke := range r.open {
		if base := process % s.Stride; base >= s.Process && base < s.Process+s.Workers {
			left = append(left, history.Record{Type: history.Info, Process: process, Time: time.Now().UnixNano(), StartTS: invoke.StartTS})
		}
	}
	r.mu.Unlock()
	for _, rec := range left {
		r.record(rec)
	}
}

func (r *recorder) total(ty history.Type) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[ty]
}

// check compares the history with an isolation level. It keeps the history in the
// directory of go test -artifacts.
func (r *recorder) check(t *testing.T, level history.Level) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	path := filepath.Join(t.ArtifactDir(), "history.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := history.NewWriter(f)
	for _, rec := range r.records {
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	found := level.Check(r.records)
	for i, a := range found {
		if i == 5 {
			t.Errorf("… %d anomalies in all; the history is in %s (with go test -artifacts)", len(found), path)
			break
		}
		t.Errorf("%v:\n%v", level, a)
	}
}

// A clientProcess is a running client.
type clientProcess struct {
	*child.Process
	spec   clientSpec
	killed bool
}

func startClient(t *testing.T, s clientSpec, rec *recorder) *clientProcess {
	t.Helper()
	arg, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "BIGTABLE_EMULATOR_HOST=") })
	c, err := child.Start(context.Background(), child.Config{Name: fmt.Sprint("client ", s.Process), Env: append(env, clientEnv+"="+string(arg))})
	if err != nil {
		t.Fatal(err)
	}
	p := &clientProcess{Process: c, spec: s}
	p.Each(func(line []byte) {
		var m clientMessage
		if err := json.Unmarshal(line, &m); err != nil {
			t.Errorf("client process wrote %q: %v", line, err)
			return
		}
		if m.Record != nil {
			rec.record(*m.Record)
		}
		if m.Stopped {
			rec.stopped <- p
		}
	})
	go func() {
		_ = p.Wait()
		rec.ended <- p
	}()
	return p
}

// kill ends the process with SIGKILL, and its transactions as unknown.
func (p *clientProcess) kill(rec *recorder) {
	p.killed = true
	p.Kill()
	_ = p.Wait()
	rec.died(p.spec)
}

// finish asks the process to end, and waits for it.
func (p *clientProcess) finish(t *testing.T) {
	t.Helper()
	p.CloseInput()
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// workloadSeed returns the seed of a run, and logs it.
func workloadSeed(t *testing.T) uint64 {
	seed := rand.Uint64N(1_000_000)
	if s := os.Getenv(seedEnv); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	t.Logf("seed %d; run again with %s=%d go test -run '%s' ./emulator_test", seed, seedEnv, seed, t.Name())
	return seed
}

// TestKilledClients runs workloads in several client processes, kills some of them with
// SIGKILL in the middle of the protocol and replaces them. Then every lock is resolved,
// the stored state is consistent, and the history shows no anomaly.
func TestKilledClients(t *testing.T) {
	long.Test(t, "processes that are killed")
	for _, load := range tested()[:3] {
		t.Run(load.Name, func(t *testing.T) { killClients(t, load) })
	}
}

// tested are the workloads that run here. lab soak also runs the one with observers,
// which needs workers.
func tested() []*workload.Workload {
	return slices.DeleteFunc(workload.All(), func(w *workload.Workload) bool { return w.Handle != nil || w.Keep != nil })
}

func killClients(t *testing.T, load *workload.Workload) {
	const (
		clients = 3
		workers = 2
		kills   = 6
		commits = 300
	)
	seed := workloadSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	addr := os.Getenv("BIGTABLE_EMULATOR_HOST")
	if addr == "" {
		emulator, err := txntest.StartEmulator("127.0.0.1:0", txntest.Strict()...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(emulator.Close)
		addr = emulator.Addr()
		t.Setenv("BIGTABLE_EMULATOR_HOST", addr)
	}
	env := txntest.New(t, txntest.WithConfig(workloadConfig()))
	for _, table := range load.Tables {
		env.InitTable(table)
	}
	rec := newRecorder()
	const stride = 1000
	own := &workload.Worker{Client: env.Client, Rand: rnd, Record: rec.record, Process: 0, Stride: stride}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // only against hanging
	defer cancel()
	if err := load.Setup(ctx, own); err != nil {
		t.Fatal(err)
	}

	// The first three leave locks of every state.
	steps := []txntest.Step{txntest.StepCommit, txntest.StepSecondaries, txntest.StepPrewrite}
	for len(steps) < kills {
		all := []txntest.Step{txntest.StepPrewrite, txntest.StepPrewrite, txntest.StepCommit, txntest.StepCommit, txntest.StepSecondaries, txntest.StepOracle, txntest.StepRead, txntest.StepAbort}
		steps = append(steps, all[rnd.IntN(len(all))])
	}
	process := 1
	start := func(stop bool) *clientProcess {
		s := clientSpec{
			Addr: addr, Project: env.Project, Instance: env.Instance, Workload: load.Name,
			Process: process, Stride: stride, Workers: workers, Seed: rnd.Uint64(),
		}
		process += workers
		if stop {
			s.StopStep, s.StopAt = steps[0], 1+rnd.IntN(20)
			if s.StopStep == txntest.StepAbort {
				s.StopAt = 1 // few transactions abort
			}
			steps = steps[1:]
		}
		return startClient(t, s, rec)
	}
	var alive []*clientProcess
	defer func() {
		for _, p := range alive {
			p.kill(rec)
		}
	}()
	for i := range clients {
		alive = append(alive, start(i > 0))
	}
	// await returns a client that stopped, or nil after another commit.
	await := func() *clientProcess {
		t.Helper()
		for {
			select {
			case p := <-rec.stopped:
				return p
			case <-rec.changed:
				return nil
			case p := <-rec.ended:
				if !p.killed {
					t.Fatalf("a client ended: %v", p.Wait())
				}
			case <-ctx.Done():
				t.Fatalf("after %d commits: %v", rec.total(history.OK), ctx.Err())
			}
		}
	}
	// A client that stops is killed at once, because its locks delay the other
	// clients, and replaced. One client is never killed.
	for killed := 0; killed < kills || rec.total(history.OK) < commits; {
		p := await()
		if p == nil {
			continue
		}
		killed++
		p.kill(rec)
		alive[slices.Index(alive, p)] = start(len(steps) > 0)
	}
	for _, p := range alive {
		p.finish(t)
	}
	alive = nil
	endWorkload(ctx, t, env, load, own, rec)
}

// endWorkload resolves all locks, reads all keys a last time and checks the history.
// The consistency check follows when the test ends.
func endWorkload(ctx context.Context, t *testing.T, env *txntest.Env, load *workload.Workload, own *workload.Worker, rec *recorder) {
	t.Helper()
	stranded := 0
	for _, table := range load.Tables {
		n, err := workload.ResolveAll(ctx, env.Client, table.Name)
		if err != nil {
			t.Fatal(err)
		}
		stranded += n
	}
	if err := load.ReadAll(ctx, own); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d committed, %d failed, %d unknown; %d locks left at the end", rec.total(history.OK), rec.total(history.Fail), rec.total(history.Info), stranded)
	rec.check(t, load.Level)
}

// TestFaultyClients runs each workload in goroutines that share clients. Their
// connections lose, duplicate and delay requests, and some callers give up in the
// middle of a commit.
func TestFaultyClients(t *testing.T) {
	long.Test(t, "a ttl of a second, in real time")
	for _, load := range tested() {
		t.Run(load.Name, func(t *testing.T) { faultyClients(t, load) })
	}
}

func faultyClients(t *testing.T, load *workload.Workload) {
	const (
		clients = 2
		workers = 3 // per client
		steps   = 60
		stride  = 1000
	)
	seed := workloadSeed(t)
	env := txntest.New(t, txntest.WithConfig(workloadConfig()))
	for _, table := range load.Tables {
		env.InitTable(table)
	}
	rec := newRecorder()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // only against hanging
	defer cancel()
	own := &workload.Worker{Client: env.Client, Rand: rand.New(rand.NewPCG(seed, 0)), Record: rec.record, Stride: stride}
	if err := load.Setup(ctx, own); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var delayed []*txntest.Rule
	for c := range clients {
		faults := txntest.NewFaults(t)
		every := func(n, first int, step txntest.Step, action txntest.Action) {
			i := first
			r := faults.On(fmt.Sprintf("one in %d: %s", n, step), func(call txntest.Call) bool {
				if call.Step == step {
					i++
				}
				return call.Step == step && i%n == 0
			}, action, 0)
			if action == txntest.Delay {
				delayed = append(delayed, r)
			}
		}
		for i, step := range []txntest.Step{txntest.StepPrewrite, txntest.StepCommit} {
			every(13, 2+i, step, txntest.DropRequest)
			every(13, 7+i, step, txntest.DropResponse)
			every(13, 11+i, step, txntest.Duplicate)
		}
		// These requests are sent at the end, when their transactions have long ended.
		every(29, 14, txntest.StepPrewrite, txntest.Delay)
		client := env.NewClient(workloadConfig(), faults.DialOptions()...)
		for i := range workers {
			process := 1 + c*workers + i
			w := &workload.Worker{
				Client: client, Rand: rand.New(rand.NewPCG(seed, uint64(process))),
				Record: rec.record, Process: process, Stride: stride, Options: load.Options,
			}
			wg.Go(func() {
				for range steps {
					step, cancel := ctx, context.CancelFunc(func() {})
					if w.Rand.IntN(8) == 0 {
						step, cancel = context.WithTimeout(ctx, time.Duration(1+w.Rand.IntN(20))*time.Millisecond)
					}
					err := load.Step(step, w)
					cancel()
					if err != nil {
						t.Errorf("process %d: %v", w.Process, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if n := rec.total(history.OK); n < steps {
		t.Errorf("only %d commits: too few to test anything", n)
	}
	for _, r := range delayed {
		r.Release()
	}
	endWorkload(ctx, t, env, load, own, rec)
}
