package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
)

func (w *world) OpenTable(name string) bigtable.TableAPI { return &spied{w.World.OpenTable(name), w} }

type spied struct {
	bigtable.TableAPI
	w *world
}

// ApplyBulk notes what the metadata table says about this client afterwards.
func (s *spied) ApplyBulk(ctx context.Context, rows []string, ms []*bigtable.Mutation, opts ...bigtable.ApplyOption) ([]error, error) {
	w := s.w
	at := fmt.Sprint(time.Since(w.began))
	if err := w.Fault(ctx, "token", at); err != nil {
		return nil, err
	}
	errs, err := s.TableAPI.ApplyBulk(ctx, rows, ms, opts...)
	var says []string
	for _, r := range rows {
		name, _, _ := strings.Cut(r, "/")
		if name == "worker" && r != TokenRowPrefix+w.r.Token.Name {
			name = "other"
		}
		says = append(says, name)
	}
	token := w.stored(w.r.Token.Name)
	if token == nil {
		w.Note(fmt.Sprintf("= %v: no token", says))
	} else {
		w.Note(fmt.Sprintf("= %v: expires in %v, started %v, oldest %d, observers %v, schema age %d", says, time.Duration(token.ExpiresTs-int64(base))*time.Microsecond-time.Since(w.began),
			time.Duration(token.StartedTs-int64(base))*time.Microsecond, token.OldestTs, token.Observers, token.SchemaMaxAgeMicros))
	}
	return errs, err
}

// stored returns a stored token.
func (w *world) stored(name string) *recordpb.WorkerToken {
	w.Helper()
	token, ok := DecodeToken(w.Row(format.DefaultMetadataTable, TokenRowPrefix+name))
	if !ok {
		return nil
	}
	return token
}

// TestTokenOverTime: when a client writes its token, and what it says then. testdata/token.txt lists it.
func TestTokenOverTime(t *testing.T) {
	const ttl = 12 * time.Second
	var lines []string
	newWorld(t, Config{TokenTTL: ttl}, 0, func(w *world) {
		w.began = time.Now()
		token, ctx := w.r.Token, w.Context()
		step := func(what string, f func(), then time.Duration) {
			before := token.Owner()
			f()
			w.Mu.Lock()
			during := len(w.Requests)
			w.Mu.Unlock()
			<-time.After(then)
			w.Mu.Lock()
			defer w.Mu.Unlock()
			lines = append(lines, fmt.Sprintf("%v: %s; owner %t, then %t", time.Since(w.began)-then, what, before == token.Name, token.Owner() == token.Name))
			for i, r := range w.Requests {
				if i == during {
					lines = append(lines, "  later:")
				}
				lines = append(lines, "  "+r)
			}
			w.Requests = nil
		}
		nothing := func() {}
		begin := func() { token.Begin(ctx) }
		step("begin", begin, 1500*time.Millisecond)
		step("begin", begin, 59*time.Second)
		step("begin after a pause", begin, 3*time.Second)
		step("begin", begin, 2*time.Second)
		var h *Hold
		step("hold", func() { h = w.r.Holds.Add(base+5, true) }, 9*time.Second)
		step("hold on", nothing, 9*time.Second)
		step("hold no more", func() { w.r.Holds.Remove(h) }, time.Minute)
		step("a failed write", func() { w.Faults["token"] = []error{status.Error(codes.PermissionDenied, "")} }, time.Minute)
		step("announce", func() { must(t, token.Announce(ctx, []string{"o"})) }, 1300*time.Millisecond)
		step("publish", func() { w.r.Holds.Add(base+60, false); must(t, token.Publish(ctx)) }, time.Second)
		step("publish, failed", func() {
			w.Faults["token"] = []error{status.Error(codes.PermissionDenied, "")}
			if err := token.Publish(ctx); errorName(err) != "PermissionDenied" {
				t.Error(err)
			}
		}, 0)
		step("a commit of two rows", func() {
			w.r.Claims.Begin(base+10, 2)
			w.Faults["token"] = []error{status.Error(codes.PermissionDenied, "")}
		}, 13*time.Second)
		step("close", func() { token.Close(ctx) }, time.Minute)
		step("begin after close", begin, time.Minute)
		step("publish after close", func() {
			if err := token.Publish(ctx); err == nil || !strings.Contains(err.Error(), "could not write") {
				t.Error(err)
			}
		}, 0)
	})
	g := worldtest.NewGolden(t, "token.txt", *update)
	g.Compare(t, "over time", lines)
}

// TestTokenStarts: a client whose token cannot be written commits without one, and tries again after
// Config.TokenTTL, or if it runs an observer.
func TestTokenStarts(t *testing.T) {
	const ttl = 12 * time.Second
	denied := status.Error(codes.PermissionDenied, "")
	newWorld(t, Config{TokenTTL: ttl}, 0, func(w *world) {
		w.began = time.Now()
		token, ctx := w.r.Token, w.Context()
		want := func(what string, writes int, owner bool) {
			t.Helper()
			w.Mu.Lock()
			n := 0
			for _, r := range w.Requests {
				if strings.HasPrefix(r, "token") {
					n++
				}
			}
			w.Requests = nil
			w.Mu.Unlock()
			if n != writes || (token.Owner() != "") != owner {
				t.Errorf("%s: %d writes, owner %q", what, n, token.Owner())
			}
		}
		w.Faults["token"] = []error{denied, denied, denied}
		token.Begin(ctx)
		want("failed", 1, false)
		<-time.After(ttl - 1)
		token.Begin(ctx)
		want("soon", 0, false)
		<-time.After(1)
		token.Begin(ctx)
		want("again", 1, false)
		if err := token.Publish(ctx); err == nil || errors.Is(err, format.ErrInvalid) {
			t.Errorf("published: %v", err)
		}
		want("published", 0, false)
		must(t, token.Announce(ctx, nil))
		want("announced", 1, false)
		w.Faults["oracle"] = []error{denied}
		if err := token.Publish(ctx); errorName(err) != "ok" && !strings.Contains(err.Error(), "could not write") {
			t.Error(err)
		}
		clear(w.Faults)
		must(t, token.Announce(ctx, nil))
		want("announced again", 1, true)
		token.Close(ctx)
	})
	newWorld(t, Config{TokenTTL: ttl}, 0, func(w *world) {
		w.began = time.Now()
		w.Faults["oracle"] = []error{denied}
		w.r.Token.Begin(w.Context())
		if w.r.Token.Owner() != "" || !slices.Equal(w.Requests, []string{"oracle"}) {
			t.Errorf("without the oracle: %v", w.Requests)
		}
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		if err := w.r.Token.Publish(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("publish with an ended context: %v", err)
		}
		w.r.Token.Close(w.Context()) // it never began
		if len(w.Requests) > 2 {
			t.Errorf("close: %v", w.Requests)
		}
	})
	newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
		w.r.Token.Begin(w.Context())
		if err := w.r.Token.Publish(w.Context()); !errors.Is(err, format.ErrInvalid) || w.r.Token.Owner() != "" || w.r.Token.Name != "" || w.r.Claims != nil || len(w.Requests) != 0 {
			t.Errorf("without tokens: %v, %v", err, w.Requests)
		}
		w.r.Token.Close(w.Context())
	})
}

// TestDeadTokens: a client that writes its first token removes those that were stale an hour ago.
func TestDeadTokens(t *testing.T) {
	newWorld(t, Config{TokenTTL: 12 * time.Second}, 0, func(w *world) {
		w.began = time.Now().Add(-2 * time.Hour)
		now := base + tso.Timestamp(2*time.Hour/time.Microsecond)
		hour := tso.Timestamp(time.Hour / time.Microsecond)
		for name, expires := range map[string]tso.Timestamp{"dead": now - hour - 1, "old": now - hour, "live": now + 1} {
			w.Set(format.DefaultMetadataTable, TokenRowPrefix+name, store.DeployFamily, TokenQualifier, 0, format.Marshal(&recordpb.WorkerToken{FormatVersion: format.Version, ExpiresTs: int64(expires)}))
		}
		w.Set(format.DefaultMetadataTable, TokenRowPrefix+"damaged", store.DeployFamily, TokenQualifier, 0, []byte{255})
		w.r.Token.Begin(w.Context())
		w.After(time.Second)
		var left []string
		must(t, w.Client.Open(format.DefaultMetadataTable).ReadRows(w.Context(), bigtable.PrefixRange(TokenRowPrefix), func(r bigtable.Row) bool {
			left = append(left, strings.TrimPrefix(r.Key(), TokenRowPrefix))
			return true
		}))
		left = slices.DeleteFunc(left, func(name string) bool { return name == w.r.Token.Name })
		if !slices.Equal(left, []string{"damaged", "live", "old"}) {
			t.Errorf("left are %v", left)
		}
		w.r.Token.Close(w.Context())
	})
}

// TestOwnerIsDead: the owner of a lock is dead if its token is stale, or was removed. A client reads a
// fresh token once, and one that it cannot read proves nothing.
func TestOwnerIsDead(t *testing.T) {
	newWorld(t, Config{TokenTTL: time.Hour}, 0, func(w *world) {
		token := w.r.Token
		record := func(expires tso.Timestamp, version uint32) []byte {
			m := &recordpb.WorkerToken{ExpiresTs: int64(expires), FormatVersion: version}
			b, err := proto.Marshal(m)
			must(t, err)
			return b
		}
		for name, value := range map[string][]byte{"fresh": record(base+100, format.Version), "damaged": {255}, "newer": record(base+100, format.Version+1)} {
			w.Set(format.DefaultMetadataTable, TokenRowPrefix+name, store.DeployFamily, TokenQualifier, 0, value)
		}
		w.Faults["read token"] = []error{nil, nil, nil, nil, nil, nil, status.Error(codes.Unavailable, "")}
		for _, tt := range []struct {
			owner string
			now   tso.Timestamp
			want  bool
			reads int
		}{
			{"", 500, false, 0}, {token.Name, 500, false, 0}, {"removed", 50, true, 1}, {"removed", 50, true, 1},
			{"fresh", 99, false, 1}, {"fresh", 99, false, 0}, {"fresh", 100, true, 1}, {"damaged", 500, false, 1}, {"newer", 500, false, 1},
			{"fresh", 500, false, 1}, // the read fails
			{"fresh", 500, true, 1},
		} {
			w.Requests = nil
			if got := token.isDead(w.Context(), tt.owner, base+tt.now); got != tt.want || len(w.Requests) != tt.reads {
				t.Errorf("%q at %d: %t, after %v", tt.owner, tt.now, got, w.Requests)
			}
		}
		for n, want := range map[int]int{outcomeCacheSize - 1: outcomeCacheSize, outcomeCacheSize: 1} { // it remembers so many
			clear(token.expiries)
			for i := range n {
				token.expiries[fmt.Sprint(i)] = base + 1000
			}
			if token.isDead(w.Context(), "fresh", base+99) || len(token.expiries) != want {
				t.Errorf("%d tokens are remembered, after %d", len(token.expiries), n)
			}
		}
		// A lock whose owner is dead is rolled back before it expires.
		l := w.lock("p", 30*time.Minute, false)
		l.Owner = "removed"
		o, err := w.r.ResolveForWrite(w.Context(), l, base+1200, func() {})
		if err != nil || o.State != format.StateRolledBack {
			t.Errorf("the lock of a dead owner: %v, %v", o, err)
		}
	})
}

// TestHoldsAnnounce: a client that has held a timestamp for a third of the age of a safe point writes its
// token, without a commit.
func TestHoldsAnnounce(t *testing.T) {
	newWorld(t, Config{TokenTTL: 12 * time.Second}, 0, func(w *world) {
		w.began = time.Now()
		written := func(want bool) {
			t.Helper()
			w.r.Holds.Announce(w.Context(), w.r.Token)
			if (w.r.Token.Owner() != "") != want {
				t.Errorf("after %v: written %t", time.Since(w.began), !want)
			}
		}
		written(false)
		w.r.Holds.Add(base, true)
		<-time.After(gctime.SafePointMaxAge()/3 - 1)
		written(false)
		<-time.After(1)
		written(true)
		w.r.Token.Close(w.Context())
	})
}
