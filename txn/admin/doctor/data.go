package doctor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// scanTimeout bounds what looks at rows.
const scanTimeout = 2 * time.Minute

// grace is how long a client may be dead, or a lock past its ttl, before the lock is a
// warning and not a note: in the meantime another client may resolve it.
const grace = tso.Timestamp(time.Minute / time.Microsecond)

// LongLock is how old a lock of a client that may be alive is at least before it is a warning: the
// client may hang, and other clients wait.
const LongLock = time.Minute

// shownOwners is how many transactions with old locks a finding names.
const shownOwners = 3

// farEnd is how far away the end of a lock must be for doctor to report it, if its owner shows
// no sign of life.
const farEnd = tso.Timestamp(time.Hour / time.Microsecond)

// sampleParts is the number of places of a table that a sample of rows comes from.
const sampleParts = 16

// sample returns keys of rows of a table, at most n, from all over it, and
// whether these are all.
func sample(ctx context.Context, d *Deployment, table string, n int) (keys bigtable.RowList, all bool, err error) {
	t := d.Bigtable.OpenTable(table)
	splits, err := t.SampleRowKeys(ctx)
	if err != nil {
		return nil, false, err
	}
	slices.Sort(splits)
	starts := append([]string{""}, slices.Compact(splits)...)
	all = true
	for len(starts) > sampleParts {
		kept := starts[:0]
		for i := 0; i < len(starts); i += 2 {
			kept = append(kept, starts[i])
		}
		starts, all = kept, false
	}
	filter := bigtable.RowFilter(bigtable.ChainFilters(bigtable.CellsPerRowLimitFilter(1), bigtable.StripValueFilter()))
	for i, start := range starts {
		end, most := "", max(1, (n-len(keys))/(len(starts)-i))
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		got := 0
		err := t.ReadRows(ctx, bigtable.NewRange(start, end), func(r bigtable.Row) bool {
			keys = append(keys, r.Key())
			got++
			return true
		}, filter, bigtable.LimitRows(int64(most)))
		if err != nil {
			return nil, false, err
		}
		if got == most {
			all = false
		}
	}
	return keys, all, nil
}

// unreadable: of what is stored, not of the request.
func unreadable(err error) bool {
	return errors.Is(err, txn.ErrCorrupt) || errors.Is(err, txn.ErrFormatVersion)
}

// locks looks for locks that nobody settles. Bigtable has to read a table's lock
// family to tell; it ends after a number of locks or at its timeout.
var locks = Check{Name: "stranded locks", Client: true, Timeout: scanTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	clients, err := admin.Workers(ctx, d.Client)
	if err != nil {
		return err
	}
	// stale is since when the tokens of owners are stale; 0: the owner is alive.
	stale := map[string]tso.Timestamp{}
	process := map[string]string{}
	for _, w := range clients {
		process[w.Owner] = fmt.Sprintf("pid %d on %s", w.PID, w.Host)
		stale[w.Owner] = 0
		if w.State == admin.OwnerStale {
			stale[w.Owner] = w.ExpiresTS
		}
	}
	var seen, all atomic.Int64
	var cut atomic.Bool
	err = r.eachTable(ctx, d, func(ctx context.Context, table string, r *Result) error {
		stranded, recent, inTable, silent := 0, 0, 0, 0
		oldest, last := now, now
		old := map[tso.Timestamp]*heldLocks{}
		var end error
		for l, err := range locksOf(ctx, d, table, r) {
			if unreadable(err) {
				continue // another check says so
			}
			if err != nil {
				end = err
				break
			}
			since, known := stale[l.Owner]
			switch {
			case l.Expired(now - grace), since > 0 && since < now-grace:
				stranded++
				oldest = min(oldest, l.StartTS)
			case l.Expired(now), since > 0:
				recent++
			case !known && l.Owner != "" && l.StartTS < now-grace:
				stranded++ // its token was removed
				oldest = min(oldest, l.StartTS)
			case now-l.StartTS > tso.Timestamp(LongLock.Microseconds()):
				if old[l.StartTS] == nil {
					old[l.StartTS] = &heldLocks{first: l}
				}
				old[l.StartTS].n++
			case l.Owner == "" && l.ExpiresTS()-now > farEnd:
				silent++
				last = max(last, l.ExpiresTS())
			}
			if inTable++; inTable >= d.Rows {
				break
			}
		}
		seen.Add(int64(inTable))
		all.Add(int64(stranded + recent))
		if inTable >= d.Rows || end != nil {
			cut.Store(true)
		}
		count := func(n int) string {
			if inTable >= d.Rows || end != nil {
				return "at least " + words.Count(n, "lock")
			}
			return words.Count(n, "lock")
		}
		if stranded > 0 {
			r.find(Warning, table, fmt.Sprintf("%s of dead clients; the oldest of a transaction that began %s ago, at %s", count(stranded), words.Between(oldest, now), words.Stamp(oldest)),
				"the next reader or writer of the cells, or garbage collection, has to resolve them first", "percctl lock resolve "+table+" --older-than 1m")
		}
		if recent > 0 {
			r.find(Note, table, count(recent)+" of clients that died, or stopped renewing them, less than a minute ago",
				"readers and writers of the cells resolve them; if they are still there in a minute, this is a warning", "percctl lock resolve "+table)
		}
		hanging(r, table, old, process, now, count)
		all.Add(int64(sum(old)))
		if silent > 0 {
			r.find(Warning, table, fmt.Sprintf("%s of clients without a worker token, which may block others for %s", words.Count(silent, "lock"), words.Between(now, last)),
				"nothing says whether the clients live", "percctl lock list "+table+" --older-than 1h; docs/operations.md, A lock is stuck")
		}
		return end
	})
	r.Detail = words.Count(int(seen.Load()), "lock") + " in " + words.Count(len(d.Tables), "table")
	if cut.Load() {
		r.Detail = "at least " + r.Detail
	}
	if seen.Load() > 0 {
		r.Detail = fmt.Sprintf("%d of %s", all.Load(), r.Detail)
	}
	return err
}}

// heldLocks are the locks of a transaction whose client may be alive.
type heldLocks struct {
	first format.Lock
	n     int
}

func sum(old map[tso.Timestamp]*heldLocks) (n int) {
	for _, h := range old {
		n += h.n
	}
	return n
}

// hanging adds the finding about locks that are old, of clients that may be alive.
func hanging(r *Result, table string, old map[tso.Timestamp]*heldLocks, process map[string]string, now tso.Timestamp, count func(int) string) {
	if len(old) == 0 {
		return
	}
	starts := slices.Sorted(maps.Keys(old))
	var who []string
	for _, ts := range starts[:min(len(starts), shownOwners)] {
		l := old[ts].first
		owner := fmt.Sprintf("a client without a token (nothing says whether it lives; the lock's ttl ends in %s)", words.Between(now, l.ExpiresTS()))
		if l.Owner != "" {
			owner = "client " + l.Owner
			if p := process[l.Owner]; p != "" {
				owner += ", " + p
			}
		}
		who = append(who, fmt.Sprintf("%s of the transaction with primary %s that began at %s, of %s", words.Count(old[ts].n, "lock"), l.Primary, words.Stamp(ts), owner))
	}
	if more := len(starts) - len(who); more > 0 {
		who = append(who, fmt.Sprintf("and %s more", words.Count(more, "transaction")))
	}
	first := old[starts[0]].first
	r.find(Warning, table, fmt.Sprintf("%s older than a minute, of clients that may be alive; the oldest of a transaction that began %s ago: %s", count(sum(old)), words.Between(starts[0], now), strings.Join(who, "; ")),
		"writers of the cells, and most readers, wait for these transactions. A large transaction may take that long; otherwise its client hangs",
		fmt.Sprintf("stop the client; or percctl lock resolve --transaction %s %d --owner-dead", first.Primary, first.StartTS))
}

// locksOf returns the locks of a table, and says how far it is.
func locksOf(ctx context.Context, d *Deployment, table string, r *Result) iter.Seq2[format.Lock, error] {
	return func(yield func(format.Lock, error) bool) {
		parts := admin.Parts(ctx, d.Bigtable, table, "", "")
		for i, rows := range parts {
			r.reached(float64(i) / float64(len(parts)))
			for l, err := range admin.Locks(ctx, d.Client, table, rows) {
				if !yield(l, err) {
					return
				}
			}
		}
	}
}

// shownClients is how many dead clients a finding names.
const shownClients = 5

var workers = Check{Name: "workers", Client: true, Timeout: 30 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	all, err := admin.Workers(ctx, d.Client)
	if err != nil {
		return err
	}
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	alive, oldest := 0, now
	var dead []string
	for _, w := range all {
		switch w.State {
		case admin.OwnerFresh:
			alive++
		case admin.OwnerStale:
			dead, oldest = append(dead, fmt.Sprintf("pid %d on %s", w.PID, w.Host)), min(oldest, w.ExpiresTS)
		case admin.OwnerMissing:
			r.find(Warning, "worker/"+w.Owner, "its worker token cannot be read", "another version of the library may be running", "percctl version on all machines")
		}
	}
	r.Detail = words.Count(alive, "client") + " alive"
	if len(dead) > 0 {
		r.Detail += fmt.Sprintf(", %d not", len(dead))
		slices.Sort(dead)
		subject, what := dead[0], "a client that wrote transactions has not been alive for "+words.Between(oldest, now)
		if n := len(dead); n > 1 {
			subject = strings.Join(dead[:min(n, shownClients)], ", ")
			if n > shownClients {
				subject += fmt.Sprintf(" and %d more", n-shownClients)
			}
			what = fmt.Sprintf("%d clients that wrote transactions are not alive, the first of them for %s", n, words.Between(oldest, now))
		}
		r.find(Warning, subject, what, "they died or hang; other clients roll their locks back when they reach them",
			"check the processes; percctl lock list --all shows their locks; their tokens disappear after an hour")
	}
	return nil
}}

// shownWrites is how many raw writes of a table are told one by one.
const shownWrites = 3

var rawWrites = Check{Name: "raw writes", Client: true, Timeout: scanTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	var looked atomic.Int64
	err := r.eachTable(ctx, d, func(ctx context.Context, table string, r *Result) error {
		keys, _, err := sample(ctx, d, table, d.Rows)
		if err != nil || len(keys) == 0 {
			return err
		}
		looked.Add(int64(len(keys)))
		n, hidden := 0, 0
		for w, err := range admin.RawWrites(ctx, d.Client, table, keys) {
			if unreadable(err) || errors.Is(err, txn.ErrNotInitialized) {
				break // another check says so
			}
			if err != nil {
				return err
			}
			n++
			if w.Hidden {
				hidden++
			}
			if n <= shownWrites {
				what := fmt.Sprintf("a plain write of %s, after %s", words.Time(w.At), words.Time(w.Since))
				why := "it conflicted with no transaction, so transactions that were open may or may not see it"
				if w.Hidden {
					why = "a transaction has committed the column, so no transaction sees this value"
				}
				r.find(Warning, w.Cell.String(), what, why, "find the writer and have it use transactions; percctl history "+w.Cell.Table+" ROW shows the values, percctl set writes one")
			}
		}
		if n > shownWrites {
			r.find(Warning, table, fmt.Sprintf("%d more plain writes in the rows that were read (%d of all are hidden from transactions)", n-shownWrites, hidden), "as above", "as above; --rows reads more rows")
		}
		return nil
	})
	r.Detail = words.Count(int(looked.Load()), "row") + " read"
	return err
}}

var consistency = Check{Name: "consistency", Client: true, Timeout: scanTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	var looked atomic.Int64
	var cut atomic.Bool
	err := r.eachTable(ctx, d, func(ctx context.Context, table string, r *Result) error {
		keys, all, err := sample(ctx, d, table, d.Rows)
		if !all {
			cut.Store(true)
		}
		if err != nil || len(keys) == 0 {
			return err
		}
		looked.Add(int64(len(keys)))
		n := 0
		for v, err := range admin.Check(ctx, d.Client, table, keys) {
			if errors.Is(err, txn.ErrNotInitialized) || unreadable(err) {
				break
			}
			if err != nil {
				return err
			}
			if n++; n > shownWrites {
				continue
			}
			r.find(Error, v.Cell.String(), string(v.Rule)+": "+v.Detail, "what is stored contradicts the protocol", "percctl check "+table+", then percctl repair plan "+table)
		}
		if n > shownWrites {
			r.find(Error, table, fmt.Sprintf("%d more violations in the rows that were read", n-shownWrites), "as above", "percctl check "+table)
		}
		return nil
	})
	r.Detail = "all " + words.Count(int(looked.Load()), "row")
	if cut.Load() {
		r.Detail = "a sample of " + words.Count(int(looked.Load()), "row") + "; percctl check reads all"
	}
	return err
}}
