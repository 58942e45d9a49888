package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// places refuses requests by the place in the code that sends them: the first request of each place, one
// in each call. A place is all lines of the packages on the stack, so what two functions share is two.
type places struct {
	t        *testing.T
	packages []string // in the module
	tolerate func(functions string, c txntest.Call) bool

	mu      sync.Mutex
	refused map[string]bool
	last    string // that this call was refused
	on      bool
}

func (p *places) match(c txntest.Call) bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	place, functions := "", ""
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		for _, name := range p.packages {
			if strings.HasPrefix(f.Function, "github.com/percolator-bigtable/percolator/"+name+".") {
				place = fmt.Sprintf("%s:%d > ", path.Base(f.File), f.Line) + place
				functions += f.Function
			}
		}
	}
	if place == "" { // another goroutine sends it
		place = string(c.Step) + " "
	}
	place += c.Method
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on || p.last != "" || p.refused[place] || p.tolerate(functions, c) {
		return false
	}
	p.last, p.refused[place] = place, true
	return true
}

// client returns a client whose requests, and whose questions to the oracle, p may refuse.
func (p *places) client(env *txntest.Env) *txn.Client {
	oracle := tso.NewDirect(env.Bigtable.OpenTable(format.DefaultMetadataTable), tso.DirectConfig{})
	p.t.Cleanup(func() { _ = oracle.Close() })
	return env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Second, Oracle: placedOracle{oracle, p}}, refuse(p.match)...)
}

type placedOracle struct {
	tso.Oracle
	*places
}

func (o placedOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if o.match(txntest.Call{Method: "Timestamp"}) {
		return 0, status.Error(codes.PermissionDenied, "injected: refused")
	}
	return o.Oracle.Timestamp(ctx)
}

// each calls f until no place is left. f must report each refusal.
func (p *places) each(t *testing.T, f func() error) {
	t.Helper()
	for {
		p.mu.Lock()
		p.on, p.last = true, ""
		p.mu.Unlock()
		err := f()
		p.mu.Lock()
		p.on = false
		place := p.last
		p.mu.Unlock()
		switch {
		case place == "" && err == nil:
			return
		case place == "":
			t.Fatalf("nothing was refused: %v", err)
		case status.Code(err) != codes.PermissionDenied:
			t.Errorf("%s was refused, and the call returned %v", place, err)
		}
	}
}

// TestCollectionRefusedAtEachPlace: a collector reports each request that is refused, in each phase of a run.
func TestCollectionRefusedAtEachPlace(t *testing.T) {
	long.Test(t, "TestCollectionRefusedAtEveryRequest refuses some of these, too")
	long.NotUnderRace(t, "one fault after the other")
	for name, tt := range map[string]struct {
		env  func(*testing.T) *txntest.Env
		call func(context.Context, *txn.Client) (*gc.Report, error)
		want int // places, at least
	}{
		"all rows": {func(t *testing.T) *txntest.Env {
			env := newGCEnv(t)
			stranded(t, env)
			return env
		}, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			return gc.Run(ctx, c, gc.Config{Retention: retention})
		}, 30},
		"all rows, slowly": {func(t *testing.T) *txntest.Env { // schemas get old meanwhile
			env := newGCEnv(t)
			stranded(t, env)
			return env
		}, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			return gc.Run(ctx, c, gc.Config{Retention: retention, Rate: 1})
		}, 30},
		"changes": {func(t *testing.T) *txntest.Env {
			env := changesEnv(t)
			writer := env.NewClient(txn.Config{})
			mustSet(t, writer, "1", "bob", "joe")
			mustSet(t, writer, "2", "bob", "joe")
			advance(retention + time.Minute)
			return env
		}, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			return gc.Run(ctx, c, gc.Config{Retention: retention, FullEvery: 24 * time.Hour})
		}, 20},
		"plan": {func(t *testing.T) *txntest.Env {
			env := newGCEnv(t)
			stranded(t, env)
			return env
		}, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			return gc.Plan(ctx, c, gc.Config{Retention: retention})
		}, 5},
		"status": {newGCEnv, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			_, err := gc.ReadStatus(ctx, c)
			return &gc.Report{Finished: err == nil}, err
		}, 4},
		"exclusion": {newGCEnv, func(ctx context.Context, c *txn.Client) (*gc.Report, error) {
			_, release, err := gc.Exclude(ctx, c)
			if err == nil {
				release()
			}
			return &gc.Report{Finished: err == nil}, err
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &places{t: t, packages: []string{"txn/gc"}, refused: map[string]bool{}, tolerate: func(functions string, c txntest.Call) bool {
					// What is tried again later, or what a collection does without.
					return strings.Contains(functions, "lease).re") || functions == "" && c.Step != txntest.StepCollect && c.Step != txntest.StepCollectRow ||
						c.Method == "SampleRowKeys" || strings.HasPrefix(c.Row, "families/")
				}}
				env := tt.env(t)
				c := p.client(env)
				p.each(t, func() error {
					advance(time.Minute) // until the client reads the safe point again
					r, err := tt.call(t.Context(), c)
					if (err == nil) != (r != nil && r.Finished) {
						t.Errorf("%+v, %v", r, err)
					}
					return err
				})
				if len(p.refused) < tt.want {
					t.Errorf("%d places, want %d", len(p.refused), tt.want)
				}
			})
		})
	}
}

// first returns the first error of a sequence.
func first[T any](all iter.Seq2[T, error]) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestChangesRefusedAtEachPlace: functions about notifications report each request that is refused.
func TestChangesRefusedAtEachPlace(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		cell := txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "a", cell.Column(), "o", false); err != nil {
			t.Fatal(err)
		}
		mustSet(t, env.Client, "1", "bob")
		letter := changes.DeadLetter{Cell: cell, Observer: "o", Error: "x"}
		index := changes.Index{Name: "i", Columns: []txn.Column{cell.Column()}, Entries: "scratch/f"}
		counter := notify.Counter{Table: "a", Family: "f", Qualifier: "n"}
		asOf, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		in := func(ctx context.Context, c *txn.Client, f func(context.Context, *txn.Txn) error) error {
			tx, err := c.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			return f(ctx, tx)
		}
		for name, call := range map[string]func(context.Context, *txn.Client) error{
			"Notify": func(ctx context.Context, c *txn.Client) error { return changes.Notify(ctx, c, cell) },
			"ClearNotifications": func(ctx context.Context, c *txn.Client) error {
				return changes.ClearNotifications(ctx, c, changes.Cleared{Cell: cell, UpTo: 1, ChangeTS: 1})
			},
			"RegisterObserver": func(ctx context.Context, c *txn.Client) error {
				if err := changes.RegisterObserver(ctx, c, "a", cell.Column(), "p", false); err != nil {
					return err
				}
				_, err := changes.UnregisterObserver(ctx, c, "a", "p")
				return err
			},
			"RegisterIndex": func(ctx context.Context, c *txn.Client) error {
				if err := changes.RegisterIndex(ctx, c, "a", index); err != nil {
					return err
				}
				if _, err := changes.Indexes(ctx, c, "a"); err != nil {
					return err
				}
				return changes.UnregisterIndex(ctx, c, "a", index)
			},
			"ObservedColumns": func(ctx context.Context, c *txn.Client) error {
				_, err := changes.ObservedColumns(ctx, c, "a")
				return err
			},
			"Indexes":   func(ctx context.Context, c *txn.Client) error { _, err := changes.Indexes(ctx, c, "a"); return err },
			"Journaled": func(ctx context.Context, c *txn.Client) error { _, err := changes.Journaled(ctx, c, "a"); return err },
			"dead letters": func(ctx context.Context, c *txn.Client) error {
				if err := changes.Park(ctx, c, letter); err != nil {
					return err
				}
				var d changes.DeadLetter
				for found, err := range changes.DeadLetters(ctx, c) {
					if d = found; err != nil {
						return err
					}
				}
				return errors.Join(changes.Replay(ctx, c, d), changes.Drop(ctx, c, d))
			},
			"SetFailure": func(ctx context.Context, c *txn.Client) error {
				return changes.SetFailure(ctx, c, cell, "o", format.Failure{LastTS: asOf})
			},
			"Observe": func(ctx context.Context, c *txn.Client) error {
				return in(ctx, c, func(ctx context.Context, tx *txn.Txn) error {
					o, err := changes.Observe(ctx, tx, cell)
					if err != nil {
						return err
					}
					o.Acks["o"] = o.StartTS
					_, _, err = changes.Previous(ctx, tx, o, "o")
					return err
				})
			},
			"Observations": func(ctx context.Context, c *txn.Client) error { return first(changes.Observations(ctx, c, "a", nil)) },
			"FindUnfinished": func(ctx context.Context, c *txn.Client) error {
				return first(changes.FindUnfinished(ctx, c, "a", nil, asOf, true))
			},
			"Notifications": func(ctx context.Context, c *txn.Client) error { return first(changes.Notifications(ctx, c, "a", nil)) },
			"Sweep":         func(ctx context.Context, c *txn.Client) error { return first(changes.Sweep(ctx, c, "a", nil)) },
			"Pending": func(ctx context.Context, c *txn.Client) error {
				return first(changes.Pending(ctx, c, []string{"a"}, changes.Part{Of: 1}))
			},
			"SweepPositions": func(ctx context.Context, c *txn.Client) error {
				all, err := changes.SweepPositions(ctx, c, nil, "a")
				if err == nil {
					_, _, err = changes.MoveSweep(ctx, c, all[0], "", false, time.Minute)
				}
				return err
			},
			"SampleRowKeys": func(ctx context.Context, c *txn.Client) error {
				_, err := changes.SampleRowKeys(ctx, c, "a")
				return err
			},
			"Enter": func(ctx context.Context, c *txn.Client) error {
				if err := changes.Enter(ctx, c, asOf, cell); err != nil {
					return err
				}
				_, err := changes.EnteredRows(ctx, c, "a")
				return err
			},
			"Backfill": func(ctx context.Context, c *txn.Client) error {
				_, err := notify.Backfill(ctx, c, notify.BackfillConfig{Table: "a", Column: cell.Column()})
				return err
			},
			"Backfill of a pattern": func(ctx context.Context, c *txn.Client) error {
				_, err := notify.Backfill(ctx, c, notify.BackfillConfig{Table: "a", Column: txn.Pattern("f", "q")})
				return err
			},
			"Counter": func(ctx context.Context, c *txn.Client) error {
				return in(ctx, c, func(ctx context.Context, tx *txn.Txn) error {
					if err := counter.Add(ctx, tx, "k", 1); err != nil {
						return err
					}
					return counter.Observe(ctx, tx, txn.Cell{Table: "a", Row: "k#shard-0001", Family: "f", Qualifier: counter.Column().Qualifier})
				})
			},
		} {
			p := &places{t: t, packages: []string{"notify", "txn/changes", "txn/internal/journal"}, refused: map[string]bool{}, tolerate: func(functions string, c txntest.Call) bool {
				return functions == "" || strings.HasPrefix(c.Row, "families/")
			}}
			p.each(t, func() error {
				c := p.client(env)
				defer closeNow(c)
				if err := call(t.Context(), c); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			})
			if len(p.refused) < 2 {
				t.Errorf("%s: %d places", name, len(p.refused))
			}
		}
		remove := changes.Cleared{Cell: cell, Failures: []string{"o"}, FailedTS: asOf}
		if err := changes.ClearNotifications(t.Context(), env.Client, remove); err != nil {
			t.Fatal(err)
		}
	})
}
