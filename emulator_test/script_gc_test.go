package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// collect runs garbage collection and prints its report. The retention is ten minutes
// if the script names no other.
func (s *script) collect(client string, words []string, opts map[string]string) string {
	c := s.client(client)
	// At this rate, a collection reads a table's parts one after the other. Side by side, a part
	// may resolve a primary before the part of the primary counts it.
	cfg := gc.Config{Retention: 10 * time.Minute, LockWait: -1, Rate: 4000, Plain: slices.Contains(words, "plain"), Restart: slices.Contains(words, "restart")}
	if d := opts["retention"]; d != "" {
		var err error
		cfg.Retention, err = time.ParseDuration(d)
		s.must(err)
	}
	ctx := c.ctx
	if d := opts["timeout"]; d != "" {
		t, err := time.ParseDuration(d)
		s.must(err)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t)
		defer cancel()
	}
	r, err := gc.Run(ctx, c.Client, cfg)
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	var blocked *gc.BlockedError
	var busy *gc.BusyError
	switch {
	case errors.As(err, &blocked):
		say("gc blocked by %d locks of %s", blocked.Count, s.ts(blocked.Locks[0].StartTS))
	case errors.As(err, &busy) && busy.Lost:
		say("gc lost its lease")
	case errors.As(err, &busy):
		say("gc busy")
	case errors.Is(err, context.DeadlineExceeded):
		say("gc deadline exceeded")
	case errors.Is(err, context.Canceled):
		say("gc canceled")
	case err != nil:
		say("gc failed: %s", s.rename(err.Error()))
	}
	if r == nil {
		return strings.Join(out, "\n")
	}
	for _, h := range r.HeldBy {
		say("gc held by %s", s.ts(h.OldestTS))
	}
	if r.Locks.Found > 0 {
		say("gc locks: %d forward, %d back, %d gone", r.Locks.RolledForward, r.Locks.RolledBack, r.Locks.Gone)
	}
	t := r.Total
	switch {
	case r.Nothing:
		say("gc nothing to do")
	case r.Finished:
		say("gc removed %d versions, %d newest deletes, %d marks, %d data, %d plain", t.Versions, t.Deletes, t.Marks, t.Data, t.Plain)
	}
	if r.Resumed {
		say("gc resumed")
	}
	if t.RowsSkipped > 0 {
		say("gc skipped %d rows", t.RowsSkipped)
	}
	return strings.Join(out, "\n")
}

func (s *script) status(c *scriptClient, name string) string {
	tx := s.txns[name]
	var u *txn.UndeterminedError
	if !errors.As(tx.err, &u) {
		s.t.Fatalf("%s is not undetermined: %v", name, tx.err)
	}
	st, err := admin.TransactionStatus(c.ctx, c.Client, u.Primary, u.StartTS)
	if err != nil {
		return s.rename(err.Error())
	}
	return st.State.String()
}

func (s *script) hold(name string, c *scriptClient) string {
	snap, err := c.Snapshot(c.ctx, txn.Hold())
	if err != nil {
		return s.rename(err.Error())
	}
	s.snaps[name] = snap
	s.names[snap.ReadTS()] = "s(" + name + ")"
	return ""
}

func (s *script) readAt(c *scriptClient, name, arg string) string {
	cell, err := format.ParseCell(arg)
	s.must(err)
	snap := s.snaps[name]
	if snap == nil {
		if snap, err = c.Snapshot(c.ctx, txn.At(s.txns[name].StartTS())); err != nil {
			return s.value(nil, false, err)
		}
	}
	return s.value(snap.Table(cell.Table).Get(c.ctx, cell.Row, cell.Family, cell.Qualifier))
}
