package child_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
)

// TestMain lets this binary be a child.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		os.Exit(children[os.Args[2]]())
	}
	os.Exit(m.Run())
}

var children = map[string]func() int{
	// echo answers each number with its double.
	"echo": func() int {
		in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
		for {
			var n int
			if in.Decode(&n) != nil {
				return 0
			}
			_ = out.Encode(2 * n)
		}
	},
	// fail says why.
	"fail": func() int {
		fmt.Fprintln(os.Stderr, "no luck")
		return 3
	},
	// lines writes lines, and half of one, until it is killed.
	"lines": func() int {
		fmt.Print("one\ntwo\nhal")
		select {}
	},
	// deaf does not notice that its input has ended.
	"deaf": func() int {
		fmt.Println("ready")
		<-time.After(time.Hour)
		return 0
	},
	// attend ends with its input, whatever an interrupt says.
	"attend": func() int {
		ctx, cancel := child.Attend(context.Background(), os.Stdin, func(line []byte) { fmt.Printf("got %s", line) })
		defer cancel()
		fmt.Println("ready")
		<-ctx.Done()
		return 0
	},
}

func start(t *testing.T, name string) *child.Process {
	t.Helper()
	p, err := child.Start(t.Context(), child.Config{Name: name, Args: []string{"child", name}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); _ = p.Wait() })
	return p
}

func TestAsk(t *testing.T) {
	t.Parallel()
	p := start(t, "echo")
	for n := range 3 {
		var got int
		if err := p.Ask(n, &got); err != nil || got != 2*n {
			t.Errorf("%d, %v; want %d", got, err, 2*n)
		}
	}
	if err := p.End(time.Minute); err != nil || p.Killed() {
		t.Errorf("%v, killed %v", err, p.Killed())
	}
}

// An error has the process's name and what it wrote on standard error.
func TestFailure(t *testing.T) {
	t.Parallel()
	p := start(t, "fail")
	for range 2 {
		if err := p.Wait(); err == nil || err.Error() != "process fail: exit status 3: no luck" {
			t.Errorf("%v", err)
		}
	}
	if _, err := start(t, "fail").Line(); err == nil {
		t.Error("a line of a process that wrote none")
	}
}

// What a process wrote before it was killed is read, but for half a line.
func TestKilled(t *testing.T) {
	t.Parallel()
	p := start(t, "lines")
	var got []string
	p.Each(func(line []byte) {
		if got = append(got, strings.TrimSpace(string(line))); len(got) == 2 {
			p.Kill()
		}
	})
	if err := p.Wait(); err == nil || !p.Killed() {
		t.Errorf("%v, killed %v", err, p.Killed())
	}
	if fmt.Sprint(got) != "[one two]" {
		t.Errorf("%q", got)
	}
}

func TestEndOfTheDeaf(t *testing.T) {
	t.Parallel()
	p := start(t, "deaf")
	if _, err := p.Line(); err != nil {
		t.Fatal(err)
	}
	if err := p.End(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "process deaf did not end within 10ms") {
		t.Errorf("%v", err)
	}
}

// The context of a child ends with its input, and each line is passed on.
func TestAttend(t *testing.T) {
	t.Parallel()
	p := start(t, "attend")
	for _, want := range []string{"ready", "got hello"} {
		if got, err := p.Line(); err != nil || got != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		if err := p.WriteLine("hello"); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.End(time.Minute); err != nil {
		t.Error(err)
	}
}

// A child does not outlive its context.
func TestContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := child.Start(ctx, child.Config{Args: []string{"child", "deaf"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Line(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := p.Wait(); err == nil || !p.Killed() {
		t.Errorf("%v, killed %v", err, p.Killed())
	}
}
