package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// DefaultUndoWait is how long [UndoAdoption] waits for writers if wait is 0. With
// the default configuration it is Config.SchemaMaxAge plus three times
// Config.RPCTimeout, which is more than a commit needs between reading the schema
// and its first prewrite.
const DefaultUndoWait = 2 * time.Minute

// ErrWritten means that an adoption cannot be undone, because a transaction has
// written to the table. The table stays transactional.
var ErrWritten = errors.New("a transaction has written to the table")

// A WrittenError names the first cell that was found to be a transaction's.
// errors.Is(err, ErrWritten) holds.
type WrittenError struct {
	Cell   format.Cell
	Family string // where it is stored: a metadata family, or Cell.Family
	// Late is set if the cell was found after the families were dropped, because a
	// commit took longer than the wait. Its value is in the user's families.
	Late bool
}

// Error names the cell.
func (e *WrittenError) Error() string {
	if e.Late {
		return fmt.Sprintf("admin: %v: %s was written while the metadata families were being dropped; its value stays, but the record of its transaction is lost", ErrWritten, e.Cell)
	}
	return fmt.Sprintf("admin: %v: %s, in family %s; the table stays transactional", ErrWritten, e.Cell, e.Family)
}

// Is makes errors.Is(err, ErrWritten) true.
func (e *WrittenError) Is(target error) bool { return target == ErrWritten }

// UndoAdoption undoes [Adopt] or [InitTable] if no transaction has written to the
// table. It removes the schema record and the metadata families, and restores the
// garbage-collection policies that Adopt cleared. Expiries that were set since
// replace the maximum ages of these policies, as in [Leave]. It changes no row of data.
//
// Clients may use the table meanwhile. UndoAdoption works in these steps:
//
//  1. It searches the whole table for cells that a transaction wrote.
//  2. It removes the schema record. No client opens the table from then on.
//     Clients that have it open fail to commit when they next read the record.
//  3. It waits for those clients. wait (0: [DefaultUndoWait]) must be at least the
//     longest Config.SchemaMaxAge of the deployment plus three times the longest
//     Config.RPCTimeout.
//  4. It searches the table again, and then drops the families.
//
// If it finds a cell in step 1 or 4, it fails with a [WrittenError], and the table
// stays transactional. After another error, or when ctx ends, the table may lack
// its schema record: call UndoAdoption again to continue, or PlanAdoption and
// Adopt to make the table transactional again. Do not call InitTable in between.
func UndoAdoption(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig, wait time.Duration) error {
	a, err := newAdoption(admin, bt, &cfg)
	if err != nil {
		return err
	}
	switch {
	case wait < 0:
		return invalidf("wait of %v; it must not be negative", wait)
	case wait == 0:
		wait = DefaultUndoWait
	}
	return (&undoer{a}).undo(ctx, wait)
}

// CheckUndoAdoption searches the table as the first step of [UndoAdoption] does. It
// fails with a [WrittenError] if a transaction has written to the table. Otherwise it
// returns the policies that the families would get. It changes nothing.
func CheckUndoAdoption(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig) ([]FamilyPolicy, error) {
	a, err := newAdoption(admin, bt, &cfg)
	if err != nil {
		return nil, err
	}
	state, err := a.state(ctx)
	if err != nil {
		return nil, err
	}
	u := &undoer{a}
	prior, err := u.undoable(state)
	if err != nil {
		return nil, err
	}
	if !state.dropping {
		found, err := u.written(ctx)
		if err == nil && found != nil {
			err = found
		}
		if err != nil {
			return nil, err
		}
	}
	return u.plainPolicies(ctx, prior)
}

// An undoer undoes the adoption of a table.
type undoer struct{ *adoption }

// undoable returns the schema record of the table whose adoption is undone.
func (u *undoer) undoable(state *adoptionState) (*recordpb.TableSchema, error) {
	prior := state.schema
	if prior == nil {
		prior = state.prior()
	}
	if prior == nil {
		return nil, fmt.Errorf("admin: table %q: %w: it has no schema record in metadata table %q; there is nothing to undo", u.cfg.Table, format.ErrNotInitialized, u.cfg.MetadataTable)
	}
	return prior, nil
}

// undo does the work of UndoAdoption.
func (u *undoer) undo(ctx context.Context, wait time.Duration) error {
	state, err := u.state(ctx)
	if err != nil {
		return err
	}
	prior, err := u.undoable(state)
	if err != nil {
		return err
	}
	if !state.dropping {
		if err := u.retire(ctx, state, prior, wait); err != nil {
			return err
		}
	}
	if err := families.DropMetadata(ctx, u.admin, u.cfg.Table); err != nil {
		return err
	}
	if err := u.restorePolicies(ctx, prior); err != nil {
		return err
	}
	// Prove that the wait was long enough.
	found, err := u.written(ctx)
	if err != nil {
		return err
	}
	if err := u.end(ctx); err != nil || found == nil {
		return err
	}
	found.Late = true
	return found
}

// retire removes the schema record and makes sure that no transaction has written
// to the table. After it the families may be dropped.
func (u *undoer) retire(ctx context.Context, state *adoptionState, prior *recordpb.TableSchema, wait time.Duration) error {
	found, err := u.written(ctx)
	switch {
	case err != nil:
		return err
	case found != nil:
		return found
	}
	if err := u.putState(ctx, undoingQualifier, prior); err != nil {
		return err
	}
	if state.schema != nil {
		if err := u.removeSchema(ctx, state.schemaBytes); err != nil {
			return fmt.Errorf("%w: undo again to continue, or adopt the table again", err)
		}
	}
	if err := store.Sleep(ctx, wait); err != nil {
		return store.Ended(ctx, fmt.Sprintf("admin: waiting until no client uses table %q any more; its schema record is removed: undo again to continue, or adopt the table again", u.cfg.Table), nil)
	}
	if found, err = u.written(ctx); err != nil {
		return err
	}
	if found != nil {
		if err := u.putSchema(ctx, prior); err != nil {
			return errors.Join(found, err)
		}
		if err := u.dropState(ctx); err != nil {
			return errors.Join(found, err)
		}
		return found
	}
	// After this the undo cannot be stopped. An Adopt in the meantime has removed the
	// cell that this condition requires.
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, droppingQualifier, 0, nil)
	matched, err := u.meta.CheckAndMutate(ctx, adoptionRowPrefix+u.cfg.Table, store.Interleave(store.ExactColumn(store.DeployFamily, undoingQualifier)), m, nil)
	if err == nil && !matched {
		err = fmt.Errorf("admin: table %q: another client adopted it again during the undo", u.cfg.Table)
	}
	return err
}

// written searches the whole table for a cell that a transaction wrote.
func (u *undoer) written(ctx context.Context) (*WrittenError, error) {
	infos, err := u.families(ctx)
	if err != nil {
		return nil, err
	}
	s := &cellScan{table: u.table, progress: u.cfg.Progress}
	for _, f := range infos {
		if slices.Contains(format.MetadataFamilies, f.Name) {
			s.metadata = append(s.metadata, f.Name)
		}
	}
	found, err := s.run(ctx)
	if found == nil || err != nil {
		return nil, err
	}
	cell := found.cell
	if format.IsMetadataFamily(found.family) {
		if c, ok := format.SplitColumn(cell.Qualifier); ok {
			cell.Family, cell.Qualifier = c.Family, c.Qualifier
		}
	}
	return &WrittenError{Cell: cell, Family: found.family}, nil
}
