package tso_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/hint"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
)

// memoryHints is the router of a server, without one.
type memoryHints struct{ *hint.Router }

func (m memoryHints) PublishHints(hints ...tso.Hint) {
	all := make([]hint.Hint, len(hints))
	for i, h := range hints {
		all[i] = hint.Hint(h)
	}
	m.Publish(all)
}

func (m memoryHints) SubscribeHints(ctx context.Context, topics []string, deliver func(tso.Hint)) error {
	return m.Subscribe(ctx, topics, func(h hint.Hint) { deliver(tso.Hint(h)) })
}

func (m memoryHints) Stats() tso.HintStats { return tso.HintStats(m.Router.Stats()) }

// subscriber is a subscription that keeps what it gets.
type subscriber struct {
	t     *testing.T
	stop  context.CancelFunc
	ended chan error

	mu   sync.Mutex
	got  []tso.Hint
	gate chan struct{} // deliver waits for it to be closed; nil: it does not wait
}

func subscribe(t *testing.T, to tso.Hints, topics ...string) *subscriber {
	t.Helper()
	return subscribeBehind(t, nil, to, topics...)
}

// subscribeBehind returns a subscription that is slow until gate is closed.
func subscribeBehind(t *testing.T, gate chan struct{}, to tso.Hints, topics ...string) *subscriber {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &subscriber{t: t, stop: stop, ended: make(chan error, 1), gate: gate}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- to.SubscribeHints(ctx, topics, s.deliver)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	synctest.Wait()
	return s
}

func (s *subscriber) deliver(h tso.Hint) {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, h)
}

func (s *subscriber) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// leave ends the subscription and waits for that.
func (s *subscriber) leave() {
	s.t.Helper()
	s.stop()
	if err := <-s.ended; err != nil {
		s.t.Errorf("at its end a subscription returned %v", err)
	}
}

// together returns how often each hint was delivered to any of them.
func together(all ...*subscriber) map[tso.Hint]int {
	n := map[tso.Hint]int{}
	for _, s := range all {
		s.mu.Lock()
		for _, h := range s.got {
			n[h]++
		}
		s.mu.Unlock()
	}
	return n
}

// hints returns n different ones.
func hints(topic string, n int) []tso.Hint {
	all := make([]tso.Hint, n)
	for i := range all {
		all[i] = tso.Hint{Topic: topic, Key: fmt.Sprint(i)}
	}
	return all
}

// wantOnce fails unless each hint was delivered once, to one of them.
func wantOnce(t *testing.T, want []tso.Hint, all ...*subscriber) {
	t.Helper()
	got := together(all...)
	times := map[int]int{}
	for _, h := range want {
		times[got[h]]++
		delete(got, h)
	}
	if times[1] != len(want) {
		t.Errorf("how many of %d hints were delivered how often: %v", len(want), times)
	}
	if len(got) != 0 {
		t.Errorf("nobody had published %d hints: %.200q", len(got), slices.Collect(maps.Keys(got)))
	}
}

func TestHintGoesToOneSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryHints{hint.NewRouter()}
		both := []string{"a", "b", "a"}
		all := []*subscriber{subscribe(t, m, "a"), subscribe(t, m, both...), subscribe(t, m, both...), subscribe(t, m, "c")}
		as, bs := hints("a", 500), hints("b", 500)
		m.PublishHints(append(slices.Clone(as), bs...)...)
		m.PublishHints(tso.Hint{Topic: "nobody's", Key: "x"})
		synctest.Wait()
		wantOnce(t, append(as, bs...), all...)
		for h := range together(all[0]) {
			if h.Topic != "a" {
				t.Errorf("not subscribed to: %q", h)
			}
		}
		if n := all[3].count(); n != 0 {
			t.Errorf("%d hints of other topics", n)
		}
		if s := m.Stats(); s != (tso.HintStats{Received: 1001, Delivered: 1000, Unwanted: 1, Subscribers: 4}) {
			t.Errorf("%+v", s)
		}
	})
}

// TestHintsAreShared: subscribers that take none meanwhile have about the same
// number waiting. One chosen at random would be off by up to 60.
func TestHintsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryHints{hint.NewRouter()}
		gate := make(chan struct{})
		var all []*subscriber
		for range 10 {
			all = append(all, subscribeBehind(t, gate, m, "a"))
		}
		m.PublishHints(hints("a", 4000)...)
		close(gate)
		synctest.Wait()
		for _, s := range all {
			if n := s.count(); n < 380 || n > 420 {
				t.Errorf("one of 10 got %d of 4000", n)
			}
		}
		wantOnce(t, hints("a", 4000), all...)
	})
}

// TestSlowSubscriber has little waiting, because the other has less.
func TestSlowSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryHints{hint.NewRouter()}
		gate := make(chan struct{})
		slow, quick := subscribeBehind(t, gate, m, "a"), subscribe(t, m, "a")
		const n = 1000
		for _, h := range hints("a", n) {
			m.PublishHints(h)
			synctest.Wait()
		}
		if got := quick.count(); got < n-2 {
			t.Errorf("the quick one got %d of %d", got, n)
		}
		close(gate)
		synctest.Wait()
		wantOnce(t, hints("a", n), slow, quick)
	})
}

func TestFullQueuesDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryHints{hint.NewRouter()}
		gate := make(chan struct{})
		all := []*subscriber{subscribeBehind(t, gate, m, "a", "0"), subscribeBehind(t, gate, m, "a", "b"), subscribeBehind(t, gate, m, "a", "2")}
		for _, topic := range []string{"0", "b", "2"} {
			m.PublishHints(tso.Hint{Topic: topic, Key: "first"})
		}
		synctest.Wait()                                // each is busy with that
		m.PublishHints(hints("b", hint.MaxWaiting)...) // one is full
		const more = 10
		m.PublishHints(hints("a", 2*hint.MaxWaiting+more)...) // the rest is for the other queues
		if s := m.Stats(); s.Dropped != more || s.Received != 3+3*hint.MaxWaiting+more {
			t.Errorf("%+v", s)
		}
		close(gate)
		synctest.Wait()
		if s := m.Stats(); s.Dropped != more || s.Delivered != 3+3*hint.MaxWaiting {
			t.Errorf("%+v", s)
		}
		// And there is room again.
		m.PublishHints(tso.Hint{Topic: "a", Key: "late"})
		synctest.Wait()
		if got := together(all...); len(got) != 3+3*hint.MaxWaiting+1 {
			t.Errorf("%d delivered", len(got))
		}

		// All but one are full.
		gate3 := make(chan struct{})
		defer close(gate3)
		for _, topic := range []string{"x", "y", "z"} {
			subscribeBehind(t, gate3, m, "any", topic)
			m.PublishHints(tso.Hint{Topic: topic, Key: "first"})
			synctest.Wait()
			if topic != "z" {
				m.PublishHints(hints(topic, hint.MaxWaiting)...)
			}
		}
		m.PublishHints(hints("any", 100)...)
		if s := m.Stats(); s.Dropped != more {
			t.Errorf("%d dropped although one has room", s.Dropped-more)
		}

		long := strings.Repeat("k", tso.MaxHintKey)
		gate2 := make(chan struct{})
		defer close(gate2)
		subscribeBehind(t, gate2, m, "long")
		for i := range 100 {
			m.PublishHints(tso.Hint{Topic: "long", Key: long[3:] + fmt.Sprintf("%03d", i)})
		}
		if s := m.Stats(); s.Dropped-more < 50 { // what waits is bounded in bytes too
			t.Errorf("%d long ones dropped", s.Dropped-more)
		}
	})
}

func TestEqualHintsWaitOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryHints{hint.NewRouter()}
		gate := make(chan struct{})
		s := subscribeBehind(t, gate, m, "a")
		h := tso.Hint{Topic: "a", Key: "x"}
		m.PublishHints(h)
		synctest.Wait() // it is being delivered: the next says something new
		m.PublishHints(h, h, h)
		m.PublishHints(h)
		close(gate)
		synctest.Wait()
		if n := s.count(); n != 2 {
			t.Errorf("delivered %d times", n)
		}
		m.PublishHints(h)
		synctest.Wait()
		if n := s.count(); n != 3 {
			t.Errorf("delivered %d times", n)
		}
	})
}

// TestLeavingSubscriber: what waited for it goes to others.
func TestLeavingSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryHints{hint.NewRouter()}
		gate := make(chan struct{})
		leaves := subscribeBehind(t, gate, m, "a", "b")
		m.PublishHints(hints("a", 2000)...)
		m.PublishHints(hints("b", 10)...)
		synctest.Wait()
		stays := subscribe(t, m, "a")
		leaves.stop()
		close(gate)
		leaves.leave()
		synctest.Wait()
		if n := leaves.count(); n > 1 {
			t.Errorf("%d were delivered to one that had left", n)
		}
		wantOnce(t, hints("a", 2000), leaves, stays)
		if s := m.Stats(); s.Subscribers != 1 || s.Dropped != 10 || s.Unwanted != 0 {
			t.Errorf("%+v", s)
		}
		stays.leave()
		m.PublishHints(hints("a", 1)...)
		if s := m.Stats(); s.Subscribers != 0 || s.Unwanted != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestHintLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := memoryHints{hint.NewRouter()}, tsotest.NewCluster(&tsotest.Emulator{T: t}).Client(tso.ClientConfig{}, "nowhere")
		long := strings.Repeat("t", tso.MaxHintTopic)
		var many, big []string
		for i := range tso.MaxHintTopics + 1 {
			many = append(many, fmt.Sprint(i))
		}
		for i := range 17 {
			big = append(big, long[2:]+fmt.Sprintf("%02d", i))
		}
		for _, test := range []struct {
			topics []string
			says   string
		}{
			{nil, "0 topics; it has to be 1 to 1000"},
			{many, "1001 topics"},
			{[]string{"a", ""}, "a topic of 0 bytes; it has to be 1 to 2048"},
			{[]string{long + "t"}, "2049 bytes"},
			{big, "32768 at most"},
		} {
			for _, to := range []tso.Hints{m, c} {
				if err := to.SubscribeHints(t.Context(), test.topics, nil); err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%T, %d topics: %v", to, len(test.topics), err)
				}
			}
		}
		s := subscribe(t, m, append(many[:tso.MaxHintTopics-1], long)...)
		bad := []tso.Hint{{Key: "x"}, {Topic: long + "t"}, {Topic: "1", Key: strings.Repeat("k", tso.MaxHintKey+1)}}
		good := []tso.Hint{{Topic: long}, {Topic: "1", Key: strings.Repeat("k", tso.MaxHintKey)}, {Topic: "1", Key: "\xff\x00"}}
		m.PublishHints(append(bad, good...)...)
		c.PublishHints(bad...)
		synctest.Wait()
		wantOnce(t, good, s)
		if m.Stats().Dropped != 3 || c.Stats().HintsDropped != 3 {
			t.Errorf("%+v, %+v", m.Stats(), c.Stats())
		}
	})
}
