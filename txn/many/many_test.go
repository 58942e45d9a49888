package many_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/many"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

func cell(table, row, qualifier string) txn.Cell {
	return txn.Cell{Table: table, Row: row, Family: "f", Qualifier: qualifier}
}

func fill(t *testing.T, c *txn.Client, cells map[txn.Cell]string) {
	t.Helper()
	_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for c, v := range cells {
			tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte(v))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func newEnv(t *testing.T) *txntest.Env {
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("a", "f")
	env.CreateTable("b", "f")
	fill(t, env.Client, map[txn.Cell]string{cell("a", "1", "x"): "1", cell("a", "1", "y"): "", cell("a", "2", "x"): "2", cell("b", "1", "x"): "b"})
	return env
}

func text(v many.Values) string {
	s := map[string]string{}
	for c, value := range v {
		if value == nil {
			s[c.String()] = "nil"
		} else {
			s[c.String()] = string(value)
		}
	}
	return fmt.Sprint(s)
}

// TestGet reads several tables in a transaction and a snapshot, with one request each.
func TestGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		wanted := []txn.Cell{cell("a", "1", "x"), cell("a", "1", "y"), cell("a", "1", "x"), cell("a", "2", "y"), cell("a", "no", "x"), cell("b", "1", "x")}
		want := map[txn.Cell]string{cell("a", "1", "x"): "1", cell("a", "1", "y"): "", cell("b", "1", "x"): "b"}
		check := func(what string, v many.Values, err error) {
			t.Helper()
			got := map[txn.Cell]string{}
			for c, value := range v {
				if got[c] = string(value); value == nil {
					t.Errorf("%s: %s is nil", what, c)
				}
			}
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%s: %v, error %v, want %v", what, text(v), err, want)
			}
		}
		s, err := c.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // at first the tables are opened
			synctest.Wait()
			faults.Reset()
			v, err := many.Get(t.Context(), s.Table, wanted...)
			check("snapshot", v, err)
		}
		if n := faults.Count(); n[txntest.StepRead] != 2 || len(n) != 1 {
			t.Errorf("requests %v, want two reads", n)
		}
		// Both requests are under way at the same time.
		first := faults.On("read of a", func(call txntest.Call) bool { return call.Step == txntest.StepRead && call.Table == "a" }, txntest.Hold, 1)
		second := faults.On("read of b", func(call txntest.Call) bool { return call.Step == txntest.StepRead && call.Table == "b" }, txntest.Hold, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			v, err := many.Get(t.Context(), s.Table, wanted...)
			check("held", v, err)
		}()
		<-first.Fired()
		<-second.Fired()
		first.Release()
		second.Release()
		<-done
		_, err = c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			tx.Table("a").Delete("1", "f", "y")
			tx.Table("a").Set("2", "f", "y", []byte("own"))
			delete(want, cell("a", "1", "y"))
			want[cell("a", "2", "y")] = "own"
			v, err := many.Get(ctx, tx.Table, wanted...)
			check("transaction with writes", v, err)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s2, err := c.Snapshot(t.Context(), txn.At(s.ReadTS()))
		if err != nil {
			t.Fatal(err)
		}
		delete(want, cell("a", "2", "y"))
		want[cell("a", "1", "y")] = ""
		v, err := many.Get(t.Context(), s2.Table, wanted...)
		check("earlier snapshot", v, err)
	})
}

// TestMaxCells reads as many cells as are allowed.
func TestMaxCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		cells := []txn.Cell{cell("a", "1", "x")}
		for i := 1; i < many.MaxCells; i++ {
			cells = append(cells, cell("a", fmt.Sprint("none", i), "x"))
		}
		s, err := env.Client.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v, err := many.Get(t.Context(), s.Table, cells...); len(v) != 1 || err != nil {
			t.Errorf("%d values, error %v", len(v), err)
		}
	})
}

// TestBadInput: nothing is sent, or the error names the table.
func TestBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		s, err := c.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		faults.Reset()
		if v, err := many.Get(t.Context(), s.Table); len(v) > 0 || err != nil {
			t.Errorf("no cells: %v, %v", v, err)
		}
		for _, bad := range []txn.Cell{{Table: "a", Row: "1", Qualifier: "x"}, {Table: "a", Family: "f"}, {Row: "1", Family: "f"}} {
			if _, err := many.Get(t.Context(), s.Table, cell("a", "1", "x"), bad); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%+v: %v, want ErrInvalid", bad, err)
			}
		}
		if _, err := many.Get(t.Context(), s.Table, make([]txn.Cell, many.MaxCells+1)...); !errors.Is(err, txn.ErrLimit) {
			t.Errorf("too many cells: %v", err)
		}
		if n := faults.Count(); len(n) > 0 {
			t.Errorf("requests %v", n)
		}
		if _, err := many.Get(t.Context(), s.Table, cell("a", "1", "x"), cell("none", "1", "x")); !errors.Is(err, txn.ErrNotInitialized) || !strings.Contains(err.Error(), `"none"`) {
			t.Errorf("a table that does not exist: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		held := faults.On("read of b", func(call txntest.Call) bool { return call.Step == txntest.StepRead && call.Table == "b" }, txntest.Hold, 1)
		done := make(chan error, 1)
		go func() {
			_, err := many.Get(ctx, s.Table, cell("a", "1", "x"), cell("b", "1", "x"))
			done <- err
		}()
		<-held.Fired()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled call: %v", err)
		}
		held.Release()
	})
}
