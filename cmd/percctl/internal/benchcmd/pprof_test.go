package benchcmd

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// encodeProfile writes samples, each a stack from the leaf on with its
// nanoseconds, as a profile.proto.
func encodeProfile(samples map[int][]string) []byte {
	table := []string{""}
	var out []byte
	message := func(num protowire.Number, b []byte) {
		out = protowire.AppendBytes(protowire.AppendTag(out, num, protowire.BytesType), b)
	}
	number := func(b []byte, num protowire.Number, n int) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(n))
	}
	for nanos, stack := range samples {
		var packed []byte
		for _, name := range stack {
			table = append(table, name)
			id := len(table) - 1
			packed = protowire.AppendVarint(packed, uint64(id))
			message(4, protowire.AppendBytes(protowire.AppendTag(number(nil, 1, id), 4, protowire.BytesType), number(nil, 1, id)))
			message(5, number(number(nil, 1, id), 2, id))
		}
		s := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), packed)
		message(2, number(number(s, 2, 1), 2, nanos)) // values need not be packed
	}
	for _, s := range table {
		message(6, []byte(s))
	}
	return out
}

// Time counts for the innermost part on the stack; memory and the standard
// library for whoever called them.
func TestShares(t *testing.T) {
	t.Parallel()
	const module = "github.com/percolator-bigtable/percolator/"
	text := encodeProfile(map[int][]string{
		100: {"runtime.mallocgc", "strings.Join", module + "txn.(*View).Get", module + "cmd/percctl/internal/benchcmd.get"},
		200: {"google.golang.org/protobuf/proto.Marshal", "google.golang.org/grpc.(*ClientConn).Invoke", "cloud.google.com/go/bigtable.(*Table).Apply", module + "txn.(*Txn).Commit"},
		300: {"runtime.makemap", "cloud.google.com/go/bigtable.NewMutation", module + "txn.(*Txn).Commit"},
		150: {"regexp.compile", "cloud.google.com/go/bigtable/bttest.filterRow", "google.golang.org/grpc.(*Server).handleStream"},
		50:  {"runtime.scanobject", "runtime.gcBgMarkWorker"},
		120: {"syscall.Syscall", "internal/poll.(*FD).Write", "net.(*conn).Write"},
		80:  {"runtime.memmove", module + "txn/txntest.(*Stub).handle"},
	})
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, zipped.Bytes(), 0o666); err != nil {
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
			t.Errorf("%q was read", broken)
		}
	}
}
