package index

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTutorial: the code that docs/tutorial.md quotes is the code that runs.
func TestTutorial(t *testing.T) {
	t.Parallel()
	tutorial, err := os.ReadFile("../../tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, pattern := range []string{"*.go", "../../../cmd/percctl/internal/demo/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(name, "_test.go") {
				source.Write(text)
			}
		}
	}
	quoted := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(tutorial), -1)
	for _, q := range quoted {
		if !strings.Contains(source.String(), q[1]) {
			t.Errorf("not in the source:\n%s", q[1])
		}
	}
	// Every observer is explained.
	for _, o := range Observers() {
		if !strings.Contains(string(tutorial), "\n## The "+o.ID) {
			t.Errorf("there is no section on the %s", o.ID)
		}
	}
	if len(quoted) < len(Observers()) {
		t.Errorf("%d pieces of code are quoted", len(quoted))
	}
}
