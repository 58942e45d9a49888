package scale

import (
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// strandedLocks measures how fast an operator resolves the locks of one large transaction
// whose client died.
func strandedLocks(r *run) {
	for _, n := range []int{r.Locks, 10 * r.Locks} {
		w := r.world(10, 1, 1e8, 10)
		w.strand(tableName(0), 0, n)
		time.Sleep(time.Minute)
		c := w.client("operator", txn.Config{TokenTTL: time.Hour}, false)
		var primary txn.Cell
		var startTS tso.Timestamp
		for l, err := range admin.Locks(w.Context(), w.env.Client, tableName(0), nil) {
			if err != nil {
				w.Fatal(err)
			}
			primary, startTS = l.Primary, l.StartTS
			break
		}
		w.cluster.Reset()
		began := time.Now()
		_, locks, err := admin.ResolveTransaction(w.Context(), c, primary, startTS)
		if err != nil || locks != n {
			w.Errorf("%d of %d locks: %v", locks, n, err)
		}
		r.atMost(fmt.Sprintf("ResolveTransaction of %d locks", n), time.Since(began).Seconds(), max(2, 60*float64(n)/1e5), "s", "%d locks, %d requests", n, w.cluster.Sum(model.All).Requests)
	}
	// As percctl lock resolve does: it reads the locks and then resolves them.
	for _, n := range []int{r.Locks, 10 * r.Locks} {
		w := r.world(10, 1, 1e8, 10)
		w.strand(tableName(0), 0, n)
		time.Sleep(time.Minute)
		c := w.client("operator", txn.Config{TokenTTL: time.Hour}, false)
		began := time.Now()
		var locks []format.Lock
		for l, err := range admin.Locks(w.Context(), c, tableName(0), nil) {
			if err != nil {
				w.Fatal(err)
			}
			locks = append(locks, l)
		}
		if err := admin.ResolveLocks(w.Context(), c, locks, func(_ int, s format.Status, err error) {
			if err != nil || !s.Final() {
				w.Errorf("%v: %v", s.State, err)
			}
		}); err != nil {
			w.Error(err)
		}
		r.atMost(fmt.Sprintf("Locks and ResolveLocks of %d locks", n), time.Since(began).Seconds(), max(2, 60*float64(n)/1e5), "s", "%d locks", n)
	}
}

// outcomes measures how many cells a resolver reads at a primary with many later versions.
func outcomes(r *run) {
	const later = 5000
	w := r.world(1, 1, 0, 1)
	w.strandSecondary()
	for range later {
		if err := set(w.Context(), w.env.Client, tableName(0), "primary", "later"); err != nil {
			w.Fatal(err)
		}
	}
	time.Sleep(time.Minute)
	c := w.client("reader", txn.Config{TokenTTL: time.Hour}, false)
	w.cluster.Reset()
	s, err := c.Snapshot(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	v, _, err := s.Table(tableName(0)).Get(w.Context(), "secondary", "f", "q")
	if err != nil || string(v) != "first" {
		w.Errorf("read %q, %v", v, err)
	}
	r.atMost("cells that a reader reads to learn an outcome", float64(w.cluster.Sum(kind("read")).Cells), 20, "cells", "%d later versions at the primary", later)
}

// strandSecondary leaves a committed transaction whose secondary is still locked.
func (w *world) strandSecondary() {
	w.Helper()
	w.strandAt(txntest.StepSecondaries, func(tx *txn.Txn) {
		tx.Table(tableName(0)).Set("primary", "f", "q", []byte("first"))
		tx.Table(tableName(0)).Set("secondary", "f", "q", []byte("first"))
	})
}
