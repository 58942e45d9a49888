package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A packageCrash is an operation of a package for applications during which a process dies. id
// distinguishes the crashes.
type packageCrash struct {
	name     string
	requests int // that the operation sends at least
	prepare  func(w *packageWorld, id string)
	run      func(ctx context.Context, w *packageWorld, c *txn.Client, id string) error
	// finish is what other processes do then. It checks what they see.
	finish func(w *packageWorld, id string)
	end    func(w *packageWorld) // after all crashes
}

// A packageWorld has tables, and indexes on them. Values of family g
// expire.
type packageWorld struct {
	*testing.T
	env     *txntest.Env
	indexes *index.Indexes
	a       *txn.Client // does not die

	// of the current crash
	ran       int // calls of a function that must take effect once
	committed int // crashes after which the operation had taken effect
}

const packageExpiry = time.Hour

var (
	packageMail = txn.Column{Family: "f", Qualifier: "mail"}
	packageN    = txn.Column{Family: "f", Qualifier: "n"}
	packageIn   = txn.Column{Family: "f", Qualifier: "in"}
)

func newPackageWorld(t *testing.T) *packageWorld {
	t.Helper()
	w := &packageWorld{T: t, env: txntest.New(t, txntest.WithoutTransport())}
	for _, table := range append([]string{"indexes"}, crashTables...) {
		w.env.CreateTable(table, "f", "g")
	}
	x, err := index.New("indexes", "f",
		index.Index{Name: "mail", Table: "left", Columns: []txn.Column{packageMail}, Unique: true},
		index.Index{Name: "n", Table: "left", Columns: []txn.Column{packageN}},
		index.Index{Name: "built", Table: "left", Columns: []txn.Column{{Family: "f", Qualifier: "q"}}, Unique: true},
	)
	if err != nil {
		t.Fatal(err)
	}
	w.indexes = x
	w.a = w.client()
	for _, name := range []string{"mail", "n"} {
		if err := x.Create(t.Context(), w.a, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.SetExpiry(t.Context(), w.a, "left", "g", packageExpiry); err != nil {
		t.Fatal(err)
	}
	if err := changes.RegisterObserver(t.Context(), w.a, "left", packageIn, "outbox", false); err != nil {
		t.Fatal(err)
	}
	advance(2 * time.Minute) // every client knows that
	return w
}

// client returns a client that maintains the indexes.
func (w *packageWorld) client() *txn.Client {
	c := w.env.NewClient(txn.Config{LockTTL: crashTTL, TokenTTL: -1})
	w.indexes.Keep(c)
	return c
}

func (w *packageWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// set writes a cell of table left.
func (w *packageWorld) set(ctx context.Context, c *txn.Client, row string, column txn.Column, value string) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("left").Set(row, column.Family, column.Qualifier, []byte(value))
		return nil
	})
	return err
}

// cells returns all cells of the rows of a table that begin with prefix, as the newest snapshot
// shows them.
func (w *packageWorld) cells(table, prefix string) map[string]string {
	w.Helper()
	all := map[string]string{}
	for r, err := range takeSnapshot(w.T, w.a).Table(table).ReadRows(w.Context(), bigtable.PrefixRange(prefix)) {
		w.must(err)
		for _, items := range r {
			for _, item := range items {
				all[r.Key()+" "+item.Column] = string(item.Value)
			}
		}
	}
	return all
}

func (w *packageWorld) want(table, prefix string, want map[string]string) {
	w.Helper()
	if got := w.cells(table, prefix); !maps.Equal(got, want) {
		w.Errorf("table %s has %v, want %v", table, got, want)
	}
}

// verify compares indexes with their tables.
func (w *packageWorld) verify(names ...string) {
	w.Helper()
	for _, name := range names {
		if err := w.indexes.Verify(w.Context(), w.a, name, func(p index.Problem) { w.Error(p) }); err != nil {
			w.Error(err)
		}
	}
}

// TestCrashMatrixOfPackages kills a process before and after every request of the operations of
// the packages for applications. Then other processes see all
// of an operation or nothing of it, can complete it, and the indexes agree with their tables.
func TestCrashMatrixOfPackages(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	for _, op := range packageCrashes {
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newPackageWorld(t)
				crashes := 0
				one := func(at int, after bool) (requests int) {
					id := fmt.Sprintf("%03d-%v", at, after)
					w.ran = 0
					if op.prepare != nil {
						op.prepare(w, id)
					}
					synctest.Wait()
					died := crash{t: t, env: w.env, at: at, after: after, varies: true}
					requests = len(died.run(func(ctx context.Context, c *txn.Client) {
						w.indexes.Keep(c)
						if err := op.run(ctx, w, c, id); err != nil && at == 0 {
							t.Error(err)
						}
					}))
					advance(crashTTL + time.Second)
					op.finish(w, id)
					if t.Failed() {
						t.Fatalf("the process died at request %d, after: %v", at, after)
					}
					crashes++
					return requests
				}
				total := one(0, false)
				if total < op.requests {
					t.Errorf("%d requests, want %d", total, op.requests)
				}
				stride := 1
				switch {
				case long.Reduced():
					stride = (total + 3) / 4
				case total > 30:
					stride = 2
				}
				w.committed = 0
				for at := 1; at < total+stride; at += stride {
					at := min(at, total) // the last request is always among them
					one(at, false)
					one(at, true)
				}
				if w.committed < 1 || w.committed >= crashes-2 {
					t.Errorf("the operation took effect in %d of %d crashes", w.committed, crashes-1)
				}
				if op.end != nil {
					op.end(w)
				}
				w.verify("mail", "n")
				t.Logf("%d crashes, %d took effect", crashes-1, w.committed)
			})
		})
	}
}

const packageSize = 20 // rows of a job

func jobOf(id string) jobs.Job {
	return jobs.Job{Name: "job " + id, Table: "left", Range: jobs.Prefix(id + "/"), Progress: "right", Family: "f", BatchRows: 7, Parallel: 1}
}

func countUp(_ context.Context, tx *txn.Txn, r bigtable.Row) error {
	n, err := strconv.Atoi(string(r["f"][0].Value))
	tx.Table("left").Set(r.Key(), "f", "n", strconv.AppendInt(nil, int64(n+1), 10))
	return err
}

// everything is one transaction with an idempotency key, of five rows, with a unique and a
// secondary index, an observed column and values that expire.
func everything(ctx context.Context, w *packageWorld, c *txn.Client, id string) (idempotency.Outcome, error) {
	keys, err := idempotency.New(c, "right", "f")
	if err != nil {
		return idempotency.Outcome{}, err
	}
	return keys.Update(ctx, idempotency.Key{ID: id, Request: []byte(id)}, func(_ context.Context, tx *txn.Txn) ([]byte, error) {
		w.ran++
		for i := range 5 {
			t, key := tx.Table("left"), fmt.Sprintf("%s/%d", id, i)
			t.Set(key, "f", "mail", []byte("mail of "+key))
			t.Set(key, "f", "n", []byte("1"))
			t.Set(key, "f", "in", []byte("in"))
			t.Set(key, "g", "session", []byte("s"))
		}
		return []byte("result of " + id), nil
	})
}

func wantEverything(w *packageWorld, id string) {
	ran := w.ran
	o, err := everything(w.Context(), w, w.client(), id)
	w.must(err)
	if string(o.Result) != "result of "+id || o.Repeated != (w.ran == ran) {
		w.Errorf("outcome %+v after %d calls, before %d", o, w.ran, ran)
	}
	if o.Repeated {
		w.committed++
	}
	want := map[string]string{}
	for i := range 5 {
		key := fmt.Sprintf("%s/%d", id, i)
		want[key+" f:mail"], want[key+" f:n"], want[key+" f:in"], want[key+" g:session"] = "mail of "+key, "1", "in", "s"
	}
	w.want("left", id, want)
	synctest.Wait() // the secondaries are committed now, with their notifications
	for i := range 5 {
		key := fmt.Sprintf("%s/%d", id, i)
		other, ok, err := w.indexes.At(takeSnapshot(w.T, w.a)).Get(w.Context(), "mail", "mail of "+key)
		if other != key || !ok || err != nil {
			w.Errorf("the index has row %q, %v, for %s; error %v", other, ok, key, err)
		}
		rung := 0
		for n, err := range changes.Notifications(w.Context(), w.a, "left", bigtable.RowList{key}) {
			w.must(err)
			rung += len(n.Triggers)
		}
		if rung != 1 {
			w.Errorf("row %s has %d notifications, want 1", key, rung)
		}
	}
}

// outbox runs a worker until it has handled the notification of a row. For each change, it stores
// the old and the new value under the change's commit timestamp.
func outbox(ctx context.Context, w *packageWorld, c *txn.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	done := make(chan struct{}, 1)
	worker, err := notify.NewWorker(c, notify.Config{NoHints: true, Concurrency: 1, Finder: oneSweep{id}, DrainTimeout: time.Second, OnEvent: func(notify.Event) {
		select {
		case done <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return err
	}
	if err := worker.Handle("outbox", "left", packageIn, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		old, _, err := notify.Previous(ctx, tx)
		if err != nil {
			return err
		}
		now, _, err := tx.Table("left").Get(ctx, cell.Row, cell.Family, cell.Qualifier)
		tx.Table("right").Set(fmt.Sprintf("%s/%d", cell.Row, notify.TriggerOf(ctx).ChangeTS), "f", "change", fmt.Appendf(nil, "%s to %s", old, now))
		return err
	})); err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()
	select {
	case <-done:
		<-time.After(100 * time.Millisecond) // virtual time, for the notification to be removed
	case <-ctx.Done():
	}
	cancel()
	return <-ended
}

var packageCrashes = []packageCrash{
	{
		name: "unique insert", requests: 8,
		run: func(ctx context.Context, w *packageWorld, c *txn.Client, id string) error {
			return w.set(ctx, c, id, packageMail, id)
		},
		finish: func(w *packageWorld, id string) {
			committed := len(w.cells("left", id)) > 0
			var all sync.WaitGroup
			var errs [2]error
			for i, c := range []*txn.Client{w.a, w.client()} {
				all.Go(func() { errs[i] = w.set(w.Context(), c, fmt.Sprint(id, i), packageMail, id) })
			}
			all.Wait()
			want := map[string]string{}
			for i, err := range errs {
				var taken *index.UniqueError
				switch {
				case err == nil:
					want[fmt.Sprint(id, i, " f:mail")] = id
				case !errors.As(err, &taken) || committed && taken.Other != id:
					w.Errorf("insert of row %d: %v", i, err)
				}
			}
			if committed {
				w.committed++
				want[id+" f:mail"] = id
			}
			if len(want) != 1 {
				w.Errorf("errors %v; the dead process had committed: %v", errs, committed)
			}
			w.want("left", id, want)
			w.verify("mail")
		},
	},
	{
		name: "everything in one transaction", requests: 8,
		run: func(ctx context.Context, w *packageWorld, c *txn.Client, id string) error {
			_, err := everything(ctx, w, c, id)
			return err
		},
		finish: wantEverything,
		end: func(w *packageWorld) {
			advance(packageExpiry + time.Second)
			for name := range w.cells("left", "") {
				if name[len(name)-len("g:session"):] == "g:session" {
					w.Errorf("%s has not expired", name)
				}
			}
		},
	},
	{
		name: "job", requests: 20,
		prepare: func(w *packageWorld, id string) {
			_, err := w.a.Update(w.Context(), func(_ context.Context, tx *txn.Txn) error {
				for i := range packageSize {
					tx.Table("left").Set(fmt.Sprintf("%s/%02d", id, i), "f", "n", []byte("0"))
				}
				return nil
			})
			w.must(err)
		},
		run: func(ctx context.Context, _ *packageWorld, c *txn.Client, id string) error {
			job := jobOf(id)
			_, err := job.Run(ctx, c, countUp)
			return err
		},
		finish: func(w *packageWorld, id string) {
			job := jobOf(id)
			s, err := job.Status(w.Context(), w.a)
			w.must(err)
			if s.Rows > 0 {
				w.committed++
			}
			s, err = job.Run(w.Context(), w.a, countUp)
			if err != nil || s.Rows != int64(packageSize) || !s.Complete() {
				w.Errorf("status %+v, error %v", s, err)
			}
			want := map[string]string{}
			for i := range packageSize {
				want[fmt.Sprintf("%s/%02d f:n", id, i)] = "1"
			}
			w.want("left", id, want)
		},
	},
	{
		name: "index create", requests: 20,
		prepare: func(w *packageWorld, id string) {
			w.must(w.set(w.Context(), w.a, "r1", txn.Column{Family: "f", Qualifier: "q"}, "1"))
			w.must(w.set(w.Context(), w.a, "r2", txn.Column{Family: "f", Qualifier: "q"}, "2"))
		},
		run: func(ctx context.Context, w *packageWorld, c *txn.Client, _ string) error {
			return w.indexes.Create(ctx, c, "built", nil)
		},
		finish: func(w *packageWorld, id string) {
			if s, err := w.indexes.State(w.Context(), w.a, "built"); err != nil {
				w.Error(err)
			} else if s != index.Absent {
				w.committed++
			}
			w.must(w.set(w.Context(), w.a, "r2", txn.Column{Family: "f", Qualifier: "q"}, id))
			w.must(w.indexes.Create(w.Context(), w.a, "built", nil))
			w.verify("built")
			if r, ok, err := w.indexes.At(takeSnapshot(w.T, w.a)).Get(w.Context(), "built", id); r != "r2" || !ok || err != nil {
				w.Errorf("the index has %q, %v, %v", r, ok, err)
			}
			w.must(w.indexes.Drop(w.Context(), w.a, "built"))
			w.want("indexes", "built/", nil)
		},
	},
	{
		name: "index drop", requests: 20,
		prepare: func(w *packageWorld, id string) {
			w.must(w.set(w.Context(), w.a, "r1", txn.Column{Family: "f", Qualifier: "q"}, id))
			w.must(w.indexes.Create(w.Context(), w.a, "built", nil))
		},
		run: func(ctx context.Context, w *packageWorld, c *txn.Client, _ string) error {
			return w.indexes.Drop(ctx, c, "built")
		},
		finish: func(w *packageWorld, id string) {
			switch s, err := w.indexes.State(w.Context(), w.a, "built"); {
			case err != nil:
				w.Error(err)
			case s != index.Ready:
				w.committed++
			default:
				w.verify("built")
			}
			w.must(w.indexes.Drop(w.Context(), w.a, "built"))
			w.must(w.set(w.Context(), w.a, "r1", txn.Column{Family: "f", Qualifier: "q"}, "dropped"))
			w.want("indexes", "built/", nil)
		},
	},
	{
		name: "outbox of an observer", requests: 8,
		prepare: func(w *packageWorld, id string) {
			w.must(w.set(w.Context(), w.a, id, packageIn, "1"))
			w.must(outbox(w.Context(), w, w.a, id))
			w.must(w.set(w.Context(), w.a, id, packageIn, "2"))
		},
		run: outbox,
		finish: func(w *packageWorld, id string) {
			if len(w.cells("right", id+"/")) == 2 {
				w.committed++
			}
			w.must(outbox(w.Context(), w, w.client(), id))
			got := w.cells("right", id+"/")
			var changes []string
			for _, key := range slices.Sorted(maps.Keys(got)) {
				changes = append(changes, got[key])
			}
			if !slices.Equal(changes, []string{" to 1", "1 to 2"}) {
				w.Errorf("the outbox has %q", changes)
			}
		},
	},
}
