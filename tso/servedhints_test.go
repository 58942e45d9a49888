package tso_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/hint"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func TestServedHints(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{}) // stands by, and points to a
		topics := []string{"a", "\xff\x00"}
		s1 := subscribe(t, c.Client(tso.ClientConfig{}, "b", "a"), topics...)
		var logs bytes.Buffer
		s2 := subscribe(t, c.Client(tso.ClientConfig{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, "a", "b"), topics...)
		other := subscribe(t, c.Client(tso.ClientConfig{}, "a"), "other")
		publisher := c.Client(tso.ClientConfig{}, "b", "a")
		want := append(hints("a", 1500), hints("\xff\x00", 100)...)
		publisher.PublishHints(want...)
		publisher.PublishHints(tso.Hint{Topic: "nobody's"})
		tsotest.Advance(time.Second)
		wantOnce(t, want, s1, s2)
		if s1.count() < 400 || s2.count() < 400 || other.count() != 0 {
			t.Errorf("%d, %d and %d hints", s1.count(), s2.count(), other.count())
		}
		r := c.Status("a")
		if r.HintsReceived != 1601 || r.HintsDelivered != 1600 || r.HintsDropped != 0 || r.HintsUnwanted != 1 || r.HintSubscribers != 3 {
			t.Errorf("%v", r)
		}
		if r := c.Status("b"); r.HintsReceived != 0 || r.HintSubscribers != 0 {
			t.Errorf("%v", r)
		}
		if s := publisher.Stats(); s != (tso.ClientStats{HintsSent: 1601}) {
			t.Errorf("%+v", s)
		}
		s1.leave()
		synctest.Wait()
		publisher.PublishHints(hints("a", 10)...)
		tsotest.Advance(time.Minute) // and nothing but signs of life
		if got := together(s2)[tso.Hint{Topic: "a", Key: "9"}]; got < 1 {
			t.Error("it does not get what would have been the other's")
		}
		if logs.Len() != 0 {
			t.Errorf("the subscription did not stand:\n%s", logs.String())
		}
		if r := c.Status("a"); r.HintsDelivered != 1610 || r.HintSubscribers != 2 {
			t.Errorf("%v", r)
		}
	})
}

// TestHintsFollowLeader hands over, cuts off, and goes back.
func TestHintsFollowLeader(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{GraceTimeout: time.Minute})
		synctest.Wait()
		b := c.Start("b", server.Config{})
		subscribing, publisher := c.Client(tso.ClientConfig{}, "a", "b"), c.Client(tso.ClientConfig{}, "a", "b")
		s := subscribe(t, subscribing, "x")
		arrives := func(key string) {
			t.Helper()
			h := tso.Hint{Topic: "x", Key: key}
			publisher.PublishHints(h)
			tsotest.Advance(time.Second)
			if together(s)[h] != 1 {
				t.Errorf("with %q leading, %q did not arrive: %+v, %+v", c.Leader(), key, subscribing.Stats(), publisher.Stats())
			}
		}
		arrives("first")
		start := time.Now()
		a.Stop()
		if err := <-a.Ended; err != nil || time.Since(start) > time.Second {
			t.Errorf("stopping took %s, with a subscriber: %v", time.Since(start), err)
		}
		tsotest.Advance(3 * time.Second)
		arrives("after a handover")
		// The leader keeps its connections, and loses its lease.
		c.Start("c", server.Config{})
		third := c.Client(tso.ClientConfig{}, "b", "c")
		s2 := subscribe(t, third, "y")
		b.CutOff()
		tsotest.Advance(2 * tsotest.Lease)
		if l := c.Status("c"); !l.Leading || l.HintSubscribers != 1 || third.Stats().Subscriptions != 1 {
			t.Errorf("the next leader: %v", l)
		}
		if r := c.Status("b"); r.HintSubscribers != 0 {
			t.Errorf("the one before: %v", r)
		}
		third.PublishHints(tso.Hint{Topic: "y"})
		tsotest.Advance(time.Second)
		if s2.count() != 1 {
			t.Error("no hint over the next leader")
		}
	})
}

// TestHintsWaitForLeader: hints published while no server leads wait at
// their publishers, each once, and for no longer than the timeout.
func TestHintsWaitForLeader(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		publisher, late := c.Client(tso.ClientConfig{Timeout: time.Minute}, "a"), c.Client(tso.ClientConfig{}, "a")
		for range 100 {
			publisher.PublishHints(tso.Hint{Topic: "x", Key: "first"})
		}
		synctest.Wait() // that one is under way
		for range 100 {
			publisher.PublishHints(hints("x", 3)...)
		}
		late.PublishHints(hints("y", hint.MaxWaiting+5)...)
		if s := late.Stats(); s != (tso.ClientStats{HintsDropped: 5}) {
			t.Errorf("beyond the queue: %+v", s)
		}
		tsotest.Advance(15 * time.Second)
		if s := late.Stats(); s != (tso.ClientStats{HintsDropped: hint.MaxBatch + 5}) {
			t.Errorf("after the timeout: %+v", s)
		}
		c.Start("a", server.Config{})
		s := subscribe(t, c.Client(tso.ClientConfig{}, "a"), "x")
		tsotest.Advance(5 * time.Second)
		wantOnce(t, append(hints("x", 3), tso.Hint{Topic: "x", Key: "first"}), s)
		if r := c.Status("a"); r.HintsReceived-r.HintsUnwanted != 4 {
			t.Errorf("%v", r)
		}
	})
}

// TestSilentServer: a server that was stopped keeps its connections.
func TestSilentServer(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		silent := &silentServer{}
		c.ServeAs("silent", silent)
		client := c.Client(tso.ClientConfig{}, "silent", "a")
		s := subscribe(t, client, "x")
		if silent.subscribed.Load() != 1 {
			t.Fatal("not subscribed at the server that falls silent")
		}
		start := time.Now()
		c.Start("a", server.Config{})
		for c.Status("a").HintSubscribers == 0 {
			tsotest.Advance(100 * time.Millisecond)
		}
		if d := time.Since(start); d < 5*time.Second || d > 10*time.Second {
			t.Errorf("left a silent server after %s", d)
		}
		c.Client(tso.ClientConfig{}, "a").PublishHints(hints("x", 1)...)
		tsotest.Advance(time.Minute)
		wantOnce(t, hints("x", 1), s)
		if n := client.Stats().Failures; n != 0 {
			t.Errorf("%d failures of timestamps", n)
		}
	})
}

// silentServer says nothing more once it has taken a subscriber, and refuses
// the next.
type silentServer struct {
	tsopb.UnimplementedOracleServer
	subscribed atomic.Int32
}

func (s *silentServer) SubscribeHints(_ *tsopb.SubscribeHintsRequest, stream grpc.ServerStreamingServer[tsopb.SubscribeHintsResponse]) error {
	if s.subscribed.Add(1) > 1 {
		return stream.Send(&tsopb.SubscribeHintsResponse{NotLeader: &tsopb.NotLeader{Reason: "standing by"}})
	}
	_ = stream.Send(&tsopb.SubscribeHintsResponse{})
	<-stream.Context().Done()
	return nil
}

// TestSlowSubscriberHoldsNobodyUp: neither timestamps, its own included, nor
// other subscribers.
func TestSlowSubscriberHoldsNobodyUp(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		client, quick, publisher := c.Client(tso.ClientConfig{}, "a"), c.Client(tso.ClientConfig{}, "a"), c.Client(tso.ClientConfig{}, "a")
		gate := make(chan struct{})
		slow := subscribeBehind(t, gate, client, "x", "slow's")
		other := subscribe(t, quick, "x")
		// More than its queue and the windows of its stream take.
		key := strings.Repeat("k", 1000)
		const rounds, each = 20, 100
		for i := range rounds {
			for _, h := range hints("slow's", each) {
				publisher.PublishHints(tso.Hint{Topic: h.Topic, Key: key + h.Key + string(rune('a'+i))})
			}
			tsotest.Advance(time.Second)
		}
		if r := c.Status("a"); r.HintsReceived != rounds*each || r.HintsDropped == 0 {
			t.Fatalf("%v", r)
		}
		start := time.Now()
		for range 100 {
			if _, err := client.Timestamp(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("timestamps took %s", d)
		}
		publisher.PublishHints(hints("x", 100)...)
		tsotest.Advance(time.Second)
		wantOnce(t, hints("x", 100), other)
		close(gate)
		tsotest.Advance(time.Second)
		r := c.Status("a")
		if r.HintsDelivered+r.HintsDropped != r.HintsReceived {
			t.Errorf("%v", r)
		}
		if got := uint64(slow.count() + other.count()); got != r.HintsDelivered {
			t.Errorf("%d arrived of %d delivered", got, r.HintsDelivered)
		}
	})
}

func TestHintsAtClose(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		s := subscribe(t, c.Client(tso.ClientConfig{}, "a"), "x")
		brief := c.Client(tso.ClientConfig{}, "a")
		brief.PublishHints(hints("x", 2500)...)
		_ = brief.Close() // sends them
		tsotest.Advance(time.Second)
		if got := together(s); len(got) != 2500 {
			t.Errorf("%d of 2500 published right before Close arrived", len(got))
		}
		brief.PublishHints(hints("x", 3)...)
		if st := brief.Stats(); st != (tso.ClientStats{HintsSent: 2500, HintsDropped: 3}) {
			t.Errorf("%+v", st)
		}
		nowhere := c.Client(tso.ClientConfig{}, "nowhere")
		nowhere.PublishHints(hints("x", 3)...)
		start := time.Now()
		_ = nowhere.Close()
		if d := time.Since(start); d > 100*time.Millisecond || nowhere.Stats().HintsDropped != 3 {
			t.Errorf("closed after %s: %+v", d, nowhere.Stats())
		}

		for _, name := range []string{"a", "nowhere"} {
			closing := c.Client(tso.ClientConfig{}, name)
			open := subscribe(t, closing, "x")
			_ = closing.Close()
			if err := <-open.ended; !errors.Is(err, tso.ErrClosed) {
				t.Errorf("subscribed at %s when closed: %v", name, err)
			}
			if err := closing.SubscribeHints(t.Context(), []string{"x"}, nil); !errors.Is(err, tso.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Client(tso.ClientConfig{}, "a").SubscribeHints(ended, []string{"x"}, nil); err != nil {
			t.Errorf("ended before it began: %v", err)
		}
	})
}

// TestHintsUnknownToServer: a server of an earlier release, replaced later.
func TestHintsUnknownToServer(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		const at = 1795152600000000
		serveScript(c, "a", &tsopb.TimestampsResponse{First: at, Count: 1}, &tsopb.TimestampsResponse{First: at + 1, Count: 1})
		var logs bytes.Buffer
		client := c.Client(tso.ClientConfig{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, "a", "b")
		if _, err := client.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := subscribe(t, client, "x")
		for i := range 10 {
			client.PublishHints(hints("x", i+1)...)
			tsotest.Advance(7 * time.Second)
		}
		if st := client.Stats(); st.HintsSent != 0 || st.HintsDropped < 30 || st.Failures != 0 || st.Subscriptions != 0 {
			t.Errorf("%+v", st)
		}
		if _, err := client.Timestamp(t.Context()); err != nil {
			t.Errorf("timestamps stop: %v", err)
		}
		for _, says := range []string{"hints are not sent", "no hints are received"} {
			if n := strings.Count(logs.String(), says); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", says, n, logs.String())
			}
		}
		if !strings.Contains(logs.String(), "release that does not know hints") || strings.Contains(logs.String(), "WARN") {
			t.Errorf("log:\n%s", logs.String())
		}
		c.Start("b", server.Config{})
		tsotest.Advance(30 * time.Second)
		client.PublishHints(tso.Hint{Topic: "x", Key: "at last"})
		tsotest.Advance(15 * time.Second)
		if together(s)[tso.Hint{Topic: "x", Key: "at last"}] != 1 {
			t.Errorf("not with the next server: %+v", client.Stats())
		}
	})
}

// withoutHints is a server that refuses hints with a code. It calls asked when it gets some.
type withoutHints struct {
	tsopb.UnimplementedOracleServer
	code  codes.Code
	asked func(*tsopb.PublishHintsRequest)
}

func (s withoutHints) PublishHints(_ context.Context, req *tsopb.PublishHintsRequest) (*tsopb.PublishHintsResponse, error) {
	s.asked(req)
	return nil, status.Error(s.code, "refused")
}

// TestRefusedHints: the client does not repeat hints that the server finds invalid, and sends the
// next ones.
func TestRefusedHints(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		client := c.Client(tso.ClientConfig{}, "a")
		var asked atomic.Int32
		c.ServeAs("a", withoutHints{code: codes.InvalidArgument, asked: func(*tsopb.PublishHintsRequest) { asked.Add(1) }})
		for i := range 2 {
			client.PublishHints(hints("x", i+1)...)
			tsotest.Advance(time.Second)
		}
		if s := client.Stats(); asked.Load() != 2 || s.HintsDropped != 3 || s.HintsSent != 0 {
			t.Errorf("%d requests, %+v", asked.Load(), s)
		}
	})
}

// endingServer ends each subscription after a time.
type endingServer struct {
	tsopb.UnimplementedOracleServer
	after      time.Duration
	subscribed atomic.Int32
}

func (s *endingServer) SubscribeHints(_ *tsopb.SubscribeHintsRequest, stream grpc.ServerStreamingServer[tsopb.SubscribeHintsResponse]) error {
	s.subscribed.Add(1)
	_ = stream.Send(&tsopb.SubscribeHintsResponse{})
	select {
	case <-time.After(s.after):
	case <-stream.Context().Done():
	}
	return nil
}

// TestSubscriptionsThatEnd: the client waits longer and longer before it subscribes again, up to two
// seconds, unless a subscription lasted a second.
func TestSubscriptionsThatEnd(t *testing.T) {
	for _, tt := range []struct {
		after       time.Duration
		least, most int32 // subscriptions in 100 seconds
	}{{0, 50, 150}, {time.Second, 95, 100}} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			c := tsotest.NewCluster(e)
			s := &endingServer{after: tt.after}
			c.ServeAs("a", s)
			subscribe(t, c.Client(tso.ClientConfig{}, "a"), "x")
			tsotest.Advance(100 * time.Second)
			if n := s.subscribed.Load(); n < tt.least || n > tt.most {
				t.Errorf("%d subscriptions that lasted %v, want %d to %d", n, tt.after, tt.least, tt.most)
			}
		})
	}
}

// TestHintsDroppedWithOldServer: the client drops hints at once if one server does not know
// them and the other one is down. It sends no empty batch for those that it dropped.
func TestHintsDroppedWithOldServer(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		client := c.Client(tso.ClientConfig{}, "down", "old")
		var sizes []int
		c.ServeAs("old", withoutHints{code: codes.Unimplemented, asked: func(req *tsopb.PublishHintsRequest) {
			sizes = append(sizes, len(req.Hints))
			client.PublishHints(tso.Hint{Topic: "x", Key: "meanwhile"})
		}})
		client.PublishHints(tso.Hint{Topic: "x", Key: "first"})
		tsotest.Advance(3 * time.Second)
		if s := client.Stats(); s != (tso.ClientStats{HintsDropped: 2}) {
			t.Errorf("%+v", s)
		}
		tsotest.Advance(time.Minute)
		if len(sizes) != 1 || sizes[0] != 1 {
			t.Errorf("batches of %v hints", sizes)
		}
	})
}

func TestHintsNeedCertificate(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		dir := t.TempDir()
		ca, other := newAuthority(t, dir, "ca"), newAuthority(t, dir, "other-ca")
		ca.make("a", ca)
		ca.make("client", ca)
		other.make("stranger", other)
		must := func(c credentials.TransportCredentials, err error) credentials.TransportCredentials {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c.Start("a", server.Config{Credentials: must(tso.TLSFiles{Cert: ca.path("a.crt"), Key: ca.path("a.key"), CA: ca.path("ca.crt")}.Server())})
		synctest.Wait()
		good := tso.TLSFiles{Cert: ca.path("client.crt"), Key: ca.path("client.key"), CA: ca.path("ca.crt"), ServerName: "a"}
		stranger := good
		stranger.Cert, stranger.Key = ca.path("stranger.crt"), ca.path("stranger.key")
		mine := c.Client(tso.ClientConfig{Credentials: must(good.Client())}, "a")
		s := subscribe(t, mine, "x")
		for name, creds := range map[string]credentials.TransportCredentials{"stranger": must(stranger.Client()), "plain text": nil} {
			bad := c.Client(tso.ClientConfig{Credentials: creds, Timeout: time.Second}, "a")
			theirs := subscribe(t, bad, "x")
			bad.PublishHints(hints("x", 5)...)
			tsotest.Advance(10 * time.Second)
			if st := bad.Stats(); st != (tso.ClientStats{HintsDropped: 5}) {
				t.Errorf("%s: %+v", name, st)
			}
			if theirs.count() != 0 {
				t.Errorf("%s got a hint", name)
			}
		}
		mine.PublishHints(hints("x", 1)...)
		tsotest.Advance(time.Second)
		wantOnce(t, hints("x", 1), s)
	})
}
