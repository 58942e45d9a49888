package gc

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

func TestConfigDefaults(t *testing.T) {
	least := gctime.MinRetention()
	for _, tt := range []struct{ cfg, want Config }{
		{Config{}, Config{Retention: 24 * time.Hour, LockWait: time.Minute}},
		{Config{Retention: least, Rate: 0.5, LockWait: -1, FullEvery: 1}, Config{Retention: least, Rate: 0.5, LockWait: -1, FullEvery: 1}},
		{Config{Retention: least + 1, LockWait: 1}, Config{Retention: least + 1, LockWait: 1}},
	} {
		got, err := tt.cfg.withDefaults()
		if got.Progress == nil {
			t.Error("no Progress")
		}
		got.Progress(Progress{})
		if got.Retention != tt.want.Retention || got.Rate != tt.want.Rate || got.LockWait != tt.want.LockWait || got.FullEvery != tt.want.FullEvery || err != nil {
			t.Errorf("%+v: %v, want %+v", got, err, tt.want)
		}
	}
	for field, cfg := range map[string]Config{
		"Retention is -1ns": {Retention: -1}, "Retention is 9m": {Retention: least - 1}, "Rate is -1": {Rate: -1}, "Rate is NaN": {Rate: math.NaN()}, "FullEvery is -1ns": {FullEvery: -1},
	} {
		if _, err := cfg.withDefaults(); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestStreams: how many rows and parts a run reads at a time follows its rate, and so do the rows that
// it may read at once.
func TestStreams(t *testing.T) {
	for _, tt := range []struct {
		own, all      float64 // of this collector, and of all of the run
		page, streams int
		limit         rate.Limit
		burst         int
	}{
		{0, 0, 1024, 16, rate.Inf, 0},
		{0, 0.5, 1, 1, 0.5, 1},
		{0, 1, 1, 1, 1, 1},
		{0, 1023, 1023, 1, 1023, 1023},
		{0, 1025, 1024, 1, 1025, 1024},
		{0, 4999, 1024, 1, 4999, 1024},
		{0, 5000, 1024, 2, 5000, 1024},
		{0, 74_999, 1024, 15, 74_999, 1024},
		{0, 1e9, 1024, 16, 1e9, 1024},
		{100, 0, 100, 1, 100, 100},
		{100, 50, 50, 1, 50, 50},
		{50, 100, 50, 1, 50, 50},
	} {
		r := &run{cfg: Config{Rate: tt.own}}
		r.setStreams(tt.all)
		if r.page != tt.page || r.streams != tt.streams || r.limiter.Limit() != tt.limit || tt.burst > 0 && r.limiter.Burst() != tt.burst {
			t.Errorf("%+v: pages of %d, %d streams, %v rows a second, %d at once", tt, r.page, r.streams, r.limiter.Limit(), r.limiter.Burst())
		}
	}
}

// TestPosition: the record of a run names the position up to which everything is collected, for people
// and older releases, but only while the run collects.
func TestPosition(t *testing.T) {
	part := func(table, row string) *recordpb.GarbageRun_Part {
		return &recordpb.GarbageRun_Part{Table: table, Row: []byte(row)}
	}
	for _, tt := range []struct {
		phase      recordpb.GarbageRun_Phase
		parts      []*recordpb.GarbageRun_Part
		table, row string
	}{
		{recordpb.GarbageRun_PHASE_COLLECT, nil, "old", "row"},
		{recordpb.GarbageRun_PHASE_LOCKS, []*recordpb.GarbageRun_Part{part("a", "b\x00")}, "old", "row"},
		{recordpb.GarbageRun_PHASE_COLLECT, []*recordpb.GarbageRun_Part{part("a", "b\x00")}, "a", "b"},
		{recordpb.GarbageRun_PHASE_COLLECT, []*recordpb.GarbageRun_Part{part("b", ""), part("a", "z\x00"), part("a", "c\x00")}, "a", "c"},
		{recordpb.GarbageRun_PHASE_COLLECT, []*recordpb.GarbageRun_Part{part("b", ""), part("c", "")}, "b", ""},
	} {
		g := &recordpb.GarbageRun{Phase: tt.phase, Parts: tt.parts, Table: "old", Row: []byte("row")}
		setPosition(g)
		if g.Table != tt.table || string(g.Row) != tt.row {
			t.Errorf("%v, %v: %q %q, want %q %q", tt.phase, tt.parts, g.Table, g.Row, tt.table, tt.row)
		}
	}
}

// TestRowsOfAPart: a part has the rows from where it continues to its end, in each table in between.
func TestRowsOfAPart(t *testing.T) {
	all := "all"
	for _, tt := range []struct {
		at                            position
		endTable, endRow, table, want string
	}{
		{position{"b", "m"}, "", "", "a", ""},
		{position{"b", "m"}, "", "", "b", "m.."},
		{position{"b", "m"}, "", "", "c", all},
		{position{"b", "m"}, "d", "k", "c", all},
		{position{"b", "m"}, "d", "k", "d", "..k"},
		{position{"b", "m"}, "d", "k", "e", ""},
		{position{"b", "m"}, "d", "", "d", ""},
		{position{"b", "m"}, "b", "z", "b", "m..z"},
		{position{"b", "m"}, "b", "m", "b", ""},
		{position{"b", ""}, "b", "z", "b", "..z"},
		{position{"", ""}, "", "", "a", all},
	} {
		w := &work{at: tt.at, part: &recordpb.GarbageRun_Part{EndTable: tt.endTable, EndRow: []byte(tt.endRow)}}
		got := ""
		if rows := w.rows(tt.table); !rows.Empty() {
			if got = rows.Ranges[0].Start + ".." + rows.Ranges[0].End; got == ".." {
				got = all
			}
		}
		if got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}
