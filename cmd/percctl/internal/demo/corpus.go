package demo

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/percolator-bigtable/percolator/docs/examples/index"
)

// A corpus is the documents as they should be indexed: the files, and what the demo
// has changed, added and deleted. It never writes to a file.
type corpus struct {
	dir     string
	files   map[string]document
	overlay map[string]index.Document
}

func newCorpus(dir string, docs []document) *corpus {
	c := &corpus{dir: dir, files: map[string]document{}, overlay: map[string]index.Document{}}
	for _, d := range docs {
		c.files[d.path] = d
	}
	return c
}

// names returns the names of the present documents, in order.
func (c *corpus) names() []string {
	var names []string
	for name := range c.files {
		if !c.overlay[name].Deleted {
			names = append(names, name)
		}
	}
	for name, d := range c.overlay {
		if _, file := c.files[name]; !file && !d.Deleted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *corpus) read(name string) (index.Document, error) {
	if d, ok := c.overlay[name]; ok {
		return d, nil
	}
	contents, err := os.ReadFile(filepath.Join(c.dir, filepath.FromSlash(name)))
	if err != nil {
		return index.Document{}, err
	}
	if index.Digest(contents) != c.files[name].hash {
		return index.Document{}, fmt.Errorf("%s changed while the demo was running; use a directory that does not change", name)
	}
	return index.Document{Name: name, Contents: contents}, nil
}

// documents reads the documents of these names.
func (c *corpus) documents(names []string) iter.Seq2[index.Document, error] {
	return func(yield func(index.Document, error) bool) {
		for _, name := range names {
			if !yield(c.read(name)) {
				return
			}
		}
	}
}

// A change is what the demo does to the corpus once it is indexed.
type change struct {
	names                   []string // of the documents concerned
	changed, added, deleted int
}

// The demo makes changeShare changes for each document of the corpus, and at least fewest.
const (
	changeShare = 0.01
	fewest      = 4
)

// change makes some changes of each kind, chosen by a seed:
//
//   - a document is deleted, the canonical one of a cluster if there is any;
//   - a copy of a document is added, and another document with a link to it. That makes the copy
//     canonical if the original has no in-links;
//   - a document gets the contents of another one;
//   - a document gets contents that no other document has.
func (c *corpus) change(seed uint64, clusters []index.Cluster) (ch change, err error) {
	random := rand.New(rand.NewPCG(seed, 2))
	put := func(name string, contents []byte) { c.overlay[name] = index.Document{Name: name, Contents: contents} }
	for i := range max(fewest, int(changeShare*float64(len(c.files)))) {
		names := c.names()
		// No document changes twice.
		untouched := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := c.overlay[name]; return ok })
		if len(untouched) == 0 {
			break
		}
		name := untouched[random.IntN(len(untouched))]
		other, err := c.read(names[random.IntN(len(names))])
		if err != nil {
			return ch, err
		}
		switch i % 4 {
		case 0:
			if i/4 < len(clusters) && clusters[i/4].Documents > 1 && slices.Contains(untouched, clusters[i/4].Canonical) {
				name = clusters[i/4].Canonical
			}
			c.overlay[name] = index.Document{Name: name, Deleted: true}
			ch.deleted++
		case 1:
			dir := fmt.Sprintf("demo/added%d", i/4)
			put(path.Join(dir, path.Base(dir)+".go"), other.Contents)
			put(path.Join(dir, "link.go"), fmt.Appendf(nil, "package link\n\nimport _ %q\n", dir))
			ch.added += 2
		case 2:
			put(name, other.Contents)
			ch.changed++
		case 3:
			put(name, fmt.Appendf(slices.Clone(other.Contents), "\n// Changed by percctl demo: %d.\n", i))
			ch.changed++
		}
	}
	ch.names = slices.Sorted(maps.Keys(c.overlay))
	return ch, nil
}
