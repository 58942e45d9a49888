package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ErrNotAdoptable means that a table cannot be adopted as it is. The error says
// why, and names the family or cell. Nothing was changed.
var ErrNotAdoptable = errors.New("table cannot be adopted")

// An AdoptConfig says which table to adopt, and how, for [PlanAdoption], [Adopt] and
// [UndoAdoption].
type AdoptConfig struct {
	// Table is the name of the table. It must exist.
	Table string

	// MetadataTable is the metadata table of the deployment, as in txn.Config.
	// Defaults to "percolator".
	MetadataTable string

	// Oracle is the oracle of the deployment. It gives the time of the adoption.
	// Defaults to a tso.Direct on the metadata table.
	Oracle tso.Oracle

	// Observed are the observed columns, as in [TableSpec].
	Observed []format.Column

	// ClearPolicies is the consent to clear the garbage-collection policies of the
	// table's families, which would delete live versions. Without the policies the
	// table keeps what plain writers overwrite, until a plain writer deletes it. A
	// maximum age becomes an expiry, see [SetExpiry].
	// Defaults to false: a table with a policy is refused.
	ClearPolicies bool

	// WholeScan searches all rows for cells that would be mistaken for those of
	// transactions.
	// Defaults to false: it searches a sample.
	WholeScan bool

	// SampleRows is how many rows a sample reads, spread over the table.
	// Defaults to 20,000.
	SampleRows int

	// RestoreOldPolicies is for [UndoAdoption], as in [LeaveConfig].
	RestoreOldPolicies bool

	// Instance is the resource name projects/PROJECT/instances/INSTANCE. It is used
	// only if clearing a policy leaves an empty rule, as it does on the emulator.
	// Defaults to "": on the emulator, ClearPolicies then fails.
	Instance string

	// Progress, when set, is called with the number of rows read so far.
	// Defaults to nil.
	Progress func(rows int)

	// Logger receives what an operator should know.
	// Defaults to a logger that drops everything.
	Logger *slog.Logger
}

// An AdoptionFamily is a family of a table in an [AdoptionPlan].
type AdoptionFamily struct {
	Name string
	// Policy is its garbage-collection policy; "" for none.
	Policy string
	// Clear says that Adopt clears the policy.
	Clear bool
	// Expiry is how long values last after the adoption, as the policy says; 0: without limit. See
	// [SetExpiry].
	Expiry time.Duration
}

// An AdoptionPlan says what [Adopt] would do.
type AdoptionPlan struct {
	Table string
	// Adopted is set if the table is transactional already. Then Adopt does nothing.
	Adopted bool
	// AdoptedTS is the oracle time of its adoption; 0 if it is not recorded.
	AdoptedTS tso.Timestamp
	// Resumes is set if an adoption or an undo was interrupted. Adopt continues from
	// there.
	Resumes bool
	// Families are the table's own families, in order of their names.
	Families []AdoptionFamily
	// Create are the metadata families that are missing.
	Create []string
	// Refusals are the reasons why the table cannot be adopted. Each is an
	// ErrNotAdoptable.
	Refusals []error
	// Rows is how many rows were read. Whole says that the table has no others.
	Rows  int
	Whole bool

	prior   *recordpb.TableSchema // record of an interrupted adoption or undo
	undoing bool
	infos   []bigtable.FamilyInfo
}

// PlanAdoption reads a table and says what [Adopt] would do, or why the table
// cannot be adopted. It changes nothing.
//
// Existing cells count as committed before every transaction. So none may have a
// timestamp like those of transactions' cells, which are 1e17 µs and above. A
// wall-clock timestamp is below (until the year 5138), but Bigtable accepts any
// number. A sample shows which timestamps the table's writers use. Only
// [AdoptConfig.WholeScan] proves that there is no such cell.
func PlanAdoption(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig) (*AdoptionPlan, error) {
	a, err := newAdoption(admin, bt, &cfg)
	if err != nil {
		return nil, err
	}
	return (&adopter{a}).plan(ctx)
}

// Adopt makes an existing table transactional in place, as planned by
// [PlanAdoption]. It rewrites no data. It creates the metadata table and the
// metadata families if they are missing, clears garbage-collection policies if
// [AdoptConfig.ClearPolicies] consents, and writes the table's schema record with
// the time of the adoption. Plain writers must have stopped: in a cell that a
// transaction has written, no transaction sees a later plain write, and elsewhere
// it changes what open snapshots read.
//
// Adopt fails with ErrNotAdoptable if the plan has refusals, or if the table's
// families have changed since the plan. After any other error, what was done
// stays: plan and adopt again to continue, or call [UndoAdoption].
func Adopt(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig, plan *AdoptionPlan) error {
	a, err := newAdoption(admin, bt, &cfg)
	if err != nil {
		return err
	}
	if plan == nil || plan.Table != cfg.Table {
		return invalidf("Adopt needs a plan that PlanAdoption made for table %q", cfg.Table)
	}
	if len(plan.Refusals) > 0 {
		return errors.Join(plan.Refusals...)
	}
	if plan.Adopted {
		return nil
	}
	return (&adopter{a}).adopt(ctx, plan)
}

// An adopter plans and carries out the adoption of a table.
type adopter struct{ *adoption }

// refuse returns a reason why the table cannot be adopted.
func (a *adopter) refuse(text string, args ...any) error {
	return fmt.Errorf("admin: table %q: %w: %w", a.cfg.Table, ErrNotAdoptable, fmt.Errorf(text, args...))
}

// plan does the work of PlanAdoption.
func (a *adopter) plan(ctx context.Context) (*AdoptionPlan, error) {
	infos, err := a.families(ctx)
	if err != nil {
		return nil, err
	}
	p := &AdoptionPlan{Table: a.cfg.Table, Create: slices.Clone(format.MetadataFamilies), infos: infos}
	state, err := a.state(ctx)
	if err != nil {
		return nil, err
	}
	p.Adopted = state.schema != nil
	p.AdoptedTS = tso.Timestamp(state.schema.GetAdoptedTs())
	p.prior, p.undoing = state.prior(), state.undoing != nil
	p.Resumes = p.prior != nil && !p.Adopted
	if state.leaving != nil {
		p.Refusals = append(p.Refusals, a.refuse("it is leaving; let Leave (percctl table leave) complete first"))
	} else if state.dropping {
		p.Refusals = append(p.Refusals, a.refuse("its adoption is being undone and its metadata families are being dropped; let UndoAdoption (percctl table unadopt) complete first"))
	}
	var metadata []string // metadata families that the table has
	for _, f := range infos {
		if slices.Contains(format.MetadataFamilies, f.Name) {
			p.Create = slices.DeleteFunc(p.Create, func(m string) bool { return m == f.Name })
			metadata = append(metadata, f.Name)
		} else {
			p.Families = append(p.Families, AdoptionFamily{Name: f.Name, Policy: policyText(f)})
		}
		// A policy on a metadata family would be an operator's mistake. It is cleared
		// or refused like any other.
		if store.CheckPolicy(a.cfg.Table, f) == nil {
			continue
		}
		if !a.cfg.ClearPolicies {
			p.Refusals = append(p.Refusals, a.refuse("family %s has %s; set AdoptConfig.ClearPolicies to have it cleared", f.Name, policyReason(f)))
		} else if i := len(p.Families) - 1; i >= 0 && p.Families[i].Name == f.Name {
			p.Families[i].Clear = true
			if rule := encodePolicy(f.FullGCPolicy); p.prior.GetAdoptedTs() == 0 && rule != nil {
				p.Families[i].Expiry = format.Micros(expiryOf(rule))
			}
		}
	}
	if len(p.Families) == 0 {
		p.Refusals = append(p.Refusals, a.refuse("it has no family for data"))
	}
	for _, c := range a.cfg.Observed {
		if !slices.ContainsFunc(p.Families, func(f AdoptionFamily) bool { return f.Name == c.Family }) {
			p.Refusals = append(p.Refusals, a.refuse("observed column %s is in a family that it does not have", c))
		}
	}
	if p.Adopted {
		p.Refusals = nil
		return p, nil
	}
	return p, a.scan(ctx, p, metadata)
}

// scan searches the rows for cells that would be mistaken for those of
// transactions, and adds a refusal for the first one.
func (a *adopter) scan(ctx context.Context, p *AdoptionPlan, metadata []string) error {
	s := &cellScan{table: a.table, metadata: metadata, progress: a.cfg.Progress}
	if !a.cfg.WholeScan {
		s.sample = a.cfg.SampleRows
	}
	found, err := s.run(ctx)
	if err != nil {
		return err
	}
	p.Rows, p.Whole = s.rows, s.whole
	if found == nil {
		return nil
	}
	if format.IsMetadataFamily(found.family) || found.family == format.AckFamily {
		p.Refusals = append(p.Refusals, a.refuse("row %q has a cell in family %s, which belongs to transactions: the table is part of another deployment (check the metadata table), or its schema record was lost", found.cell.Row, found.family))
	} else {
		p.Refusals = append(p.Refusals, a.refuse("%s has a cell at timestamp %d µs, and cells at %d or above belong to transactions; write its value again at the present time, and delete the cell", found.cell, int64(found.at), int64(format.PlainBefore)))
	}
	return nil
}

// adopt does the work of Adopt.
func (a *adopter) adopt(ctx context.Context, p *AdoptionPlan) error {
	infos, err := a.families(ctx)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(infos, p.infos, func(a, b bigtable.FamilyInfo) bool { return a.Name == b.Name && a.GCPolicy == b.GCPolicy }) {
		return a.refuse("its families or policies have changed since the plan; plan again")
	}
	if err := families.Create(ctx, a.admin, a.cfg.MetadataTable, []string{store.OracleFamily, store.DeployFamily}); err != nil {
		return err
	}
	record := p.prior
	if record == nil {
		record = &recordpb.TableSchema{FormatVersion: format.Version, Journal: recordpb.Journal_JOURNAL_ALWAYS}
	}
	record.PriorPolicies = addPolicies(record.PriorPolicies, infos)
	// The record comes before any change to the table, so that an adoption that is
	// interrupted here or later can still be undone.
	if err := a.putState(ctx, adoptingQualifier, record); err != nil {
		return err
	}
	for _, f := range infos {
		if store.CheckPolicy(a.cfg.Table, f) != nil {
			if err := clearPolicy(ctx, a.admin, a.cfg.Instance, a.cfg.Table, f.Name); err != nil {
				return err
			}
		}
	}
	if err := families.Create(ctx, a.admin, a.cfg.Table, format.MetadataFamilies); err != nil {
		return err
	}
	families, err := store.VerifyFamilies(ctx, a.admin, a.cfg.Table, a.requests.Log)
	if err != nil {
		return err
	}
	if p.undoing {
		// The undo may be waiting, or may have come further since the plan.
		if err := a.stopUndo(ctx); err != nil {
			return err
		}
	}
	if record.AdoptedTs == 0 {
		now, err := a.now(ctx)
		if err != nil {
			return err
		}
		record.AdoptedTs = int64(now)
		record.Expiries = expiriesOf(record.PriorPolicies, record.AdoptedTs)
	}
	spec := TableSpec{Name: a.cfg.Table, Observed: a.cfg.Observed}
	if err := spec.describe(record, families); err != nil {
		return err
	}
	if err := a.putSchema(ctx, record); err != nil {
		return err
	}
	return a.dropState(ctx)
}

// now returns the present oracle time.
func (a *adopter) now(ctx context.Context) (tso.Timestamp, error) {
	oracle := a.cfg.Oracle
	if oracle == nil {
		direct := tso.NewDirect(a.meta.API, tso.DirectConfig{RPCTimeout: a.requests.Config.RPCTimeout, Logger: a.requests.Log})
		defer func() { _ = direct.Close() }()
		oracle = direct
	}
	ts, err := oracle.Timestamp(ctx)
	if err != nil {
		return 0, fmt.Errorf("admin: timestamp oracle: %w", err)
	}
	return ts, nil
}

// stopUndo makes an undo that is waiting fail. If the undo already drops the
// families, stopUndo fails with ErrNotAdoptable.
func (a *adopter) stopUndo(ctx context.Context) error {
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(store.DeployFamily, undoingQualifier)
	dropping, err := a.meta.CheckAndMutate(ctx, adoptionRowPrefix+a.cfg.Table, store.Interleave(store.ExactColumn(store.DeployFamily, droppingQualifier)), nil, m)
	if err == nil && dropping {
		err = a.refuse("its adoption is being undone and its metadata families are being dropped; let UndoAdoption complete, then adopt the table")
	}
	return err
}
