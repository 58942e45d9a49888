package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
)

// A document is a file as it was when the demo began.
type document struct {
	path string // relative to the directory, with slashes: the row key
	hash string // SHA-256 of its contents, in hexadecimal
	size int
}

const (
	// maxSize is Bigtable's limit for the value of a cell.
	maxSize = 100 << 20
	// maxPath keeps the column members:<path> within what a transaction can
	// lock; longer paths hardly exist.
	maxPath = 3000
)

// sourceTree returns the src directory of the Go tool chain, which is a few
// thousand real files with real duplicates.
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

// listDocuments reads every regular file under a directory, in order of their
// paths and at most limit of them (0: all). Symbolic links and other irregular
// files are passed over in silence; skipped names those that do not fit into
// Bigtable. A file that cannot be read is an error.
func listDocuments(ctx context.Context, dir string, limit int) (docs []document, skipped []string, err error) {
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case limit > 0 && len(docs) == limit:
			return fs.SkipAll
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
		if info.Size() > maxSize || len(rel) > maxPath {
			skipped = append(skipped, rel)
			return nil
		}
		contents, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		docs = append(docs, document{rel, digest(contents), len(contents)})
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
	return docs, skipped, nil
}

// openDir checks --dir. A link to a directory is followed, which WalkDir would
// not do.
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
