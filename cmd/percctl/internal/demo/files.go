package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
)

// A document is a file as it was when the demo began.
type document struct {
	path string // relative to the directory, with slashes: its name
	hash string // SHA-256 of its contents, in hexadecimal
	size int
}

// maxSize is Bigtable's limit for the value of a cell.
const maxSize = 100 << 20

// sourceTree returns the src directory of the Go tool chain: a few thousand real
// files with real duplicates.
func sourceTree() (string, error) {
	root := os.Getenv("GOROOT")
	cmd := exec.Command("go", "env", "GOROOT")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err == nil {
		root = strings.TrimSpace(string(out))
	} else if root == "" {
		return "", cli.Usagef("no --dir, and no Go tool chain whose source could be used instead (go env GOROOT: %w%s); name a directory with --dir", err, strings.TrimRight(": "+stderr.String(), ": \n"))
	}
	src := filepath.Join(root, "src")
	if _, err := os.Stat(src); err != nil {
		return "", cli.Usagef("no --dir, and the Go tool chain has no source to use instead: %w; name a directory with --dir", err)
	}
	return src, nil
}

// listDocuments reads every regular file under a directory and returns at most limit of them (0:
// all), in order of their paths. It ignores symbolic links and other irregular files; skipped names
// the files that do not fit into Bigtable. A file that cannot be read is an error.
func listDocuments(ctx context.Context, dir string, limit int) (docs []document, skipped []string, err error) {
	linked := map[string]bool{}
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !entry.Type().IsRegular():
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if info.Size() > maxSize || len(rel) > index.MaxName {
			skipped = append(skipped, rel)
			return nil
		}
		contents, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		docs = append(docs, document{rel, index.Digest(contents), len(contents)})
		for _, to := range index.Parse(rel, contents) {
			linked[to] = true
		}
		return nil
	})
	var path *fs.PathError
	switch {
	case errors.As(err, &path):
		return nil, nil, fmt.Errorf("every file under %s has to be readable: %w", dir, err)
	case err != nil:
		return nil, nil, err
	case len(docs) == 0:
		return nil, nil, cli.Usagef("--dir %s: no files in it; name a directory with some", dir)
	}
	return choose(docs, linked, limit), skipped, nil
}

// choose returns at most limit documents, in order of their paths. It prefers those that have
// in-links or duplicates, and takes the rest in the order of their hashes, which is random.
func choose(docs []document, linked map[string]bool, limit int) []document {
	if limit == 0 || limit >= len(docs) {
		return docs
	}
	equal := map[string]int{}
	for _, d := range docs {
		equal[d.hash]++
	}
	matters := func(d document) int {
		if linked[d.path] || equal[d.hash] > 1 {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(docs, func(a, b document) int {
		return cmp.Or(matters(a)-matters(b), strings.Compare(a.hash, b.hash))
	})
	docs = docs[:limit]
	slices.SortFunc(docs, func(a, b document) int { return strings.Compare(a.path, b.path) })
	return docs
}

// openDir checks --dir. It follows a link to a directory, which WalkDir would not.
func openDir(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", cli.Usagef("--dir: %w; name a directory that exists", err)
	}
	if !info.IsDir() {
		return "", cli.Usagef("--dir %s: it is a file; name a directory", dir)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	return filepath.Abs(dir)
}
