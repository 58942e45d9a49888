package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLog: each line of the log is a run, and the page shows their totals.
func TestLog(t *testing.T) {
	runs, err := read(filepath.Join("../../..", log))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("../../..", page))
	if err != nil {
		t.Fatal(err)
	}
	want, err := withTable(string(text), runs)
	if err != nil {
		t.Fatal(err)
	}
	if want != string(text) {
		t.Errorf("the totals in %s are not those of %s: run campaign totals", page, log)
	}
}

// TestRecord runs commands in a repository of its own: a soak that reports what it found, and a
// test that fails.
func TestRecord(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"init -q", "-c user.name=a -c user.email=a commit -q --allow-empty -m x"} {
		if out, err := exec.Command("git", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	for _, test := range []struct {
		command []string
		status  int
		want    run
	}{
		{[]string{"echo", `{"seed":7,"histories":3,"transactions":50,"faults_fired":4,"anomalies":1,"violations":1}`}, 0,
			run{Seeds: "7", Histories: 3, Transactions: 50, FaultsFired: 4, Found: 2}},
		{[]string{"false"}, 1, run{Found: 1}},
		{[]string{"true"}, 0, run{}},
	} {
		status, err := record(&run{Kind: "k"}, test.command)
		if status != test.status || err != nil {
			t.Errorf("%v: exit status %d, %v; want %d", test.command, status, err, test.status)
		}
		runs, err := read(log)
		if err != nil {
			t.Fatal(err)
		}
		got := runs[len(runs)-1]
		if got.Seeds != test.want.Seeds || got.Histories != test.want.Histories || got.Transactions != test.want.Transactions ||
			got.FaultsFired != test.want.FaultsFired || got.Found != test.want.Found {
			t.Errorf("%v: recorded %+v", test.command, got)
		}
	}
	runs, err := read(log)
	if err != nil || len(runs) != 3 {
		t.Fatalf("%d runs, %v; want 3: a run is added, and none is changed", len(runs), err)
	}
	if got := table(runs); !strings.Contains(got, "| k | 3 | 0.00 | 3 | 50 | 4 | 3 |") {
		t.Errorf("totals:\n%s", got)
	}
}
