package hint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func join(t *testing.T, r *Router, topics ...string) *Subscriber {
	t.Helper()
	s, err := r.Join(topics)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func isReady(s *Subscriber) bool {
	select {
	case <-s.Ready():
		return true
	default:
		return false
	}
}

// TestQueue: hints wait in order, equal ones once, up to exactly as many and as many bytes as the
// limits say. Ready has an element as long as something waits.
func TestQueue(t *testing.T) {
	named := func(n, size int) (all []Hint) {
		for i := range n {
			all = append(all, Hint{"t", fmt.Sprintf("%0*d", size-overhead-1, i)})
		}
		return all
	}
	for name, tt := range map[string]struct {
		size, room, batch int
	}{
		"many": {30, MaxWaiting, MaxBatch},
		"long": {2048, maxWaitingBytes / 2048, maxBytes / 2048},
		"odd":  {2049, maxWaitingBytes / 2049, maxBytes / 2049},
	} {
		q := NewQueue()
		all := named(tt.room+1, tt.size)
		for range 2 { // all waits once
			for i, h := range all {
				if q.Add(h) != (i < tt.room) {
					t.Fatalf("%s: hint %d has room: %t", name, i, i >= tt.room)
				}
			}
		}
		if q.Len() != tt.room || q.bytes != tt.room*tt.size || q.memory() != q.bytes+128*tt.room {
			t.Errorf("%s: %d wait, %d bytes", name, q.Len(), q.bytes)
		}
		var got []Hint
		for q.Len() > 0 {
			select {
			case <-q.Ready:
			default:
				t.Fatalf("%s: %d wait and it is not ready", name, q.Len())
			}
			batch := q.Take()
			if len(batch) != min(tt.batch, tt.room-len(got)) {
				t.Errorf("%s: a batch of %d, want %d", name, len(batch), tt.batch)
			}
			got = append(got, batch...)
		}
		if len(q.Ready) > 0 || !slices.Equal(got, all[:tt.room]) || q.bytes != 0 || len(q.waits) != 0 || len(q.Take()) != 0 {
			t.Errorf("%s: took %d of %d; %d bytes are left", name, len(got), tt.room, q.bytes)
		}
		q.Add(all[0])
		if got := q.Drain(); len(got) != 1 || q.Len() != 0 || q.bytes != 0 || len(q.Drain()) != 0 {
			t.Errorf("%s: drained %d", name, len(got))
		}
		if !q.Add(all[0]) || q.Len() != 1 {
			t.Errorf("%s: it does not wait again", name)
		}
	}
}

// TestRouterMemory: topics and hints that wait have exactly the room that the router says, and
// give it back.
func TestRouterMemory(t *testing.T) {
	r := NewRouter()
	topic, h := "tt", Hint{"tt", "key"}
	r.MaxBytes = 2*(len(topic)+128) + h.size()
	a := join(t, r, topic)
	if !r.add(a, h) || !isReady(a) {
		t.Error("no room for a hint")
	}
	if _, err := r.Join([]string{topic}); !errors.Is(err, errFull) { // a hint that waits counts more than its bytes
		t.Errorf("a second subscriber: %v", err)
	}
	if r.add(a, Hint{"tt", "more"}) {
		t.Error("room for a second hint")
	}
	if got := r.Take(a); !slices.Equal(got, []Hint{h}) || r.bytes != a.memory() {
		t.Errorf("took %v; %d bytes are left", got, r.bytes)
	}
	r.Delivered(1)
	b := join(t, r, topic) // fits exactly, with a hint's own bytes
	if r.add(b, Hint{"tt", "key+"}) {
		t.Error("room for a longer hint")
	}
	r.Leave(a, []Hint{h}) // what a did not deliver goes to b
	if got := r.Take(b); !slices.Equal(got, []Hint{h}) {
		t.Errorf("b takes %v", got)
	}
	r.Leave(b, nil)
	if s := r.Stats(); r.bytes != 0 || len(r.topics) != 0 || s != (Stats{Delivered: 1}) {
		t.Errorf("%d bytes, topics %v, %+v", r.bytes, r.topics, s)
	}
	r.MaxBytes = 2 * (len(topic) + 128)
	join(t, r, topic)
	join(t, r, topic)
	if _, err := r.Join([]string{topic}); !errors.Is(err, errFull) {
		t.Errorf("a third subscriber: %v", err)
	}
}

// TestSubscribers: their number is bounded. A reset ends all subscriptions, and drops what
// waited; a stopped router takes nothing.
func TestSubscribers(t *testing.T) {
	r := NewRouter()
	r.MaxSubscribers = 2
	a, b := join(t, r, "x", "y"), join(t, r, "y")
	if _, err := r.Join([]string{"x"}); !errors.Is(err, errTooManySubscribers) {
		t.Errorf("a third subscriber: %v", err)
	}
	if !r.Publish([]Hint{{"x", "1"}, {"x", "2"}, {"z", "3"}, {"", "4"}}) {
		t.Error("it is stopped")
	}
	if s := r.Stats(); s != (Stats{Received: 4, Unwanted: 1, Dropped: 1, Subscribers: 2}) {
		t.Errorf("%+v", s)
	}
	r.Reset(true)
	for _, s := range []*Subscriber{a, b} {
		select {
		case <-s.Ended:
		default:
			t.Error("a subscription continues")
		}
		r.Leave(s, []Hint{{"x", "5"}}) // what it had taken is dropped
	}
	if s := r.Stats(); s != (Stats{Received: 4, Unwanted: 1, Dropped: 5, Subscribers: 0}) || r.bytes != 0 || len(r.topics) != 0 {
		t.Errorf("%+v, %d bytes, topics %v", s, r.bytes, r.topics)
	}
	if _, err := r.Join([]string{"x"}); !errors.Is(err, ErrStopped) || r.Publish([]Hint{{"x", "1"}}) || r.Stats().Received != 4 {
		t.Errorf("stopped: %v, %+v", err, r.Stats())
	}
	r.Reset(false)
	c := join(t, r, "x")
	if !r.Publish([]Hint{{"x", "1"}}) || len(r.Take(c)) != 1 {
		t.Error("it is stopped after a reset")
	}
}

// TestTopics: the bounds of hints and subscriptions.
func TestTopics(t *testing.T) {
	x := strings.Repeat
	for _, h := range []Hint{{"t", ""}, {x("t", MaxTopic), x("k", MaxKey)}} {
		if err := h.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, h := range []Hint{{"", "k"}, {x("t", MaxTopic+1), ""}, {"t", x("k", MaxKey+1)}} {
		if h.Check() == nil {
			t.Errorf("a hint with a topic of %d bytes and a key of %d", len(h.Topic), len(h.Key))
		}
	}
	topics := func(n, size int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%0*d", size, i))
		}
		return all
	}
	for name, tt := range map[string]struct {
		topics []string
		says   string
	}{
		"one":       {[]string{"a"}, ""},
		"twice":     {[]string{"a", "b", "a"}, ""},
		"most":      {topics(MaxTopics, 4), ""},
		"none":      {nil, "0 topics"},
		"too many":  {topics(MaxTopics+1, 4), "1001 topics"},
		"all bytes": {topics(maxBytes/512, 512-overhead), ""},
		"too long":  {append(topics(maxBytes/512-1, 512-overhead), x("t", 513-overhead)), "32768 at most"},
		"empty":     {[]string{"a", ""}, "a topic of 0 bytes"},
	} {
		got, err := CheckTopics(tt.topics)
		want := slices.Compact(slices.Sorted(slices.Values(tt.topics)))
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) || err == nil && !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s: %d topics, %v; want %q", name, len(got), err, tt.says)
		}
	}
}

// TestRoutes: a hint goes to the shorter of two queues, past queues that are full, and is dropped if too
// many of them are.
func TestRoutes(t *testing.T) {
	for _, n := range []int{2, 3} {
		r := NewRouter()
		all := make([]*Subscriber, n)
		for i := range all {
			all[i] = join(t, r, "t")
		}
		all[0].queue.Add(Hint{"t", "waits"})
		for i := range 300 {
			r.Publish([]Hint{{"t", fmt.Sprint(i)}})
			if all[0].queue.Len() != 1 {
				t.Fatalf("of %d queues, the longer one gets a hint", n)
			}
			got := 0
			for _, s := range all[1:] {
				got += len(r.Take(s))
			}
			if got != 1 {
				t.Fatalf("%d of %d queues get a hint", got, n)
			}
		}
	}
	for n, routed := range map[int]bool{tries: true, 10 * tries: false} {
		r := NewRouter()
		var all []*Subscriber
		for range n {
			all = append(all, join(t, r, "t"))
			all[len(all)-1].queue.bytes = maxWaitingBytes // full
		}
		s := all[n/2]
		s.queue.bytes = 0
		const hints = 200
		got := 0
		for i := range hints {
			r.Publish([]Hint{{"t", fmt.Sprint(i)}})
			got += len(r.Take(s))
		}
		if stats := r.Stats(); stats.Dropped != uint64(hints-got) || (stats.Dropped == 0) != routed {
			t.Errorf("%d of %d hints went to the one queue of %d that has room; %+v", got, hints, n, stats)
		}
	}
}

// TestSubscribe: deliver gets the hints in order until the context ends. What waits then goes to another
// subscriber of the topic, and is dropped without one.
func TestSubscribe(t *testing.T) {
	r := NewRouter()
	if err := r.Subscribe(t.Context(), nil, nil); err == nil {
		t.Error("subscribed to no topic")
	}
	for _, other := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) { testSubscribe(t, other) })
	}
	r = NewRouter() // what was not taken
	s := join(t, r, "t")
	r.Publish([]Hint{{"t", "1"}, {"t", "2"}})
	r.Leave(s, []Hint{{"t", "0"}})
	if stats := r.Stats(); stats != (Stats{Received: 2, Dropped: 3}) || r.bytes != 0 {
		t.Errorf("%+v, %d bytes", stats, r.bytes)
	}
}

func testSubscribe(t *testing.T, other bool) {
	r := NewRouter()
	r.MaxSubscribers = 1
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	var last *Subscriber
	ended := make(chan error, 1)
	go func() {
		ended <- r.Subscribe(ctx, []string{"t", "t"}, func(h Hint) {
			if got = append(got, h.Key); len(got) == 2 {
				r.MaxSubscribers = 2
				if other {
					last, _ = r.Join([]string{"t"})
				}
				cancel()
			}
		})
	}()
	synctest.Wait()
	if err := r.Subscribe(ctx, []string{"t"}, nil); !errors.Is(err, errTooManySubscribers) {
		t.Errorf("a second subscriber: %v", err)
	}
	r.Publish([]Hint{{"t", "1"}})
	synctest.Wait()
	if !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v", got)
	}
	r.Publish([]Hint{{"t", "2"}, {"t", "3"}, {"t", "4"}})
	if err := <-ended; err != nil || !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("got %v, %v", got, err)
	}
	want := Stats{Received: 4, Delivered: 2, Dropped: 2}
	if other {
		want.Dropped, want.Subscribers = 0, 1
		if rest := r.Take(last); !slices.Equal(rest, []Hint{{"t", "3"}, {"t", "4"}}) {
			t.Errorf("the other one gets %v", rest)
		}
	}
	if s := r.Stats(); s != want || r.bytes != 129*want.Subscribers {
		t.Errorf("%+v, %d bytes; want %+v", s, r.bytes, want)
	}
}
