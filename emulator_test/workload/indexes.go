package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// people is how many rows a space of Indexes has, and slots how many keys of the unique index
// they want.
const (
	people = 8
	slots  = 6
)

// Indexes writes rows with a unique index and a secondary index of package index. The secondary
// one is dropped and created again all the time. In every snapshot an index that can be read
// has to match the table.
func Indexes() *Workload {
	const table, entries = "people", "entries"
	space, n, slot := txn.Column{Family: "f", Qualifier: "space"}, txn.Column{Family: "f", Qualifier: "n"}, txn.Column{Family: "f", Qualifier: "slot"}
	x, err := index.New(entries, "e",
		index.Index{Name: "by-n", Table: table, Columns: []txn.Column{space, n}},
		index.Index{Name: "by-slot", Table: table, Columns: []txn.Column{space, slot}, Unique: true})
	if err != nil {
		panic(err) // the declaration is fixed
	}
	item := func(w *Worker, i int) register { return register{table, w.row("p" + strconv.Itoa(i)), "f", "n"} }
	// matches compares the indexes with the rows of the space.
	matches := func(ctx context.Context, w *Worker, at txn.Reader, r index.Reader) error {
		want := map[string]map[string]string{"by-n": {}, "by-slot": {}}
		for row, err := range at.ReadRows(ctx, w.rows()) {
			if err != nil {
				return err
			}
			for _, cell := range row["f"] {
				if name, ok := map[string]string{"f:n": "by-n", "f:slot": "by-slot"}[cell.Column]; ok {
					want[name][row.Key()] = string(cell.Value)
				}
			}
		}
		for name, rows := range want {
			for e, err := range r.Scan(ctx, name, index.Query{Prefix: index.Key{w.Space}}) {
				if errors.Is(err, index.ErrState) {
					rows = nil
					break
				}
				if err != nil {
					return err
				}
				if have, ok := rows[e.Row]; !ok || have != e.Key[1] {
					return broken("index %s has key %q for row %q, which has %q", name, e.Key, e.Row, have)
				}
				delete(rows, e.Row)
			}
			if len(rows) > 0 {
				return broken("index %s lacks the entries of %q", name, rows)
			}
		}
		return nil
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) (ops []history.Op, err error) {
			for i := range people {
				_, _, op, err := item(w, i).get(ctx, v)
				if err != nil {
					return ops, err
				}
				ops = append(ops, op)
			}
			s, err := w.Client.Snapshot(ctx, txn.At(v.ts))
			if err != nil {
				return ops, err
			}
			return ops, matches(ctx, w, s.Table(table), x.At(s))
		})
	}
	turn := &turner{x: x, used: map[string]int{}, stopped: make(chan struct{})}
	return &Workload{
		Name:   "indexes",
		Tables: []admin.TableSpec{{Name: table, Families: []string{"f"}}, {Name: entries, Families: []string{"e"}}},
		Level:  history.SnapshotIsolation,
		Cell:   cellOf("f", "n"),
		Keep:   x.Keep,
		Least:  200 * time.Second, // a drop takes 10 s, and each of two builds 70 s, if no kill interrupts them
		Setup: func(ctx context.Context, w *Worker) error {
			g, gctx := errgroup.WithContext(ctx)
			for _, name := range []string{"by-n", "by-slot"} {
				g.Go(func() error { return x.Create(gctx, w.Client, name, nil) })
			}
			return g.Wait()
		},
		Step: func(ctx context.Context, w *Worker) error {
			if err := turn.step(ctx, w.Client); err != nil {
				return err
			}
			if w.Rand.IntN(4) == 0 {
				return readAll(ctx, w)
			}
			chosen := w.Rand.Perm(people)[:1+w.Rand.IntN(2)]
			values := []int64{w.nextElement(), w.nextElement()}
			wanted, deletes := w.Rand.IntN(slots), w.Rand.IntN(4) == 0
			err := w.attempt(ctx, func(_ context.Context, tx *txn.Txn) (ops []history.Op, err error) {
				for j, c := range chosen {
					r := item(w, c)
					ops = append(ops, r.set(tx, values[j]))
					tx.Table(table).Set(r.row, "f", "space", []byte(w.Space))
					if deletes {
						tx.Table(table).Delete(r.row, "f", "slot")
					} else {
						tx.Table(table).Set(r.row, "f", "slot", []byte(strconv.Itoa((wanted+j)%slots)))
					}
				}
				return ops, nil
			})
			if errors.Is(err, index.ErrUnique) {
				return nil
			}
			return err
		},
		ReadAll: readAll,
		Used:    turn.counts,
		Stop:    turn.stop,
		Verify: func(ctx context.Context, c *txn.Client) (wrong []string, err error) {
			for _, name := range []string{"by-n", "by-slot"} {
				if s, err := x.State(ctx, c, name); err != nil {
					return nil, err
				} else if s == index.Dropping {
					if err := x.Drop(ctx, c, name); err != nil {
						return nil, err
					}
				}
				if err := x.Create(ctx, c, name, nil); err != nil {
					return nil, err
				}
				if err := x.Verify(ctx, c, name, func(p index.Problem) { wrong = append(wrong, p.String()) }); err != nil {
					return nil, err
				}
			}
			return wrong, nil
		},
	}
}

// A turner creates and drops the index by-n in turn, in the background of a process. Before each
// drop it compares both indexes with all rows.
type turner struct {
	x *index.Indexes

	mu      sync.Mutex
	running bool
	err     error // of the last run, unless faults explain it
	used    map[string]int
	stopped chan struct{}
	turns   sync.WaitGroup
}

// stop ends the change that is under way, and waits for it.
func (t *turner) stop() {
	close(t.stopped)
	t.turns.Wait()
}

// The changes of indexes that a turner counts.
const (
	IndexesCreated  = "indexes created"
	IndexesVerified = "indexes verified"
	IndexesDropped  = "indexes dropped"
)

func (t *turner) counts() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := t.used
	t.used = map[string]int{}
	return used
}

// count counts a change that has succeeded.
func (t *turner) count(what string, err error) error {
	if err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.used[what]++
	}
	return err
}

// step begins the next change, if none is under way.
func (t *turner) step(ctx context.Context, c *txn.Client) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running || t.err != nil {
		return t.err
	}
	t.running = true
	t.turns.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		defer cancel()
		go func() {
			select {
			case <-t.stopped:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := t.turn(ctx, c)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running = false
		if err = expected(err); err != nil && !errors.Is(err, index.ErrState) && !errors.Is(err, txn.ErrClosed) {
			t.err = fmt.Errorf("creating or dropping an index: %w", err)
		}
	})
	return nil
}

func (t *turner) turn(ctx context.Context, c *txn.Client) error {
	s, err := t.x.State(ctx, c, "by-n")
	if err != nil {
		return err
	}
	if s != index.Ready && s != index.Dropping {
		return t.count(IndexesCreated, t.x.Create(ctx, c, "by-n", nil))
	}
	if s == index.Ready {
		// Before the drop: the other processes drop it as soon as they see it ready.
		if err := t.count(IndexesVerified, t.verify(ctx, c)); err != nil {
			return err
		}
	}
	return t.count(IndexesDropped, t.x.Drop(ctx, c, "by-n"))
}

// verify compares both indexes with all rows.
func (t *turner) verify(ctx context.Context, c *txn.Client) (err error) {
	var wrong error
	for _, name := range []string{"by-n", "by-slot"} {
		err = errors.Join(err, t.x.Verify(ctx, c, name, func(p index.Problem) { wrong = errors.Join(wrong, broken("%v", p)) }))
	}
	return cmp.Or(wrong, err)
}
