package oracle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/bench"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/oracle"
	"github.com/percolator-bigtable/percolator/tso"
)

var program = cli.Program{Name: "lab", Commands: []cli.Command{bench.NewCmd, oracle.NewCmd}}

// TestMain makes this test binary run as lab in the benchmark's processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "oracle" || os.Args[1] == "bench") {
		os.Exit(program.Main(os.Args[1:], cli.System()))
	}
	goleak.VerifyTestMain(m)
}

func expect(t *testing.T, want int, inOut, inErr string, args ...string) (stdout string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := program.Main(append([]string{"oracle"}, args...), &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != want || !strings.Contains(out.String(), inOut) || !strings.Contains(errs.String(), inErr) {
		t.Errorf("lab oracle %s: exit %d, want %d\nstdout, want %q:\n%s\nstderr, want %q:\n%s", strings.Join(args, " "), code, want, inOut, &out, inErr, &errs)
	}
	return out.String()
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		says string
		args []string
	}{
		{"--callers is 0", []string{"--callers", "0"}},
		{"--servers is 17", []string{"--servers", "17"}},
		{"--duration is 1ns", []string{"--duration", "1ns"}},
	} {
		expect(t, cli.ExitUsage, "", test.says, test.args...)
	}
}

// lines sends what a command prints to a channel.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// TestBenchInterrupted: an interrupt ends the measurement of a line.
func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(lines, 100)
	cmd := oracle.NewCmd(&cli.Streams{Out: make(lines, 100), Err: errs})
	cmd.SetArgs([]string{"--duration", "1m"})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	select {
	case <-errs: // the clients have the orders of the first line
	case err := <-ended:
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("lab oracle still measures after the interrupt")
		<-ended
	}
}

func TestBench(t *testing.T) {
	out := expect(t, cli.ExitOK, "timestamps_per_second", "", "--duration", "10ms", "--callers", "20", "--servers", "2", "--clients", "2", "-o", "json")
	var r struct {
		Rate  float64 `json:"timestamps_per_second"`
		Ratio float64 `json:"idle_to_bare"`
		Lines []struct {
			What  string
			Batch float64 `json:"batch_mean"`
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Rate <= 0 || r.Ratio <= 0 || len(r.Lines) < 6 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSlowAnswers: a line takes as long as its first answer needs, so a report has no
// line without a measurement, and its ratio is a number.
func TestSlowAnswers(t *testing.T) {
	for _, callers := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			count, p50, err := oracle.Load(t.Context(), callers, 10*time.Millisecond, func(context.Context) (tso.Timestamp, error) {
				<-time.After(time.Second)
				return tso.FromTime(time.Now()), nil
			})
			if err != nil || count == 0 || p50 < 1e6*0.9 || time.Since(began) > 2*time.Minute {
				t.Errorf("%d callers: %d timestamps, p50 %g µs after %s: %v", callers, count, p50, time.Since(began), err)
			}
		})
	}
}
