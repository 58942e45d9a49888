package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/transfer"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const rows = 50

func deployment(t *testing.T) *txntest.Env {
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("accounts", "bal")
	env.CreateTable("copy", "bal")
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for i := range rows {
			tx.Table("accounts").Set(fmt.Sprintf("row%02d\xff", i), "bal", "\x00usd", []byte{byte(i), 0xfe})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// contents are the rows and values of a table.
func contents(t *testing.T, env *txntest.Env, table string) (all []string) {
	t.Helper()
	snapshot, err := env.Client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for row, err := range snapshot.Table(table).ReadRows(t.Context(), bigtable.InfiniteRange("")) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%q %q %q", row.Key(), row["bal"][0].Column, row["bal"][0].Value))
	}
	return all
}

// TestExportAndImport: an export that was cut anywhere continues to the same bytes, and
// its rows arrive once.
func TestExportAndImport(t *testing.T) {
	env := deployment(t)
	ts, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	header := transfer.NewHeader("accounts", ts, "row05", "row45")
	var whole bytes.Buffer
	w, err := transfer.NewWriter(&whole, header)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	if err := w.Export(t.Context(), env.Client, func(int, string) { calls++ }); err != nil {
		t.Fatal(err)
	}
	if !w.Complete || w.Rows != 40 || w.Cells != 40 || calls != 40 {
		t.Errorf("%d rows, %d cells, %d calls, complete %t", w.Rows, w.Cells, calls, w.Complete)
	}
	path := filepath.Join(t.TempDir(), "export.jsonl")
	for _, cut := range []int{1, 100, whole.Len() / 2} {
		if err := os.WriteFile(path, whole.Bytes()[:whole.Len()-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		var other *transfer.OtherError
		if _, err := transfer.Resume(path, file, transfer.NewHeader("copy", ts, "", "")); !errors.As(err, &other) || other.Header != header {
			t.Errorf("another export: %v", err)
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		w, err := transfer.Resume(path, file, transfer.NewHeader("accounts", 0, "row05", "row45"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Export(t.Context(), env.Client, nil), file.Close()); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole.Bytes()) {
			t.Errorf("cut by %d bytes: %v, %d bytes of %d", cut, err, len(got), whole.Len())
		}
	}
	for _, want := range []transfer.Imported{{Written: 40}, {Unchanged: 40}} {
		r, err := transfer.NewReader("export", bytes.NewReader(whole.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		var last transfer.Imported
		got, err := transfer.Import(t.Context(), env.Client, "copy", r.All(), transfer.ImportConfig{Batch: 7, Progress: func(i transfer.Imported) { last = i }})
		if err != nil || got != want || last != want {
			t.Errorf("%v: %+v, last %+v, want %+v", err, got, last, want)
		}
	}
	if got, want := contents(t, env, "copy"), contents(t, env, "accounts")[5:45]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestDamagedFiles: a file that was changed or cut is an error before the end of its rows.
func TestDamagedFiles(t *testing.T) {
	env := deployment(t)
	ts, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	w, err := transfer.NewWriter(&whole, transfer.NewHeader("accounts", ts, "", ""))
	if err == nil {
		err = w.Export(t.Context(), env.Client, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(whole.String(), "\n"), "\n")
	end := len(lines) - 1
	for name, test := range map[string]struct {
		text, want string
	}{
		"whole":           {whole.String(), ""},
		"empty":           {"", "header is missing"},
		"no header":       {lines[1], "not a header"},
		"later version":   {strings.Replace(whole.String(), `"percctl_export":1`, `"percctl_export":2`, 1), "format version 2"},
		"no trailer":      {strings.Join(lines[:end], ""), "no trailer"},
		"half a trailer":  {strings.Join(lines[:end], "") + lines[end][:9], "no trailer"},
		"a row less":      {strings.Join(lines[:end-1], "") + lines[end] + "\n", "does not match"},
		"a row twice":     {lines[0] + lines[1] + strings.Join(lines[1:], "") + "\n", "not above"},
		"another value":   {strings.Replace(whole.String(), "AP4=", "AP8=", 1), "checksum"},
		"after the end":   {whole.String() + "x\n", "after the trailer"},
		"an unknown line": {lines[0] + `{"x":1}` + "\n", "unknown field"},
	} {
		r, err := transfer.NewReader("file", strings.NewReader(test.text))
		var s transfer.Summary
		if err == nil {
			s, err = r.Summarize(t.Context(), nil)
		}
		switch {
		case test.want == "":
			if err != nil || s.Rows != rows || s.Cells != rows || s.First != "row00\xff" || s.Last != "row49\xff" || !slices.Equal(s.Families, []string{"bal"}) {
				t.Errorf("%s: %v, %+v", name, err, s)
			}
		case err == nil || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if strings.Contains(test.want, "no trailer") != errors.Is(err, transfer.ErrIncomplete) && name != "empty" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
