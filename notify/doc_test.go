package notify_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// begin program

func program() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	bt, err := bigtable.NewClient(ctx, "project", "instance")
	if err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	worker, err := notify.NewWorker(client, notify.Config{})
	if err != nil {
		log.Fatal(err)
	}
	text := txn.Column{Family: "f", Qualifier: "text"}
	if err := worker.Handle("word-counter", "documents", text, notify.ObserverFunc(countWords)); err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil { // until an interrupt
		log.Fatal(err)
	}
}

func countWords(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	documents := tx.Table(cell.Table)
	text, _, err := documents.Get(ctx, cell.Row, cell.Family, cell.Qualifier)
	if err != nil {
		return err
	}
	words := strconv.Itoa(len(strings.Fields(string(text))))
	documents.Set(cell.Row, "f", "words", []byte(words))
	return nil
}

// end program

// TestDocProgram: the program of the package comment is the one above, which compiles, and
// its observer works.
func TestDocProgram(t *testing.T) {
	_ = program
	source := readFile(t, "doc_test.go")
	_, rest, _ := strings.Cut(source, "// begin program\n\n")
	code, _, _ := strings.Cut(rest, "\n// end program")
	var want strings.Builder
	for line := range strings.Lines(strings.Replace(code, "func program()", "func main()", 1)) {
		if strings.TrimSpace(line) == "" {
			want.WriteString("//\n")
		} else {
			want.WriteString("//\t" + line)
		}
	}
	if !strings.Contains(readFile(t, "doc.go"), want.String()) {
		t.Errorf("doc.go does not contain the program\n%s", want.String())
	}

	env := txntest.New(t)
	env.CreateTable("documents", "f")
	w := newWorker(t, env.Client, notify.Config{})
	text := columnOf("documents", "f", "text")
	register(t, env.Client, text, "word-counter", false)
	handle(t, w, "word-counter", text, countWords)
	start(t, w)
	put(t, env.Client, text, "a", "to be or not to be")
	wait(t, env.Client)
	if got := value(t, env.Client, columnOf("documents", "f", "words"), "a"); got != "6" {
		t.Errorf("the document has %q words, want 6", got)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
