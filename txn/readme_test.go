package txn_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// begin README

func transfer(ctx context.Context, client *txn.Client, from, to string, amount int) error {
	_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		accounts := tx.Table("accounts")
		for row, change := range map[string]int{from: -amount, to: +amount} {
			value, ok, err := accounts.Get(ctx, row, "bal", "usd")
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("no account %q", row)
			}
			balance, err := strconv.Atoi(string(value))
			if err != nil {
				return err
			}
			accounts.Set(row, "bal", "usd", strconv.AppendInt(nil, int64(balance+change), 10))
		}
		return nil
	})
	return err
}

// end README

// TestReadme compares the program in the README with the one above, and runs it.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(self), "// begin README\n\n")
	program, _, _ = strings.Cut(program, "\n// end README")
	if !strings.Contains(string(readme), "```go\n"+program+"```") {
		t.Error("the README's program is not the one in readme_test.go")
	}

	env := txntest.New(t)
	env.CreateTable("accounts", "bal")
	_, err = env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		tx.Table("accounts").Set("joe", "bal", "usd", []byte("2"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer(t.Context(), env.Client, "bob", "joe", 7); err != nil {
		t.Fatal(err)
	}
	s, err := env.Client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for row, want := range map[string]string{"bob": "3", "joe": "9"} {
		if v, _, err := s.Table("accounts").Get(t.Context(), row, "bal", "usd"); err != nil || string(v) != want {
			t.Errorf("%s has %q, error %v; want %q", row, v, err, want)
		}
	}
	if err := transfer(t.Context(), env.Client, "bob", "eve", 1); err == nil || !strings.Contains(err.Error(), "eve") {
		t.Errorf("the transfer to an account that does not exist returned %v; want an error that names it", err)
	}
}

// TestRecipes: the code that docs/applications.md quotes is that of examples. A line with … stands
// for code that is left out.
func TestRecipes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/applications.md")
	if err != nil {
		t.Fatal(err)
	}
	indentation := regexp.MustCompile(`(?m)^\t+`)
	var source string
	for _, name := range []string{"example_recipes_test.go", "jobs/example_test.go", "idempotency/example_test.go", "index/example_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source += indentation.ReplaceAllString(string(text), "")
	}
	quoted := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for _, q := range quoted {
		for piece := range strings.SplitSeq(indentation.ReplaceAllString(q[1], ""), "…\n") {
			if !strings.Contains(source, piece) {
				t.Errorf("not in an example:\n%s", piece)
			}
		}
	}
	if len(quoted) < 6 {
		t.Errorf("%d pieces of code are quoted", len(quoted))
	}
}
