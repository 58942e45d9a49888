package recovery

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// TestTokenIsDue: a client is idle a third of the TTL after its last commit began, unless a transaction
// is open. It writes its token at each third of the TTL while one is open, if the last write failed, or
// if the token contains an old hold. Else it does so after half of the TTL, or after idleRenewal if the
// token is an idle client's.
func TestTokenIsDue(t *testing.T) {
	const ttl = 12 * time.Second
	for _, tt := range []struct {
		name                      string
		used, renewed             time.Duration // how long ago
		open, failed, holds, long bool
		idle, due                 bool
	}{
		{name: "a commit just began", renewed: ttl/2 - 1},
		{name: "a commit began a while ago", used: ttl/3 - 1, renewed: ttl/3 - 1},
		{name: "it becomes idle", used: ttl / 3, renewed: ttl / 3, idle: true},
		{name: "idle, with a transaction", used: ttl, open: true, due: true},
		{name: "renewed half of the TTL ago", renewed: ttl / 2, due: true},
		{name: "failed", failed: true, due: true},
		{name: "an old hold", holds: true, due: true},
		{name: "long, renewed half of the TTL ago", used: ttl, renewed: ttl / 2, long: true, idle: true},
		{name: "long, soon", used: ttl, renewed: idleRenewal - 1, long: true, idle: true},
		{name: "long", used: ttl, renewed: idleRenewal, long: true, idle: true, due: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &Resolver{Config: Config{TokenTTL: ttl}, Holds: newHolds()}
			if tt.open {
				r.Holds.Add(1, true)
			}
			token := &Token{resolver: r, used: time.Now().Add(-tt.used), renewed: time.Now().Add(-tt.renewed), failed: tt.failed, holds: tt.holds, long: tt.long}
			if idle, due := token.idle(), token.due(); idle != tt.idle || due != tt.due {
				t.Errorf("%s: idle %t, due %t; want %t, %t", tt.name, idle, due, tt.idle, tt.due)
			}
		})
	}
}

// A bulkTable answers each ApplyBulk with err.
type bulkTable struct {
	bigtable.TableAPI
	err error
}

func (b *bulkTable) OpenTable(string) bigtable.TableAPI { return b }

func (b *bulkTable) ApplyBulk(context.Context, []string, []*bigtable.Mutation, ...bigtable.ApplyOption) ([]error, error) {
	return nil, b.err
}

// TestTokenNotesItsWrites: a client remembers when it last wrote its token, whether that failed, and
// what the token says: that the client was idle, or holds back garbage collection for long.
func TestTokenNotesItsWrites(t *testing.T) {
	const ttl = 12 * time.Second
	refused := errors.New("refused")
	for _, tt := range []struct {
		name       string
		hold       time.Duration // how long ago it began; -1: none
		used       time.Duration
		err        error
		long, held bool
	}{
		{name: "busy", hold: -1},
		{name: "idle", hold: -1, used: ttl / 3, long: true},
		{name: "young hold", hold: ttl, used: ttl},
		{name: "old hold", hold: ttl + 1, used: ttl, held: true},
		{name: "failed", hold: ttl + 1, err: refused},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &bulkTable{err: tt.err}
			s, err := store.NewRequests(api, store.Config{})
			if err != nil {
				t.Fatal(err)
			}
			s.Metadata = s.NewTable("metadata")
			r := New(s, Config{TokenTTL: ttl})
			if tt.hold >= 0 {
				r.Holds.Add(1, false).begun = time.Now().Add(-tt.hold)
			}
			token := r.Token
			token.used = time.Now().Add(-tt.used)
			err = token.write(t.Context(), 1000)
			if (err != nil) != (tt.err != nil) || token.failed != (tt.err != nil) || token.long != tt.long || token.holds != tt.held || !token.renewed.Equal(time.Now()) {
				t.Errorf("%s: %v; failed %t, idle %t, an old hold %t, at %v", tt.name, err, token.failed, token.long, token.holds, token.renewed)
			}
		})
	}
}
