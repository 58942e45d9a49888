package byhand

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestByHand: the service does what that of package shop does, and docs/applications.md says how
// many lines it has and what its calls send.
func TestByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		for table, families := range Tables {
			env.CreateTable(table, families...)
		}
		faults := txntest.NewFaults(t)
		s := New(env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, faults.DialOptions()...), []byte("0123456789abcdef"))
		register := func(id string) error {
			return s.Register(t.Context(), Customer{ID: id, Email: id + "@x", Balance: 100})
		}
		place := func(request string) (Order, error) { return s.Place(t.Context(), request, "ann", 1) }
		if err := register("ann"); err != nil {
			t.Fatal(err)
		}
		if err := s.Register(t.Context(), Customer{ID: "eve", Email: "ann@x"}); !errors.Is(err, ErrTaken) {
			t.Errorf("an address that is taken: %v", err)
		}
		var want []string
		for i := range 7 {
			o, err := place(fmt.Sprint("r", i))
			again, err2 := place(fmt.Sprint("r", i))
			if err != nil || err2 != nil || again.ID != o.ID {
				t.Errorf("order %v, again %v: %v, %v", o, again, err, err2)
			}
			want = append(want, o.ID)
			<-time.After(time.Second)
		}
		slices.Reverse(want)
		var got []string
		for token, first := "", true; first || token != ""; first = false {
			ids, next, err := s.Orders(t.Context(), "ann", 3, token)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Orders(t.Context(), "bob", 3, next); next != "" && !errors.Is(err, ErrToken) {
				t.Errorf("the token of another list: %v", err)
			}
			got, token = append(got, ids...), next
		}
		if !slices.Equal(got, want) {
			t.Errorf("orders %q, want %q", got, want)
		}
		requests := func(f func() error) string {
			synctest.Wait()
			faults.Reset()
			if err := f(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			n := faults.Count()
			return fmt.Sprintf("%d, %d, %d", n[txntest.StepOracle], n[txntest.StepRead], n[txntest.StepPrewrite])
		}
		text, err := os.ReadFile("byhand.go")
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile("../shop.go")
		if err != nil {
			t.Fatal(err)
		}
		doc, err := os.ReadFile("../../../docs/applications.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			fmt.Sprintf("| lines | %d | %d |", strings.Count(string(other), "\n"), strings.Count(string(text), "\n")),
			"| `Register` | 2, 3, 2 | " + requests(func() error { return register("bob") }) + " |",
			"| `Place` | 2, 4, 4 | " + requests(func() error { _, err := place("x"); return err }) + " |",
			"| `Place` again | 1, 1, 0 | " + requests(func() error { _, err := place("x"); return err }) + " |",
			"| `Orders` | 1, 2, 0 | " + requests(func() error { _, _, err := s.Orders(t.Context(), "ann", 3, ""); return err }) + " |",
		} {
			if !strings.Contains(string(doc), line+"\n") {
				t.Errorf("docs/applications.md lacks the line %s", line)
			}
		}
	})
}
