package txntest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"testing"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Faults is between a client and Bigtable. It records every request, and drops,
// duplicates, delays or stops those that a [Rule] matches. Pass its DialOptions to
// [WithDialOptions] or Env.NewClient.
//
// A rule that never fires fails its test.
type Faults struct {
	chooser Chooser // instead of rules

	mu     sync.Mutex
	calls  []Call
	rules  []*Rule
	killed bool
	ended  bool           // the chooser is not called any more
	late   sync.WaitGroup // delayed requests that are not answered yet
}

// A Chooser returns the action for a request, if fire is set. Actions that wait for
// Rule.Release in a rule wait for pause instead. The Call has no Step.
type Chooser func(Call) (action Action, pause time.Duration, fire bool)

// ChooseFaults returns Faults that take each request's action from choose, for
// random faults. They record nothing.
func ChooseFaults(choose Chooser) *Faults { return &Faults{chooser: choose} }

// Wait stops the Chooser, and waits until every delayed request is released and
// answered.
func (f *Faults) Wait() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.late.Wait()
}

// NewFaults returns Faults without rules, which only record. At the end of the test,
// a rule that never fired fails it.
func NewFaults(t testing.TB) *Faults {
	f := &Faults{}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, r := range f.rules {
			if r.fired == 0 && !r.optional {
				t.Errorf("fault %v on %s was armed and never fired", r.action, r.name)
			}
			r.release()
		}
	})
	return f
}

// An Action is what happens to a chosen request.
type Action int

// The actions. The client gets the errors of a failed network: none says whether the
// request was applied.
const (
	// DropRequest answers Unavailable without sending the request.
	DropRequest Action = iota
	// DropResponse sends the request, waits until it is applied, and answers
	// Unavailable.
	DropResponse
	// Duplicate sends the request twice, one after the other, and returns the
	// second answer.
	Duplicate
	// Echo sends the request, returns its answer, and sends it once more when
	// Rule.Release is called.
	Echo
	// Delay answers DeadlineExceeded at once and sends the request when
	// Rule.Release is called.
	Delay
	// Hold keeps the request and its caller until Rule.Release is called, then
	// sends it; the caller's context may end before.
	Hold
	// HoldResponse sends the request and keeps its answer until Rule.Release.
	HoldResponse
	// CutStream returns one message of a streamed answer, and then fails the stream.
	CutStream
	// Partial sends the first half of a bulk mutation, and answers Unavailable for
	// the second half. It drops other requests.
	Partial
	// Crash keeps the caller until its context ends, and never sends the request. For
	// other clients this client died before the request.
	Crash
)

// String names the action.
func (a Action) String() string {
	return [...]string{"drop request", "drop response", "duplicate", "echo", "delay", "hold", "hold response", "cut stream", "partial", "crash"}[a]
}

// A Rule applies one action to the calls that it matches.
type Rule struct {
	name     string
	match    func(Call) bool
	action   Action
	times    int // how often it can still fire; negative: always
	optional bool

	fired    int
	firing   chan struct{} // closed by the first firing
	released chan struct{}
	once     sync.Once
	applied  sync.WaitGroup // delayed requests that are not answered yet
}

// On applies an action to the next calls that match, as many as times says; 0 is all.
// name is for error messages.
func (f *Faults) On(name string, match func(Call) bool, action Action, times int) *Rule {
	if times == 0 {
		times = -1
	}
	r := &Rule{name: name, match: match, action: action, times: times, firing: make(chan struct{}), released: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
	return r
}

// OnStep applies an action to the next call of a step.
func (f *Faults) OnStep(s Step, action Action) *Rule {
	return f.On(string(s), func(c Call) bool { return c.Step == s }, action, 1)
}

// Optional allows the rule to never fire.
func (r *Rule) Optional() *Rule { r.optional = true; return r }

// Fired returns a channel that is closed when the rule fires for the first time.
func (r *Rule) Fired() <-chan struct{} { return r.firing }

// Release releases the requests that the rule keeps, and waits until delayed requests
// are answered.
func (r *Rule) Release() {
	r.release()
	r.applied.Wait()
}

func (r *Rule) release() { r.once.Do(func() { close(r.released) }) }

// Calls returns the requests so far.
func (f *Faults) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Call(nil), f.calls...)
}

// Count returns how many requests of each step there were.
func (f *Faults) Count() map[Step]int {
	n := map[Step]int{}
	for _, c := range f.Calls() {
		n[c.Step]++
	}
	return n
}

// Reset forgets the requests so far.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

// Kill makes every later request fail without sending it, as if the client's process
// had died. Requests that a rule keeps can still be released.
func (f *Faults) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killed = true
}

var errKilled = status.Error(codes.Unavailable, "injected fault: the client is dead")

// DialOptions returns the interceptors for a client's connection.
func (f *Faults) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(f.unary),
		grpc.WithChainStreamInterceptor(f.stream),
	}
}

// choose records a request and returns the rule that fires for it, if any. It fails
// if the client was killed.
func (f *Faults) choose(method string, req proto.Message) (*Rule, error) {
	if f.chooser != nil {
		return f.byChance(Call{Method: path.Base(method), Request: req}), nil
	}
	c := Classify(method, req)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.killed {
		return nil, errKilled
	}
	c.N = len(f.calls) + 1
	f.calls = append(f.calls, c)
	for _, r := range f.rules {
		if r.times == 0 || !r.match(c) {
			continue
		}
		if r.times > 0 {
			r.times--
		}
		r.fired++
		if r.fired == 1 {
			close(r.firing)
		}
		r.delays(f)
		return r, nil
	}
	return nil, nil
}

func (f *Faults) byChance(c Call) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil
	}
	action, pause, fire := f.chooser(c)
	if !fire {
		return nil
	}
	r := &Rule{name: c.Method, action: action, released: make(chan struct{})}
	r.delays(f)
	switch action {
	case Delay, Echo, Hold, HoldResponse:
		time.AfterFunc(pause, r.release)
	}
	return r
}

func (r *Rule) delays(f *Faults) {
	if r.action == Delay || r.action == Echo {
		r.applied.Add(1)
		f.late.Add(1)
	}
}

func (r *Rule) unavailable() error {
	return status.Errorf(codes.Unavailable, "injected fault: %v on %s", r.action, r.name)
}

// wait returns nil once the rule is released.
func (r *Rule) wait(ctx context.Context) error {
	select {
	case <-r.released:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (f *Faults) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	msg, _ := req.(proto.Message)
	r, err := f.choose(method, msg)
	if err != nil {
		return err
	}
	if r == nil {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	// Before anything is sent: the caller may still write to its reply when a late request is sent.
	kind := reply.(proto.Message).ProtoReflect().Type()
	again := func(ctx context.Context) error {
		return invoke(ctx, method, proto.Clone(msg), kind.New().Interface(), cc)
	}
	switch r.action {
	case DropRequest, CutStream, Partial:
		return r.unavailable()
	case DropResponse:
		if err := again(ctx); err != nil {
			return err
		}
		return r.unavailable()
	case Duplicate:
		if err := again(ctx); err != nil {
			return err
		}
	case Echo:
		go r.sendLater(f, again)
	case Delay:
		go r.sendLater(f, again)
		return status.Errorf(codes.DeadlineExceeded, "injected fault: %v on %s", r.action, r.name)
	case Hold:
		if err := r.wait(ctx); err != nil {
			return err
		}
	case HoldResponse:
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
		return r.wait(ctx)
	case Crash:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (r *Rule) sendLater(f *Faults, send func(context.Context) error) {
	defer f.late.Done()
	defer r.applied.Done()
	<-r.released
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = send(ctx)
}

func (f *Faults) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &faultStream{ClientStream: s, faults: f, method: method, caller: ctx, open: func(ctx context.Context) (grpc.ClientStream, error) {
		return streamer(ctx, desc, cc, method)
	}}, nil
}

// faultStream applies a rule to a request whose answer is a stream: ReadRows,
// MutateRows and SampleRowKeys.
type faultStream struct {
	grpc.ClientStream
	faults *Faults
	method string
	// caller is the context of the caller, who waits for the answer. The stream's own
	// context ends with the answer.
	caller context.Context
	open   func(context.Context) (grpc.ClientStream, error)
	rule   *Rule
	got    int
	kept   []int64 // entries of a bulk mutation that were not sent
}

func (s *faultStream) SendMsg(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("txntest: message of type %T", m)
	}
	var err error
	if s.rule, err = s.faults.choose(s.method, msg); err != nil {
		return err
	}
	if s.rule == nil {
		return s.ClientStream.SendMsg(m)
	}
	again := func(ctx context.Context) error { return s.again(ctx, proto.Clone(msg)) }
	switch r := s.rule; r.action {
	case DropRequest:
		return r.unavailable()
	case Duplicate:
		if err := again(s.Context()); err != nil {
			return err
		}
	case Echo:
		go r.sendLater(s.faults, again)
	case Delay:
		go r.sendLater(s.faults, again)
		return status.Errorf(codes.DeadlineExceeded, "injected fault: %v on %s", r.action, r.name)
	case Hold:
		if err := r.wait(s.Context()); err != nil {
			return err
		}
	case Partial:
		bulk, ok := m.(*btpb.MutateRowsRequest)
		if !ok || len(bulk.Entries) < 2 {
			return r.unavailable()
		}
		// It sends the first entries, so that their indexes do not change.
		part := proto.CloneOf(bulk)
		for i := len(part.Entries) / 2; i < len(part.Entries); i++ {
			s.kept = append(s.kept, int64(i))
		}
		part.Entries = part.Entries[:len(part.Entries)/2]
		return s.ClientStream.SendMsg(part)
	case DropResponse, HoldResponse: // in RecvMsg
	case Crash:
		<-s.Context().Done()
		return status.FromContextError(s.Context().Err()).Err()
	}
	return s.ClientStream.SendMsg(m)
}

// again sends the request on another stream, and reads the whole answer.
func (s *faultStream) again(ctx context.Context, msg proto.Message) error {
	other, err := s.open(ctx)
	if err != nil {
		return err
	}
	if err := other.SendMsg(msg); err != nil {
		return err
	}
	if err := other.CloseSend(); err != nil {
		return err
	}
	return drain(other)
}

// drain reads the rest of an answer.
func drain(s grpc.ClientStream) error {
	for {
		// All fields of the answer are unknown fields of an Empty.
		switch err := s.RecvMsg(&emptypb.Empty{}); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (s *faultStream) RecvMsg(m any) error {
	if s.rule != nil && s.rule.action == DropResponse {
		// As from a server: the client notices when it waits for the answer.
		if err := drain(s.ClientStream); err != nil {
			return err
		}
		return s.rule.unavailable()
	}
	if s.rule != nil && s.rule.action == CutStream && s.got == 1 {
		return s.rule.unavailable()
	}
	s.got++
	err := s.ClientStream.RecvMsg(m)
	if res, ok := m.(*btpb.MutateRowsResponse); ok && err == nil {
		for _, i := range s.kept {
			res.Entries = append(res.Entries, &btpb.MutateRowsResponse_Entry{Index: i, Status: status.Convert(s.rule.unavailable()).Proto()})
		}
		s.kept = nil
	}
	if s.rule != nil && s.rule.action == HoldResponse && s.got == 1 {
		// The answer has arrived, so no later request can change it.
		if err := s.rule.wait(s.caller); err != nil {
			return err
		}
	}
	return err
}
