package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ErrNotAdoptable: something about a table keeps it from being adopted; what
// and where is in the error. Nothing was changed.
var ErrNotAdoptable = errors.New("table cannot be adopted")

// An AdoptConfig says what is to be adopted, for [PlanAdoption], [Adopt] and
// [UndoAdoption].
type AdoptConfig struct {
	// Table is the table, which has to exist.
	Table string

	// MetadataTable is Config.MetadataTable.
	// Defaults to "percolator".
	MetadataTable string

	// Oracle hands out the time of the adoption.
	// Defaults to a tso.Direct on the metadata table.
	Oracle tso.Oracle

	// Observed columns, as in TableSpec.
	Observed []format.Column

	// ClearPolicies is the consent to clear the garbage-collection policies of
	// the table's families. They would delete live versions; without them, what
	// plain writers overwrite is kept until it is deleted.
	// Defaults to false: a table with a policy is refused.
	ClearPolicies bool

	// WholeScan has all rows looked at for cells that would be taken for those
	// of transactions, instead of a sample.
	// Defaults to false.
	WholeScan bool

	// SampleRows is how many rows a sample looks at, spread over the table.
	// Defaults to 20,000.
	SampleRows int

	// Instance is the resource name projects/PROJECT/instances/INSTANCE. It is
	// used only where clearing a policy leaves an empty rule behind, as the
	// emulator does.
	// Defaults to "": such a table is then refused on the emulator.
	Instance string

	// Progress, when set, is called as rows are looked at.
	// Defaults to nil.
	Progress func(rows int)

	// Logger receives what an operator should know.
	// Defaults to a logger that drops everything.
	Logger *slog.Logger
}

// An AdoptionFamily is a family of a table that is to be adopted.
type AdoptionFamily struct {
	Name string
	// Policy is its garbage-collection policy; "" for none.
	Policy string
	// Clear says that adopting the table clears the policy.
	Clear bool
}

// An AdoptionPlan is what [Adopt] is going to do.
type AdoptionPlan struct {
	Table string
	// Adopted is set when the table is transactional already; there is nothing
	// to do then.
	Adopted bool
	// AdoptedTS is when; 0 where that was not recorded.
	AdoptedTS tso.Timestamp
	// Resumes is set when an adoption, or the undoing of one, did not come to
	// its end: this one goes on from there.
	Resumes bool
	// Families are the table's own, in order of their names.
	Families []AdoptionFamily
	// Create are the metadata families that are missing.
	Create []string
	// Refusals keep the table from being adopted; each is an ErrNotAdoptable.
	Refusals []error
	// Rows were looked at; Whole says that these were all.
	Rows  int
	Whole bool

	prior   *recordpb.TableSchema // of an adoption or undo that did not end
	undoing bool
	infos   []bigtable.FamilyInfo
}

// PlanAdoption looks at a table and says what [Adopt] would do, or what is in
// the way. It changes nothing.
//
// Cells that are in the table count as committed before every transaction, so
// none may stand where the cells of transactions do, at 1e17 µs and above: a
// wall-clock timestamp never does, but Bigtable takes any number. A sample
// shows a habit of the table's writers, and only AdoptConfig.WholeScan proves
// that there is none.
func PlanAdoption(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig) (*AdoptionPlan, error) {
	a, err := newAdopter(admin, bt, &cfg)
	if err != nil {
		return nil, err
	}
	return a.plan(ctx)
}

// Adopt makes an existing table transactional in place, as a plan of
// [PlanAdoption] says. It rewrites no data: it creates the metadata table and
// the metadata families where they are missing, clears garbage-collection
// policies where AdoptConfig.ClearPolicies consents, and writes the table's
// schema record, with the time. Writers that do not use transactions have to
// have stopped: what they write from then on stays invisible where a
// transaction has written, and breaks snapshots elsewhere.
//
// It fails with ErrNotAdoptable when the plan has refusals, or the table's
// families are not any more as planned. After any other error, what was done
// stays; plan and adopt again to go on, or call UndoAdoption.
func Adopt(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, cfg AdoptConfig, plan *AdoptionPlan) error {
	a, err := newAdopter(admin, bt, &cfg)
	if err != nil {
		return err
	}
	if plan == nil || plan.Table != cfg.Table {
		return format.Invalidf("Adopt needs a plan of PlanAdoption for table %q", cfg.Table)
	}
	if len(plan.Refusals) > 0 {
		return errors.Join(plan.Refusals...)
	}
	if plan.Adopted {
		return nil
	}
	return a.adopt(ctx, plan)
}

// adopter does what the functions of this file and of unadopt.go say.
type adopter struct {
	cfg   *AdoptConfig
	admin *bigtable.AdminClient
	bt    *bigtable.Client
	// A Client needs the metadata table, which may be missing here.
	requests *store.Store
	table    *store.Table
	meta     *store.Table
}

func newAdopter(admin *bigtable.AdminClient, bt *bigtable.Client, cfg *AdoptConfig) (*adopter, error) {
	if cfg.MetadataTable == "" {
		cfg.MetadataTable = format.DefaultMetadataTable
	}
	if cfg.Table == "" || cfg.Table == cfg.MetadataTable {
		return nil, format.Invalidf("table name %q", cfg.Table)
	}
	if admin == nil || bt == nil {
		return nil, format.Invalidf("nil Bigtable client")
	}
	for _, c := range cfg.Observed {
		if err := format.CheckColumn(c); err != nil {
			return nil, err
		}
	}
	if cfg.SampleRows < 0 {
		return nil, format.Invalidf("AdoptConfig.SampleRows is %d; it has to be positive, or zero for its default", cfg.SampleRows)
	}
	if cfg.SampleRows == 0 {
		cfg.SampleRows = 20_000
	}
	requests, err := store.NewRequests(bt, store.Config{MetadataTable: cfg.MetadataTable, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	return &adopter{cfg: cfg, admin: admin, bt: bt, requests: requests, table: requests.NewTable(cfg.Table), meta: requests.NewTable(cfg.MetadataTable)}, nil
}

// describe returns the table's families in order of their names.
func (a *adopter) describe(ctx context.Context) ([]bigtable.FamilyInfo, error) {
	info, err := a.admin.TableInfo(ctx, a.cfg.Table)
	if err != nil {
		return nil, store.WrapRPC(ctx, "describe", a.cfg.Table, err)
	}
	slices.SortFunc(info.FamilyInfos, func(a, b bigtable.FamilyInfo) int { return strings.Compare(a.Name, b.Name) })
	return info.FamilyInfos, nil
}

func (a *adopter) refuse(format string, args ...any) error {
	return fmt.Errorf("txn: table %q: %w: %w", a.cfg.Table, ErrNotAdoptable, fmt.Errorf(format, args...))
}

func (a *adopter) plan(ctx context.Context) (*AdoptionPlan, error) {
	infos, err := a.describe(ctx)
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
	if state.dropping {
		p.Refusals = append(p.Refusals, a.refuse("its adoption is being undone and its metadata families are being dropped; let UndoAdoption (percctl table unadopt) finish first"))
	}
	var metadata []string // families of ours that are there
	for _, f := range infos {
		if slices.Contains(format.MetadataFamilies, f.Name) {
			p.Create = slices.DeleteFunc(p.Create, func(m string) bool { return m == f.Name })
			metadata = append(metadata, f.Name)
		} else {
			p.Families = append(p.Families, AdoptionFamily{Name: f.Name, Policy: policyText(f)})
		}
		// A policy on a family of ours would be somebody's mistake; it is cleared
		// and refused like any other.
		if store.CheckPolicy(a.cfg.Table, f) == nil {
			continue
		}
		if !a.cfg.ClearPolicies {
			p.Refusals = append(p.Refusals, a.refuse("family %s has the garbage-collection policy %q, which would delete live versions; consent to clearing it (AdoptConfig.ClearPolicies, percctl table adopt --clear-policies)", f.Name, policyText(f)))
		} else if i := len(p.Families) - 1; i >= 0 && p.Families[i].Name == f.Name {
			p.Families[i].Clear = true
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
	return p, a.look(ctx, p, metadata)
}

// look scans for cells that would be confused with those of transactions.
func (a *adopter) look(ctx context.Context, p *AdoptionPlan, metadata []string) error {
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
		p.Refusals = append(p.Refusals, a.refuse("row %q has a cell in family %s, which belongs to transactions: the table is that of another deployment (another metadata table?), or lost its schema record", found.cell.Row, found.family))
	} else {
		p.Refusals = append(p.Refusals, a.refuse("%s has a cell at timestamp %d µs, and from %d on cells are those of transactions; write its value again at the present time, and delete the cell", found.cell, int64(found.at), int64(format.PrePercolator)))
	}
	return nil
}

func (a *adopter) adopt(ctx context.Context, p *AdoptionPlan) error {
	infos, err := a.describe(ctx)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(infos, p.infos, func(a, b bigtable.FamilyInfo) bool { return a.Name == b.Name && a.GCPolicy == b.GCPolicy }) {
		return a.refuse("its families or policies are not as they were planned any more; plan again")
	}
	if err := createFamilies(ctx, a.admin, a.cfg.MetadataTable, []string{store.OracleFamily, store.DeployFamily}); err != nil {
		return err
	}
	record := p.prior
	if record == nil {
		record = &recordpb.TableSchema{FormatVersion: format.Version}
	}
	record.PriorPolicies = addPolicies(record.PriorPolicies, infos)
	// Before anything is changed: an adoption that ends here or later can still
	// be undone.
	if err := a.putState(ctx, adoptingQualifier, record); err != nil {
		return err
	}
	for _, f := range infos {
		if store.CheckPolicy(a.cfg.Table, f) != nil {
			if err := a.clearPolicy(ctx, f.Name); err != nil {
				return err
			}
		}
	}
	if err := createFamilies(ctx, a.admin, a.cfg.Table, format.MetadataFamilies); err != nil {
		return err
	}
	families, err := store.VerifyFamilies(ctx, a.admin, a.cfg.Table, a.requests.Log)
	if err != nil {
		return err
	}
	if p.undoing {
		// An undo that waits gives way, or has gone further than the plan saw.
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

func (a *adopter) now(ctx context.Context) (tso.Timestamp, error) {
	oracle := a.cfg.Oracle
	if oracle == nil {
		direct := tso.NewDirect(a.meta.API, tso.DirectConfig{RPCTimeout: a.requests.Config.RPCTimeout, Logger: a.requests.Log})
		defer func() { _ = direct.Close() }()
		oracle = direct
	}
	ts, err := oracle.Timestamp(ctx)
	if err != nil {
		return 0, fmt.Errorf("txn: timestamp oracle: %w", err)
	}
	return ts, nil
}

// The state of an adoption that has not come to its end, in the metadata table.
// Each cell stands at timestamp 0.
const (
	adoptionRowPrefix = "adoption/"
	adoptingQualifier = "adopting" // the schema record to be, with the policies to be cleared
	undoingQualifier  = "undoing"  // the schema record that was
	droppingQualifier = "dropping" // families are being dropped: there is no way back
)

type adoptionState struct {
	schema, adopting, undoing *recordpb.TableSchema
	schemaBytes               []byte
	dropping                  bool
}

// prior is what an adoption or undo left that did not end.
func (s *adoptionState) prior() *recordpb.TableSchema {
	if s.undoing != nil {
		return s.undoing
	}
	return s.adopting
}

func (a *adopter) state(ctx context.Context) (*adoptionState, error) {
	s := &adoptionState{}
	filter := store.Interleave(store.WholeFamily(store.DeployFamily))
	for _, key := range []string{store.SchemaRowPrefix + a.cfg.Table, adoptionRowPrefix + a.cfg.Table} {
		row, err := a.meta.ReadRow(ctx, key, filter)
		for _, e := range store.Flatten(err) {
			if status.Code(e) == codes.NotFound {
				return s, nil // no metadata table yet
			}
		}
		if err != nil {
			return nil, err
		}
		for _, item := range row[store.DeployFamily] {
			m := &recordpb.TableSchema{}
			if err := proto.Unmarshal(item.Value, m); err != nil {
				return nil, fmt.Errorf("txn: table %q: %w: %s in row %s of metadata table %q does not parse: %w", a.cfg.Table, format.ErrCorrupt, item.Column, key, a.cfg.MetadataTable, err)
			}
			switch item.Column {
			case store.DeployFamily + ":" + store.SchemaQualifier:
				s.schema, s.schemaBytes = m, item.Value
			case store.DeployFamily + ":" + adoptingQualifier:
				s.adopting = m
			case store.DeployFamily + ":" + undoingQualifier:
				s.undoing = m
			case store.DeployFamily + ":" + droppingQualifier:
				s.dropping = true
			}
		}
	}
	return s, nil
}

func (a *adopter) putState(ctx context.Context, qualifier string, record *recordpb.TableSchema) error {
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, qualifier, 0, format.Marshal(record))
	_, err := a.meta.Apply(ctx, []store.RowMutation{{Row: adoptionRowPrefix + a.cfg.Table, Mut: m, Ops: 1}})
	return err
}

func (a *adopter) dropState(ctx context.Context) error {
	m := bigtable.NewMutation()
	for _, q := range []string{adoptingQualifier, undoingQualifier, droppingQualifier} {
		m.DeleteCellsInColumn(store.DeployFamily, q)
	}
	_, err := a.meta.Apply(ctx, []store.RowMutation{{Row: adoptionRowPrefix + a.cfg.Table, Mut: m, Ops: 3}})
	return err
}

// putSchema writes the schema record where there is none.
func (a *adopter) putSchema(ctx context.Context, record *recordpb.TableSchema) error {
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, store.SchemaQualifier, 0, format.Marshal(record))
	// Whether it was there, or was sent before and did land: there is one.
	_, err := a.meta.CheckAndMutate(ctx, store.SchemaRowPrefix+a.cfg.Table, store.Interleave(store.ExactColumn(store.DeployFamily, store.SchemaQualifier)), nil, m)
	return err
}
