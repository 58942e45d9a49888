package server_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestHintsAfterKill: the leading process is killed.
func TestHintsAfterKill(t *testing.T) {
	long.RacedAtNight(t)
	const length = 300 * time.Millisecond
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := tsotest.NewEmulatorOn(t, lis)
	e.CreateTable("percolator", "tso")
	e.SetMode(tso.ModeServed)
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
	// Until a hint arrives, the subscription may not be open.
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
	// On a busy machine b loses its lease now and then, and leads again.
	s, err := tso.ServerStatus(t.Context(), tso.ClientConfig{Addresses: []string{b.address}})
	for err == nil && !s.Leading && t.Context().Err() == nil {
		<-time.After(10 * time.Millisecond)
		s, err = tso.ServerStatus(t.Context(), tso.ClientConfig{Addresses: []string{b.address}})
	}
	if err != nil || !s.Leading || s.Hints.Delivered == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func newClient(t *testing.T, cfg tso.ClientConfig) *tso.Client {
	t.Helper()
	c, err := tso.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
