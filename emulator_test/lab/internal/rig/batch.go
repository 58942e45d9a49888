package rig

import (
	"context"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
)

// A BatchOrder clusters the repository again and again, as batch processing does: each
// run reads all documents and writes all clusters. Documents that arrive during a run
// wait for the next one. It uses Bigtable without transactions.
type BatchOrder struct {
	Documents int     // number at the beginning
	Rate      float64 // of arrivals, a second
	Duration  time.Duration
	Runs      int // least number of runs; documents stop arriving after Duration
}

// A Batch is one run of batch processing.
type Batch struct {
	Began, Ended int64 // Unix nanoseconds
	Documents    int   // read
	Dues         []int64
}

// arrivals is the stream of new documents.
type arrivals struct {
	mu   sync.Mutex
	dues []int64
}

func (a *arrivals) take() []int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.dues
	a.dues = nil
	return taken
}

// crawl writes documents when they are due, several in one request.
func (a *arrivals) crawl(ctx context.Context, table *bigtable.Table, o BatchOrder, begin time.Time) error {
	out := &bulk{table: table}
	count := int(o.Rate * o.Duration.Seconds())
	for i := 0; i < count; {
		if err := Pause(ctx, time.Until(DueAt(begin.UnixNano(), o.Rate, i))); err != nil {
			return err
		}
		var dues []int64
		for now := time.Now(); i < count && len(dues) < bulkRows; i++ {
			due := DueAt(begin.UnixNano(), o.Rate, i)
			if due.After(now) {
				break
			}
			m := bigtable.NewMutation()
			m.Set(Family, keysColumn, plainTime, []byte(strings.Join(keysOf(o.Documents+i, o.Documents), " ")))
			if err := out.add(ctx, RowOf(o.Documents+i), m); err != nil {
				return err
			}
			dues = append(dues, due.UnixNano())
		}
		if err := out.flush(ctx); err != nil {
			return err
		}
		a.mu.Lock()
		a.dues = append(a.dues, dues...)
		a.mu.Unlock()
	}
	return nil
}

// recluster reads all documents and writes the cluster of each.
func recluster(ctx context.Context, table *bigtable.Table) (documents int, err error) {
	type document struct {
		row  string
		keys []string
	}
	var all []document
	rctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = table.ReadRows(rctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		for _, item := range r[Family] {
			all = append(all, document{r.Key(), strings.Fields(string(item.Value))})
		}
		return true
	}, bigtable.RowFilter(bigtable.InterleaveFilters(
		bigtable.ChainFilters(bigtable.ColumnRangeFilter(Family, keysColumn, keysColumn+"\x00"), bigtable.LatestNFilter(1)), bigtable.BlockAllFilter())))
	if err != nil {
		return 0, err
	}
	first := map[string]string{}
	out := &bulk{table: table}
	for _, d := range all {
		cluster := d.row
		for k, key := range d.keys {
			if known, ok := first[indexRow(k, key)]; ok {
				cluster = known
				break
			}
		}
		for k, key := range d.keys {
			if _, ok := first[indexRow(k, key)]; !ok {
				first[indexRow(k, key)] = cluster
			}
		}
		m := bigtable.NewMutation()
		m.Set(Family, clusterColumn, plainTime, []byte(cluster))
		if err := out.add(ctx, d.row, m); err != nil {
			return 0, err
		}
	}
	return len(all), out.flush(ctx)
}
