package store

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// The metadata table's families and row keys (design §3). Its cells are written at
// timestamp 0, so that a new value replaces the old one; docs/storage-format.md
// has the exceptions.
const (
	OracleFamily    = "tso"
	DeployFamily    = "meta"
	SchemaRowPrefix = "schema/"
	SchemaQualifier = "schema"
)

// Schema is what a client knows about a table.
type Schema struct {
	// Families are the user's families and the acknowledgment family.
	Families []string
	Observed map[format.Column]Registration
	// readNumber numbers the reads of a table's schema by when they began. What a later
	// one has found is at least as new.
	readNumber uint64
	// loaded: it has every change that was made by then, also of the families'
	// policies.
	loaded time.Time
}

// A Registration says which observers watch a column.
type Registration struct {
	Observers []string
	Weak      bool
}

// DataFamilies are the families that a read of a whole row returns.
func (s *Schema) DataFamilies() []string {
	return slices.DeleteFunc(slices.Clone(s.Families), func(f string) bool { return f == format.AckFamily })
}

// ReadFamilies are the families that the filter of a whole row's read has to
// name; nil when it can do without: where nothing is observed, a row holds
// hardly anything besides.
func (s *Schema) ReadFamilies() []string {
	if len(s.Observed) == 0 {
		return nil
	}
	return s.DataFamilies()
}

func (s *Schema) HasFamily(f string) bool { return slices.Contains(s.Families, f) }

// IsObserved reports whether a commit of the column sets its notify cell.
func (s *Schema) IsObserved(c format.Column) bool {
	_, ok := s.Observed[c]
	return ok
}

// CheckWrite refuses what the table cannot hold.
func (s *Schema) CheckWrite(table string, w *Write) error {
	if !s.HasFamily(w.Cell.Family) {
		return fmt.Errorf("txn: write of %s: %w: table %q has no family %q; known are %s. Create it and run `percctl table init %s` or txn.InitTable, which records it", w.Cell, format.ErrSchema, table, w.Cell.Family, strings.Join(s.Families, ", "), table)
	}
	if w.Kind != format.KindLock && s.Observed[w.Cell.Column()].Weak {
		return fmt.Errorf("txn: write of %s: %w: the column is for weak notifications; it can be notified, but not written", w.Cell, format.ErrSchema)
	}
	return nil
}

// merge takes the record from the later look, and the families, where they do not
// come from the record, from the later verification. What the record of the later
// look has, it had when the other one began.
func (s *Schema) merge(old *Schema, verified bool) *Schema {
	if old == nil {
		return s
	}
	newer, families := *s, s.Families
	if old.readNumber > s.readNumber {
		newer = *old
	}
	if old.loaded.After(s.loaded) {
		newer.loaded, families = old.loaded, old.Families
	} else {
		newer.loaded = s.loaded
	}
	if verified {
		newer.Families = families
	}
	return &newer
}

// A SchemaSource holds a table's schema and reads it again when it is too old.
type SchemaSource struct {
	table *Table

	latest    atomic.Pointer[Schema]
	reads     atomic.Uint64 // how often the schema was read
	reloading chan struct{} // holds one token while the schema is read again
}

// Reload reads the schema record and, where Config.Admin is set, verifies the
// table's families and policies.
func (src *SchemaSource) Reload(ctx context.Context) error {
	began := time.Now()
	s, err := src.readSchema(ctx)
	if err != nil {
		return err
	}
	if admin := src.table.store.Config.Admin; admin != nil {
		if s.Families, err = VerifyFamilies(ctx, admin, src.table.Name, src.table.store.Log); err != nil {
			return err
		}
	}
	s.loaded = began
	src.replace(s)
	return nil
}

// replace stores what a look has found beside what others have found meanwhile: an
// answer may be late, and must not undo a registration, nor one of the families.
func (src *SchemaSource) replace(s *Schema) {
	for {
		old := src.latest.Load()
		if src.latest.CompareAndSwap(old, s.merge(old, src.table.store.Config.Admin != nil)) {
			return
		}
	}
}

// ReloadObserved reads which columns are observed, as of now. The families were
// verified when the table was opened, and are again when it is time to.
func (src *SchemaSource) ReloadObserved(ctx context.Context) (*Schema, error) {
	old := src.latest.Load()
	s, err := src.readSchema(ctx)
	if err != nil {
		return nil, err
	}
	if src.table.store.Config.Admin != nil {
		s.Families = old.Families
	}
	s.loaded = old.loaded
	src.replace(s)
	return s, nil
}

func (src *SchemaSource) readSchema(ctx context.Context) (*Schema, error) {
	meta := src.table.store.Metadata
	look := src.reads.Add(1)
	row, err := meta.ReadRow(ctx, SchemaRowPrefix+src.table.Name, Interleave(ExactColumn(DeployFamily, SchemaQualifier)))
	if err != nil {
		return nil, err
	}
	if len(row[DeployFamily]) == 0 {
		return nil, fmt.Errorf("txn: table %q: %w: it has no schema record in metadata table %q; run `percctl table init %s` or txn.InitTable", src.table.Name, format.ErrNotInitialized, meta.Name, src.table.Name)
	}
	s, err := DecodeSchema(src.table.Name, row[DeployFamily][0].Value)
	if err == nil {
		s.readNumber = look
	}
	return s, err
}

// Current returns the schema for a read, and has it read again in the
// background when it is older than Config.SchemaMaxAge.
func (src *SchemaSource) Current() *Schema {
	s := src.latest.Load()
	if time.Since(s.loaded) <= src.table.store.Config.SchemaMaxAge {
		return s
	}
	select {
	case src.reloading <- struct{}{}:
	default:
		return s
	}
	started := src.table.store.Background.Run(func(ctx context.Context) {
		defer func() { <-src.reloading }()
		if err := src.Reload(ctx); err != nil {
			src.table.store.Log.WarnContext(ctx, "reading the schema again failed", "table", src.table.Name, "error", err)
			// Not at every read from now on.
			if err := Sleep(ctx, time.Second); err != nil {
				return
			}
		}
	})
	if !started {
		<-src.reloading
	}
	return s
}

// Fresh returns a schema that is not older than Config.SchemaMaxAge, for a
// commit: a column that became observed must get its notify cells.
func (src *SchemaSource) Fresh(ctx context.Context) (*Schema, error) {
	if s := src.latest.Load(); time.Since(s.loaded) <= src.table.store.Config.SchemaMaxAge {
		return s, nil
	}
	return src.Newer(ctx, src.latest.Load())
}

// Newer returns a schema that was read after old.
func (src *SchemaSource) Newer(ctx context.Context, old *Schema) (*Schema, error) {
	select {
	case src.reloading <- struct{}{}:
		defer func() { <-src.reloading }()
	case <-ctx.Done():
		return nil, Ended(ctx, fmt.Sprintf("reading the schema of table %q", src.table.Name), nil)
	}
	if s := src.latest.Load(); s.loaded.After(old.loaded) {
		return s, nil // somebody else has just read it
	}
	if err := src.Reload(ctx); err != nil {
		return nil, err
	}
	return src.latest.Load(), nil
}

func DecodeSchema(table string, value []byte) (*Schema, error) {
	var m recordpb.TableSchema
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, fmt.Errorf("txn: table %q: %w: its schema record does not parse: %w", table, format.ErrCorrupt, err)
	}
	if err := format.CheckVersion(&m, fmt.Sprintf("schema record of table %q", table)); err != nil {
		return nil, fmt.Errorf("txn: %w", err)
	}
	s := &Schema{Families: append(m.Families, format.AckFamily), Observed: map[format.Column]Registration{}}
	for _, o := range m.Observed {
		s.Observed[ColumnOf(o)] = Registration{o.Observers, o.Weak}
	}
	return s, nil
}

// VerifyFamilies checks that a table has the metadata families and that no
// family has a garbage-collection policy, and returns its data families.
func VerifyFamilies(ctx context.Context, admin *bigtable.AdminClient, table string, log *slog.Logger) ([]string, error) {
	info, err := admin.TableInfo(ctx, table)
	if err != nil {
		return nil, WrapRPC(ctx, "describe", table, err)
	}
	var data []string
	missing := slices.Clone(format.MetadataFamilies)
	for _, f := range info.FamilyInfos {
		if err := CheckPolicy(table, f); err != nil {
			return nil, err
		}
		if f.GCPolicy == EmptyPolicy {
			log.WarnContext(ctx, "family has an empty garbage-collection rule instead of none", "table", table, "family", f.Name)
		}
		missing = slices.DeleteFunc(missing, func(m string) bool { return m == f.Name })
		if !format.IsMetadataFamily(f.Name) {
			data = append(data, f.Name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("txn: table %q: %w: it lacks the metadata families %s; run `percctl table init %s` or txn.InitTable", table, format.ErrSchema, strings.Join(missing, ", "), table)
	}
	slices.Sort(data)
	return data, nil
}

const (
	NoPolicy    = "<never>"
	EmptyPolicy = ""
)

// CheckPolicy refuses a policy that could delete live versions, locks or
// commit records (design §3).
func CheckPolicy(table string, f bigtable.FamilyInfo) error {
	switch f.GCPolicy {
	case NoPolicy:
		return nil
	case EmptyPolicy:
		// None in Cloud Bigtable. In the emulator it arms a collector that can
		// lose acknowledged writes.
		if os.Getenv("BIGTABLE_EMULATOR_HOST") == "" {
			return nil
		}
		return fmt.Errorf("txn: table %q, family %s: %w: its garbage-collection rule is empty instead of absent, with which the emulator can lose acknowledged writes; create the family with AdminClient.CreateColumnFamily or `percctl table init` instead of `cbt createfamily` or TableConf", table, f.Name, format.ErrSchema)
	}
	return fmt.Errorf("txn: table %q, family %s: %w: garbage-collection policy %q would delete live versions; clear it with `cbt setgcpolicy %s %s never` or AdminClient.SetGCPolicy(ctx, %q, %q, bigtable.NoGcPolicy())", table, f.Name, format.ErrSchema, f.GCPolicy, table, f.Name, table, f.Name)
}

func ColumnOf(o *recordpb.ObservedColumn) format.Column {
	return format.Column{Family: o.GetColumn().GetFamily(), Qualifier: string(o.GetColumn().GetQualifier())}
}

// ReplaceSchema edits a table's schema record. Others may edit it at the same
// time, so it is replaced only as it was read, and read again otherwise. edit
// gets an empty record where there is none.
func ReplaceSchema(ctx context.Context, meta bigtable.TableAPI, metadataTable, table string, timeout time.Duration, edit func(*recordpb.TableSchema) error) error {
	for {
		done, err := tryReplaceSchema(ctx, meta, metadataTable, table, timeout, edit)
		if done || err != nil {
			return err
		}
	}
}

func tryReplaceSchema(ctx context.Context, meta bigtable.TableAPI, metadataTable, table string, timeout time.Duration, edit func(*recordpb.TableSchema) error) (done bool, err error) {
	rctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	row := SchemaRowPrefix + table
	stored, err := meta.ReadRow(rctx, row, bigtable.RowFilter(Interleave(ExactColumn(DeployFamily, SchemaQualifier))))
	if err != nil {
		return false, WrapRPC(ctx, "read of the schema record", metadataTable, err)
	}
	record, old := &recordpb.TableSchema{}, []byte(nil)
	if len(stored[DeployFamily]) > 0 {
		old = stored[DeployFamily][0].Value
		if err := proto.Unmarshal(old, record); err != nil {
			return false, fmt.Errorf("txn: table %q: %w: its schema record does not parse: %w", table, format.ErrCorrupt, err)
		}
		if err := format.CheckVersion(record, fmt.Sprintf("schema record of table %q", table)); err != nil {
			return false, fmt.Errorf("txn: %w", err)
		}
	}
	before := proto.Clone(record)
	if err := edit(record); err != nil {
		return false, err
	}
	if old != nil && proto.Equal(before, record) {
		return true, nil
	}
	m := bigtable.NewMutation()
	m.Set(DeployFamily, SchemaQualifier, 0, format.Marshal(record))
	// With a record: if it is the same. Without: if there is none.
	predicate, onMatch, onMiss := Chain(ExactColumn(DeployFamily, SchemaQualifier), bigtable.ValueRangeFilter(old, append(slices.Clone(old), 0))), m, (*bigtable.Mutation)(nil)
	if old == nil {
		predicate, onMatch, onMiss = ExactColumn(DeployFamily, SchemaQualifier), nil, m
	}
	var matched bool
	if err := meta.Apply(rctx, row, bigtable.NewCondMutation(Interleave(predicate), onMatch, onMiss), bigtable.GetCondMutationResult(&matched)); err != nil {
		// It may have been applied; the edit is idempotent.
		return false, WrapRPC(ctx, "schema record", metadataTable, err)
	}
	return matched == (old != nil), nil
}
