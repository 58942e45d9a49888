package session

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// errDeleted is in the error of a table that has only its schema record.
var errDeleted = errors.New("does not exist")

// mostNames is how many names a message lists.
const mostNames = 10

// explainTable words the error of a table that has no schema record or does not exist. It
// keeps any other error.
func (s *Session) explainTable(ctx context.Context, client *txn.Client, name string, err error) error {
	missing := status.Code(err) == codes.NotFound
	if !missing && !errors.Is(err, txn.ErrNotInitialized) {
		return err
	}
	var names []string
	var leaving map[string]bool
	if client != nil {
		if names, err = admin.Tables(ctx, client); err == nil {
			leaving, err = admin.UnfinishedAdoptions(ctx, client)
		}
		if err != nil {
			return err
		}
	}
	if slices.Contains(names, name) {
		return NotFoundf("table %s has a schema record but %w: run percctl table verify %s", name, errDeleted, name)
	}
	stored, err := s.Admin.Tables(ctx)
	if err == nil && !missing && slices.Contains(stored, name) {
		if leaving[name] {
			return NotFoundf("table %s of %s is leaving: percctl table leave %s continues", name, s.Where, name)
		}
		return NotFoundf("table %s of %s is not transactional: percctl table adopt %s makes it transactional", name, s.Where, name)
	}
	if client == nil {
		names = stored
	}
	if len(names) == 0 {
		return NotFoundf("%s has no table %q, nor any other: percctl table init creates tables", s.Where, name)
	}
	return NotFoundf("%s has no table %q%s", s.Where, name, like(name, names))
}

func some(names []string) string {
	if len(names) > mostNames {
		return strings.Join(names[:mostNames], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// Describe is admin.Describe, with an error that says which tables there are.
func (s *Session) Describe(ctx context.Context, client *txn.Client, table string) (admin.TableDescription, error) {
	d, err := admin.Describe(ctx, client, table)
	if err != nil {
		err = s.explainTable(ctx, client, table, err)
	}
	return d, err
}

// Exists says when a table does not exist, whether it is transactional or not. It says
// nothing where that cannot be read.
func (s *Session) Exists(ctx context.Context, table string) error {
	_, err := s.Admin.TableInfo(ctx, table)
	if status.Code(err) != codes.NotFound {
		return nil
	}
	return s.explainTable(ctx, s.Client(), table, err)
}

// UseCells opens the tables of cells, and checks that they have the families.
func (s *Session) UseCells(ctx context.Context, cells ...txn.Cell) error {
	for _, c := range cells {
		if err := s.UseFamilies(ctx, c.Table, c.Family); err != nil {
			return err
		}
	}
	return nil
}

// UseFamilies opens a table, and checks that it has the families.
func (s *Session) UseFamilies(ctx context.Context, table string, families ...string) error {
	if err := s.Use(ctx, table); err != nil {
		return err
	}
	d, err := admin.Describe(ctx, s.Client(), table)
	if err != nil {
		return err
	}
	for _, f := range families {
		if f != format.AckFamily && !slices.Contains(d.Families, f) {
			return NotFoundf("table %s has no family %q, only %s%s", table, f, some(d.Families), cli.DidYouMean(f, d.Families...))
		}
	}
	return nil
}

// CheckObserver says when no table has an observer.
func (s *Session) CheckObserver(ctx context.Context, id string) error {
	all, err := AllObserved(ctx, s)
	if err != nil {
		return err
	}
	if ids := observerIDs(all); !slices.Contains(ids, id) {
		return NotFoundf("no observer %q is registered%s", id, like(id, ids))
	}
	return nil
}

// CheckObserverOf says when none of these columns, which where names, has an observer.
func CheckObserverOf(where, id string, all ...changes.ObservedColumn) error {
	ids := observerIDs(all)
	if slices.Contains(ids, id) {
		return nil
	}
	return NotFoundf("%s has no observer %q%s", where, id, like(id, ids))
}

func observerIDs(all []changes.ObservedColumn) (ids []string) {
	for _, col := range all {
		ids = append(ids, col.Observers...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func columnNames(all []changes.ObservedColumn) (names []string) {
	for _, col := range all {
		names = append(names, col.Table+"/"+col.Column.String())
	}
	return names
}

// like is the end of a message about a name that does not exist: the names that are like
// it, or those that there are.
func like(typed string, names []string) string {
	text := cli.DidYouMean(typed, names...)
	if text == "" && len(names) > 0 {
		text = "; known are " + some(names)
	}
	return text
}
