package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TablePrefix is how the names of scratch tables begin.
const TablePrefix = "percolator-conformance-"

// The cell that a scratch table has and no other table. Only tables that have it are removed.
const (
	markRow    = "!percolator-conformance"
	markColumn = "scratch"
	markValue  = "a scratch table of conformance tests, which remove it"
)

// ErrForeign is the error for a table that no conformance test made.
var ErrForeign = errors.New("conformance: the table was not made by a conformance test")

// setUpTimeout bounds the making of a table, and cleanTimeout its removal, after an interrupt
// too.
const (
	setUpTimeout = time.Minute
	cleanTimeout = 30 * time.Second
)

// ScratchName returns a new random name for a scratch table.
func ScratchName() string { return TablePrefix + strings.ToLower(rand.Text()[:8]) }

// Create makes a scratch table, which [Remove] removes, and [Remains] finds if nobody does. It
// has the family [Family]. Create continues if the context ends meanwhile.
func Create(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient, name string) error {
	if err := createScratch(ctx, bt, admin, name); err != nil {
		return fmt.Errorf("conformance: making table %s: %w", name, err)
	}
	return nil
}

// createScratch makes a table with its mark. Its families have no policy. It continues if the
// context ends meanwhile, so that no table is left half made.
func createScratch(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setUpTimeout)
	defer cancel()
	if err := admin.CreateTable(ctx, name); err != nil {
		if status.Code(err) == codes.AlreadyExists {
			return fmt.Errorf("%w: %s exists already, choose another name", ErrForeign, name)
		}
		return err
	}
	err := func() error {
		for _, f := range []string{family1, family2} {
			if err := admin.CreateColumnFamily(ctx, name, f); err != nil {
				return err
			}
		}
		return bt.Open(name).Apply(ctx, markRow, set(markColumn, 1, markValue).m)
	}()
	if err == nil {
		return nil
	}
	// It has no mark, but this call made it.
	clean, cancelClean := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancelClean()
	return errors.Join(err, admin.DeleteTable(clean, name))
}

// isScratch returns [ErrForeign] if a table does not have the mark.
func isScratch(ctx context.Context, bt *bigtable.Client, name string) error {
	r, err := bt.Open(name).ReadRow(ctx, markRow)
	if err != nil {
		return err
	}
	for _, item := range r[family1] {
		if item.Column == family1+":"+markColumn && string(item.Value) == markValue {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", ErrForeign, name)
}

// removeScratch removes a table that has the mark, also if the context has ended.
func removeScratch(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if err := isScratch(ctx, bt, name); err != nil {
		return err
	}
	return admin.DeleteTable(ctx, name)
}

// Remains returns the scratch tables of tests that were killed: tables whose names begin
// with [TablePrefix] and that a conformance test made. They may also belong to a test that
// runs now.
func Remains(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient) ([]string, error) {
	all, err := admin.Tables(ctx)
	if err != nil {
		return nil, fmt.Errorf("conformance: listing tables: %w", err)
	}
	var found []string
	for _, name := range all {
		if !strings.HasPrefix(name, TablePrefix) {
			continue
		}
		switch err := isScratch(ctx, bt, name); {
		case errors.Is(err, ErrForeign), status.Code(err) == codes.NotFound:
		case err != nil:
			return nil, fmt.Errorf("conformance: table %s: %w", name, err)
		default:
			found = append(found, name)
		}
	}
	return found, nil
}

// Remove removes a scratch table. It fails with [ErrForeign] if no conformance test made it.
func Remove(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient, name string) error {
	if err := removeScratch(ctx, bt, admin, name); err != nil {
		return fmt.Errorf("conformance: removing table %s: %w", name, err)
	}
	return nil
}
