package tso_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
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
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

func TestServedHints(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{}) // stands by, and points to a
		topics := []string{"a", "\xff\x00"}
		s1 := subscribe(t, c.client(tso.ClientConfig{}, "b", "a"), topics...)
		var logs bytes.Buffer
		s2 := subscribe(t, c.client(tso.ClientConfig{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, "a", "b"), topics...)
		other := subscribe(t, c.client(tso.ClientConfig{}, "a"), "other")
		publisher := c.client(tso.ClientConfig{}, "b", "a")
		want := append(hints("a", 1500), hints("\xff\x00", 100)...)
		publisher.PublishHints(want...)
		publisher.PublishHints(tso.Hint{Topic: "nobody's"})
		advance(time.Second)
		wantOnce(t, want, s1, s2)
		if s1.count() < 400 || s2.count() < 400 || other.count() != 0 {
			t.Errorf("%d, %d and %d hints", s1.count(), s2.count(), other.count())
		}
		r := c.status("a")
		if r.HintsReceived != 1601 || r.HintsDelivered != 1600 || r.HintsDropped != 0 || r.HintsUnwanted != 1 || r.HintSubscribers != 3 {
			t.Errorf("%v", r)
		}
		if r := c.status("b"); r.HintsReceived != 0 || r.HintSubscribers != 0 {
			t.Errorf("%v", r)
		}
		if s := publisher.Stats(); s.HintsSent != 1601 || s.HintsDropped != 0 || s.Failovers != 0 {
			t.Errorf("%+v", s)
		}
		s1.leave()
		synctest.Wait()
		publisher.PublishHints(hints("a", 10)...)
		advance(time.Minute) // and nothing but signs of life
		if got := together(s2)[tso.Hint{Topic: "a", Key: "9"}]; got < 1 {
			t.Error("it does not get what would have been the other's")
		}
		if logs.Len() != 0 {
			t.Errorf("the subscription did not stand:\n%s", logs.String())
		}
		if r := c.status("a"); r.HintsDelivered != 1610 || r.HintSubscribers != 2 {
			t.Errorf("%v", r)
		}
	})
}

// TestHintsFollowLeader hands over, cuts off, and goes back.
func TestHintsFollowLeader(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{GraceTimeout: time.Minute})
		synctest.Wait()
		b := c.start("b", tso.ServerConfig{})
		subscribing, publisher := c.client(tso.ClientConfig{}, "a", "b"), c.client(tso.ClientConfig{}, "a", "b")
		s := subscribe(t, subscribing, "x")
		arrives := func(key string) {
			t.Helper()
			h := tso.Hint{Topic: "x", Key: key}
			publisher.PublishHints(h)
			advance(time.Second)
			if together(s)[h] != 1 {
				t.Errorf("with %q leading, %q did not arrive: %+v, %+v", c.leader(), key, subscribing.Stats(), publisher.Stats())
			}
		}
		arrives("first")
		start := time.Now()
		a.stop()
		if err := <-a.ended; err != nil || time.Since(start) > time.Second {
			t.Errorf("stopping took %s, with a subscriber: %v", time.Since(start), err)
		}
		advance(3 * time.Second)
		arrives("after a handover")
		// The leader keeps its connections, and loses its lease.
		c.start("c", tso.ServerConfig{})
		third := c.client(tso.ClientConfig{}, "b", "c")
		s2 := subscribe(t, third, "y")
		b.cut.Store(true)
		advance(2 * lease)
		if l := c.status("c"); !l.Leading || l.HintSubscribers != 1 || third.Stats().Subscriptions != 1 {
			t.Errorf("the next leader: %v", l)
		}
		if r := c.status("b"); r.HintSubscribers != 0 {
			t.Errorf("the one before: %v", r)
		}
		third.PublishHints(tso.Hint{Topic: "y"})
		advance(time.Second)
		if s2.count() != 1 {
			t.Error("no hint over the next leader")
		}
	})
}

// TestHintsWaitForLeader: hints published while nobody leads wait at
// their publishers, each once, and for no longer than the timeout.
func TestHintsWaitForLeader(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		publisher, late := c.client(tso.ClientConfig{Timeout: time.Minute}, "a"), c.client(tso.ClientConfig{}, "a")
		for range 100 {
			publisher.PublishHints(tso.Hint{Topic: "x", Key: "first"})
		}
		synctest.Wait() // that one is under way
		for range 100 {
			publisher.PublishHints(hints("x", 3)...)
		}
		late.PublishHints(hints("y", tso.MaxHintsWaiting+5)...)
		if s := late.Stats(); s.HintsDropped != 5 || s.HintsSent != 0 {
			t.Errorf("beyond the queue: %+v", s)
		}
		advance(15 * time.Second)
		if s := late.Stats(); s.HintsDropped != tso.MaxHintBatch+5 {
			t.Errorf("after the timeout: %+v", s)
		}
		c.start("a", tso.ServerConfig{})
		s := subscribe(t, c.client(tso.ClientConfig{}, "a"), "x")
		advance(5 * time.Second)
		wantOnce(t, append(hints("x", 3), tso.Hint{Topic: "x", Key: "first"}), s)
		if r := c.status("a"); r.HintsReceived-r.HintsUnwanted != 4 {
			t.Errorf("%v", r)
		}
	})
}

// TestSilentServer: a server that was stopped keeps its connections.
func TestSilentServer(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		silent := &silentServer{}
		c.serveAs("silent", silent)
		client := c.client(tso.ClientConfig{}, "silent", "a")
		s := subscribe(t, client, "x")
		if silent.subscribed.Load() != 1 {
			t.Fatal("not subscribed at the server that falls silent")
		}
		start := time.Now()
		c.start("a", tso.ServerConfig{})
		for c.status("a").HintSubscribers == 0 {
			advance(100 * time.Millisecond)
		}
		if d := time.Since(start); d < 5*time.Second || d > 10*time.Second {
			t.Errorf("left a silent server after %s", d)
		}
		c.client(tso.ClientConfig{}, "a").PublishHints(hints("x", 1)...)
		advance(time.Minute)
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

// serveAs serves an oracle that is none of ours under a name.
func (c *cluster) serveAs(name string, oracle tsopb.OracleServer) {
	c.e.t.Helper()
	c.register(name, func(s *grpc.Server) { tsopb.RegisterOracleServer(s, oracle) })
}

// TestSlowSubscriberHoldsNobodyUp: neither timestamps, its own included, nor
// other subscribers.
func TestSlowSubscriberHoldsNobodyUp(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		client, quick, publisher := c.client(tso.ClientConfig{}, "a"), c.client(tso.ClientConfig{}, "a"), c.client(tso.ClientConfig{}, "a")
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
			advance(time.Second)
		}
		if r := c.status("a"); r.HintsReceived != rounds*each || r.HintsDropped == 0 {
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
		advance(time.Second)
		wantOnce(t, hints("x", 100), other)
		close(gate)
		advance(time.Second)
		r := c.status("a")
		if r.HintsDelivered+r.HintsDropped != r.HintsReceived {
			t.Errorf("%v", r)
		}
		if got := uint64(slow.count() + other.count()); got != r.HintsDelivered {
			t.Errorf("%d arrived of %d delivered", got, r.HintsDelivered)
		}
	})
}

func TestHintsAtClose(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		s := subscribe(t, c.client(tso.ClientConfig{}, "a"), "x")
		brief := c.client(tso.ClientConfig{}, "a")
		brief.PublishHints(hints("x", 2500)...)
		_ = brief.Close() // sends them
		advance(time.Second)
		if got := together(s); len(got) != 2500 {
			t.Errorf("%d of 2500 published right before Close arrived", len(got))
		}
		brief.PublishHints(hints("x", 3)...)
		if st := brief.Stats(); st.HintsSent != 2500 || st.HintsDropped != 3 {
			t.Errorf("%+v", st)
		}
		nowhere := c.client(tso.ClientConfig{}, "nowhere")
		nowhere.PublishHints(hints("x", 3)...)
		start := time.Now()
		_ = nowhere.Close()
		if d := time.Since(start); d > 100*time.Millisecond || nowhere.Stats().HintsDropped != 3 {
			t.Errorf("closed after %s: %+v", d, nowhere.Stats())
		}

		for _, name := range []string{"a", "nowhere"} {
			closing := c.client(tso.ClientConfig{}, name)
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
		if err := c.client(tso.ClientConfig{}, "a").SubscribeHints(ended, []string{"x"}, nil); err != nil {
			t.Errorf("ended before it began: %v", err)
		}
	})
}

// TestHintsUnknownToServer: a server of an earlier release, replaced later.
func TestHintsUnknownToServer(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		const at = 1795152600000000
		c.script("a", &tsopb.TimestampsResponse{First: at, Count: 1}, &tsopb.TimestampsResponse{First: at + 1, Count: 1})
		var logs bytes.Buffer
		client := c.client(tso.ClientConfig{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, "a", "b")
		if _, err := client.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := subscribe(t, client, "x")
		for i := range 10 {
			client.PublishHints(hints("x", i+1)...)
			advance(7 * time.Second)
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
		c.start("b", tso.ServerConfig{})
		advance(30 * time.Second)
		client.PublishHints(tso.Hint{Topic: "x", Key: "at last"})
		advance(15 * time.Second)
		if together(s)[tso.Hint{Topic: "x", Key: "at last"}] != 1 {
			t.Errorf("not with the next server: %+v", client.Stats())
		}
	})
}

func TestHintRequests(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{})
		synctest.Wait()
		publish := func(server string, version uint32, hints ...*tsopb.Hint) (*tsopb.PublishHintsResponse, error) {
			return tsopb.NewOracleClient(c.raw(server)).PublishHints(t.Context(), &tsopb.PublishHintsRequest{FormatVersion: version, Hints: hints})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		join := func(server string, version uint32, topics ...[]byte) (*tsopb.SubscribeHintsResponse, error) {
			stream, err := tsopb.NewOracleClient(c.raw(server)).SubscribeHints(ctx, &tsopb.SubscribeHintsRequest{FormatVersion: version, Topics: topics})
			if err != nil {
				return nil, err
			}
			return stream.Recv()
		}
		x := &tsopb.Hint{Topic: []byte("x")}
		var many []*tsopb.Hint
		for range tso.MaxHintBatch + 1 {
			many = append(many, x)
		}
		refused := func(what string, err error, code codes.Code, says string) {
			t.Helper()
			if status.Code(err) != code || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := publish("a", 0, x)
		refused("version 0", err, codes.FailedPrecondition, "version 0")
		_, err = publish("a", 1, many...)
		refused("a large batch", err, codes.InvalidArgument, "1001 hints in one request; it has to be 1000 at most")
		_, err = publish("a", 1, x, &tsopb.Hint{})
		refused("no topic", err, codes.InvalidArgument, "a topic of 0 bytes")
		_, err = publish("a", 1, &tsopb.Hint{Topic: []byte("x"), Key: make([]byte, tso.MaxHintKey+1)})
		refused("a long key", err, codes.InvalidArgument, "a key of 8193 bytes")
		_, err = join("a", 2, []byte("x"))
		refused("version 2", err, codes.FailedPrecondition, "version 2")
		_, err = join("a", 1)
		refused("no topics", err, codes.InvalidArgument, "0 topics")
		_, err = join("a", 1, make([]byte, tso.MaxHintTopic+1))
		refused("a long topic", err, codes.InvalidArgument, "2049 bytes")

		if r, err := publish("b", 1, x); err != nil || r.NotLeader.GetLeaderAddress() != "passthrough:a" {
			t.Errorf("published at a standby: %v, %v", r, err)
		}
		if r, err := join("b", 1, []byte("x")); err != nil || r.NotLeader.GetLeaderAddress() != "passthrough:a" {
			t.Errorf("subscribed at a standby: %v, %v", r, err)
		}
		if r := c.status("a"); r.HintsReceived != 0 || r.HintSubscribers != 0 {
			t.Errorf("after refusals: %v", r)
		}
		a.LimitSubscribers(2)
		for range 2 {
			if _, err := join("a", 1, []byte("x")); err != nil {
				t.Error(err)
			}
		}
		_, err = join("a", 1, []byte("x"))
		refused("a third subscriber", err, codes.ResourceExhausted, "there are 2")
	})
}

func TestHintsNeedCertificate(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
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
		c.start("a", tso.ServerConfig{Credentials: must(tso.TLSFiles{Cert: ca.path("a.crt"), Key: ca.path("a.key"), CA: ca.path("ca.crt")}.Server())})
		synctest.Wait()
		good := tso.TLSFiles{Cert: ca.path("client.crt"), Key: ca.path("client.key"), CA: ca.path("ca.crt"), ServerName: "a"}
		stranger := good
		stranger.Cert, stranger.Key = ca.path("stranger.crt"), ca.path("stranger.key")
		mine := c.client(tso.ClientConfig{Credentials: must(good.Client())}, "a")
		s := subscribe(t, mine, "x")
		for name, creds := range map[string]credentials.TransportCredentials{"stranger": must(stranger.Client()), "plain text": nil} {
			bad := c.client(tso.ClientConfig{Credentials: creds, Timeout: time.Second}, "a")
			theirs := subscribe(t, bad, "x")
			bad.PublishHints(hints("x", 5)...)
			advance(10 * time.Second)
			if st := bad.Stats(); st.HintsSent != 0 || st.HintsDropped != 5 || st.Subscriptions != 0 {
				t.Errorf("%s: %+v", name, st)
			}
			if theirs.count() != 0 {
				t.Errorf("%s got a hint", name)
			}
		}
		mine.PublishHints(hints("x", 1)...)
		advance(time.Second)
		wantOnce(t, hints("x", 1), s)
	})
}

// TestHintsAfterKill: the leading process is killed.
func TestHintsAfterKill(t *testing.T) {
	const length = 300 * time.Millisecond
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := newEmulatorOn(t, lis)
	e.createTable("percolator", "tso")
	e.setMode(tso.ModeServed)
	a := newProcess(t, e, "a", length)
	first := newClient(t, tso.ClientConfig{Addresses: []string{a.address}, Timeout: 30 * time.Second})
	if _, err := first.Timestamp(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := newProcess(t, e, "b", length)
	both := tso.ClientConfig{Addresses: []string{a.address, b.address}, Timeout: 30 * time.Second}
	subscribing, publisher := newClient(t, both), newClient(t, both)
	ctx, cancel := context.WithCancel(t.Context())
	got, ended := make(chan tso.Hint, 10), make(chan error, 1)
	go func() { ended <- subscribing.SubscribeHints(ctx, []string{"x"}, func(h tso.Hint) { got <- h }) }()
	// Until a hint arrives nobody may have subscribed.
	arrives := func(key string) {
		t.Helper()
		retry := time.NewTicker(20 * time.Millisecond)
		defer retry.Stop()
		end := time.After(30 * time.Second)
		for {
			publisher.PublishHints(tso.Hint{Topic: "x", Key: key})
			select {
			case h := <-got:
				if h.Key == key {
					return
				}
			case <-retry.C:
			case <-end:
				t.Fatalf("%q does not arrive: %+v, %+v", key, subscribing.Stats(), publisher.Stats())
			}
		}
	}
	arrives("before")
	a.kill()
	arrives("after")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s, err := tso.ServerStatus(t.Context(), tso.ClientConfig{Addresses: []string{b.address}}); err != nil || !s.Leading || s.Hints.Delivered == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
