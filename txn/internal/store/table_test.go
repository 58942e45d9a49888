package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A scripted table answers each read with the next of its answers, and then with all of its rows.
type scripted struct {
	bigtable.TableAPI
	rows     []string
	answers  []scriptedAnswer
	sampled  []error  // errors of the next samples
	requests []string // and until when their contexts last
}

// A scriptedAnswer is some rows and then an error. Each row takes a time.
type scriptedAnswer struct {
	rows int
	err  error
	each time.Duration
}

func (s *scripted) OpenTable(string) bigtable.TableAPI { return s }

func (s *scripted) note(ctx context.Context, text string) {
	d, _ := ctx.Deadline()
	s.requests = append(s.requests, fmt.Sprintf("%s in %v", text, time.Until(d)))
}

func (s *scripted) ReadRows(ctx context.Context, set bigtable.RowSet, f func(bigtable.Row) bool, _ ...bigtable.ReadOption) error {
	s.note(ctx, fmt.Sprint(set))
	answer := scriptedAnswer{rows: len(s.rows)}
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	in, err := NewRowSet(set)
	if err != nil {
		return err
	}
	for _, row := range s.rows {
		if in.Contains(row) && answer.rows > 0 {
			answer.rows--
			if !f(bigtable.Row{"f": {{Row: row, Column: "f:q", Value: make([]byte, MaxPageBytes/2-3)}}}) {
				return nil
			}
			<-time.After(answer.each)
		}
	}
	return answer.err
}

func (s *scripted) SampleRowKeys(ctx context.Context) ([]string, error) {
	s.note(ctx, "sample")
	if len(s.sampled) > 0 {
		err := s.sampled[0]
		s.sampled = s.sampled[1:]
		return []string{"b"}, err
	}
	return []string{"c", "a", "", "c"}, nil
}

// TestTableReads: the rows that each kind of read shows of an answer that is cut short, and its requests.
func TestTableReads(t *testing.T) {
	const timeout = 20 * time.Second
	late := status.Error(codes.DeadlineExceeded, "late")
	keys := RowSet{Keys: []string{"a", "b", "c", "d"}}
	type reader func(ctx context.Context, table *Table, fn func(string) bool) error
	show := func(fn func(string) bool) func(bigtable.Row) bool {
		return func(r bigtable.Row) bool { return fn(r.Key()) }
	}
	readers := map[string]reader{
		"keys": func(ctx context.Context, table *Table, fn func(string) bool) error {
			return table.ReadKeys(ctx, keys, show(fn))
		},
	}
	for _, once := range []bool{false, true} {
		readers[map[bool]string{false: "pages", true: "pages once"}[once]] = func(ctx context.Context, table *Table, fn func(string) bool) error {
			return table.pages(ctx, bigtable.RowList(keys.Keys), once, func(*Table) bigtable.Filter { return Latest }, func(_ *Table, page []bigtable.Row) (bool, error) {
				keys := ""
				for _, r := range page {
					keys += r.Key()
				}
				return fn(keys + ";"), nil
			})
		}
	}
	const all, afterB = "[a b c d] in 20s", "[c d] in 20s"
	for _, tt := range []struct {
		reader  string
		answers []scriptedAnswer
		stop    string // at this row
		want    string // rows, and the error
		did     string
	}{
		{"keys", nil, "", "abcd ok", all},
		{"keys", []scriptedAnswer{{2, lost, 0}}, "", "abcd ok", all + ", " + afterB},
		{"keys", []scriptedAnswer{{2, denied, 0}}, "", "ab PermissionDenied", all},
		{"keys", nil, "b", "ab ok", all},
		{"pages", nil, "", "ab;cd; ok", all + ", " + afterB},
		{"pages", []scriptedAnswer{{1, lost, 0}}, "", "a;bc;d; ok", all + ", [b c d] in 20s, [d] in 20s"},
		{"pages", []scriptedAnswer{{4, nil, timeout / 2}}, "", "ab;cd; ok", all + ", " + afterB},
		{"pages", nil, "ab;", "ab; ok", all},
		{"pages", []scriptedAnswer{{0, lost, 0}, {0, denied, 0}}, "", " PermissionDenied", all + ", " + all},
		{"pages once", []scriptedAnswer{{0, lost, 0}}, "", " Unavailable", all},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &scripted{rows: keys.Keys, answers: tt.answers}
			s, err := NewRequests(api, Config{RPCTimeout: timeout, Backoff: Backoff{1, 1}})
			if err != nil {
				t.Fatal(err)
			}
			s.Metadata, s.SafePoint = s.NewTable("meta"), &SafePoint{store: s}
			got := ""
			err = readers[tt.reader](t.Context(), s.NewTable("t"), func(row string) bool { got += row; return row != tt.stop })
			if err == nil {
				got += " ok"
			} else {
				got += " " + status.Code(RPCErrors(err)[0]).String()
			}
			if did := strings.Join(api.requests, ", "); got != tt.want || did != tt.did || len(s.reads) != 0 {
				t.Errorf("%s of %v: %s, want %s; requests %s, want %s; %d places are taken", tt.reader, tt.answers, got, tt.want, did, tt.did, len(s.reads))
			}
			if len(api.answers) != 0 {
				t.Errorf("%s of %v: %d answers have not been given", tt.reader, tt.answers, len(api.answers))
			}
		})
	}
	// A list of keys that takes two requests ends where the caller ends it, or with its error.
	many := RowSet{Keys: make([]string, MaxPageRows+1)}
	for i := range many.Keys {
		many.Keys[i] = fmt.Sprintf("%05d", i)
	}
	for name, read := range map[string]func(context.Context, *Table, func(bigtable.Row) bool) error{
		"keys": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) error {
			return table.ReadKeys(ctx, many, fn)
		},
		"pages": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) error {
			err := table.pages(ctx, bigtable.RowList(many.Keys), false, func(*Table) bigtable.Filter { return Latest }, func(_ *Table, page []bigtable.Row) (bool, error) {
				return true, map[bool]error{false: denied}[fn(page[0])]
			})
			if !errors.Is(err, denied) {
				return fmt.Errorf("the pages ended with %w", err)
			}
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			api, rows := &scripted{rows: many.Keys[:1]}, 0
			s, err := NewRequests(api, Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := read(t.Context(), s.NewTable("t"), func(bigtable.Row) bool { rows++; return false }); err != nil || rows != 1 || len(api.requests) != 1 {
				t.Errorf("%s: %v after %d rows and %d requests", name, err, rows, len(api.requests))
			}
		})
	}
	// A scan that has something else to do gives up after three requests that were too late.
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		for range 9 {
			api.answers = append(api.answers, scriptedAnswer{err: late})
		}
		s, err := NewRequests(api, Config{RPCTimeout: timeout, Backoff: Backoff{1, 1}})
		if err != nil {
			t.Fatal(err)
		}
		var p Pieces
		if _, err := s.NewTable("t").readPage(t.Context(), &p, true, RowSet{Ranges: []KeyRange{{}}}, 10, Latest, func(bigtable.Row) bool { return true }); !ownDeadline(t.Context(), err) || len(api.answers) != 9-maxSlowTries {
			t.Errorf("%v after %q", err, api.requests)
		}
	})
}

// TestTablets: the bounds of tablets are asked for once in ten minutes, and an error changes none.
func TestTablets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		s, err := NewRequests(api, Config{RPCTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		table := s.NewTable("t")
		parts := func(after time.Duration, want string, requests int) {
			t.Helper()
			<-time.After(after)
			api.requests = nil
			if got := fmt.Sprint(table.Tablets(t.Context(), RowSet{Ranges: []KeyRange{{"", "b"}, {"bb", ""}}})); got != want || len(api.requests) != requests {
				t.Errorf("%s, want %s; requests %q", got, want, api.requests)
			}
		}
		const cut = "[{[] [{ a}]} {[] [{a b}]} {[] [{bb c}]} {[] [{c }]}]"
		parts(0, cut, 1)
		parts(boundsMaxAge-1, cut, 0)
		api.sampled = []error{denied}
		parts(1, cut, 1)
		parts(0, cut, 0)
		api.sampled = []error{nil}
		parts(boundsMaxAge, "[{[] [{ b}]} {[] [{bb }]}]", 1)
	})
}

// TestTableRequests: a request has the deadline of its caller, or Config.RPCTimeout if that is earlier. A
// read waits for a place, unless it is one of the metadata table. An error names the operation and the table.
func TestTableRequests(t *testing.T) {
	inWorld(t, func(w *world) {
		w.schema(&recordpb.TableSchema{Families: []string{"f"}})
		s := w.store(Config{RPCTimeout: time.Minute})
		table, err := s.Table(w.Context(), "a")
		w.Must(err)
		for own, want := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second, time.Hour: time.Minute} {
			ctx := w.Context()
			if own > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, own)
				defer cancel()
			}
			rctx, cancel := table.Timeout(ctx)
			defer cancel()
			if d, ok := rctx.Deadline(); !ok || time.Until(d) != want || (rctx == ctx) != (own == time.Second) {
				t.Errorf("of a caller with %v: %v, %t", own, time.Until(d), ok)
			}
		}
		w.Did()
		w.Inject("read", lost)
		if _, err := table.ReadRow(w.Context(), "r", Latest); err != nil || len(s.reads) != 0 {
			t.Errorf("after another try: %v, %d places are taken", err, len(s.reads))
		}
		w.Expect("another try", "read a/r, read a/r")
		w.Inject("read", denied)
		if row, err := table.ReadRow(w.Context(), "r", Latest); row != nil || !errors.Is(err, denied) || !strings.HasPrefix(err.Error(), `percolator: read on table "a": `) {
			t.Errorf("denied: %v, %v", row, err)
		}
		w.Expect("denied", "read a/r")
		w.Inject("change", denied)
		if _, err := table.CheckAndMutate(w.Context(), "r", Latest, nil, nil); !errors.Is(err, denied) || !strings.HasPrefix(err.Error(), `percolator: conditional mutation on table "a": `) {
			t.Errorf("denied: %v", err)
		}
		w.Did()
		for range maxReads {
			w.Must(s.reads.Admit(w.Context(), "tests"))
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if _, err := table.ReadRowOnce(ctx, "r", Latest); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a place: %v", err)
		}
		_, err = s.Metadata.ReadRowOnce(w.Context(), "r", Latest)
		w.Must(err)
		w.Expect("without a place", "read meta/r")
		for _, sel := range []Selection{{}, {KeysOnly: true}} {
			families := []string{"f"}
			if !sel.KeysOnly {
				families = nil
			}
			if got, want := table.VisibleAt(sel, filterBase).String(), sel.VisibleAt(filterBase, families).String(); got != want {
				t.Errorf("%+v of a table without observers: %s, want %s", sel, got, want)
			}
		}
		if _, err := NewRequests(w, Config{RPCTimeout: -1}); !errors.Is(err, format.ErrInvalid) {
			t.Errorf("a negative timeout: %v", err)
		}
	})
}
