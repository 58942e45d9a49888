// Command campaign runs a test that takes long, and adds a line about the run to
// docs/campaigns/runs.jsonl. No line of that file is ever changed.
//
// Usage, in the root of the repository (build it with go build -C .ci/tools ./campaign):
//
//	campaign run -kind soak [-seeds 1-3000] [-faults all] [-histories N] -- COMMAND [ARGUMENT…]
//	campaign totals
//
// It ends with the exit status of COMMAND. If COMMAND prints a summary of a soak (lab soak -o json),
// seeds, histories, transactions and faults are taken from that. totals writes the table of totals
// in docs/testing.md.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	log   = "docs/campaigns/runs.jsonl"
	page  = "docs/testing.md"
	begin = "<!-- campaigns: generated -->\n"
	end   = "<!-- /campaigns -->\n"
)

// A run is one line of the log.
type run struct {
	Date         time.Time `json:"date"` // of its begin
	Commit       string    `json:"commit"`
	Kind         string    `json:"kind"`
	Seeds        string    `json:"seeds,omitempty"`
	Faults       string    `json:"faults,omitempty"`       // which kinds it may choose
	FaultsFired  int       `json:"faults_fired,omitempty"` // how many happened
	Seconds      int       `json:"seconds"`
	Histories    int       `json:"histories,omitempty"`
	Transactions int       `json:"transactions,omitempty"`
	Found        int       `json:"found"` // anomalies and violations; of other commands 1 if they failed
	Command      string    `json:"command"`
}

// summary is what lab soak prints.
type summary struct {
	Seed         uint64 `json:"seed"`
	Histories    int    `json:"histories"`
	Transactions int    `json:"transactions"`
	FaultsFired  int    `json:"faults_fired"`
	Anomalies    int    `json:"anomalies"`
	Violations   int    `json:"violations"`
}

// record runs a command, and returns its exit status.
func record(r *run, command []string) (status int, err error) {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return 1, fmt.Errorf("git rev-parse: %w", err)
	}
	changed, err := exec.Command("git", "status", "--porcelain", "--", ".", ":!docs").Output()
	if err != nil {
		return 1, fmt.Errorf("git status: %w", err)
	}
	r.Commit = strings.TrimSpace(string(head))
	if len(changed) > 0 {
		r.Commit += "-changed"
	}
	r.Date, r.Command = time.Now().UTC().Truncate(time.Second), strings.Join(command, " ")
	var out bytes.Buffer
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &out), os.Stderr
	err = cmd.Run()
	r.Seconds = int(math.Ceil(time.Since(r.Date).Seconds()))
	if err != nil {
		if exit := new(exec.ExitError); !errors.As(err, &exit) {
			return 1, err
		}
		status, r.Found = cmd.ProcessState.ExitCode(), 1
	}
	var s summary
	if json.Unmarshal(out.Bytes(), &s) == nil && s.Histories > 0 {
		r.Seeds, r.Histories, r.Transactions, r.FaultsFired = strconv.FormatUint(s.Seed, 10), s.Histories, s.Transactions, s.FaultsFired
		r.Found = max(r.Found, s.Anomalies+s.Violations)
	}
	return status, add(log, r)
}

// add appends a line to a log.
func add(path string, r *run) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// read returns the runs of a log.
func read(path string) (runs []run, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var r run
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if r.Kind == "" || r.Commit == "" || r.Date.IsZero() || r.Seconds <= 0 {
			return nil, fmt.Errorf("%s:%d: a run needs a date, a commit, a kind and seconds", path, n)
		}
		runs = append(runs, r)
	}
	return runs, lines.Err()
}

// table returns the totals by kind as Markdown.
func table(runs []run) string {
	kinds := map[string]*run{}
	count := map[string]int{}
	for _, r := range runs {
		t := kinds[r.Kind]
		if t == nil {
			t = &run{Date: r.Date}
			kinds[r.Kind] = t
		}
		count[r.Kind]++
		t.Seconds += r.Seconds
		t.Histories += r.Histories
		t.Transactions += r.Transactions
		t.FaultsFired += r.FaultsFired
		t.Found += r.Found
		if r.Date.After(t.Date) {
			t.Date = r.Date
		}
	}
	names := make([]string, 0, len(kinds))
	for kind := range kinds {
		names = append(names, kind)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| Kind | Runs | Hours | Histories | Transactions | Faults | Found | Last |\n|---|---|---|---|---|---|---|---|\n")
	for _, kind := range names {
		t := kinds[kind]
		fmt.Fprintf(&b, "| %s | %d | %.2f | %d | %d | %d | %d | %s |\n", kind, count[kind], float64(t.Seconds)/3600, t.Histories, t.Transactions, t.FaultsFired, t.Found, t.Date.Format(time.DateOnly))
	}
	return b.String()
}

// withTable returns a page with its table of totals.
func withTable(text string, runs []run) (string, error) {
	before, rest, ok := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("%s has no place for the totals: %s", page, strings.TrimSpace(begin))
	}
	return before + begin + "\n" + table(runs) + "\n" + end + after, nil
}

func totals() error {
	runs, err := read(log)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed, err := withTable(string(text), runs)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(changed), 0o644)
}

func main() {
	var r run
	f := flag.NewFlagSet("campaign run", flag.ExitOnError)
	f.StringVar(&r.Kind, "kind", "", "what is run, for example soak")
	f.StringVar(&r.Seeds, "seeds", "", "the seeds, if the command does not report them")
	f.StringVar(&r.Faults, "faults", "", "which kinds of faults it may choose")
	f.IntVar(&r.Histories, "histories", 0, "how many histories it makes, if the command does not report that")
	status, err := 1, errors.New("usage: campaign run -kind KIND -- COMMAND [ARGUMENT…], or campaign totals")
	switch {
	case len(os.Args) == 2 && os.Args[1] == "totals":
		status, err = 0, totals()
	case len(os.Args) > 2 && os.Args[1] == "run":
		if f.Parse(os.Args[2:]) == nil && r.Kind != "" && f.NArg() > 0 {
			status, err = record(&r, f.Args())
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		status = max(status, 1)
	}
	os.Exit(status)
}
