package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A scriptedTable has the rows a to h, and tablets that end at d and g. Its first requests fail as
// steps say: after so many rows, with a code. It answers the others completely.
type scriptedTable struct {
	bigtable.TableAPI
	steps    []answer
	requests []string
}

type answer struct {
	rows int
	code codes.Code
}

func (s *scriptedTable) OpenTable(string) bigtable.TableAPI { return s }

func (s *scriptedTable) SampleRowKeys(context.Context) ([]string, error) {
	s.requests = append(s.requests, "samples")
	return []string{"g", "", "d", "d"}, nil
}

func (s *scriptedTable) next() answer {
	var a answer
	if len(s.steps) > 0 {
		a, s.steps = s.steps[0], s.steps[1:]
	}
	return a
}

func (s *scriptedTable) ReadRows(_ context.Context, arg bigtable.RowSet, f func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	set, err := NewRowSet(arg)
	if err != nil {
		return err
	}
	request := strings.Join(set.Keys, "")
	for _, r := range set.Ranges {
		request += fmt.Sprintf("[%s,%s)", strings.ReplaceAll(r.Start, "\x00", "+"), strings.ReplaceAll(r.End, "\x00", "+"))
	}
	rows, limit := strings.Split("abcdefgh", ""), 1<<20
	for _, o := range opts {
		switch kind := fmt.Sprintf("%T", o); kind {
		case "bigtable.limitRows":
			request += fmt.Sprint(o)
			_, _ = fmt.Sscanf(fmt.Sprint(o), "{%d}", &limit)
		case "bigtable.reverseScan":
			request += " reverse"
			slices.Reverse(rows)
		}
	}
	s.requests = append(s.requests, request)
	a := s.next()
	if a.code == codes.OK {
		a.rows = limit
	}
	for _, row := range rows {
		if !set.Contains(row) {
			continue
		}
		if a.rows == 0 {
			break
		}
		a.rows--
		if !f(bigtable.Row{"f": {{Row: row, Value: []byte("1")}}}) {
			return nil
		}
	}
	if a.code != codes.OK {
		return status.Error(a.code, "injected")
	}
	return nil
}

// TestReadsOfManyRows: which requests each way to read many rows sends, which rows it passes on, and
// how it ends, for answers that fail or are cut short, and for callers that have enough.
func TestReadsOfManyRows(t *testing.T) {
	all := RowSet{Ranges: []KeyRange{{"", ""}}}
	keys := RowSet{Keys: []string{"b", "d", "f", "x"}}
	reads := map[string]func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (left RowSet, err error){
		"keys": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return RowSet{}, table.ReadKeys(ctx, keys, fn)
		},
		"rows": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return RowSet{}, table.ReadRows(ctx, bigtable.InfiniteRange(""), fn)
		},
		"try rows": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return RowSet{}, table.TryReadRows(ctx, bigtable.InfiniteRange(""), fn)
		},
		"page of 3": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return table.ReadPage(ctx, &Pieces{}, all, 3, bigtable.PassAllFilter(), fn)
		},
		"stream of 3": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return table.StreamSet(ctx, &Pieces{}, all, false, 3, func(r bigtable.Row) (bool, time.Duration) { return fn(r), 0 })
		},
		"stream backwards": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return table.StreamSet(ctx, &Pieces{}, keys, true, 0, func(r bigtable.Row) (bool, time.Duration) { return fn(r), 0 })
		},
		"pages": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return RowSet{}, table.pages(ctx, nil, false, func(*Table) bigtable.Filter { return bigtable.PassAllFilter() }, func(_ *Table, page []bigtable.Row) (bool, error) {
				for _, r := range page {
					if !fn(r) {
						return false, nil
					}
				}
				return true, nil
			})
		},
		"pages once": func(ctx context.Context, table *Table, fn func(bigtable.Row) bool) (RowSet, error) {
			return RowSet{}, table.pages(ctx, nil, true, func(*Table) bigtable.Filter { return bigtable.PassAllFilter() }, func(_ *Table, page []bigtable.Row) (bool, error) {
				return len(page) == 0 || fn(page[0]), nil
			})
		},
	}
	for _, tt := range []struct {
		read   string
		enough int // rows, after which the caller has enough; 0: never
		steps  []answer
		want   string
	}{
		{"keys", 0, nil, "bdfx: bdf"},
		{"keys", 2, nil, "bdfx: bd"},
		{"keys", 0, []answer{{0, codes.Unavailable}}, "bdfx bdfx: bdf"},
		{"keys", 0, []answer{{2, codes.Unavailable}}, "bdfx fx: bdf"},
		{"keys", 0, []answer{{0, codes.PermissionDenied}}, "bdfx: , PermissionDenied"},
		{"keys", 0, []answer{{2, codes.PermissionDenied}}, "bdfx: bd, PermissionDenied"},
		{"keys", 0, []answer{{0, codes.DeadlineExceeded}}, "bdfx bdfx: bdf"},
		{"rows", 0, nil, "[,): abcdefgh"},
		{"rows", 2, nil, "[,): ab"},
		{"rows", 0, []answer{{0, codes.Unavailable}}, "[,) [,): abcdefgh"},
		{"rows", 0, []answer{{2, codes.Unavailable}}, "[,): ab, Unavailable"},
		{"rows", 0, []answer{{0, codes.PermissionDenied}}, "[,): , PermissionDenied"},
		{"rows", 0, []answer{{2, codes.PermissionDenied}}, "[,): ab, PermissionDenied"},
		{"rows", 0, []answer{{0, codes.DeadlineExceeded}}, "[,) [,): abcdefgh"},
		{"try rows", 0, nil, "[,): abcdefgh"},
		{"try rows", 0, []answer{{0, codes.Unavailable}}, "[,): , Unavailable"},
		{"try rows", 0, []answer{{2, codes.Unavailable}}, "[,): ab, Unavailable"},
		{"try rows", 0, []answer{{0, codes.PermissionDenied}}, "[,): , PermissionDenied"},
		{"try rows", 0, []answer{{2, codes.PermissionDenied}}, "[,): ab, PermissionDenied"},
		{"try rows", 0, []answer{{0, codes.DeadlineExceeded}}, "[,): , DeadlineExceeded"},
		{"page of 3", 0, nil, "[,){3}: abc, left {[] [{c+ }]}"},
		{"page of 3", 2, nil, "[,){3}: ab, left {[] [{b+ }]}"},
		{"page of 3", 0, []answer{{0, codes.Unavailable}}, "[,){3} [,){3}: abc, left {[] [{c+ }]}"},
		{"page of 3", 0, []answer{{2, codes.Unavailable}}, "[,){3}: ab, left {[] [{b+ }]}"},
		{"page of 3", 0, []answer{{0, codes.PermissionDenied}}, "[,){3}: , PermissionDenied"},
		{"page of 3", 0, []answer{{2, codes.PermissionDenied}}, "[,){3}: ab, PermissionDenied"},
		{"page of 3", 0, []answer{{0, codes.DeadlineExceeded}}, "[,){3} samples [,d){3}: abc, left {[] [{c+ }]}"},
		{"stream of 3", 0, nil, "[,){3}: abc"},
		{"stream of 3", 2, nil, "[,){3}: ab"},
		{"stream of 3", 0, []answer{{0, codes.Unavailable}}, "[,){3} [,){3}: abc"},
		{"stream of 3", 0, []answer{{2, codes.Unavailable}}, "[,){3}: ab, Unavailable"},
		{"stream of 3", 0, []answer{{0, codes.PermissionDenied}}, "[,){3}: , PermissionDenied"},
		{"stream of 3", 0, []answer{{2, codes.PermissionDenied}}, "[,){3}: ab, PermissionDenied"},
		{"stream of 3", 0, []answer{{0, codes.DeadlineExceeded}}, "[,){3} samples [,d){3}: abc, left {[] [{d }]}"},
		{"stream backwards", 0, nil, "[b,b+)[d,d+)[f,f+)[x,x+) reverse: fdb"},
		{"stream backwards", 2, nil, "[b,b+)[d,d+)[f,f+)[x,x+) reverse: fd"},
		{"stream backwards", 0, []answer{{0, codes.Unavailable}}, "[b,b+)[d,d+)[f,f+)[x,x+) reverse [b,b+)[d,d+)[f,f+)[x,x+) reverse: fdb"},
		{"stream backwards", 0, []answer{{2, codes.Unavailable}}, "[b,b+)[d,d+)[f,f+)[x,x+) reverse: fd, Unavailable"},
		{"stream backwards", 0, []answer{{0, codes.PermissionDenied}}, "[b,b+)[d,d+)[f,f+)[x,x+) reverse: , PermissionDenied"},
		{"stream backwards", 0, []answer{{2, codes.PermissionDenied}}, "[b,b+)[d,d+)[f,f+)[x,x+) reverse: fd, PermissionDenied"},
		{"stream backwards", 0, []answer{{0, codes.DeadlineExceeded}}, "[b,b+)[d,d+)[f,f+)[x,x+) reverse samples [b,b+)[d,d+)[f,f+)[x,x+) reverse: fdb"},
		{"pages", 0, nil, "[,){4096}: abcdefgh"},
		{"pages", 2, nil, "[,){4096}: ab"},
		{"pages", 0, []answer{{0, codes.Unavailable}}, "[,){4096} [,){4096}: abcdefgh"},
		{"pages", 0, []answer{{2, codes.Unavailable}}, "[,){4096} [b+,){4096}: abcdefgh"},
		{"pages", 0, []answer{{0, codes.PermissionDenied}}, "[,){4096}: , PermissionDenied"},
		{"pages", 0, []answer{{2, codes.PermissionDenied}}, "[,){4096}: , PermissionDenied"},
		{"pages", 0, []answer{{0, codes.DeadlineExceeded}}, "[,){4096} samples [,d){4096} [d,g){4096} [g,){4096}: abcdefgh"},
		{"pages once", 0, nil, "[,){4096}: a"},
		{"pages once", 2, nil, "[,){4096}: a"},
		{"pages once", 0, []answer{{0, codes.Unavailable}}, "[,){4096}: , Unavailable"},
		{"pages once", 0, []answer{{2, codes.Unavailable}}, "[,){4096} [b+,){4096}: ac"},
		{"pages once", 0, []answer{{0, codes.PermissionDenied}}, "[,){4096}: , PermissionDenied"},
		{"pages once", 0, []answer{{2, codes.PermissionDenied}}, "[,){4096}: , PermissionDenied"},
		{"pages once", 0, []answer{{0, codes.DeadlineExceeded}}, "[,){4096} samples [,d){4096} [d,g){4096} [g,){4096}: adg"},
	} {
		var got string
		synctest.Test(t, func(t *testing.T) {
			api := &scriptedTable{steps: tt.steps}
			s, err := NewRequests(api, Config{})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			left, err := reads[tt.read](t.Context(), s.NewTable("t"), func(r bigtable.Row) bool {
				got += r.Key()
				n++
				return n != tt.enough
			})
			if err != nil {
				got += ", " + status.Code(err).String()
			}
			got = fmt.Sprintf("%s: %s", strings.Join(api.requests, " "), got)
			if !left.Empty() {
				got += fmt.Sprint(", left ", left)
			}
			if len(s.reads) != 0 {
				t.Errorf("%d reads have a place", len(s.reads))
			}
		})
		if got = strings.ReplaceAll(got, "\x00", "+"); got != tt.want {
			t.Errorf("%s, %d, %v: %s, want %s", tt.read, tt.enough, tt.steps, got, tt.want)
		}
	}
}

// TestNoTryAfterTheEnd: a read whose context ends in the pause after a failed try sends no more.
func TestNoTryAfterTheEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.store(Config{Backoff: Backoff{time.Hour, time.Hour}})
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.Inject("read", lost)
		if _, err := s.NewTable("a").ReadRow(ctx, "r", Latest); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lost) {
			t.Errorf("%v", err)
		}
		w.Expect("the read", "read a/r")
	})
}
