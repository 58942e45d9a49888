package recovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/settled"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestCommitAndSettle: how the commit of a primary ends, of its owner and of another client that settles
// it, for each state of the primary and for requests that fail. testdata/commit.txt lists the outcome,
// the requests, and what is stored then.
func TestCommitAndSettle(t *testing.T) {
	long.RacedAtNight(t)
	const ttl = 30 * time.Minute
	unavailable, refused := status.Error(codes.Unavailable, ""), status.Error(codes.PermissionDenied, "")
	primaries := []struct {
		name string
		make func(w *world)
	}{
		{"locked", func(w *world) { w.lock("p", ttl, false) }},
		{"passable", func(w *world) { w.lock("p", ttl, true) }},
		{"passed below", func(w *world) { w.passed(committedTS - 1) }},
		{"passed", func(w *world) { w.passed(committedTS) }},
		{"passed beyond the oracle", func(w *world) { w.passed(base + 1300) }},
		{"committed", func(w *world) { w.commit("p", format.KindPut, committedTS) }},
		{"committed elsewhere", func(w *world) { w.commit("p", format.KindPut, committedTS+1) }},
		{"rolled back", func(w *world) { w.rollback("p") }},
		{"empty", func(*world) {}},
	}
	faults := []struct {
		name    string
		changes []error
		reads   []error
	}{
		{"no fault", nil, nil},
		{"answer lost", []error{errApplied}, nil},
		{"unavailable", []error{unavailable}, nil},
		{"refused", []error{refused}, nil},
		{"unavailable, then refused", []error{unavailable, refused}, nil},
		{"then refused", []error{nil, refused}, nil},
		{"answer lost, read unavailable", []error{errApplied}, []error{unavailable}},
		{"answer lost, read refused", []error{errApplied}, []error{refused}},
	}
	mutation := func(w *world, at tso.Timestamp) *bigtable.Mutation {
		m := bigtable.NewMutation()
		store.AddCommit(m, &format.Lock{Cell: cell("p"), StartTS: startTS, Kind: format.KindPut, Primary: cell("p")}, at, 0)
		return m
	}
	commit := func(owner bool) func(w *world, passable bool) string {
		return func(w *world, passable bool) string {
			p := &PrimaryCommit{Resolver: w.r, Table: w.table, Primary: cell("p"), StartTS: startTS, CommitTS: committedTS, Mutation: mutation(w, committedTS), Passable: passable}
			if owner {
				p.CommitAt = func(_ context.Context, ts tso.Timestamp) (*bigtable.Mutation, error) {
					w.Note("prepare")
					return mutation(w, ts), nil
				}
			}
			err := p.Run(w.Context())
			return fmt.Sprintf("%s at %d", errorName(err), p.CommitTS-base)
		}
	}
	callers := []struct {
		name string
		call func(w *world, passable bool) string
	}{
		{"owner", commit(true)},
		{"another", commit(false)},
		{"settle", func(w *world, _ bool) string {
			s, err := Settle(w.Context(), w.r, &format.UndeterminedError{Primary: cell("p"), StartTS: startTS, CommitTS: committedTS})
			return fmt.Sprintf("%v %d %s, newest %d", s.State, max(s.CommitTS-base, 0), errorName(err), max(w.r.Clock.Newest()-base, 0))
		}},
		{"roll back", func(w *world, _ bool) string {
			done, err := (&PrimaryCommit{Resolver: w.r, Table: w.table, Primary: cell("p"), StartTS: startTS}).RollBack(w.Context())
			return fmt.Sprintf("%t %s", done, errorName(err))
		}},
	}
	g := worldtest.NewGolden(t, "commit.txt", *update)
	for _, p := range primaries {
		t.Run(p.name, func(t *testing.T) {
			passed := strings.HasPrefix(p.name, "pass")
			var lines []string
			for _, safePoint := range []tso.Timestamp{0, startTS} {
				for _, f := range faults {
					for _, c := range callers {
						if safePoint != 0 && len(f.changes) > 1 || c.name == "another" && !passed || c.name == "roll back" && f.reads != nil {
							continue
						}
						newWorld(t, Config{TokenTTL: -1, PassLocks: true}, safePoint, func(w *world) {
							p.make(w)
							for kind, errs := range map[string][]error{"change": f.changes, "read": f.reads} {
								w.Faults[kind] = append([]error{}, errs...)
							}
							lines = append(lines, fmt.Sprintf("safe point %d, %s, %s: %s; %s", max(safePoint-base, 0), f.name, c.name, c.call(w, passed), w.did()))
							clear(w.Faults) // the primary decides how many requests there are
						})
					}
				}
			}
			g.Compare(t, p.name, lines)
		})
	}
}

// TestPassedCommitDoesNotWait: a commit whose minimum was raised is sent again at once.
func TestPassedCommitDoesNotWait(t *testing.T) {
	newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
		w.passed(committedTS)
		p := &PrimaryCommit{Resolver: w.r, Table: w.table, Primary: cell("p"), StartTS: startTS, CommitTS: committedTS, Mutation: bigtable.NewMutation(), Passable: true}
		p.Mutation.Set("f", "q", 0, nil)
		p.CommitAt = func(context.Context, tso.Timestamp) (*bigtable.Mutation, error) { return p.Mutation, nil }
		began := time.Now()
		w.Must(p.Run(w.Context()))
		if took := time.Since(began); took != 0 || p.CommitTS <= committedTS {
			t.Errorf("committed at %d after %v", p.CommitTS, took)
		}
	})
}

// TestSettledClaims: what Settle finds out counts for the client's claims: a rollback at once, a commit
// not, because other clients roll its rows forward.
func TestSettledClaims(t *testing.T) {
	for _, state := range []format.State{format.StateCommitted, format.StateRolledBack} {
		newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
			if state == format.StateCommitted {
				w.commit("p", format.KindPut, committedTS)
			} else {
				w.rollback("p")
			}
			w.r.Claims = settled.NewClaims()
			commit, number := w.r.Claims.Begin(startTS, 2)
			commit.Unknown()
			if _, err := Settle(w.Context(), w.r, &format.UndeterminedError{Primary: cell("p"), StartTS: startTS, CommitTS: committedTS}); err != nil {
				t.Error(err)
			}
			got, ts := w.r.Claims.Next(0)
			if state == format.StateRolledBack && (got != number || ts != startTS) || state == format.StateCommitted && got != 0 {
				t.Errorf("%v: claims up to %d of %d, began as %d", state, ts, got, number)
			}
		})
	}
}

// passed stores a primary lock whose minimum a reader has raised.
func (w *world) passed(minCommit tso.Timestamp) {
	l := w.lock("p", 30*time.Minute, true)
	l.MinCommitTS = minCommit
	w.Set("a", "p", format.LockFamily, "f:q", startTS.Cell(), format.EncodeLock(l))
}

// TestCommitEndsWithItsContext: a commit, a rollback and a settlement whose requests are not answered
// end with their context, and say what they know.
func TestCommitEndsWithItsContext(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "no server")
	for name, call := range map[string]func(context.Context, *world) error{
		"commit": func(ctx context.Context, w *world) error {
			return (&PrimaryCommit{Resolver: w.r, Table: w.table, Primary: cell("p"), StartTS: startTS, CommitTS: committedTS, Mutation: bigtable.NewMutation()}).Run(ctx)
		},
		"roll back": func(ctx context.Context, w *world) error {
			done, err := (&PrimaryCommit{Resolver: w.r, Table: w.table, Primary: cell("p"), StartTS: startTS}).RollBack(ctx)
			if done {
				t.Error("rolled back without a request")
			}
			return err
		},
		"cell": func(ctx context.Context, w *world) error {
			return w.r.ResolveCell(ctx, &format.Lock{Cell: cell("s"), StartTS: startTS, Primary: cell("p")}, Outcome{Status: format.Status{State: format.StateRolledBack}})
		},
		"wait": func(ctx context.Context, w *world) error {
			_, err := w.r.FindOutcome(ctx, &format.Lock{Cell: cell("s"), StartTS: startTS, Primary: cell("p")}, committedTS, true, WaitNever)
			return err
		},
	} {
		newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
			ctx, cancel := context.WithCancel(w.Context())
			defer cancel()
			for _, kind := range []string{"change", "read"} {
				w.Faults[kind] = []error{unavailable, unavailable, unavailable, unavailable}
			}
			w.OnRequest = func(n int) {
				if n == 3 {
					cancel()
				}
			}
			err := call(ctx, w)
			var u *format.UndeterminedError
			if !errors.Is(err, context.Canceled) || errors.As(err, &u) != (name == "commit") {
				t.Errorf("%s: %v", name, err)
			}
			if len(w.Requests) != 3 {
				t.Errorf("%s: requests %v", name, w.Requests)
			}
			clear(w.Faults)
		})
	}
}

// TestSettleRefuses: an error that names no transaction, or a cell that cannot be a primary.
func TestSettleRefuses(t *testing.T) {
	newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
		for _, u := range []*format.UndeterminedError{
			nil, {Primary: cell("p"), CommitTS: 1}, {Primary: cell("p"), StartTS: 5, CommitTS: 5}, {StartTS: 5, CommitTS: 6},
		} {
			if s, err := Settle(w.Context(), w.r, u); !errors.Is(err, format.ErrInvalid) || s.Final() || len(w.Requests) != 0 {
				t.Errorf("%+v: %v, %v, after %v", u, s, err, w.Requests)
			}
		}
		missing := &format.UndeterminedError{Primary: format.Cell{Table: "none", Row: "p", Family: "f", Qualifier: "q"}, StartTS: 1, CommitTS: 2}
		var u *format.UndeterminedError
		if _, err := Settle(w.Context(), w.r, missing); !errors.As(err, &u) || u.Primary != missing.Primary || u.StartTS != 1 || u.CommitTS != 2 || !errors.Is(err, format.ErrNotInitialized) {
			t.Errorf("a table without a record: %v", err)
		}
		w.r.BeginClose()
		if _, err := Settle(w.Context(), w.r, missing); !errors.Is(err, format.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestNewCommitTSFails: an owner whose lock a reader has passed needs a new commit_ts. Without one, the
// outcome is unknown.
func TestNewCommitTSFails(t *testing.T) {
	stop := errors.New("stop")
	for what, want := range map[string]error{"oracle": stop, "prepare": stop, "safe point": format.ErrTooOld} {
		newWorld(t, Config{TokenTTL: -1, PassLocks: true}, map[string]tso.Timestamp{"safe point": startTS}[what], func(w *world) {
			w.passed(committedTS)
			if what == "oracle" {
				w.Faults[what] = []error{stop}
			}
			p := &PrimaryCommit{Resolver: w.r, Table: w.table, Primary: cell("p"), StartTS: startTS, CommitTS: committedTS, Mutation: bigtable.NewMutation(), Passable: true,
				CommitAt: func(context.Context, tso.Timestamp) (*bigtable.Mutation, error) { return nil, stop }}
			var u *format.UndeterminedError
			if err := p.Run(w.Context()); !errors.As(err, &u) || !errors.Is(err, want) || u.CommitTS != committedTS || p.CommitTS != committedTS {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}
