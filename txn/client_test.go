package txn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"go.uber.org/goleak"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

func set(table, row string) func(context.Context, *txn.Txn) error {
	return func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte("v"))
		return nil
	}
}

// wantError checks an error's kind and that its text helps: it names what was
// wrong and how to repair it.
func wantError(t *testing.T, err, is error, says ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error is %v; want %v", err, is)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func TestNotInitialized(t *testing.T) {
	env := txntest.New(t, txntest.Embedded())
	_, err := txn.NewClient(t.Context(), env.Bigtable, txn.Config{MetadataTable: "elsewhere"})
	wantError(t, err, txn.ErrNotInitialized, "elsewhere", "percctl table init", "txn.InitTable")

	_, err = env.Client.Update(t.Context(), set("unknown", "r"))
	wantError(t, err, txn.ErrNotInitialized, `"unknown"`, "percctl table init unknown")
	_, err = env.Client.Update(t.Context(), set("percolator", "r"))
	wantError(t, err, txn.ErrInvalid, `"percolator"`)
}

func TestSchemaIsVerified(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())

	t.Run("policy", func(t *testing.T) {
		env.CreateTable("policy", "f")
		if err := env.Admin.SetGCPolicy(ctx, "policy", "f", bigtable.MaxVersionsPolicy(1)); err != nil {
			t.Fatal(err)
		}
		wantError(t, env.Client.OpenTable(ctx, "policy"), txn.ErrSchema, `"policy"`, "family f", "versions() > 1", "setgcpolicy policy f never")
		err := admin.InitTable(ctx, env.Admin, env.Bigtable, "", admin.TableSpec{Name: "policy"})
		wantError(t, err, txn.ErrSchema, "family f")
	})
	t.Run("missing family", func(t *testing.T) {
		env.CreateTable("missing", "f")
		if err := env.Admin.DeleteColumnFamily(ctx, "missing", format.MarkFamily); err != nil {
			t.Fatal(err)
		}
		wantError(t, env.Client.OpenTable(ctx, "missing"), txn.ErrSchema, format.MarkFamily, "percctl table init missing")
	})
	t.Run("family added later", func(t *testing.T) {
		env.CreateTable("grows", "f")
		if err := env.Client.OpenTable(ctx, "grows"); err != nil {
			t.Fatal(err)
		}
		if err := env.Admin.CreateColumnFamily(ctx, "grows", "g"); err != nil {
			t.Fatal(err)
		}
		_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("grows").Set("r", "g", "q", nil)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	env := txntest.New(t)
	for name, cfg := range map[string]txn.Config{
		"LockTTL":         {LockTTL: -1},
		"LockTTL 1ns":     {LockTTL: 1},
		"RPCTimeout":      {RPCTimeout: -1},
		"Parallelism":     {Parallelism: -1},
		"BackgroundBytes": {BackgroundBytes: -1},
		"Backoff.Max":     {Backoff: txn.Backoff{Max: -1}},
	} {
		_, err := txn.NewClient(t.Context(), env.Bigtable, cfg)
		wantError(t, err, txn.ErrInvalid, strings.Fields(name)[0])
	}
	_, err := txn.NewClient(t.Context(), nil, txn.Config{})
	wantError(t, err, txn.ErrInvalid)
}

func TestInvalidWritesSendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		for name, tt := range map[string]struct {
			write func(*txn.Table)
			want  error
		}{
			"empty row":       {func(a *txn.Table) { a.Set("", "f", "q", nil) }, txn.ErrInvalid},
			"long row":        {func(a *txn.Table) { a.Delete(strings.Repeat("x", 4097), "f", "q") }, txn.ErrLimit},
			"empty family":    {func(a *txn.Table) { a.Lock("r", "", "q") }, txn.ErrInvalid},
			"metadata family": {func(a *txn.Table) { a.Set("r", format.WriteFamily, "q", nil) }, txn.ErrInvalid},
			"long qualifier":  {func(a *txn.Table) { a.Set("r", "f", strings.Repeat("q", 3000), nil) }, txn.ErrLimit},
			"large value":     {func(a *txn.Table) { a.Set("r", "f", "q", make([]byte, 100<<20+1)) }, txn.ErrLimit},
			"unknown family":  {func(a *txn.Table) { a.Set("r", "g", "q", nil) }, txn.ErrSchema},
			"too many columns": {func(a *txn.Table) {
				for i := range 34_000 {
					a.Delete("r", "f", fmt.Sprint(i))
				}
			}, txn.ErrLimit},
		} {
			_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("a").Set("fine", "f", "q", nil)
				tt.write(tx.Table("a"))
				return nil
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %v; want %v", name, err, tt.want)
			}
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 0 {
			t.Errorf("requests: %v", n)
		}
	})
}

// TestWideRow writes a row whose prewrite does not fit into one request's
// filter, and reads it back with more columns than one read's filter may name.
func TestWideRow(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	ctx := t.Context()
	const columns = 500
	var cols []txn.Column
	for i := range columns {
		cols = append(cols, txn.Column{Family: "f", Qualifier: fmt.Sprintf("%0100d", i)})
	}
	_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for _, c := range cols {
			tx.Table("a").Set("r", "f", c.Qualifier, []byte(c.Qualifier))
		}
		tx.Table("a").Set("r2", "f", "", nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := env.Client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]txn.ReadOption{nil, {txn.Columns(cols...)}, {txn.Families("f")}} {
		r, err := s.Table("a").ReadRow(ctx, "r", opts...)
		if err != nil || len(r["f"]) != columns {
			t.Errorf("%d columns, %v", len(r["f"]), err)
		}
	}
	_, err = env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		return tx.Table("a").DeleteRow(ctx, "r")
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = env.Client.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Table("a").ReadRow(ctx, "r"); err != nil || r != nil {
		t.Errorf("after DeleteRow: %v, %v", r, err)
	}
}

func TestDoneAndClosed(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t)
	env.CreateTable("a", "f")
	c := env.NewClient(txn.Config{})
	tx, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	tx.Rollback() // harmless
	_, err = tx.Commit(ctx)
	wantError(t, err, txn.ErrDone)
	_, _, err = tx.Table("a").Get(ctx, "r", "f", "q")
	wantError(t, err, txn.ErrDone)
	for _, err := range tx.Table("a").ReadRows(ctx, nil) {
		wantError(t, err, txn.ErrDone)
	}

	if err := c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(ctx); err != nil {
		t.Errorf("second Close: %v", err)
	}
	_, err = c.Begin(ctx)
	wantError(t, err, txn.ErrClosed)
	_, err = c.Snapshot(ctx)
	wantError(t, err, txn.ErrClosed)
	_, err = c.Update(ctx, set("a", "r"))
	wantError(t, err, txn.ErrClosed)
	for _, err := range admin.Locks(ctx, c, "a", nil) {
		wantError(t, err, txn.ErrClosed)
	}
}

// TestCloseDrains holds the secondaries back until Close waits for them.
func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		held := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range 10 {
				tx.Table("a").Set(fmt.Sprint("r", i), "f", "q", nil)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-held.Fired()
		closed := make(chan error)
		go func() { closed <- c.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("Close returned with secondaries under way: %v", err)
		default:
		}
		held.Release()
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			t.Errorf("lock left: %v, %v", l, err)
		}
	})
}

// TestCloseGivesUp closes a client whose Bigtable does not answer any more: it
// returns when its context ends, says what is left, and leaves no goroutine.
func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		faults.On("secondaries", func(c txntest.Call) bool { return c.Step == txntest.StepSecondaries }, txntest.Crash, 0)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("r1", "f", "q", nil)
			tx.Table("a").Set("r2", "f", "q", nil)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		wantError(t, c.Close(ctx), context.DeadlineExceeded, "2 changes")
		if d := time.Since(begun); d != 3*time.Second {
			t.Errorf("Close took %v", d)
		}
	})
}

// TestNoLeaks counts goroutines after every way to end a client.
func TestNoLeaks(t *testing.T) {
	emulator, err := txntest.StartEmulator("")
	if err != nil {
		t.Fatal(err)
	}
	defer emulator.Close()
	conn, err := emulator.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := t.Context()
	bt, btAdmin, err := txntest.Open(ctx, conn, "p", "i")
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "a", Families: []string{"f"}}); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	for name, run := range map[string]func() error{
		"constructor fails": func() error {
			_, err := txn.NewClient(ctx, bt, txn.Config{MetadataTable: "none"})
			if !errors.Is(err, txn.ErrNotInitialized) {
				return fmt.Errorf("want ErrNotInitialized: %w", err)
			}
			return nil
		},
		"context is cancelled": func() error {
			c, err := txn.NewClient(ctx, bt, txn.Config{})
			if err != nil {
				return err
			}
			cctx, cancel := context.WithCancel(ctx)
			_, err = c.Update(cctx, func(ctx context.Context, tx *txn.Txn) error {
				tx.Table("a").Set("r", "f", "q", nil)
				cancel()
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				return fmt.Errorf("want Canceled: %w", err)
			}
			return c.Close(ctx)
		},
		"committed and closed": func() error {
			c, err := txn.NewClient(ctx, bt, txn.Config{})
			if err != nil {
				return err
			}
			if _, err := c.Update(ctx, set("a", "r")); err != nil {
				return err
			}
			return c.Close(ctx)
		},
		"a scan that is broken off": func() error {
			c, err := txn.NewClient(ctx, bt, txn.Config{})
			if err != nil {
				return err
			}
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			for _, err := range s.Table("a").ReadRows(ctx, nil) {
				if err != nil {
					return err
				}
				break
			}
			return c.Close(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(); err != nil {
				t.Fatal(err)
			}
			if err := goleak.Find(before, goleak.IgnoreTopFunction("testing.(*T).Run")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestUpdateStops covers the ends of Update other than a commit.
func TestUpdateStops(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	ctx := t.Context()
	conflict := func(runs *int) func(context.Context, *txn.Txn) error {
		return func(ctx context.Context, tx *txn.Txn) error {
			*runs++
			tx.Table("a").Set("r", "f", "q", nil)
			// Another transaction wins each time.
			_, err := env.Client.Update(ctx, set("a", "r"))
			return err
		}
	}
	t.Run("attempts", func(t *testing.T) {
		runs := 0
		_, err := env.Client.Update(ctx, conflict(&runs), txn.MaxAttempts(3), txn.Named("always loses"))
		wantError(t, err, txn.ErrConflict, "3 attempts", "always loses", "a/r/f:q")
		if runs != 3 {
			t.Errorf("%d runs", runs)
		}
		var c *txn.ConflictError
		if !errors.As(err, &c) || c.Reason != txn.ConflictWrite || c.ConflictTS <= c.StartTS || c.Cell.String() != "a/r/f:q" {
			t.Errorf("%+v", c)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		runs := 0
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := env.Client.Update(ctx, conflict(&runs))
		wantError(t, err, context.DeadlineExceeded)
		if runs == 0 {
			t.Error("never ran")
		}
	})
	t.Run("error of the function", func(t *testing.T) {
		mine := errors.New("mine")
		_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("untouched", "f", "q", nil)
			return mine
		})
		if err != mine { //nolint:errorlint // it has to be the very same
			t.Errorf("%v", err)
		}
	})
	t.Run("panic", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
			if err := env.NewClient(txn.Config{}).Close(ctx); err != nil {
				t.Error(err)
			}
		}()
		_, _ = env.Client.Update(ctx, func(context.Context, *txn.Txn) error { panic("boom") })
	})
	s, err := env.Client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Table("a").Get(ctx, "untouched", "f", "q"); ok || err != nil {
		t.Errorf("a failed function wrote: %v, %v", ok, err)
	}
}
