package main

import (
	"bytes"
	"context"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(exit(runRole(context.Background(), role)))
	}
	os.Exit(m.Run())
}

// The tree of a commit, an observer's links to its triggers and a resolver's to
// a killed owner, across processes that export over OTLP.
func TestTraces(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	if err := run(t.Context(), options{images: dir}, &out); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out.Bytes())
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("pictures: %v, %v; want 2", files, err)
	}
}
