package bench

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"
)

// newProfile makes a profile of samples. Each sample is a stack, beginning with the
// leaf, with its nanoseconds.
func newProfile(samples map[int][]string) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for nanos, stack := range samples {
		s := &profile.Sample{Value: []int64{1, int64(nanos)}}
		for _, name := range stack {
			id := uint64(len(p.Location) + 1)
			f := &profile.Function{ID: id, Name: name}
			l := &profile.Location{ID: id, Line: []profile.Line{{Function: f}}}
			p.Function, p.Location, s.Location = append(p.Function, f), append(p.Location, l), append(s.Location, l)
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

// Time counts for the innermost part on the stack. Memory management and the standard
// library count for their caller.
func TestShares(t *testing.T) {
	t.Parallel()
	const module = "github.com/percolator-bigtable/percolator/"
	p := newProfile(map[int][]string{
		100: {"runtime.mallocgc", "strings.Join", module + "txn.(*View).Get", module + "emulator_test/lab/internal/bench.get"},
		200: {"google.golang.org/protobuf/proto.Marshal", "google.golang.org/grpc.(*ClientConn).Invoke", "cloud.google.com/go/bigtable.(*Table).Apply", module + "txn.(*Txn).Commit"},
		300: {"runtime.makemap", "cloud.google.com/go/bigtable.NewMutation", module + "txn.(*Txn).Commit"},
		150: {"regexp.compile", "cloud.google.com/go/bigtable/bttest.filterRow", "google.golang.org/grpc.(*Server).handleStream"},
		50:  {"runtime.scanobject", "runtime.gcBgMarkWorker"},
		120: {"syscall.Syscall", "internal/poll.(*FD).Write", "net.(*conn).Write"},
		80:  {"runtime.memmove", module + "txn/txntest.(*Stub).handle"},
	})
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := shares(file)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{partLibrary: .1, partGRPC: .32, partBigtable: .3, partEmulator: .15, partRuntime: .05, partBench: .08}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, broken := range [][]byte{nil, []byte("no profile")} {
		if err := os.WriteFile(file, broken, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := shares(file); err == nil {
			t.Errorf("%q was parsed, want an error", broken)
		}
	}
}
