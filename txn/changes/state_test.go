package changes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

var changed = format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}

func item(family, qualifier string, ts tso.Timestamp, value []byte) bigtable.ReadItem {
	return bigtable.ReadItem{Row: "r", Column: family + ":" + qualifier, Timestamp: ts.Cell(), Value: value}
}

func failureItem(observer string, c format.Column, attempts uint32) bigtable.ReadItem {
	return item(format.NotifyFamily, format.FailureQualifier(observer, c), 9, format.Marshal(&recordpb.Failure{FormatVersion: format.Version, Attempts: attempts}))
}

// TestNotificationsOfARow: each column with notify cells or failures is a notification, its cells with the oldest
// first. What does not parse hides nothing else.
func TestNotificationsOfARow(t *testing.T) {
	other := format.Column{Family: "f", Qualifier: "a"}
	raw := bigtable.Row{format.NotifyFamily: {
		failureItem("o", changed.Column(), 2),
		item(format.NotifyFamily, ":p:f:q", 9, []byte("\xff")),
		item(format.NotifyFamily, ":p:nameless", 9, nil),
		failureItem("x", format.Column{Family: "g", Qualifier: "only"}, 1),
		item(format.NotifyFamily, other.Key(), 3, nil),
		item(format.NotifyFamily, changed.Column().Key(), 7, format.EncodeNotifyCell("trace", 2)),
		item(format.NotifyFamily, changed.Column().Key(), 5, nil),
		item(format.NotifyFamily, "nameless", 5, nil),
	}}
	cell := func(family, qualifier string) format.Cell {
		return format.Cell{Table: "t", Row: "r", Family: family, Qualifier: qualifier}
	}
	want := []Notification{
		{cell("f", "a"), []format.NotifyCell{{TS: 3}}, map[string]format.Failure{}},
		{changed, []format.NotifyCell{{TS: 5}, {TS: 7, TraceParent: "trace", Hops: 2}}, map[string]format.Failure{"o": {Attempts: 2}}},
		{cell("g", "only"), nil, map[string]format.Failure{"x": {Attempts: 1}}},
	}
	if d := cmp.Diff(want, notificationsOf(&store.Table{Name: "t"}, raw)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestTriggersOfACell: an observation has the notify cells and failures of its own cell, whatever else is read.
func TestTriggersOfACell(t *testing.T) {
	raw := bigtable.Row{format.NotifyFamily: {
		failureItem("o", changed.Column(), 2),
		failureItem("o", format.Column{Family: "f", Qualifier: "qq"}, 3),
		item(format.NotifyFamily, "::f:q", 9, []byte("\xff")), // of no observer
		item(format.NotifyFamily, "f:a", 8, nil),
		item(format.NotifyFamily, "f:q", 7, format.EncodeNotifyCell("", 1)),
		item(format.NotifyFamily, "f:q", 5, nil),
	}}
	o := &Observation{Cell: changed, Failures: map[string]format.Failure{}}
	want := &Observation{Cell: changed, Triggers: []format.NotifyCell{{TS: 5}, {TS: 7, Hops: 1}}, Failures: map[string]format.Failure{"o": {Attempts: 2}}}
	err := o.setTriggers(raw)
	if d := cmp.Diff(want, o, cmpopts.IgnoreUnexported(Observation{})); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	raw[format.NotifyFamily][0].Value = []byte("\xff")
	if err := o.setTriggers(raw); !errors.Is(err, format.ErrCorrupt) {
		t.Errorf("a damaged failure: %v", err)
	}
}

// TestNewestChange: the newest change of a cell is its newest write record. Without one it is a value from before,
// or what replays name. In a column for weak notifications it is the newest notification.
func TestNewestChange(t *testing.T) {
	_, value := format.EncodeCommit(changed, changed, format.KindPut, 5)
	record := bigtable.Row{format.WriteFamily: {item(format.WriteFamily, "f:q", 8, value)}}
	other := bigtable.Row{format.WriteFamily: {item(format.WriteFamily, "f:other", 8, value)}}
	damaged := bigtable.Row{format.WriteFamily: {item(format.WriteFamily, "f:q", 8, []byte("\xff"))}}
	replays := []format.NotifyCell{{TS: 6, Replayed: 4}, {TS: 7, Replayed: 3}}
	for name, tt := range map[string]struct {
		weak     bool
		triggers []format.NotifyCell
		raw      bigtable.Row
		present  bool
		want     tso.Timestamp
		err      error
	}{
		"a record":                {false, replays, record, true, 8, nil},
		"the record of a delete":  {false, replays, record, false, 8, nil},
		"a damaged record":        {false, replays, damaged, true, 0, format.ErrCorrupt},
		"another column's record": {false, nil, other, false, 0, nil},
		"a value":                 {false, replays, nil, true, 1, nil},
		"replays":                 {false, replays, nil, false, 4, nil},
		"nothing":                 {false, nil, nil, false, 0, nil},
		"weak":                    {true, replays, record, true, 7, nil},
		"weak, without any":       {true, nil, record, true, 0, nil},
	} {
		o := &Observation{Cell: changed, Weak: tt.weak, Triggers: tt.triggers}
		if err := o.setChange(tt.raw, tt.present); !errors.Is(err, tt.err) || o.ChangeTS != tt.want || (tt.want == 8) != (o.writer.StartTS == 5) {
			t.Errorf("%s: change %d, written by %+v, %v", name, o.ChangeTS, o.writer, err)
		}
	}
}

// TestFailuresOfAChange: a failure counts for its own change, and a dead letter until the cell is notified again.
func TestFailuresOfAChange(t *testing.T) {
	for name, tt := range map[string]struct {
		failure        *format.Failure
		newest         tso.Timestamp // notification
		failed, parked bool
	}{
		"none":                           {nil, 7, false, false},
		"this change":                    {&format.Failure{ChangeTS: 5, NotBefore: 100, LastTS: 6}, 7, true, false},
		"an older change":                {&format.Failure{ChangeTS: 4, NotBefore: 100, LastTS: 6}, 7, false, false},
		"a dead letter":                  {&format.Failure{ChangeTS: 5, NotBefore: format.Never, LastTS: 7}, 7, true, true},
		"a dead letter, notified again":  {&format.Failure{ChangeTS: 5, NotBefore: format.Never, LastTS: 6}, 7, false, false},
		"a dead letter, no notification": {&format.Failure{ChangeTS: 5, NotBefore: format.Never, LastTS: 6}, 0, true, true},
		"an older change's dead letter":  {&format.Failure{ChangeTS: 4, NotBefore: format.Never, LastTS: 7}, 7, false, false},
	} {
		o := &Observation{ChangeTS: 5, Failures: map[string]format.Failure{}}
		want := format.Failure{}
		if tt.failure != nil {
			o.Failures["o"] = *tt.failure
			if tt.failed {
				want = *tt.failure
			}
		}
		if tt.newest > 0 {
			o.Triggers = []format.NotifyCell{{TS: 1}, {TS: tt.newest}}
		}
		if f, failed := o.Failure("o"); failed != tt.failed || f != want || o.Parked("o") != tt.parked || o.KnownUpTo() != tt.newest {
			t.Errorf("%s: %+v, %t, parked: %t, known up to %d", name, f, failed, o.Parked("o"), o.KnownUpTo())
		}
	}
	if f, failed := (&Observation{}).Failure("o"); failed {
		t.Errorf("a cell that never changed: %+v", f)
	}
	o := &Observation{ChangeTS: 5, Observers: []string{"a", "b"}, Acks: map[string]tso.Timestamp{"a": 5, "b": 4}}
	if o.Pending("a") || !o.Pending("b") || !o.Pending("c") || o.Acknowledged() {
		t.Errorf("pending: %t, %t, %t, acknowledged: %t", o.Pending("a"), o.Pending("b"), o.Pending("c"), o.Acknowledged())
	}
	if o.Acks["b"] = 6; !o.Acknowledged() {
		t.Error("it is not acknowledged")
	}
}

// TestNotifyColumns: an observation names its columns in the filter if that takes 1 KiB at most.
func TestNotifyColumns(t *testing.T) {
	named := func(o *Observation) bigtable.Filter {
		all := []bigtable.Filter{store.ExactColumn(format.NotifyFamily, "f:q")}
		for _, id := range o.Observers {
			all = append(all, store.ExactColumn(format.NotifyFamily, ":"+id+":f:q"))
		}
		return store.AnyOf(all)
	}
	o := &Observation{Cell: changed}
	if got, want := o.notifyColumns().String(), named(o).String(); got != want {
		t.Errorf("without observers: %s, want %s", got, want)
	}
	// Of n observers, the last one has a name that needs all of the rest.
	const n = 8
	for range n - 1 {
		o.Observers = append(o.Observers, strings.Repeat("o", 20))
	}
	left := 1<<10 - store.FilterCost("f:q") - (n-1)*store.FilterCost(":"+strings.Repeat("o", 20)+":f:q") - store.FilterCost("::f:q")
	o.Observers = append(o.Observers, strings.Repeat("o", left/2))
	if got, want := o.notifyColumns().String(), named(o).String(); got != want {
		t.Errorf("at the limit: %s, want %s", got, want)
	}
	o.Observers[0] += "o"
	if got, want := o.notifyColumns().String(), store.WholeFamily(format.NotifyFamily).String(); got != want {
		t.Errorf("above the limit: %s, want %s", got, want)
	}
}

// TestFilterOfObservations: it names the observed columns and acknowledgments if they fit into
// store.FilterBudget, and otherwise families.
func TestFilterOfObservations(t *testing.T) {
	filter := func(locks, writes, acks, plain []bigtable.Filter) string {
		return store.Interleave(
			store.Chain(store.AnyOf(locks), store.UpTo(7), store.Latest, bigtable.StripValueFilter()),
			store.Chain(store.AnyOf(writes), store.UpTo(7), store.Latest),
			store.Chain(store.AnyOf(acks), store.UpTo(7), bigtable.LatestNFilter(maxAckVersions)),
			store.Chain(store.AnyOf(plain), bigtable.TimestampRangeFilterMicros(0, format.PlainBefore), store.Latest, bigtable.StripValueFilter())).String()
	}
	exact := func(family string, qualifiers ...string) (all []bigtable.Filter) {
		for _, q := range qualifiers {
			all = append(all, store.ExactColumn(family, q))
		}
		return all
	}
	families := filter(store.WholeFamilies(format.LockFamily), store.WholeFamilies(format.WriteFamily), store.WholeFamilies(format.AckFamily), store.WholeFamilies("f"))
	schema := func(c format.Column, observers ...string) *store.Schema {
		return &store.Schema{Families: []string{"f", format.AckFamily}, Observed: map[format.Column]store.Registration{c: {Observers: observers}}}
	}
	column := changed.Column()
	// So long that the observers' names need all of the budget.
	const n = 20
	cost := func(ids []string) (sum int) {
		sum = 3 * store.FilterCost(column.Key())
		for _, id := range ids {
			sum += 3 * store.FilterCost(format.AckColumn(column, id).Key())
		}
		return sum
	}
	var most []string
	for len(most) < n {
		most = append(most, fmt.Sprintf("%02d", len(most)))
	}
	for i := 0; cost(most)+6 <= store.FilterBudget; i++ {
		most[i%n] += "o"
	}
	if cost(most) != store.FilterBudget {
		t.Fatalf("the names cost %d bytes of %d", cost(most), store.FilterBudget)
	}
	keys := func(ids []string) (acks, all []string) {
		all = []string{column.Key()}
		for _, id := range ids {
			ack := format.AckColumn(column, id)
			acks, all = append(acks, ack.Qualifier), append(all, ack.Key())
		}
		return acks, all
	}
	named := func(ids []string) string {
		acks, all := keys(ids)
		return filter(exact(format.LockFamily, all...), exact(format.WriteFamily, all...), exact(format.AckFamily, acks...), exact("f", "q"))
	}
	above := slices.Clone(most)
	above[0] += "o"
	for name, tt := range map[string]struct {
		schema *store.Schema
		want   string
	}{
		"two observers":    {schema(column, "a", "b"), named([]string{"a", "b"})},
		"at the budget":    {schema(column, most...), named(most)},
		"above the budget": {schema(column, above...), families},
		"no observers":     {schema(column), filter(exact(format.LockFamily, "f:q"), exact(format.WriteFamily, "f:q"), store.WholeFamilies(format.AckFamily), exact("f", "q"))},
		"a pattern":        {schema(format.Pattern("f", "q"), "a"), families},
		"no column":        {&store.Schema{Families: []string{"f", format.AckFamily}}, families},
	} {
		if got := observedState(tt.schema, 7).String(); got != tt.want {
			t.Errorf("%s: %.300s, want %.300s", name, got, tt.want)
		}
	}
}

// TestCoveredEntries: a removal covers an entry only if it covers each of its timestamps.
func TestCoveredEntries(t *testing.T) {
	gone := journal.Removal{StartTS: 5, NotifyTS: 6, FailureTS: 7}
	for e, want := range map[journal.Entry]bool{
		{}: true, {StartTS: 5, NotifyTS: 6, FailureTS: 7}: true, {StartTS: 6}: false, {NotifyTS: 7}: false, {FailureTS: 8}: false,
	} {
		if covers(gone, e) != want {
			t.Errorf("%+v: %t", e, !want)
		}
	}
}

// TestLockedObservations: a lock of the cell, or of an acknowledgment of it, may change the answer.
func TestLockedObservations(t *testing.T) {
	s := &store.Schema{Families: []string{"f"}, Observed: map[format.Column]store.Registration{changed.Column(): {Observers: []string{"p", "o"}}}}
	n := Notification{Cell: changed, Triggers: []format.NotifyCell{{TS: 5}}, Failures: map[string]format.Failure{"o": {ChangeTS: 5}}}
	for key, locked := range map[string]bool{"f:q": true, format.AckColumn(changed.Column(), "o").Key(): true, "f:other": false, format.AckColumn(changed.Column(), "x").Key(): false} {
		for _, present := range []bool{true, false} {
			raw := bigtable.Row{format.LockFamily: {item(format.LockFamily, key, 3, nil)}}
			want := Observation{Cell: changed, StartTS: 7, Observers: []string{"o", "p"}, Acks: map[string]tso.Timestamp{}, Triggers: n.Triggers, Failures: n.Failures, Locked: locked}
			if present {
				raw["f"] = []bigtable.ReadItem{item("f", "q", 1, nil)}
				want.ChangeTS = 1
			}
			o, err := newObservation(t.Context(), nil, nil, s, n, raw, 7)
			if d := cmp.Diff(want, o, cmpopts.IgnoreUnexported(Observation{})); d != "" || err != nil {
				t.Errorf("lock of %s: %v (-want +got):\n%s", key, err, d)
			}
		}
	}
}

// TestDamagedSweep: a record that does not parse, or of another version, is no position.
func TestDamagedSweep(t *testing.T) {
	for value, want := range map[string]error{"\xff": format.ErrCorrupt, string(format.Marshal(&recordpb.Sweep{FormatVersion: format.Version})) + "\xff": format.ErrCorrupt, string(format.Marshal(&recordpb.Sweep{FormatVersion: format.Version + 1})): format.ErrFormatVersion} {
		if p, err := positionOf(recordpb.Journal_JOURNAL_ALWAYS, "t", 5, []byte(value)); !errors.Is(err, want) || p.Complete {
			t.Errorf("%q: %+v, %v", value, p, err)
		}
	}
	for _, tt := range []struct {
		journal  recordpb.Journal
		complete int64
		want     bool
	}{{recordpb.Journal_JOURNAL_ALWAYS, 0, true}, {recordpb.Journal_JOURNAL_LATER, 0, false}, {recordpb.Journal_JOURNAL_LATER, 1, true}} {
		p, err := positionOf(tt.journal, "t", 5, format.Marshal(&recordpb.Sweep{FormatVersion: format.Version, CompleteTs: tt.complete, Row: []byte("m"), DueTs: 7, BegunTs: 6, Missed: true}))
		if p.record, p.stored = nil, nil; err != nil || !cmp.Equal(p, SweepPosition{Table: "t", Row: "m", DueTS: 7, BegunTS: 6, Complete: tt.want, Missed: true}, cmp.AllowUnexported(SweepPosition{})) {
			t.Errorf("%+v: %+v, %v", tt, p, err)
		}
	}
}

// TestUnfinishedOfARow: what of a row is work that was left: notify cells of observed columns, and locks that may hide a
// change, which are those of observed columns and of acknowledgments, or all.
func TestUnfinishedOfARow(t *testing.T) {
	other := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "other"}
	ack := (&Observation{Cell: changed}).ackCell("o")
	s := &store.Schema{Families: []string{"f"}, Observed: map[format.Column]store.Registration{changed.Column(): {Observers: []string{"o"}}, {Family: "f", Qualifier: "init"}: {}}}
	lock := func(cell format.Cell, observed bool) (*format.Lock, bigtable.ReadItem) {
		l := &format.Lock{Cell: cell, Primary: cell, Kind: format.KindPut, StartTS: 5, TTL: 1e9, Observed: observed}
		return l, item(format.LockFamily, cell.Column().Key(), 5, format.EncodeLock(l))
	}
	mine, mineItem := lock(changed, true)
	others, othersItem := lock(other, false)
	acks, acksItem := lock(ack, false)
	locks := bigtable.Row{format.LockFamily: {mineItem, othersItem, acksItem}}
	for name, tt := range map[string]struct {
		raw      bigtable.Row
		allLocks bool
		want     []Unfinished
		err      error
	}{
		"notify cells": {bigtable.Row{format.NotifyFamily: {failureItem("o", changed.Column(), 1), item(format.NotifyFamily, "f:q", 7, nil), item(format.NotifyFamily, "f:init", 7, nil), item(format.NotifyFamily, "f:other", 7, nil)}},
			false, []Unfinished{{Cell: changed, TS: 7}}, nil},
		"locks":                   {locks, false, []Unfinished{{Cell: changed, TS: 5, Lock: mine}, {Cell: ack, TS: 5, Lock: acks}}, nil},
		"all locks":               {locks, true, []Unfinished{{Cell: changed, TS: 5, Lock: mine}, {Cell: other, TS: 5, Lock: others}, {Cell: ack, TS: 5, Lock: acks}}, nil},
		"a nameless notify cell":  {bigtable.Row{format.NotifyFamily: {item(format.NotifyFamily, "nameless", 7, nil)}}, true, nil, format.ErrCorrupt},
		"a nameless lock":         {bigtable.Row{format.LockFamily: {item(format.LockFamily, "nameless", 5, nil)}}, true, nil, format.ErrCorrupt},
		"a damaged lock":          {bigtable.Row{format.LockFamily: {item(format.LockFamily, "f:q", 5, []byte("\xff"))}}, true, nil, format.ErrCorrupt},
		"a nameless record":       {bigtable.Row{format.WriteFamily: {item(format.WriteFamily, "nameless", 5, nil)}}, true, nil, format.ErrCorrupt},
		"a record of no observer": {bigtable.Row{format.WriteFamily: {item(format.WriteFamily, "_ack:x", 5, nil)}}, true, nil, format.ErrCorrupt},
	} {
		raw := bigtable.Row{"f": {item("f", "q", 5, nil)}} // it names the row
		for family, items := range tt.raw {
			raw[family] = items
		}
		got, err := unfinishedRow(t.Context(), nil, &store.Table{Name: "t"}, s, raw, 9, tt.allLocks)
		if d := cmp.Diff(tt.want, got); d != "" || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
}

// TestCommittedAcknowledgment: of several versions and observers, the value is that which the record names.
func TestCommittedAcknowledgment(t *testing.T) {
	ack := (&Observation{Cell: changed}).ackCell("o")
	_, value := format.EncodeCommit(ack, ack, format.KindPut, 5)
	raw := bigtable.Row{format.AckFamily: {
		item(format.AckFamily, "f:q/n", 5, []byte("n")),
		item(format.AckFamily, "f:q/o", 6, []byte("later")),
		item(format.AckFamily, "f:q/o", 5, []byte("o")),
		item(format.AckFamily, "f:q/p", 5, []byte("p")),
	}}
	record := item(format.WriteFamily, ack.Column().Key(), 8, value)
	if v, start, err := committedAck(t.Context(), nil, nil, ack, record, raw); string(v) != "o" || start != 5 || err != nil {
		t.Errorf("%q of %d, %v", v, start, err)
	}
	record.Value = []byte("\xff")
	if _, _, err := committedAck(t.Context(), nil, nil, ack, record, raw); !errors.Is(err, format.ErrCorrupt) {
		t.Errorf("a damaged record: %v", err)
	}
}

// TestUnfinishedNames: a column without a name is an error in each family, and a run of an observer of weak notifications
// may have left something, whatever it has acknowledged.
func TestUnfinishedNames(t *testing.T) {
	s := &store.Schema{Families: []string{"f"}, Observed: map[format.Column]store.Registration{changed.Column(): {Observers: []string{"o"}, Weak: true}}}
	for _, family := range []string{format.NotifyFamily, format.LockFamily, format.WriteFamily} {
		_, value := format.EncodeCommit(changed, changed, format.KindPut, 5)
		if family == format.LockFamily {
			value = format.EncodeLock(&format.Lock{Cell: changed, Primary: changed, Kind: format.KindPut, StartTS: 5})
		}
		raw := bigtable.Row{family: {item(family, "nameless", 5, value)}}
		if u, err := unfinishedRow(t.Context(), nil, &store.Table{Name: "t"}, s, raw, 7, true); !errors.Is(err, format.ErrCorrupt) || u != nil {
			t.Errorf("%s: %+v, %v", family, u, err)
		}
	}
	raw := bigtable.Row{format.WriteFamily: {item(format.WriteFamily, format.AckColumn(changed.Column(), "o").Key(), 9, nil)}}
	u, err := unfinishedRow(t.Context(), nil, &store.Table{Name: "t"}, s, raw, 7, true)
	if d := cmp.Diff([]Unfinished{{Cell: changed, TS: 9, Ran: true}}, u); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}
