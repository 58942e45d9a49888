package soak

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// A result is what one history found and counted.
type result struct {
	workload string
	oracle   string
	collects bool // garbage
	seed     uint64

	mu         sync.Mutex
	records    []history.Record
	open       map[int]history.Record // transactions without an end
	count      map[history.Type]int
	faults     map[string]int
	used       map[string]int
	kills      int
	failovers  int
	timestamps int64
	observed   int64
	stranded   int // locks left at the end
	deaths     map[string]time.Time
	settled    int             // locks of killed clients that other clients resolved
	recovery   []time.Duration // from a kill until another client had read the cell

	anomalies  []string
	violations []string

	batches []batch // of timestamps
	epoch   uint64  // the latest known epoch of the oracle
}

// listed is how many findings of each kind of a history are printed.
const listed = 5

// write writes a line about a history, its findings, and the command to repeat it if it
// has findings.
func (r *result) write(w io.Writer, number int, o *options, since time.Duration) {
	fmt.Fprintf(w, "%8v %4d %-20s %-6s seed %-10d %6d ok %6d failed %4d unknown %5d kills\n", since.Round(time.Second), number, r.workload, r.oracle, r.seed, r.count[history.OK], r.count[history.Fail], r.count[history.Info], r.kills)
	for _, found := range []struct {
		what string
		all  []string
	}{{"anomaly", r.anomalies}, {"violation", r.violations}} {
		for i, f := range found.all {
			if i == listed {
				fmt.Fprintf(w, "     … and %d more\n", len(found.all)-listed)
				break
			}
			fmt.Fprintf(w, "%s: %s\n", found.what, cli.Line(f))
		}
	}
	if len(r.anomalies)+len(r.violations) > 0 {
		gc := "none"
		if r.collects {
			gc = "all"
		}
		fmt.Fprintf(w, "to repeat: %s\n", o.replay(r.workload, r.oracle, gc, r.seed, " --histories 1"))
	}
}
