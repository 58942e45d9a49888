package index

import (
	"crypto/sha256"
	"encoding/hex"
	"go/parser"
	"go/token"
	"html"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MaxName bounds names, so that member:NAME and source:NAME stay within what a
// transaction can lock. Links to longer ones are passed over.
const MaxName = 3000

// Digest is the SHA-256 of contents, in hexadecimal.
func Digest(contents []byte) string {
	sum := sha256.Sum256(contents)
	return hex.EncodeToString(sum[:])
}

// Parse returns the names that a document links to, each once, in order, and
// without its own. Whether documents of these names exist is not its business.
//
// A .go file's imports are its links. An import names a directory; like a link
// to a directory of a web site it leads to the directory's index page, which we
// take to be the file that the package is named after: "net/http" leads to
// net/http/http.go. A .html file's links are those of its <a> elements that lead
// to other files here, directories to their index.html. Other documents have no
// links.
func Parse(name string, contents []byte) (links []string) {
	switch path.Ext(name) {
	case ".go":
		links = goLinks(name, contents)
	case ".html":
		links = htmlLinks(name, contents)
	}
	links = slices.DeleteFunc(links, func(l string) bool { return l == name || l == "" || len(l) > MaxName })
	slices.Sort(links)
	return slices.Compact(links)
}

// goLinks takes what imports can be made out; a file need not be correct.
func goLinks(name string, contents []byte) (links []string) {
	file, _ := parser.ParseFile(token.NewFileSet(), name, contents, parser.ImportsOnly)
	if file == nil {
		return nil
	}
	for _, spec := range file.Imports {
		dir, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		links = append(links, path.Join(resolveImport(name, dir), path.Base(dir)+".go"))
	}
	return links
}

// resolveImport says in which directory an import lies. The Go tool chain's
// source keeps other people's packages in two directories of its own.
func resolveImport(name, dir string) string {
	if first, _, _ := strings.Cut(dir, "/"); !strings.Contains(first, ".") {
		return dir
	}
	if strings.HasPrefix(dir, ".") {
		return path.Join(path.Dir(name), dir)
	}
	if strings.HasPrefix(name, "cmd/") {
		return path.Join("cmd/vendor", dir)
	}
	return path.Join("vendor", dir)
}

var anchor = regexp.MustCompile(`(?is)<a\s[^>]*?\bhref\s*=\s*(?:"([^"]*)"|'([^']*)')`)

func htmlLinks(name string, contents []byte) (links []string) {
	for _, m := range anchor.FindAllSubmatch(contents, -1) {
		u, err := url.Parse(html.UnescapeString(string(m[1]) + string(m[2])))
		if err != nil || u.Scheme != "" || u.Host != "" || u.Path == "" {
			continue
		}
		to := u.Path
		if !strings.HasPrefix(to, "/") {
			to = path.Join("/", path.Dir(name)) + "/" + to
		}
		if strings.HasSuffix(to, "/") {
			to += "index.html"
		}
		links = append(links, strings.TrimPrefix(path.Clean(to), "/"))
	}
	return links
}
