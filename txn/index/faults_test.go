package index_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A refusal answers one request of a client with an error instead of sending it.
type refusal struct {
	mu    sync.Mutex
	armed bool
	left  int // requests before it
	sent  int
	step  txntest.Step
	row   string
	code  codes.Code
}

func (r *refusal) see(call txntest.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.armed {
		return nil
	}
	r.sent++
	if r.left--; r.left != 0 {
		return nil
	}
	r.step, r.row = call.Step, call.Row
	return status.Error(r.code, "injected")
}

func (r *refusal) arm(armed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = armed
}

// TestFailuresAtEachRequest: each request of an operation fails once. If Bigtable refuses it, the operation
// says so, and may be called again. If the failure passes, the operation does the same as without it.
func TestFailuresAtEachRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	built := []string{"email", "place"}
	for i, op := range []struct {
		name string
		// ready are the indexes that are built before.
		ready []string
		// waits: the client also renews the safe point and the oracle's lease meanwhile, which
		// matters only if it fails again.
		waits bool
		call  func(context.Context, *index.Indexes, *txn.Client) (string, error)
	}{
		{"create", nil, true, func(ctx context.Context, x *index.Indexes, c *txn.Client) (string, error) {
			return "", x.Create(ctx, c, "email", nil)
		}},
		{"drop", built, true, func(ctx context.Context, x *index.Indexes, c *txn.Client) (string, error) {
			return "", x.Drop(ctx, c, "email")
		}},
		{"write", built, false, func(ctx context.Context, _ *index.Indexes, c *txn.Client) (string, error) {
			return "", set(ctx, c, "1", map[txn.Column]string{email: "new", city: "Basel"})
		}},
		{"write with another key", built, false, func(ctx context.Context, _ *index.Indexes, c *txn.Client) (string, error) {
			return "", set(ctx, c, "7", map[txn.Column]string{email: "7"})
		}},
		{"get", built, false, func(ctx context.Context, x *index.Indexes, c *txn.Client) (string, error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return "", err
			}
			row, ok, err := x.At(s).Get(ctx, "email", "1")
			return fmt.Sprint(row, ok), err
		}},
		{"get in a transaction", built, false, func(ctx context.Context, x *index.Indexes, c *txn.Client) (all string, err error) {
			_, err = c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
				row, ok, err := x.In(tx).Get(ctx, "email", "2")
				all = fmt.Sprint(row, ok)
				tx.Table("users").Set("9", "f", "other", []byte(all))
				return err
			}, txn.Serializable())
			return all, err
		}},
		{"scan", built, false, func(ctx context.Context, x *index.Indexes, c *txn.Client) (all string, err error) {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return "", err
			}
			for e, err := range x.At(s).Scan(ctx, "place", index.Query{}) {
				if err != nil {
					return "", err
				}
				all += fmt.Sprint(e.Key, e.Row, " ")
			}
			return all, nil
		}},
		{"page", built, false, func(ctx context.Context, x *index.Indexes, c *txn.Client) (string, error) {
			first, next, err := x.Page(ctx, c, "email", index.Query{}, 2, "")
			if err != nil {
				return "", err
			}
			second, next, err := x.Page(ctx, c, "email", index.Query{}, 2, next)
			return fmt.Sprint(first, second, next == ""), err
		}},
		{"verify", built, false, func(ctx context.Context, x *index.Indexes, c *txn.Client) (string, error) {
			problems := 0
			err := x.Verify(ctx, c, "place", func(index.Problem) { problems++ })
			return fmt.Sprint(problems), err
		}},
		{"state and progress", built, false, func(ctx context.Context, x *index.Indexes, c *txn.Client) (string, error) {
			s, err := x.State(ctx, c, "email")
			if err != nil {
				return "", err
			}
			p, err := x.Progress(ctx, c, "email")
			return fmt.Sprint(s, p), err
		}},
	} {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			type outcome struct {
				result string
				err    error
				rows   string
			}
			run := func(t *testing.T, r *refusal, again bool) (o outcome) {
				env, x, c := newEnv(t)
				create(t, x, c, op.ready...)
				for i := range 4 {
					mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i), city: "Bern", name: fmt.Sprint("n", i), words: "a b"})
				}
				synctest.Wait()                  // secondaries
				x = newIndexes(t, declared()...) // which has read no states
				// It reads schemas again only for commits, and not in the background.
				cfg := txn.Config{TokenTTL: -1, SyncSecondaries: true, SchemaMaxAge: time.Hour}
				c = keeping(env, x, cfg, txntest.Intercept(r.see)...)
				r.arm(true)
				o.result, o.err = op.call(t.Context(), x, c)
				r.arm(false)
				if again && o.err != nil {
					pause(t.Context(), time.Minute) // locks of the call expire
					if result, err := op.call(t.Context(), x, c); err != nil {
						t.Errorf("again: %v", err)
					} else {
						o.result = result
					}
				}
				for _, table := range []string{"users", "indexes"} {
					for row, err := range snapshot(t, env.Client).Table(table).ReadRows(t.Context(), nil) {
						if err != nil {
							t.Fatal(err)
						}
						for _, items := range row {
							for _, i := range items {
								v := string(i.Value)
								if strings.HasPrefix(i.Row, "!") {
									v = "…"
								}
								o.rows += fmt.Sprintf("%q %s=%s\n", i.Row, i.Column, v)
							}
						}
					}
				}
				for _, name := range op.ready {
					if s, err := x.State(t.Context(), c, name); err == nil && s == index.Ready {
						wantCorrect(t, x, c, name)
					}
				}
				return o
			}
			var undisturbed outcome
			all := &refusal{}
			synctest.Test(t, func(t *testing.T) { undisturbed = run(t, all, false) })
			if undisturbed.err != nil || all.sent < 3 {
				t.Fatalf("%d requests: %v", all.sent, undisturbed.err)
			}
			for at := 1; at <= all.sent; at++ {
				for _, code := range []codes.Code{codes.PermissionDenied, codes.Unavailable} {
					if (op.waits || long.Reduced()) && ((at+i)%2 == 0) == (code == codes.Unavailable) {
						continue // half of them
					}
					r := &refusal{left: at, code: code}
					synctest.Test(t, func(t *testing.T) {
						got := run(t, r, true)
						switch {
						case r.left > 0:
							t.Errorf("request %d was not sent", at)
						case got.result != undisturbed.result || got.rows != undisturbed.rows:
							t.Errorf("request %d (%s %q), %v: %v\n%s\n%swant %s\n%s", at, r.step, r.row, code, got.err, got.result, got.rows, undisturbed.result, undisturbed.rows)
						case code == codes.Unavailable && got.err != nil:
							t.Errorf("request %d (%s %q): %v", at, r.step, r.row, got.err)
						case r.step == txntest.StepSecondaries || op.waits && (r.step == txntest.StepSafePoint || r.step == txntest.StepOracle):
						case code == codes.PermissionDenied && status.Code(got.err) != code:
							t.Errorf("request %d (%s %q) was refused, and the error is %v", at, r.step, r.row, got.err)
						}
					})
				}
			}
		})
	}
}
