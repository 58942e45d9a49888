package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Family is a family of data that scratch tables have.
const Family = family1

// Families of the scratch table.
const (
	family1 = "f"
	family2 = "g"
)

// requestTimeout bounds each request. The client retries some requests until then.
const requestTimeout = 30 * time.Second

// A broken error says that the service does not keep the assumption. Any other error of a
// test may come from the network or from a missing permission.
type broken struct{ text string }

func (b broken) Error() string { return b.text }

func brokenf(format string, args ...any) error { return broken{fmt.Sprintf(format, args...)} }

// errSpent ends a test that may not send as many requests or bytes, or not take as long, as a verdict needs.
var errSpent = errors.New("conformance: the test needs more requests than were announced")

// unavailable reports whether an error says nothing about the assumption: the service could
// not be reached or refused everything.
func unavailable(err error) bool {
	if errors.Is(err, errSpent) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return true
	}
	return false
}

// A trial is what the test of one assumption works with. It counts what the test sends.
type trial struct {
	cfg     Config
	bt      *bigtable.Client
	admin   *bigtable.AdminClient
	name    string // of the scratch table
	table   *bigtable.Table
	prefix  string // of the test's rows
	times   *latencies
	removed *RemovedCells

	duration time.Duration // of a concurrent test
	end      time.Time

	*spending
}

// spending is what a test has sent, and what it may send.
type spending struct {
	mu       sync.Mutex
	left     cost
	requests int
	bytes    int64
}

// A cell of a row. Timestamps are milliseconds.
type cell struct {
	family, qualifier string
	ms                int64
	value             string
}

func (c cell) String() string {
	return fmt.Sprintf("%s:%q@%d=%q", c.family, short(c.qualifier), c.ms, short(c.value))
}

func short(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func stamp(ms int64) bigtable.Timestamp { return bigtable.Timestamp(ms * 1000) }

// row returns the key of a row that only this test uses.
func (t *trial) row(name string) string { return t.prefix + name }

// spend counts a request before it is sent.
func (t *trial) spend(bytes int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left.requests < 1 || t.left.bytes < int64(bytes) {
		return errSpent
	}
	t.left.requests--
	t.left.bytes -= int64(bytes)
	t.requests++
	t.bytes += int64(bytes)
	return nil
}

// received counts the bytes of an answer.
func (t *trial) received(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left.bytes -= int64(bytes)
	t.bytes += int64(bytes)
}

// maxSmall is more than a request of a concurrent test and its answer have.
const maxSmall = 4 << 10

// more reports whether a concurrent test continues. It keeps some requests for the end.
func (t *trial) more(ctx context.Context) bool { return t.moreOf(ctx, 2) }

// moreOf is more for workers that send this many requests before they ask again.
func (t *trial) moreOf(ctx context.Context, requests int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	requests = requests*t.cfg.Concurrency + 10
	return ctx.Err() == nil && time.Now().Before(t.end) && t.left.requests > requests && t.left.bytes > int64(requests)*maxSmall
}

// begin starts the clock of a concurrent test.
func (t *trial) begin() { t.end = time.Now().Add(t.duration) }

// workers runs f several times at once, each with its number, until all have returned.
func (t *trial) workers(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// wait waits for d, or until the context ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// over makes the test use a connection of its own with these options.
func (t *trial) over(ctx context.Context, opts ...grpc.DialOption) (end func(), err error) {
	bt, _, end, err := t.cfg.Dial(ctx, opts...)
	if err != nil {
		return nil, err
	}
	t.table = bt.Open(t.name)
	return end, nil
}

// through returns the same test over another connection.
func (t *trial) through(bt *bigtable.Client) *trial {
	other := *t
	other.table = bt.Open(t.name)
	return &other
}

// eachStream counts each stream as a request, and wraps it.
func (t *trial) eachStream(wrap func(grpc.ClientStream) grpc.ClientStream) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := t.spend(0); err != nil {
			return nil, err
		}
		s, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, err
		}
		return wrap(s), nil
	})
}

// replace puts version n of a register in the place of version n-1.
func replace(n int64) *change {
	return set("v", n, strconv.FormatInt(n, 10)).remove(family1, "v", n-1, n)
}

// version is what a row has after replace.
func version(n int64) []cell { return []cell{{family1, "v", n, strconv.FormatInt(n, 10)}} }

// readFilter is how transactions read: all of these reads are whole, on emulators too.
var readFilter = bigtable.ChainFilters(between(0, maxMillis), bigtable.LatestNFilter(1), bigtable.InterleaveFilters(bigtable.PassAllFilter(), bigtable.BlockAllFilter()))

// A change is a list of changes of one row.
type change struct {
	m     *bigtable.Mutation
	bytes int
}

func changes() *change { return &change{m: bigtable.NewMutation()} }

func (c *change) set(family, qualifier string, ms int64, value string) *change {
	c.m.Set(family, qualifier, stamp(ms), []byte(value))
	c.bytes += len(family) + len(qualifier) + len(value) + 16
	return c
}

// remove deletes the cells in [from, to); to = 0 is infinity.
func (c *change) remove(family, qualifier string, from, to int64) *change {
	c.m.DeleteTimestampRange(family, qualifier, stamp(from), stamp(to))
	c.bytes += len(family) + len(qualifier) + 24
	return c
}

func set(qualifier string, ms int64, value string) *change {
	return changes().set(family1, qualifier, ms, value)
}

// request runs a request within its deadline, and measures it.
func (t *trial) request(ctx context.Context, kind string, bytes int, send func(context.Context) error) error {
	if err := t.spend(bytes); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	begun := time.Now()
	err := send(ctx)
	if err == nil {
		t.times.add(kind, time.Since(begun))
	}
	return err
}

// apply changes a row without a condition.
func (t *trial) apply(ctx context.Context, row string, c *change) error {
	return t.request(ctx, "mutate", len(row)+c.bytes, func(ctx context.Context) error { return t.table.Apply(ctx, row, c.m) })
}

// check sends a conditional mutation, and returns whether the predicate matched. nil stands
// for no changes.
func (t *trial) check(ctx context.Context, row string, predicate bigtable.Filter, yes, no *change) (matched bool, err error) {
	bytes := len(row) + 64
	var ifMatched, ifNot *bigtable.Mutation
	if yes != nil {
		ifMatched, bytes = yes.m, bytes+yes.bytes
	}
	if no != nil {
		ifNot, bytes = no.m, bytes+no.bytes
	}
	err = t.request(ctx, "check and mutate", bytes, func(ctx context.Context) error {
		return t.table.Apply(ctx, row, bigtable.NewCondMutation(predicate, ifMatched, ifNot), bigtable.GetCondMutationResult(&matched))
	})
	return matched, err
}

// read reads a row; a nil filter is none.
func (t *trial) read(ctx context.Context, row string, f bigtable.Filter) (all []cell, err error) {
	var opts []bigtable.ReadOption
	if f != nil {
		opts = append(opts, bigtable.RowFilter(f))
	}
	err = t.request(ctx, "read", len(row)+64, func(ctx context.Context) error {
		r, err := t.table.ReadRow(ctx, row, opts...)
		all = t.cellsOf(r)
		return err
	})
	return all, err
}

func (t *trial) cellsOf(r bigtable.Row) (all []cell) {
	bytes := 0
	for _, items := range r {
		for _, i := range items {
			family, qualifier, _ := strings.Cut(i.Column, ":")
			all = append(all, cell{family, qualifier, int64(i.Timestamp) / 1000, string(i.Value)})
			bytes += len(i.Row) + len(i.Column) + len(i.Value) + 16
		}
	}
	t.received(bytes)
	return all
}

// scan returns the keys of the rows of a set in the order in which they arrive.
func (t *trial) scan(ctx context.Context, rows bigtable.RowSet, opts ...bigtable.ReadOption) (keys []string, err error) {
	err = t.request(ctx, "scan", 64, func(ctx context.Context) error {
		keys = nil
		return t.table.ReadRows(ctx, rows, func(r bigtable.Row) bool {
			keys = append(keys, r.Key())
			t.cellsOf(r)
			return true
		}, opts...)
	})
	return keys, err
}

// rows returns the cells of the rows of a set, by key.
func (t *trial) rows(ctx context.Context, rows bigtable.RowSet, opts ...bigtable.ReadOption) (all map[string][]cell, err error) {
	err = t.request(ctx, "scan", 64, func(ctx context.Context) error {
		all = map[string][]cell{}
		return t.table.ReadRows(ctx, rows, func(r bigtable.Row) bool {
			all[r.Key()] = t.cellsOf(r)
			return true
		}, opts...)
	})
	return all, err
}

// applyBulk changes many rows in one request, and returns the error of each.
func (t *trial) applyBulk(ctx context.Context, rows []string, all []*change) (errs []error, err error) {
	bytes := 0
	mutations := make([]*bigtable.Mutation, len(all))
	for i, c := range all {
		mutations[i] = c.m
		bytes += len(rows[i]) + c.bytes
	}
	err = t.request(ctx, "mutate rows", bytes, func(ctx context.Context) error {
		errs, err = t.table.ApplyBulk(ctx, rows, mutations)
		return err
	})
	return errs, err
}

// expect compares the cells of a row.
func (t *trial) expect(ctx context.Context, what, row string, f bigtable.Filter, want ...cell) error {
	got, err := t.read(ctx, row, f)
	if err != nil {
		return err
	}
	if !same(got, want) {
		return brokenf("%s: the row has %v, want %v", what, some(got), some(want))
	}
	return nil
}

// A reading is what a read of a row must return.
type reading struct {
	what   string
	filter bigtable.Filter
	want   []cell
}

// shows is a test that changes a row and reads it.
func shows(c *change, all ...reading) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		row := t.row("r")
		if err := t.apply(ctx, row, c); err != nil {
			return err
		}
		for _, r := range all {
			if err := t.expect(ctx, r.what, row, r.filter, r.want...); err != nil {
				return err
			}
		}
		return nil
	}
}

// same compares cells without their order.
func same(a, b []cell) bool {
	if len(a) != len(b) {
		return false
	}
	count := map[cell]int{}
	for i := range a {
		count[a[i]]++
		count[b[i]]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

func some(all []cell) string {
	if len(all) > 8 {
		return fmt.Sprintf("%v and %d more cells", all[:8], len(all)-8)
	}
	return fmt.Sprint(all)
}

// exact matches one column.
func exact(family, qualifier string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00")
}

func wholeFamily(family string) bigtable.Filter { return bigtable.ColumnRangeFilter(family, "", "") }

func between(from, to int64) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(stamp(from), stamp(to))
}

// predicates tests predicates on a row that has the cell g:c@5 only.
func (t *trial) predicates(ctx context.Context, all map[string]predicate) error {
	row := t.row("r")
	if err := t.apply(ctx, row, changes().set(family2, "c", 5, "v")); err != nil {
		return err
	}
	for what, p := range all {
		matched, err := t.check(ctx, row, p.filter, changes().set(family2, "d", 1, "v"), nil)
		if err != nil {
			return err
		}
		if matched != p.match {
			return brokenf("the predicate %s is matched = %v, want %v", what, matched, p.match)
		}
	}
	return nil
}

// increment adds to a counter of the first family and returns its new value.
func (t *trial) increment(ctx context.Context, row, qualifier string, by int64) (n int64, err error) {
	m := bigtable.NewReadModifyWrite()
	m.Increment(family1, qualifier, by)
	err = t.request(ctx, "increment", len(row)+len(qualifier)+32, func(ctx context.Context) error {
		r, err := t.table.ApplyReadModifyWrite(ctx, row, m)
		if err != nil {
			return err
		}
		for _, item := range r[family1] {
			if len(item.Value) != 8 {
				return brokenf("an increment returned a value of %d bytes", len(item.Value))
			}
			for _, b := range item.Value {
				n = n<<8 | int64(b)
			}
		}
		return nil
	})
	return n, err
}

// manyRows writes 60 rows and returns their keys in order.
func (t *trial) manyRows(ctx context.Context) (keys []string, err error) {
	var all []*change
	for i := range 60 {
		keys = append(keys, t.row(fmt.Sprintf("k%c%02d", "\x01Aaz\xfe"[i%5], i)))
		all = append(all, set("a", 1, "v"))
	}
	if errs, err := t.applyBulk(ctx, keys, all); err != nil || errs != nil {
		return nil, fmt.Errorf("writing rows: %w", firstError(err, errs))
	}
	slices.Sort(keys)
	return keys, nil
}

func (t *trial) expectRows(ctx context.Context, what string, rows bigtable.RowSet, want []string, opts ...bigtable.ReadOption) error {
	got, err := t.scan(ctx, rows, opts...)
	if err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return brokenf("%s returned %d rows, want %d, or in another order: %.300q", what, len(got), len(want), got)
	}
	return nil
}

func (t *trial) administer(ctx context.Context, f func(context.Context) error) error {
	return t.request(ctx, "admin", 256, f)
}

// torn: a writer replaces columns of a row, and readers with a filter must always see the
// columns of one version. The columns of three versions alternate, so columns come and go.
func (t *trial) torn(ctx context.Context, columns int, f bigtable.Filter, write func(ctx context.Context, row string, c *change) error) error {
	t.begin()
	row := t.row("row")
	version := func(c *change, n int64, write bool) *change {
		for _, family := range []string{family1, family2} {
			for i := range columns {
				q := fmt.Sprintf("c%d-%d", i, n%3)
				if write {
					c.set(family, q, n, strconv.FormatInt(n, 10))
				} else {
					c.remove(family, q, n, n+1)
				}
			}
		}
		return c
	}
	if err := t.apply(ctx, row, version(changes(), 1, true)); err != nil {
		return err
	}
	return t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
		if i == 0 {
			for n := int64(2); t.more(ctx); n++ {
				if err := write(ctx, row, version(version(changes(), n-1, false), n, true)); err != nil {
					return err
				}
			}
			return nil
		}
		for t.more(ctx) {
			got, err := t.read(ctx, row, f)
			if err != nil {
				return err
			}
			if err := oneVersion(got, 2*columns); err != nil {
				return err
			}
		}
		return nil
	})
}

// removals are n changes of a row. They delete cells that do not exist, so nothing is stored.
func removals(n int) *change {
	c := changes()
	for range n {
		c.remove(family1, "q", 1, 2)
	}
	return c
}

func firstError(err error, errs []error) error {
	for _, e := range errs {
		if err == nil {
			err = e
		}
	}
	return err
}

func oneVersion(got []cell, want int) error {
	if len(got) == 0 {
		return brokenf("a read found no cell of a row that always has %d", want)
	}
	columns := map[cell]bool{}
	for _, c := range got {
		if c.ms != got[0].ms {
			return brokenf("a read returned cells of versions %d and %d, which are never there together", got[0].ms, c.ms)
		}
		columns[c] = true
	}
	if len(columns) != want || len(got) != want {
		return brokenf("a read returned %d cells of %d columns; the row always has %d", len(got), len(columns), want)
	}
	return nil
}

type predicate struct {
	filter bigtable.Filter
	match  bool
}

func rowList(keys []string) bigtable.RowList { return bigtable.RowList(keys) }

const maxChanges = 100_000
