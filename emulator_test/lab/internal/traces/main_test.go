package traces

import (
	"bytes"
	"os"
	"testing"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "traces" {
		os.Exit(telemetry.Main(cli.Program{Name: "lab", Commands: []cli.Command{NewCmd}}))
	}
	os.Exit(m.Run())
}

// TestTraces: a commit has the right tree of spans, an observer has links to the
// changes that it ran for, and a resolver to the killed owner, across processes that
// export over OTLP.
func TestTraces(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	if err := run(t.Context(), options{images: dir}, &out, os.Stderr); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out.Bytes())
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("pictures: %v, %v; want 2", files, err)
	}
}
