package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// DefaultUndoWait is how long UndoAdoption waits for writers, unless it is told
// otherwise: Config.SchemaMaxAge, and three requests at Config.RPCTimeout,
// which is more than a commit needs from its look at the schema to its first
// prewrite.
const DefaultUndoWait = 2 * time.Minute

// ErrWritten: a transaction has written to a table whose adoption was to be
// undone. The table is as transactional as before.
var ErrWritten = errors.New("a transaction has written to the table")

// A WrittenError names the first cell of a transaction that was found.
// errors.Is(err, ErrWritten) holds.
type WrittenError struct {
	Cell   format.Cell
	Family string // where it is stored
	// Late is set when the cell was found after the families were dropped: a
	// commit took longer than the wait. What it wrote is in the user's families.
	Late bool
}

func (e *WrittenError) Error() string {
	if e.Late {
		return fmt.Sprintf("txn: %v: %s was written while the metadata families were being dropped; its value is kept in place, its transaction's record is lost", ErrWritten, e.Cell)
	}
	return fmt.Sprintf("txn: %v: %s, in family %s; the table stays transactional", ErrWritten, e.Cell, e.Family)
}

// Is makes errors.Is(err, ErrWritten) true.
func (e *WrittenError) Is(target error) bool { return target == ErrWritten }

// UndoAdoption undoes [Adopt], or InitTable, as long as no transaction has
// written to the table: it removes the schema record and the metadata families,
// and brings back the garbage-collection policies that Adopt cleared. Rows are
// not touched.
//
// It is safe beside writers. First the whole table is looked through for
// anything that a transaction writes. Then the schema record goes, so that no
// client begins to use the table; those that know it from before refuse to
// commit once they have to read it again. For that it waits, wait long
// (0: DefaultUndoWait), which has to be at least the longest
// Config.SchemaMaxAge in the deployment and three times the longest
// Config.RPCTimeout. Then it looks through the table once more. If it finds
// something now or the first time, it fails with [WrittenError], and the table
// is as transactional as before. Only then are the families dropped.
//
// An error or an end of ctx before that leaves the table without its schema
// record; UndoAdoption goes on from there, and PlanAdoption and Adopt take it
// back. InitTable has to be kept away meanwhile.
func UndoAdoption(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig, wait time.Duration) error {
	a, err := newAdopter(admin, bt, &cfg)
	if err != nil {
		return err
	}
	switch {
	case wait < 0:
		return format.Invalidf("wait of %v", wait)
	case wait == 0:
		wait = DefaultUndoWait
	}
	return a.undo(ctx, wait)
}

// CheckUndoAdoption says what UndoAdoption would find at its first look: nil
// when no transaction has written to the table, or a [WrittenError]. It changes
// nothing.
func CheckUndoAdoption(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig) error {
	a, err := newAdopter(admin, bt, &cfg)
	if err != nil {
		return err
	}
	state, err := a.state(ctx)
	if err != nil {
		return err
	}
	if _, err := a.undoable(state); err != nil || state.dropping {
		return err
	}
	found, err := a.written(ctx)
	if err == nil && found != nil {
		err = found
	}
	return err
}

// undoable returns the schema record of the table that is to be undone.
func (a *adopter) undoable(state *adoptionState) (*recordpb.TableSchema, error) {
	prior := state.schema
	if prior == nil {
		prior = state.prior()
	}
	if prior == nil {
		return nil, fmt.Errorf("txn: table %q: %w: it has no schema record in metadata table %q; there is nothing to undo", a.cfg.Table, format.ErrNotInitialized, a.cfg.MetadataTable)
	}
	return prior, nil
}

func (a *adopter) undo(ctx context.Context, wait time.Duration) error {
	state, err := a.state(ctx)
	if err != nil {
		return err
	}
	prior, err := a.undoable(state)
	if err != nil {
		return err
	}
	if !state.dropping {
		if err := a.retire(ctx, state, prior, wait); err != nil {
			return err
		}
	}
	if err := a.dropFamilies(ctx); err != nil {
		return err
	}
	for _, p := range prior.PriorPolicies {
		if err := a.admin.SetGCPolicy(ctx, a.cfg.Table, p.Family, decodePolicy(p.Rule)); err != nil {
			return store.WrapRPC(ctx, "bring back the garbage-collection policy of family "+p.Family, a.cfg.Table, err)
		}
	}
	// The proof that the wait was long enough.
	found, err := a.written(ctx)
	if err != nil {
		return err
	}
	if err := a.dropState(ctx); err != nil || found == nil {
		return err
	}
	found.Late = true
	return found
}

// retire takes the schema record away and makes sure that nobody has used the
// table; the families may be dropped then.
func (a *adopter) retire(ctx context.Context, state *adoptionState, prior *recordpb.TableSchema, wait time.Duration) error {
	found, err := a.written(ctx)
	switch {
	case err != nil:
		return err
	case found != nil:
		return found
	}
	if err := a.putState(ctx, undoingQualifier, prior); err != nil {
		return err
	}
	if state.schema != nil {
		same := store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, store.SchemaQualifier), bigtable.ValueRangeFilter(state.schemaBytes, append(slices.Clone(state.schemaBytes), 0))))
		m := bigtable.NewMutation()
		m.DeleteCellsInColumn(store.DeployFamily, store.SchemaQualifier)
		matched, err := a.meta.CheckAndMutate(ctx, store.SchemaRowPrefix+a.cfg.Table, same, m, nil)
		if err != nil {
			// It may have been applied all the same.
			return fmt.Errorf("%w; table %q: its schema record may be removed: undo again to go on, or adopt the table to take it back", err, a.cfg.Table)
		}
		if !matched {
			return fmt.Errorf("txn: table %q: its schema record has changed just now; try again", a.cfg.Table)
		}
	}
	if err := store.Sleep(ctx, wait); err != nil {
		return store.Ended(ctx, fmt.Sprintf("waiting until no client uses table %q any more; its schema record is removed: undo again to go on, or adopt the table to take it back", a.cfg.Table), nil)
	}
	if found, err = a.written(ctx); err != nil {
		return err
	}
	if found != nil {
		if err := a.putSchema(ctx, prior); err != nil {
			return errors.Join(found, err)
		}
		if err := a.dropState(ctx); err != nil {
			return errors.Join(found, err)
		}
		return found
	}
	// From here on there is no way back; an Adopt that took it back meanwhile
	// has removed the cell that this looks for.
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, droppingQualifier, 0, nil)
	matched, err := a.meta.CheckAndMutate(ctx, adoptionRowPrefix+a.cfg.Table, store.Interleave(store.ExactColumn(store.DeployFamily, undoingQualifier)), m, nil)
	if err == nil && !matched {
		err = fmt.Errorf("txn: table %q: somebody has adopted it again meanwhile", a.cfg.Table)
	}
	return err
}

// stopUndo makes an undo that waits fail, or fails when it is too late.
func (a *adopter) stopUndo(ctx context.Context) error {
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(store.DeployFamily, undoingQualifier)
	dropping, err := a.meta.CheckAndMutate(ctx, adoptionRowPrefix+a.cfg.Table, store.Interleave(store.ExactColumn(store.DeployFamily, droppingQualifier)), nil, m)
	if err == nil && dropping {
		err = a.refuse("its adoption is being undone and its metadata families are being dropped; let UndoAdoption finish, then adopt it")
	}
	return err
}

// written looks through the whole table for a cell that a transaction wrote.
func (a *adopter) written(ctx context.Context) (*WrittenError, error) {
	infos, err := a.describe(ctx)
	if err != nil {
		return nil, err
	}
	s := &cellScan{table: a.table, progress: a.cfg.Progress}
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

func (a *adopter) dropFamilies(ctx context.Context) error {
	infos, err := a.describe(ctx)
	if err != nil {
		return err
	}
	for _, f := range infos {
		if !slices.Contains(format.MetadataFamilies, f.Name) {
			continue
		}
		if err := a.admin.DeleteColumnFamily(ctx, a.cfg.Table, f.Name); err != nil && status.Code(err) != codes.NotFound {
			return store.WrapRPC(ctx, "drop family "+f.Name, a.cfg.Table, err)
		}
	}
	return nil
}
