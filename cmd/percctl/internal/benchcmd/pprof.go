package benchcmd

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The parts of a process that CPU time is told apart by.
const (
	partLibrary  = "library"
	partBigtable = "bigtable"
	partGRPC     = "grpc"
	partEmulator = "emulator"
	partBench    = "benchmark"
	partRuntime  = "runtime"
)

// partOf are the packages of the parts. What is in none of them, as the standard
// library and the runtime's memory management, counts for whoever called it.
var partOf = []struct{ prefix, part string }{
	{"github.com/percolator-bigtable/percolator/txn.", partLibrary},
	{"github.com/percolator-bigtable/percolator/txn/internal/", partLibrary},
	{"github.com/percolator-bigtable/percolator/tso", partLibrary},
	{"github.com/percolator-bigtable/percolator/cmd/", partBench},
	{"github.com/percolator-bigtable/percolator/txn/txntest", partBench},
	{"cloud.google.com/go/bigtable/bttest", partEmulator},
	{"github.com/google/btree", partEmulator},
	{"cloud.google.com/go/bigtable/apiv2/", partGRPC}, // generated messages
	{"cloud.google.com/go/bigtable.", partBigtable},
	{"cloud.google.com/go/bigtable/", partBigtable},
	{"github.com/googleapis/gax-go", partBigtable},
	{"google.golang.org/grpc", partGRPC},
	{"google.golang.org/protobuf", partGRPC},
	{"golang.org/x/net", partGRPC},
	{"internal/poll.", partGRPC},
	{"net.", partGRPC},
}

// shares reads a CPU profile and returns each part's share of its time.
func shares(file string) (map[string]float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", file, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", file, err)
	}
	p, err := parseProfile(text)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", file, err)
	}
	return p.shares(), nil
}

// A cpuProfile is what is needed of a profile.proto.
type cpuProfile struct {
	samples   []cpuSample
	lines     map[uint64][]uint64 // of a location: its functions, the innermost first
	functions map[uint64]uint64   // names, as places in strings
	strings   []string
}

type cpuSample struct {
	locations []uint64 // the leaf first
	values    []uint64 // count and nanoseconds
}

// fields calls f with each field of a message; numbers come as n, what is
// length-delimited as b.
func fields(message []byte, f func(num protowire.Number, n uint64, b []byte) error) error {
	for len(message) > 0 {
		num, typ, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var n uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(num, typ, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := f(num, n, b); err != nil {
			return err
		}
	}
	return nil
}

// repeated reads a field of repeated numbers, packed or not.
func repeated(to *[]uint64, n uint64, b []byte) error {
	if b == nil {
		*to = append(*to, n)
		return nil
	}
	for len(b) > 0 {
		v, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		*to, b = append(*to, v), b[size:]
	}
	return nil
}

// parseProfile reads a profile.proto (github.com/google/pprof/proto).
func parseProfile(text []byte) (*cpuProfile, error) {
	p := &cpuProfile{lines: map[uint64][]uint64{}, functions: map[uint64]uint64{}}
	return p, fields(text, func(num protowire.Number, _ uint64, b []byte) error {
		switch num {
		case 2: // sample
			var s cpuSample
			err := fields(b, func(num protowire.Number, n uint64, b []byte) error {
				switch num {
				case 1:
					return repeated(&s.locations, n, b)
				case 2:
					return repeated(&s.values, n, b)
				}
				return nil
			})
			p.samples = append(p.samples, s)
			return err
		case 4: // location
			var id uint64
			var functions []uint64
			err := fields(b, func(num protowire.Number, n uint64, b []byte) error {
				switch num {
				case 1:
					id = n
				case 4: // line
					return fields(b, func(num protowire.Number, n uint64, _ []byte) error {
						if num == 1 {
							functions = append(functions, n)
						}
						return nil
					})
				}
				return nil
			})
			p.lines[id] = functions
			return err
		case 5: // function
			var id, name uint64
			err := fields(b, func(num protowire.Number, n uint64, _ []byte) error {
				switch num {
				case 1:
					id = n
				case 2:
					name = n
				}
				return nil
			})
			p.functions[id] = name
			return err
		case 6: // string_table
			p.strings = append(p.strings, string(b))
		}
		return nil
	})
}

func (p *cpuProfile) shares() map[string]float64 {
	by, all := map[string]float64{}, 0.0
	for _, s := range p.samples {
		if len(s.values) == 0 {
			continue
		}
		v := float64(s.values[len(s.values)-1])
		by[p.part(s)] += v
		all += v
	}
	for part := range by {
		by[part] /= all
	}
	return by
}

// part is the part of the innermost function that is in one. What no part has
// called is the runtime's: collecting garbage, and scheduling.
func (p *cpuProfile) part(s cpuSample) string {
	for _, location := range s.locations {
		for _, function := range p.lines[location] {
			at := p.functions[function]
			if at >= uint64(len(p.strings)) {
				continue
			}
			for _, known := range partOf {
				if strings.HasPrefix(p.strings[at], known.prefix) {
					return known.part
				}
			}
		}
	}
	return partRuntime
}
