package index_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Two Indexes have their entries in two families of one table, and each has an index of the same name.
// While one builds, the other ends its Create.
func TestCreateBesideAnotherFamily(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env, _, _ := newEnv(t)
		a := mustNew(t, "indexes", "e", index.Index{Name: "n", Table: "users", Columns: []txn.Column{email}})
		b := mustNew(t, "indexes", "other", index.Index{Name: "n", Table: "users", Columns: []txn.Column{city}})
		c := env.NewClient(txn.Config{})
		a.Keep(c)
		b.Keep(c)
		for i := range 450 {
			mustSet(t, c, "r"+string(rune('a'+i/26/26))+string(rune('a'+i/26%26))+string(rune('a'+i%26)), map[txn.Column]string{email: "x", city: "y"})
		}
		if err := b.Create(t.Context(), c, "n", nil); err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		slow := env.NewClient(txn.Config{}, faults.DialOptions()...)
		a.Keep(slow)
		b.Keep(slow)
		held := faults.On("batch", func(c txntest.Call) bool {
			return c.Step == txntest.StepCommit && strings.HasPrefix(c.Row, "!build/n/") && strings.Count(c.Row, "/") == 3
		}, txntest.HoldResponse, 1)
		done := make(chan error, 1)
		go func() { done <- a.Create(t.Context(), slow, "n", nil) }()
		<-held.Fired()
		if err := b.Create(t.Context(), c, "n", nil); err != nil {
			t.Error("b:", err)
		}
		held.Release()
		if err := <-done; err != nil {
			t.Error("the other family's Create broke this one: ", err)
		}
		if err := a.Create(t.Context(), c, "n", nil); err != nil {
			t.Error("again:", err)
		}
		wantCorrect(t, a, c, "n")
		wantCorrect(t, b, c, "n")
	})
}

// Create dies right after it has registered the index in the schema record, and Drop was faster.
func TestDropOfRegistrationAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		if err := changes.RegisterIndex(t.Context(), c, "users", changes.Index{Name: "email", Columns: []txn.Column{email}, Entries: "indexes/e"}); err != nil {
			t.Fatal(err)
		}
		if err := x.Drop(t.Context(), c, "email"); err != nil {
			t.Fatal(err)
		}
		plain := env.NewClient(txn.Config{})
		if err := set(t.Context(), plain, "1", map[txn.Column]string{email: "x"}); errors.Is(err, txn.ErrSchema) {
			t.Errorf("after Drop said that all is well: %v", err)
		}
		if s, err := x.State(t.Context(), c, "email"); err != nil || s != index.Absent {
			t.Error(s, err)
		}
	})
}

// Verify must say what is damaged, also if the damaged entry names a row that no table can have.
func TestVerifyNamesDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		create(t, x, c, "email", "place")
		mustSet(t, c, "1", map[txn.Column]string{email: "a", city: "b", name: "c"})
		for what, set := range map[string]func(tx *txn.Txn){
			"long": func(tx *txn.Txn) {
				tx.Table("indexes").Set("email/zz\x00\x01", "e", "row", []byte(strings.Repeat("x", 5000)))
			},
			"empty":      func(tx *txn.Txn) { tx.Table("indexes").Set("email/zz\x00\x01", "e", "row", nil) },
			"no end":     func(tx *txn.Txn) { tx.Table("indexes").Set("email/zz", "e", "row", []byte("1")) },
			"other":      func(tx *txn.Txn) { tx.Table("indexes").Set("email/a\x00\x01", "e", "row", []byte("2")) },
			"gone":       func(tx *txn.Txn) { tx.Table("indexes").Delete("email/a\x00\x01", "e", "row") },
			"extra part": func(tx *txn.Txn) { tx.Table("indexes").Set("email/a\x00\x01b\x00\x01", "e", "row", []byte("1")) },
		} {
			tx, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			set(tx)
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			n := 0
			err = x.Verify(t.Context(), c, "email", func(p index.Problem) { n++ })
			if err != nil || n == 0 {
				t.Errorf("%s: %d problems, error %.150v", what, n, err)
			}
			tx, _ = c.Begin(t.Context())
			for row, err := range tx.Table("indexes").ReadRows(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(row.Key(), "email/") {
					tx.Table("indexes").Delete(row.Key(), "e", "row")
				}
			}
			tx.Table("indexes").Set("email/a\x00\x01", "e", "row", []byte("1"))
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantCorrect(t, x, c, "email")
		}
	})
}

// The same state, reached: Create's registration is late, its process dies, and Drop comes before it.
func TestDropAfterLateRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		mustSet(t, c, "0", map[txn.Column]string{email: "0"})
		faults := txntest.NewFaults(t)
		dying := keeping(env, x, txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		late := faults.On("late registration", func(c txntest.Call) bool {
			return c.Step == txntest.StepSchema && c.Row == "schema/users" && strings.Contains(c.Method, "CheckAndMutate")
		}, txntest.Delay, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- x.Create(ctx, dying, "email", nil) }()
		<-late.Fired()
		faults.Kill()
		cancel()
		<-done
		if s, _ := x.State(t.Context(), c, "email"); s != index.DeleteOnly {
			t.Fatal(s)
		}
		if err := x.Drop(t.Context(), c, "email"); err != nil {
			t.Fatal(err)
		}
		late.Release()
		synctest.Wait()
		if err := x.Drop(t.Context(), c, "email"); err != nil {
			t.Fatal(err)
		}
		plain := env.NewClient(txn.Config{})
		if err := set(t.Context(), plain, "1", map[txn.Column]string{email: "x"}); errors.Is(err, txn.ErrSchema) {
			t.Errorf("Drop said twice that all is well: %v", err)
		}
	})
}
