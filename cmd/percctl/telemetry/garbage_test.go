package telemetry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// longAgo hands out timestamps of a time that no retention reaches.
type longAgo struct{ last atomic.Int64 }

func (o *longAgo) Timestamp(context.Context) (tso.Timestamp, error) {
	return tso.FromTime(time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)) + tso.Timestamp(o.last.Add(1_000_000)), nil
}

// Rows with a lock that garbage collection finds first.
const (
	deadRow  = "dead long ago"
	doneRow  = "committed long ago" // the primary of tailRow
	tailRow  = "secondary of long ago"
	abortRow = "aborts"
	aliveRow = "alive since long ago"
)

// past leaves garbage, and locks that nobody has met.
func (s *scene) past() {
	cfg := s.cfg
	cfg.Oracle = &longAgo{}
	_, _, err := s.leaveWith(cfg, txntest.StepSecondaries, doneRow, tailRow)
	s.must(err)
	cfg.SyncSecondaries = true
	old := s.env.NewClient(cfg)
	for range 3 {
		s.update(old, "old")
	}
	_, _, _ = s.leaveWith(cfg, txntest.StepCommit, deadRow)
	_, _, _ = s.leaveWith(cfg, txntest.StepCommit, abortRow)
	_, _, _ = s.leaveWith(cfg, txntest.StepCommit, aliveRow)
	s.keepAlive(aliveRow)
}

// keepAlive extends the lock on a row, as a heartbeat does.
func (s *scene) keepAlive(row string) {
	table := s.env.Bigtable.Open("accounts")
	cells, err := table.ReadRow(s.t.Context(), row)
	s.must(err)
	for _, item := range cells[format.LockFamily] {
		_, cell, err := format.MetadataCell("accounts", row, item)
		s.must(err)
		lock, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		s.must(err)
		lock.TTL = time.Since(lock.StartTS.Time()) + 12*time.Hour
		m := bigtable.NewMutation()
		m.Set(format.LockFamily, strings.TrimPrefix(item.Column, format.LockFamily+":"), item.Timestamp, format.EncodeLock(lock))
		s.must(table.Apply(s.t.Context(), row, m))
	}
}

// remove does what an owner that aborts does to its row.
func (s *scene) remove(row string) {
	m := bigtable.NewMutation()
	m.DeleteRow()
	s.must(s.env.Bigtable.Open("accounts").Apply(s.t.Context(), row, m))
}

// garbage collects it, after runs that come to nothing.
func (s *scene) garbage() {
	ctx := s.t.Context()
	if s.collected {
		_, err := gc.Run(ctx, s.env.Client, gc.Config{})
		s.must(err)
		s.collect()
		return // counters continue
	}
	s.collected = true
	s.interrupted()
	s.lostLease()
	s.refused()

	// One owner aborts while its lock is looked at, one is alive.
	faults := txntest.NewFaults(s.t)
	held := faults.On("primary", func(c txntest.Call) bool { return c.Step == txntest.StepRead && c.Row == abortRow }, txntest.Hold, 1)
	collector := s.env.NewClient(s.cfg, faults.DialOptions()...)
	ended := make(chan error, 1)
	go func() {
		_, err := gc.Run(ctx, collector, gc.Config{LockWait: time.Nanosecond})
		ended <- err
	}()
	<-held.Fired()
	s.remove(abortRow)
	held.Release()
	var blocked *gc.BlockedError
	if err := <-ended; !errors.As(err, &blocked) || blocked.Count != 1 {
		s.t.Errorf("garbage collection with a live lock: %v", err)
	}

	s.remove(aliveRow)
	report, err := gc.Run(ctx, s.env.Client, gc.Config{})
	s.must(err)
	if report.Total.Versions != 2 {
		s.t.Errorf("garbage collection reclaimed: %+v", report)
	}
	_, err = gc.Run(ctx, s.env.Client, gc.Config{Retention: 100 * 24 * time.Hour})
	s.must(err)
	s.collect()

	for name, want := range map[string]int64{
		"percolator.gc.reclaimed.versions": report.Total.Versions, "percolator.gc.reclaimed.cells": report.Total.Cells,
		"percolator.gc.reclaimed.bytes": report.Total.Bytes,
	} {
		if got := s.sum(name); got != want || want == 0 {
			s.t.Errorf("%s is %d, and the report says %d", name, got, want)
		}
	}
	for name, want := range map[string][]string{
		"percolator.gc.locks":        {"gone", "left", "rolled back", "rolled forward"},
		"percolator.gc.run.duration": {"blocked", "done", "failed", "interrupted", "lease lost", "nothing to do"},
	} {
		if got := s.values(name); !slices.Equal(got, want) {
			s.t.Errorf("%s has the values %q, want %q", name, got, want)
		}
	}
}

// interrupted ends a run while it waits for the fence.
func (s *scene) interrupted() {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	if _, err := gc.Run(ctx, s.env.Client, gc.Config{Progress: func(p gc.Progress) {
		if p.Phase == gc.PhaseFence {
			cancel()
		}
	}}); !errors.Is(err, context.Canceled) {
		s.t.Errorf("a run that was interrupted: %v", err)
	}
}

// lostLease has another collector take a run's lease, which it cannot renew.
func (s *scene) lostLease() {
	ctx := s.t.Context()
	faults := txntest.NewFaults(s.t)
	collector := s.env.NewClient(s.cfg, faults.DialOptions()...)
	var cut atomic.Bool
	renewal := faults.On("renewal", func(c txntest.Call) bool { return c.Row == "lock/gc" && cut.Load() }, txntest.DropRequest, 0)
	ended := make(chan error, 1)
	go func() {
		_, err := gc.Run(ctx, collector, gc.Config{Restart: true, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseFence {
				cut.Store(true)
			}
		}})
		ended <- err
	}()
	<-renewal.Fired()
	locks := tso.NewRowLocks(s.env.Bigtable.Open(format.DefaultMetadataTable), s.env.Oracle(), tso.RowLocksConfig{})
	for taken := false; !taken; {
		var err error
		taken, _, err = locks.Acquire(ctx, "gc", "another", time.Minute)
		s.must(err)
	}
	cut.Store(false)
	var lost *gc.BusyError
	if err := <-ended; !errors.As(err, &lost) || !lost.Lost {
		s.t.Errorf("a run whose lease was taken: %v", err)
	}
	s.must(locks.Release(ctx, "gc", "another"))
}

// refused has Bigtable refuse to say which tables there are.
func (s *scene) refused() {
	var armed atomic.Bool
	collector := s.env.NewClient(s.cfg, txntest.Intercept(func(c txntest.Call) error {
		if armed.Load() && c.Step == txntest.StepSchema {
			return status.Error(grpccodes.PermissionDenied, "refused")
		}
		return nil
	})...)
	armed.Store(true)
	if _, err := gc.Run(s.t.Context(), collector, gc.Config{}); status.Code(err) != grpccodes.PermissionDenied {
		s.t.Errorf("a run that was refused: %v", err)
	}
}

// sum adds a counter up, over its attributes, as it was last seen.
func (s *scene) sum(name string) (n int64) {
	for _, sm := range s.seen[len(s.seen)-1].ScopeMetrics {
		for _, m := range sm.Metrics {
			if d, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, p := range d.DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

// wasZero reports whether a counter was ever seen as 0.
func (s *scene) wasZero(name string) bool {
	for _, rm := range s.seen {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if d, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name && slices.ContainsFunc(d.DataPoints, func(p metricdata.DataPoint[int64]) bool { return p.Value == 0 }) {
					return true
				}
			}
		}
	}
	return false
}

// values are those that the attributes of a metric had when it was last seen, in
// order.
func (s *scene) values(name string) (values []string) {
	for _, sm := range s.seen[len(s.seen)-1].ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			_, sets := points(m.Data)
			for _, set := range sets {
				values = append(values, attributeValues(set)...)
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

func attributeValues(set attribute.Set) (values []string) {
	for _, kv := range set.ToSlice() {
		values = append(values, kv.Value.String())
	}
	return values
}
