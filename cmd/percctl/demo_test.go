package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// writeFiles fills a directory with documents: duplicates, binary, empty and
// large files, and names that need care.
func writeFiles(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string][]byte{
		"empty":                     {},
		"empty too":                 {},
		"binary \x01\x7f/\n/ö 文 🙂":  {0, 255, 254, 10, 13, 0},
		"binary \x01\x7f/\n/same":   {0, 255, 254, 10, 13, 0},
		"100%/back\\slash:\"quote'": []byte("quoted"),
		"large":                     bytes.Repeat([]byte("0123456789abcdef"), 5<<16), // over gRPC's usual 4 MiB
	}
	for i := range n {
		// Links to others, to equals, to itself and to nothing.
		files[fmt.Sprintf("dir%d/sub/%d.html", i%13, i)] = fmt.Appendf(nil, "contents %d <a href=%q>", i%17, fmt.Sprintf("/dir%d/sub/%d.html", i%11, i%11))
		if i%3 == 0 {
			files[fmt.Sprintf("p%d/p%d.go", i, i)] = fmt.Appendf(nil, "package p\nimport %q\n", fmt.Sprintf("p%d", i%7*3))
		}
	}
	for name, contents := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, contents, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDemo is the main job: workers die at every point of a run, and nothing is
// lost, doubled or left half done.
func TestDemo(t *testing.T) {
	long.Test(t, "workers die, and their locks must expire; a script runs a shorter demo")
	t.Parallel()
	dir := writeFiles(t, 90)
	for seed := range uint64(2) {
		t.Run(fmt.Sprintf("seed %d", seed+1), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("percctl", "demo", "--dir", dir, "--workers", "3", "--kills", "4", "--seed", fmt.Sprint(seed+1), "-o", "json")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			t.Logf("%s", stderr.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("standard output is not one JSON object: %v\n%s", err, out)
			}
			number := func(field string) float64 {
				n, ok := got[field].(float64)
				if !ok {
					t.Errorf("%s is %v; want a number", field, got[field])
				}
				return n
			}
			for field, want := range map[string]float64{
				"documents": 126, "duplicates": 25, "links": 108, "clients": 3, "observers": 6,
				"changed": 2, "added": 2, "deleted": 1, "workers_killed": 4, "clients_killed": 4,
				"killed_before_commit": 2, "killed_after_commit": 2, "killed_by_others": 0,
				"notifications_left": 0, "violations": 0, "mismatches": 0, "observers_failed": 0,
			} {
				if n := number(field); n != want {
					t.Errorf("%s is %v; want %v", field, n, want)
				}
			}
			for field, least := range map[string]float64{
				"committed": 131, "observers_run": 6 * 40, "observers_committed": 6 * 40, "collapsed": 1, "conflicts": 0,
				"rolled_back": 1, "cells_compared": 1000, "seconds": 0.01, "percolated_seconds": 0.01,
			} {
				if n := number(field); n < least {
					t.Errorf("%s is %v; want at least %v", field, n, least)
				}
			}
			if number("observers_committed") > number("observers_run") {
				t.Errorf("%v of %v runs committed", number("observers_committed"), number("observers_run"))
			}
			if sum := number("rolled_forward") + number("rolled_back"); number("locks_stranded") != sum {
				t.Errorf("locks_stranded is %v; rolled forward and back were %v", number("locks_stranded"), sum)
			}
		})
	}
}
