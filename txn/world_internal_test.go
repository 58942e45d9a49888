package txn

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var updateTables = flag.Bool("update", false, "write the tables in testdata")

// base is timestamp 0 of the tests in a world.
const base tso.Timestamp = 1_800_000_000_000_000

// A world has table "a", and one client, whose requests it lists. The oracle answers 100, 200 and so
// on, counted from base.
type world struct {
	*worldtest.World
	c     *Client
	asked tso.Timestamp
	count map[string]int // requests so far
	// before is called before the requests that it names.
	before map[string]func()
}

// newWorld runs f in a world. The column f:o of table "a" has an observer and a journal, and f:w one for
// weak notifications.
func newWorld(t *testing.T, cfg Config, f func(w *world)) {
	t.Helper()
	worldtest.Run(t, map[string][]string{"a": append([]string{"f"}, format.MetadataFamilies...), format.DefaultMetadataTable: {store.DeployFamily}}, func(in *worldtest.World) {
		w := &world{World: in, count: map[string]int{}, before: map[string]func(){}}
		in.Name = func(kind, table, what string) (string, string) {
			if what = strings.Trim(what, "/[]"); strings.HasPrefix(what, "journal/") {
				kind, what = "journal", ""
			}
			if what == store.GCRowKey || kind == "scan" && table == format.DefaultMetadataTable {
				return "", "" // a client reads the safe point and other tokens beside other requests
			}
			what = drawn.ReplaceAllString(what, "$1")
			return w.key(strings.TrimSpace(kind + " " + what)), ""
		}
		schema := &recordpb.TableSchema{
			FormatVersion: format.Version, Families: []string{"f"}, Journal: recordpb.Journal_JOURNAL_ALWAYS, Observed: []*recordpb.ObservedColumn{
				{Column: &recordpb.Column{Family: "f", Qualifier: []byte("o")}, Observers: []string{"one"}},
				{Column: &recordpb.Column{Family: "f", Qualifier: []byte("w")}, Observers: []string{"one"}, Weak: true},
			}}
		w.Set(format.DefaultMetadataTable, store.SchemaRowPrefix+"a", store.DeployFamily, store.SchemaQualifier, 0, format.Marshal(schema))
		cfg.Oracle, cfg.SchemaMaxAge, cfg.Parallelism, cfg.Backoff = w, 100*time.Hour, 1, Backoff{Min: 1, Max: 1}
		cfg.TokenTTL = cmp.Or(cfg.TokenTTL, -1)
		cfg.RPCTimeout = cmp.Or(cfg.RPCTimeout, 3700*time.Millisecond) // no multiple of it is one of a heartbeat's
		var err error
		w.c, err = NewClient(w.Context(), w, cfg)
		w.Must(err)
		w.Must(w.c.CheckTable(w.Context(), "a"))
		w.start()
		defer w.c.resolver.Hints.Watch(func(c Cell) bool { w.Note("1 hint " + c.Row); return true })()
		f(w)
	})
}

// OpenTable opens a table that is read in one piece.
func (w *world) OpenTable(name string) bigtable.TableAPI { return whole{w.World.OpenTable(name)} }

type whole struct{ bigtable.TableAPI }

func (whole) SampleRowKeys(context.Context) ([]string, error) { return nil, nil }

// drawn are names of rows that are drawn at random.
var drawn = regexp.MustCompile(`(worker|settled|changed)/[\w/]+`)

// key returns the name of a request, by which faults find it: how many of its kind came before, and
// its kind.
func (w *world) key(kind string) string {
	w.Mu.Lock()
	w.count[kind]++
	key := fmt.Sprintf("%d %s", w.count[kind], kind)
	w.Mu.Unlock()
	if f := w.before[key]; f != nil {
		f()
	}
	return key
}

// start forgets the requests so far.
func (w *world) start() {
	w.Did()
	w.Mu.Lock()
	defer w.Mu.Unlock()
	clear(w.count)
}

func (w *world) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := w.Fault(ctx, w.key("oracle"), ""); err != nil {
		return 0, err
	}
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.asked += 100
	return base + w.asked, nil
}

// did returns the requests since start, those of Close, what the client counted, and what is stored. Requests
// to the journal are sent beside others, so they come last.
func (w *world) did(beside bool) (line, stored string, keys []string) {
	w.Helper()
	list := func() string {
		var all, journal []string
		for _, r := range w.Did() {
			if !strings.Contains(r, "hint") {
				keys = append(keys, r)
			}
			if _, r, _ = strings.Cut(r, " "); r == "journal" {
				journal = append(journal, r)
			} else {
				all = append(all, r)
			}
		}
		if beside {
			slices.Sort(all)
		}
		return worldtest.Repeated(append(all, journal...))
	}
	line = list()
	s := w.c.Stats()
	for _, c := range []struct {
		name string
		n    int64
	}{{"committed", s.Committed}, {"conflicts", s.Conflicts}, {"early", s.EarlyConflicts}, {"retries", s.Retries}, {"waits", s.LatchWaits}, {"unknown", s.Undetermined}, {"raised", s.Raises}, {"forward", s.RolledForward}, {"back", s.RolledBack}, {"reused", s.ReusedTimestamps}} {
		if c.n > 0 {
			line += fmt.Sprintf(", %d %s", c.n, c.name)
		}
	}
	if number, claim := w.c.resolver.Claims.Next(0); number != 0 {
		line += ", settled up to " + at(claim)
	}
	stored = w.Cells("a", base)
	clear(w.Faults)
	w.Must(w.c.Close(w.Context()))
	sent := keys
	if closing := list(); closing != "" {
		stored += "; close: " + closing
	}
	return line, stored, sent
}

// write commits a cell ROW:QUALIFIER.
func (w *world) write(cells ...string) {
	w.Helper()
	_, err := w.c.Update(w.Context(), func(_ context.Context, tx *Txn) error { setCells(tx, cells...); return nil })
	w.Must(err)
	w.After(time.Second)
}

// finish replaces the lock of the transaction that started at 100 by a record.
func (w *world) finish(row, family string, ts tso.Timestamp, record []byte) {
	w.Helper()
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(format.LockFamily, "f:q")
	m.Set(family, "f:q", ts.Cell(), record)
	defer w.Serve()()
	w.Must(w.Client.Open("a").Apply(w.Context(), row, m))
}

// record is a write record of another client's transaction.
func (w *world) record(start tso.Timestamp) []byte {
	_, value := format.WriteRecord{StartTS: start, Kind: format.KindPut}.Encode(Cell{Table: "a", Row: "s", Family: "f", Qualifier: "q"})
	return value
}

// A program is what a test runs in a world, with each of its requests failing once.
type program struct {
	cfg  Config
	once bool // without faults
	// beside says that requests are sent side by side, so the list is sorted.
	beside bool
	setup  func(w *world) // what is stored before
	do     func(context.Context, *world) (string, error)
}

// setCells buffers values of cells ROW:QUALIFIER.
func setCells(tx *Txn, cells ...string) {
	for _, c := range cells {
		row, q, _ := strings.Cut(c, ":")
		tx.Table("a").Set(row, "f", q, []byte("v"))
	}
}

// committing begins a transaction, calls f, and commits.
func committing(f func(context.Context, *Txn) error, opts ...TxnOption) func(context.Context, *world) (string, error) {
	return func(ctx context.Context, w *world) (string, error) {
		tx, err := w.c.Begin(ctx, opts...)
		if err != nil {
			return "begin", err
		}
		defer tx.Rollback()
		if err := f(ctx, tx); err != nil {
			return "run", err
		}
		ts, err := tx.Commit(ctx)
		return at(ts), err
	}
}

// writing commits cells.
func writing(cells string, opts ...TxnOption) func(context.Context, *world) (string, error) {
	return committing(func(_ context.Context, tx *Txn) error { setCells(tx, strings.Fields(cells)...); return nil }, opts...)
}

// at shows a timestamp.
func at(ts tso.Timestamp) string {
	if ts != 0 {
		ts -= base
	}
	return fmt.Sprint(ts)
}

// TestCommitWithFaults: each request of a commit fails in each way. testdata/commit.txt lists what the
// commit does then.
func TestCommitWithFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	notify := func(_ context.Context, tx *Txn) error { tx.Table("a").Notify("n", "f", "w"); return nil }
	cell := Cell{Table: "a", Row: "p", Family: "f", Qualifier: "q"}
	tokens := Config{TokenTTL: time.Hour}
	compare(t, "commit.txt", map[string]program{
		"two rows":        {cfg: tokens, do: writing("p:q s:q")},
		"in line":         {cfg: Config{SyncSecondaries: true, TokenTTL: time.Hour}, do: writing("p:q s:q t:q")},
		"passable":        {cfg: Config{PassLocks: true}, do: writing("p:q p:r")},
		"settled":         {cfg: tokens, do: writing("p:q s:q", SettleWithin(time.Minute))},
		"observed":        {do: writing("p:o s:q")},
		"notified":        {do: committing(func(ctx context.Context, tx *Txn) error { setCells(tx, "p:q"); return notify(ctx, tx) })},
		"only notified":   {do: committing(notify)},
		"bound":           {once: true, do: committing(func(_ context.Context, tx *Txn) error { setCells(tx, "p:q"); tx.CommitBefore(base + 200); return nil })},
		"below the bound": {once: true, do: committing(func(_ context.Context, tx *Txn) error { setCells(tx, "p:q"); tx.CommitBefore(base + 201); return nil })},
		"for update": {setup: func(w *world) { w.write("p:q") }, do: committing(func(ctx context.Context, tx *Txn) error {
			v, ok, err := tx.Table("a").GetForUpdate(ctx, "p", "f", "q")
			tx.Table("a").Set("p", "f", "q", append(v, fmt.Sprint(ok)...))
			return err
		})},
		// A reader passes the lock, so the commit takes another timestamp.
		"passed": {cfg: Config{PassLocks: true}, beside: true, setup: func(w *world) {
			w.before["2 change p"] = func() {
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				_, _ = reading(scanning())(ctx, w)
			}
		}, do: committing(func(ctx context.Context, tx *Txn) error { setCells(tx, "p:q"); return notify(ctx, tx) })},
		"too old": {once: true, setup: func(w *world) {
			w.before["2 oracle"] = func() {
				_, err := w.c.resolver.SafePoint.Publish(w.Context(), base+150, base+150, time.Hour, 0)
				w.Must(err)
			}
		}, do: writing("p:q s:q")},
		"noted": {once: true, setup: func(w *world) {
			_, err := w.c.resolver.SafePoint.Publish(w.Context(), base+1, base+1, time.Hour, tso.Max)
			w.Must(err)
		}, do: writing("p:q s:q")},
		"committed elsewhere": {cfg: tokens, once: true, setup: func(w *world) {
			w.before["2 change p"] = func() { w.finish("p", format.WriteFamily, base+999, w.record(base+100)) }
		}, do: writing("p:q s:q")},
		"rolled back elsewhere": {cfg: tokens, once: true, setup: func(w *world) {
			w.before["2 change p"] = func() { w.finish("p", format.MarkFamily, base+100, format.EncodeRollback(base+100)) }
		}, do: writing("p:q s:q")},
		"settled as rolled back": {cfg: tokens, once: true, setup: func(w *world) {
			w.before["2 change p"] = func() {
				w.finish("p", format.MarkFamily, base+100, format.EncodeRollback(base+100))
				w.Inject("2 change p", worldtest.ErrNever)
			}
		}, do: func(ctx context.Context, w *world) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return writing("p:q s:q", SettleWithin(time.Minute))(ctx, w)
		}},
		// While the first transaction has the latch, another one waits for it, and conflicts.
		"latched": {once: true, setup: func(w *world) {
			w.before["1 change p"] = func() {
				go func() {
					_, err := w.c.Update(w.Context(), func(_ context.Context, tx *Txn) error { setCells(tx, "p:q"); return nil })
					if err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
			}
		}, do: writing("p:q")},
		"conflict": {setup: func(w *world) { w.Set("a", "s", format.WriteFamily, "f:q", (base + 500).Cell(), w.record(base+400)) }, do: writing("p:q s:q")},
		// The client's claim does not wait for a commit that was never sent.
		"damaged lock": {cfg: tokens, once: true, setup: func(w *world) {
			w.Set("a", "s", format.LockFamily, "f:q", (base + 50).Cell(), []byte{0xff})
		}, do: writing("p:q s:q")},
		"dead lock": {setup: func(w *world) {
			l := format.Lock{Cell: Cell{Table: "a", Row: "s", Family: "f", Qualifier: "q"}, StartTS: base + 50, Kind: format.KindPut, Primary: cell, TTL: time.Microsecond}
			w.Set("a", "s", format.LockFamily, "f:q", l.StartTS.Cell(), format.EncodeLock(&l))
		}, do: writing("s:q t:q")},
		"update": {setup: func(w *world) { w.Set("a", "s", format.WriteFamily, "f:q", (base + 150).Cell(), w.record(base+120)) }, do: func(ctx context.Context, w *world) (string, error) {
			runs := 0
			ts, err := w.c.Update(ctx, func(_ context.Context, tx *Txn) error { runs++; setCells(tx, "p:q", "s:q"); return nil }, MaxAttempts(3))
			return fmt.Sprintf("%s in %d runs", at(ts), runs), err
		}},
	})
}

// compare runs each program without a fault, and then once for each of its requests and each way in
// which that can fail: the request is lost, refused, applied without an answer, or never answered, and
// for "down" all of its kind from then on. It compares what happens with a file.
func compare(t *testing.T, file string, programs map[string]program) {
	t.Helper()
	g := worldtest.NewGolden(t, file, *updateTables)
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			line, stored, keys := p.run(t, "", "", nil)
			lines := []string{line + "; " + stored}
			if slices.Sort(keys); p.once {
				keys = nil
			}
			for _, key := range keys {
				for _, f := range []struct {
					how string
					err error
				}{{"lost", worldtest.Lost}, {"refused", worldtest.Denied}, {"applied", worldtest.ErrApplied}, {"never", worldtest.ErrNever}, {"down", worldtest.ErrNever}} {
					if strings.Contains(key, "change") || f.how != "applied" && (f.how != "down" || !strings.Contains(key, "oracle")) {
						line, left, _ := p.run(t, key, f.how, f.err)
						if left == stored {
							left = "same"
						}
						lines = append(lines, line+"; "+left)
					}
				}
			}
			g.Compare(t, name, lines)
		})
	}
}

// ended: which context ends first is not always the same.
var ended = map[error]string{context.DeadlineExceeded: "ended", context.Canceled: "ended"}

// run runs the program with one fault, and returns a line about it, what is stored then, and the requests.
func (p program) run(t *testing.T, key, how string, fault error) (line, stored string, keys []string) {
	newWorld(t, p.cfg, func(w *world) {
		if p.setup != nil {
			p.setup(w)
		}
		w.start()
		if key != "" {
			number, kind, _ := strings.Cut(key, " ")
			first, err := strconv.Atoi(number)
			w.Must(err)
			last := first
			if how == "down" {
				last += 1000
			}
			for i := first; i <= last; i++ {
				w.Inject(fmt.Sprintf("%d %s", i, kind), fault)
			}
		}
		ctx, cancel := context.WithTimeout(w.Context(), 31*time.Second)
		defer cancel()
		began := time.Now()
		result, err := p.do(ctx, w)
		took := time.Since(began).Round(time.Millisecond)
		line = strings.TrimSpace(cmp.Or(key, "no fault")+" "+how) + ": " + result + " " + worldtest.ErrorName(err, base, ended)
		if took > 0 {
			line += fmt.Sprintf(" after %v", took)
		}
		w.After(time.Second) // for what the client does in the background
		if key != "" && len(w.Faults[key]) > 0 {
			t.Errorf("%s %s has not fired", key, how)
		}
		var did string
		did, stored, keys = w.did(p.beside)
		line += "; " + did
	})
	return line, stored, keys
}

// show lists the cells of rows, with their commit timestamps.
func show(rows ...bigtable.Row) string {
	var all []string
	for _, r := range rows {
		for _, items := range r {
			for _, it := range items {
				all = append(all, fmt.Sprintf("%s/%s=%s@%s", it.Row, it.Column, it.Value, at(tso.Timestamp(it.Timestamp))))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// reading takes a snapshot, and reads.
func reading(f func(context.Context, *View) (string, error), opts ...SnapshotOption) func(context.Context, *world) (string, error) {
	return func(ctx context.Context, w *world) (string, error) {
		s, err := w.c.Snapshot(ctx, opts...)
		if err != nil {
			return "snapshot", err
		}
		defer s.Release()
		got, err := f(ctx, s.Table("a"))
		return "as of " + at(s.ReadTS()) + " " + got, err
	}
}

// scanning reads all rows.
func scanning(opts ...ReadOption) func(context.Context, *View) (string, error) {
	return func(ctx context.Context, v *View) (string, error) {
		var all []string
		for r, err := range v.ReadRows(ctx, bigtable.InfiniteRange("l"), opts...) {
			if err != nil {
				return fmt.Sprint(all), err
			}
			all = append(all, show(r))
		}
		return fmt.Sprint(all), nil
	}
}

// TestReadsWithFaults: each request of a read fails in each way. testdata/reads.txt lists what the read does
// then.
func TestReadsWithFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	get := func(ctx context.Context, v *View) (string, error) {
		value, ok, err := v.Get(ctx, "p", "f", "q")
		return fmt.Sprintf("%q %t", value, ok), err
	}
	row := func(ctx context.Context, v *View) (string, error) {
		r, err := v.ReadRow(ctx, "p")
		return show(r), err
	}
	stored := func(w *world) { w.write("p:q", "p:r"); w.write("s:q") }
	// locked stores locks that expired, one of a transaction that has committed.
	locked := func(w *world) {
		stored(w)
		for i, r := range []string{"s", "p"} {
			l := format.Lock{Cell: Cell{Table: "a", Row: r, Family: "f", Qualifier: "q"}, StartTS: base + 450 + tso.Timestamp(i), Kind: format.KindPut, Primary: Cell{Table: "a", Row: "m", Family: "f", Qualifier: "q"}, TTL: time.Microsecond}
			w.Set("a", r, format.LockFamily, "f:q", l.StartTS.Cell(), format.EncodeLock(&l))
			w.Set("a", r, "f", "q", l.StartTS.Cell(), []byte("new"))
		}
		w.Set("a", "m", format.WriteFamily, "f:q", (base + 460).Cell(), w.record(base+450))
		w.Set("a", "m", "f", "q", (base + 450).Cell(), []byte("new"))
	}
	latest := func(ctx context.Context, w *world) (string, error) {
		value, ok, err := w.c.Latest("a").Get(ctx, "p", "f", "q")
		if err != nil {
			return fmt.Sprintf("%q %t", value, ok), err
		}
		r, err := w.c.Latest("a").ReadRow(ctx, "s")
		return fmt.Sprintf("%q %t ", value, ok) + show(r), err
	}
	compare(t, "reads.txt", map[string]program{
		"get":              {setup: stored, do: reading(get)},
		"get, locked":      {setup: locked, do: reading(get)},
		"row":              {setup: stored, do: reading(row)},
		"row, locked":      {setup: locked, do: reading(row)},
		"rows":             {setup: stored, do: reading(scanning(), MaxStaleness(time.Hour))},
		"rows, locked":     {setup: locked, do: reading(scanning())},
		"rows, in reverse": {once: true, setup: locked, do: reading(scanning(Reverse(), Limit(1)))},
		"as of now":        {once: true, setup: stored, do: reading(get, At(base+400))},
		"as of before":     {once: true, setup: stored, do: reading(row, At(base+199))},
		"of the future":    {once: true, setup: stored, do: reading(row, At(base+10000))},
		"of no time":       {once: true, setup: stored, do: reading(row, At(0))},
		"stale":            {once: true, setup: stored, do: reading(get, MaxStaleness(0))},
		"stale and at":     {once: true, setup: stored, do: reading(get, MaxStaleness(0), At(base+100))},
		"held":             {cfg: Config{TokenTTL: time.Hour}, setup: stored, do: reading(get, Hold())},
		"latest":           {setup: stored, do: latest},
		"latest, locked":   {setup: locked, do: latest},
		"in a transaction": {setup: stored, do: committing(func(ctx context.Context, tx *Txn) error {
			setCells(tx, "o:q", "p:r", "t:q")
			tx.Table("a").Delete("s", "f", "q")
			got, err := scanning()(ctx, &tx.Table("a").View)
			tx.Table("a").Set("t", "f", "q", []byte(got))
			return err
		})},
		"serializable": {setup: stored, do: committing(func(ctx context.Context, tx *Txn) error {
			_, err := get(ctx, &tx.Table("a").View)
			setCells(tx, "t:q")
			return err
		}, Serializable())},
		"delete row": {setup: stored, do: committing(func(ctx context.Context, tx *Txn) error { return tx.Table("a").DeleteRow(ctx, "p") })},
	})
}

// TestClientOfWorld: a client closes an oracle of its own, and says that a transaction is open once that
// takes long.
func TestClientOfWorld(t *testing.T) {
	newWorld(t, Config{TokenTTL: time.Hour}, func(w *world) {
		tx, err := w.c.Begin(w.Context())
		w.Must(err)
		w.Did()
		w.After(gctime.SafePointMaxAge()/3 - 1)
		w.Expect("an open transaction", "")
		w.After(1)
		w.Expect("one that is open for long", "1 bulk worker")
		tx.Rollback()
		w.Must(w.c.Close(w.Context()))

		own, err := NewClient(w.Context(), w, Config{TokenTTL: -1})
		w.Must(err)
		w.Must(own.Close(w.Context()))
		if _, err := own.ownOracle.Timestamp(w.Context()); !errors.Is(err, tso.ErrClosed) {
			t.Errorf("the oracle of a closed client: %v", err)
		}
	})
}
