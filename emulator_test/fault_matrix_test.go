package emulator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A fault is what happens to one request of an operation.
type fault int

const (
	noFault         fault = iota
	faultRefused          // Bigtable refuses the request
	faultLost             // the request is lost, and the client learns of it
	faultAnswerLost       // it is applied, and its answer is lost
	faultDoubled          // it is applied twice
	faultCopied           // a copy of it arrives when all locks are resolved
	faultLate             // the client's deadline for it has passed; it arrives when all locks are resolved
	faultCancelled        // the caller's context ends, and the request is not sent
	faultDiedBefore       // the client dies, and the request is not sent
	faultDiedAfter        // it is applied, and the client dies
	faultsOfMatrix        // how many there are
)

func (f fault) String() string {
	return [...]string{"no fault", "refused", "lost", "answer lost", "doubled", "copied", "late", "cancelled", "died before", "died after"}[f]
}

func (f fault) action() txntest.Action {
	return map[fault]txntest.Action{
		faultLost: txntest.DropRequest, faultAnswerLost: txntest.DropResponse, faultDoubled: txntest.Duplicate, faultCopied: txntest.Echo,
		faultLate: txntest.Delay, faultDiedBefore: txntest.Crash, faultDiedAfter: txntest.HoldResponse,
	}[f]
}

// TestFaultMatrix disturbs one request of each operation, each in turn, in every way:
//
//   - If Bigtable refuses it, the operation returns that, and has changed nothing.
//   - If the network loses, doubles or delays it, the operation does the same as without the fault.
//   - If the caller's context ends, the operation returns at once with the context's error. It has
//     changed nothing, unless it reports an unknown outcome.
//   - If the client dies, other clients see all of a transaction if its primary was committed, and else nothing.
//   - A request that arrives when all locks are resolved changes nothing.
//
// Nobody has to wait for what is left, and the consistency check finds nothing. Requests for worker tokens
// and secondaries are not needed: if they fail, the operation does not. An operation of several transactions has
// done a part after a failure; once more, and it is complete.
//
// A reduced test tries one fault for every second request, each fault as often as the others.
func TestFaultMatrix(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for i, op := range append(operations(), packageOperations()...) {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			undisturbed := requestsOf(t, op)
			for j, request := range undisturbed.requests {
				for f := noFault + 1; f < faultsOfMatrix; f++ {
					if n := i + j; long.Reduced() && (n%2 != 0 || int(f-1) != n/2%int(faultsOfMatrix-1)) {
						continue
					}
					got := disturb(t, op, request, f)
					if wrong := op.judge(request, f, undisturbed, got); wrong != "" {
						t.Errorf("%s: %v: %s\nrows %s,\nthen %s,\nwithout the fault %s", request, f, wrong, got.before, got.after, undisturbed.after)
					}
				}
			}
		})
	}
}

// judge returns what is wrong after a fault.
func (op operation) judge(request string, f fault, undisturbed, got ran) string {
	same := fmt.Sprint(got.result) == fmt.Sprint(undisturbed.result) && got.after == undisturbed.after
	unchanged := got.after == got.before || op.parts && (!op.repeats || got.again == undisturbed.after)
	switch {
	case !got.fired:
		return "it was not sent"
	case got.later != got.after:
		return "the request that was late changed what clients see: " + got.later
	}
	if f == faultDiedBefore || f == faultDiedAfter {
		commits := slices.IndexFunc(undisturbed.requests, func(r string) bool { return strings.HasPrefix(r, string(txntest.StepCommit)+" ") })
		at := slices.Index(undisturbed.requests, request)
		switch committed := commits >= 0 && (at > commits || at == commits && f == faultDiedAfter); {
		case op.parts && !unchanged:
			return "once more, it does not do the rest"
		case !op.parts && committed && got.after != undisturbed.after:
			return "the transaction had committed"
		case !op.parts && !committed && !unchanged:
			return "the transaction had not committed"
		}
		return ""
	}
	if f == faultCancelled {
		switch {
		case got.took > 0:
			return fmt.Sprintf("%v after %v", got.err, got.took)
		case got.err != nil && !errors.Is(got.err, context.Canceled):
			return "error " + got.err.Error()
		case got.err != nil && !unchanged && !(errors.Is(got.err, txn.ErrUndetermined) && got.after == undisturbed.after):
			return "the rows have changed, in spite of error " + got.err.Error()
		}
	}
	needed := !strings.Contains(request, ownToken) && !strings.HasPrefix(request, string(txntest.StepSecondaries)) &&
		(!op.token || request != searchOfTokens || op.name == "workers") && !op.ahead
	switch {
	case got.took > time.Minute:
		return fmt.Sprintf("%v after %v", got.err, got.took)
	case got.err == nil && f == faultRefused && needed:
		return "no error was returned"
	case got.err == nil && !same:
		return fmt.Sprintf("it returned %v, want %v", got.result, undisturbed.result)
	case got.err != nil && f == faultRefused && (needed && status.Code(got.err) != codes.PermissionDenied || !needed && op.name != "held snapshot" && !op.ahead):
		return "error " + got.err.Error()
	case got.err != nil && f != faultRefused && f != faultCancelled:
		return "error " + got.err.Error()
	case got.err != nil && f == faultRefused && !unchanged:
		return "the rows have changed, in spite of error " + got.err.Error()
	}
	return ""
}

// searchOfTokens is the request with which a client with a token looks for dead ones.
const searchOfTokens = `token ReadRows "" #1`

// ownToken stands for the row of the client's token in the name of a request.
const ownToken = "(own)"

// ran is what one run of an operation did.
type ran struct {
	result        any
	err           error
	before, after string // the visible rows
	again         string // those after the operation has run once more, if it failed and has parts
	later         string // those after the request that was late
	requests      []string
	fired         bool
	took          time.Duration // since the fault, if there is one
}

// requestsOf runs an operation undisturbed, and returns the requests that it sends each time.
func requestsOf(t *testing.T, op operation) (r ran) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { r = runOperation(t, op, "", noFault) })
	// Two locks of a transaction are resolved at the same time, so the requests vary.
	for range 4 / reducedTo(4) {
		synctest.Test(t, func(t *testing.T) {
			again := runOperation(t, op, "", noFault)
			r.requests = slices.DeleteFunc(r.requests, func(request string) bool { return !slices.Contains(again.requests, request) })
		})
	}
	if r.err != nil || len(r.requests) == 0 {
		t.Fatalf("%v; %d requests", r.err, len(r.requests))
	}
	return r
}

// disturb runs an operation with a fault of one of its requests.
func disturb(t *testing.T, op operation, request string, f fault) (r ran) {
	t.Helper()
	for range 20 { // mostly the first one
		if synctest.Test(t, func(t *testing.T) { r = runOperation(t, op, request, f) }); r.fired {
			break
		}
	}
	return r
}

// A watch names the requests of an operation, and finds the one that has a fault.
type watch struct {
	mu    sync.Mutex
	armed bool
	named map[string]bool
	order []string
	fault string    // the request that has one
	fired time.Time // zero: not yet
}

// hit reports whether a request is the one with the fault.
func (w *watch) hit(call txntest.Call) bool {
	name := w.name(call)
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "" || name != w.fault || !w.fired.IsZero() {
		return false
	}
	w.fired = time.Now()
	return true
}

// since returns how long ago the fault was.
func (w *watch) since() (took time.Duration, fired bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fired.IsZero() {
		return 0, false
	}
	return time.Since(w.fired), true
}

func (w *watch) arm(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = on
}

// name returns the name of a request, or nothing if the operation is over.
func (w *watch) name(call txntest.Call) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed {
		return ""
	}
	row := call.Row
	if call.Step == txntest.StepToken && row != "" {
		row = ownToken
	}
	for n := 1; ; n++ {
		if name := fmt.Sprintf("%s %s %q #%d", cmp.Or(call.Step, "other"), call.Method, row, n); !w.named[name] {
			w.named[name], w.order = true, append(w.order, name)
			return name
		}
	}
}

// runOperation runs an operation, one of whose requests has a fault.
func runOperation(t *testing.T, op operation, request string, f fault) (r ran) {
	env := newOperated(t, op)
	visible := func() string {
		var all []string
		s := takeSnapshot(t, env.Client)
		for _, table := range []string{"a", "b"} {
			for row, err := range s.Table(table).ReadRows(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range row["f"] {
					all = append(all, i.Row+"/"+i.Column+"="+string(i.Value))
				}
			}
		}
		return strings.Join(all, " ")
	}
	if op.left == "" { // else that would remove the locks
		r.before = visible()
	} else {
		r.before = map[txntest.Step]string{txntest.StepCommit: "bob/f:q=1 joe/f:q=1 sue/f:q=1", txntest.StepSecondaries: "bob/f:q=9 joe/f:q=9 sue/f:q=1"}[op.left]
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w := &watch{named: map[string]bool{}, fault: request}
	faults := txntest.NewFaults(t)
	var rule *txntest.Rule
	interceptors := txntest.Intercept(func(call txntest.Call) error {
		switch {
		case !w.hit(call):
			return nil
		case f == faultCancelled:
			cancel()
			return status.Error(codes.Canceled, "injected")
		}
		return status.Error(codes.PermissionDenied, "injected")
	})
	if f != faultRefused && f != faultCancelled && f != noFault {
		interceptors = faults.DialOptions()
		rule = faults.On(request, w.hit, f.action(), 1).Optional()
	}
	cfg := txn.Config{TokenTTL: -1}
	if op.token {
		cfg.TokenTTL = 0
	}
	c := env.NewClient(cfg, append(interceptors, unsampled())...)
	w.arm(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.result, r.err = op.call(ctx, c)
		r.took, r.fired = w.since()
	}()
	if f == faultDiedBefore || f == faultDiedAfter {
		select {
		case <-rule.Fired():
		case <-done:
		}
		synctest.Wait()
		faults.Kill()
		cancel()
	}
	<-done
	if f == noFault || !r.fired { // a request of the background may be the one
		synctest.Wait()
	}
	w.arm(f != noFault && !r.fired)
	advance(time.Minute) // failed requests in the background are sent again, locks expire
	w.arm(false)
	_, r.fired = w.since()
	r.requests = w.order
	r.after = visible()
	r.later = r.after
	if rule != nil && r.fired {
		rule.Release()
		synctest.Wait()
		r.later = visible()
	}
	if op.repeats && (r.err != nil || f == faultDiedBefore || f == faultDiedAfter) {
		if _, err := op.call(t.Context(), env.NewClient(cfg)); err != nil {
			t.Errorf("%s: %v: once more: %v", request, f, err)
		}
		r.again = visible()
	}
	advance(time.Minute)
	for _, table := range []string{"a", "b"} {
		for l, err := range admin.Locks(t.Context(), env.Client, table, nil) {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.Resolve(t.Context(), env.Client, l); err != nil {
				t.Errorf("%s: %v: lock left on %s: %v", request, f, l.Cell, err)
			}
		}
	}
	env.Check()
	return r
}
