package txn

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

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// The metadata table's families and row keys (design §3). Its cells are written at
// timestamp 0, so that a new value replaces the old one; docs/storage-format.md
// has the exceptions.
const (
	oracleFamily    = "tso"
	deployFamily    = "meta"
	schemaRowPrefix = "schema/"
	schemaQualifier = "schema"
)

// schema is what a client knows about a table.
type schema struct {
	// families are the user's families and the acknowledgment family.
	families []string
	observed map[Column]registration
	// look numbers the reads of a table's schema by when they began. What a later
	// one has found is at least as new.
	look uint64
	// loaded: it has every change that was made by then, also of the families'
	// policies.
	loaded time.Time
}

// A registration says which observers watch a column.
type registration struct {
	observers []string
	weak      bool
}

// dataFamilies are the families that a read of a whole row returns.
func (s *schema) dataFamilies() []string {
	return slices.DeleteFunc(slices.Clone(s.families), func(f string) bool { return f == AckFamily })
}

// readFamilies are the families that the filter of a whole row's read has to
// name; nil when it can do without: where nothing is observed, a row holds
// hardly anything besides.
func (s *schema) readFamilies() []string {
	if len(s.observed) == 0 {
		return nil
	}
	return s.dataFamilies()
}

func (s *schema) hasFamily(f string) bool { return slices.Contains(s.families, f) }

// isObserved reports whether a commit of the column sets its notify cell.
func (s *schema) isObserved(c Column) bool {
	_, ok := s.observed[c]
	return ok
}

// checkWrite refuses what the table cannot hold.
func (s *schema) checkWrite(table string, w *write) error {
	if !s.hasFamily(w.cell.Family) {
		return fmt.Errorf("txn: write of %s: %w: table %q has no family %q; known are %s. Create it and run `percctl table init %s` or txn.InitTable, which records it", w.cell, ErrSchema, table, w.cell.Family, strings.Join(s.families, ", "), table)
	}
	if w.kind != KindLock && s.observed[w.cell.Column()].weak {
		return fmt.Errorf("txn: write of %s: %w: the column is for weak notifications; it can be notified, but not written", w.cell, ErrSchema)
	}
	return nil
}

// merge takes the record from the later look, and the families, where they do not
// come from the record, from the later verification. What the record of the later
// look has, it had when the other one began.
func (s *schema) merge(old *schema, verified bool) *schema {
	if old == nil {
		return s
	}
	newer, families := *s, s.families
	if old.look > s.look {
		newer = *old
	}
	if old.loaded.After(s.loaded) {
		newer.loaded, families = old.loaded, old.families
	} else {
		newer.loaded = s.loaded
	}
	if verified {
		newer.families = families
	}
	return &newer
}

// A schemaSource holds a table's schema and reads it again when it is too old.
type schemaSource struct {
	table *table

	latest    atomic.Pointer[schema]
	looks     atomic.Uint64 // how often the schema was read
	reloading chan struct{} // holds one token while the schema is read again
}

// reload reads the schema record and, where Config.Admin is set, verifies the
// table's families and policies.
func (src *schemaSource) reload(ctx context.Context) error {
	began := time.Now()
	s, err := src.readSchema(ctx)
	if err != nil {
		return err
	}
	if admin := src.table.store.cfg.Admin; admin != nil {
		if s.families, err = verifyFamilies(ctx, admin, src.table.name, src.table.store.log); err != nil {
			return err
		}
	}
	s.loaded = began
	src.replace(s)
	return nil
}

// replace stores what a look has found beside what others have found meanwhile: an
// answer may be late, and must not undo a registration, nor one of the families.
func (src *schemaSource) replace(s *schema) {
	for {
		old := src.latest.Load()
		if src.latest.CompareAndSwap(old, s.merge(old, src.table.store.cfg.Admin != nil)) {
			return
		}
	}
}

// reloadObserved reads which columns are observed, as of now. The families were
// verified when the table was opened, and are again when it is time to.
func (src *schemaSource) reloadObserved(ctx context.Context) (*schema, error) {
	old := src.latest.Load()
	s, err := src.readSchema(ctx)
	if err != nil {
		return nil, err
	}
	if src.table.store.cfg.Admin != nil {
		s.families = old.families
	}
	s.loaded = old.loaded
	src.replace(s)
	return s, nil
}

func (src *schemaSource) readSchema(ctx context.Context) (*schema, error) {
	meta := src.table.store.metadata
	look := src.looks.Add(1)
	row, err := meta.readRow(ctx, schemaRowPrefix+src.table.name, interleave(column(deployFamily, schemaQualifier)))
	if err != nil {
		return nil, err
	}
	if len(row[deployFamily]) == 0 {
		return nil, fmt.Errorf("txn: table %q: %w: it has no schema record in metadata table %q; run `percctl table init %s` or txn.InitTable", src.table.name, ErrNotInitialized, meta.name, src.table.name)
	}
	s, err := decodeSchema(src.table.name, row[deployFamily][0].Value)
	if err == nil {
		s.look = look
	}
	return s, err
}

// current returns the schema for a read, and has it read again in the
// background when it is older than Config.SchemaMaxAge.
func (src *schemaSource) current() *schema {
	s := src.latest.Load()
	if time.Since(s.loaded) <= src.table.store.cfg.SchemaMaxAge {
		return s
	}
	select {
	case src.reloading <- struct{}{}:
	default:
		return s
	}
	started := src.table.store.background.run(func(ctx context.Context) {
		defer func() { <-src.reloading }()
		if err := src.reload(ctx); err != nil {
			src.table.store.log.WarnContext(ctx, "reading the schema again failed", "table", src.table.name, "error", err)
			// Not at every read from now on.
			if err := sleep(ctx, time.Second); err != nil {
				return
			}
		}
	})
	if !started {
		<-src.reloading
	}
	return s
}

// fresh returns a schema that is not older than Config.SchemaMaxAge, for a
// commit: a column that became observed must get its notify cells.
func (src *schemaSource) fresh(ctx context.Context) (*schema, error) {
	if s := src.latest.Load(); time.Since(s.loaded) <= src.table.store.cfg.SchemaMaxAge {
		return s, nil
	}
	return src.newer(ctx, src.latest.Load())
}

// newer returns a schema that was read after old.
func (src *schemaSource) newer(ctx context.Context, old *schema) (*schema, error) {
	select {
	case src.reloading <- struct{}{}:
		defer func() { <-src.reloading }()
	case <-ctx.Done():
		return nil, ended(ctx, fmt.Sprintf("reading the schema of table %q", src.table.name), nil)
	}
	if s := src.latest.Load(); s.loaded.After(old.loaded) {
		return s, nil // somebody else has just read it
	}
	if err := src.reload(ctx); err != nil {
		return nil, err
	}
	return src.latest.Load(), nil
}

func decodeSchema(table string, value []byte) (*schema, error) {
	var m recordpb.TableSchema
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, fmt.Errorf("txn: table %q: %w: its schema record does not parse: %w", table, ErrCorrupt, err)
	}
	if err := checkFormat(&m, fmt.Sprintf("schema record of table %q", table)); err != nil {
		return nil, fmt.Errorf("txn: %w", err)
	}
	s := &schema{families: append(m.Families, AckFamily), observed: map[Column]registration{}}
	for _, o := range m.Observed {
		s.observed[columnOf(o)] = registration{o.Observers, o.Weak}
	}
	return s, nil
}

// verifyFamilies checks that a table has the metadata families and that no
// family has a garbage-collection policy, and returns its data families.
func verifyFamilies(ctx context.Context, admin *bigtable.AdminClient, table string, log *slog.Logger) ([]string, error) {
	info, err := admin.TableInfo(ctx, table)
	if err != nil {
		return nil, wrapRPC(ctx, "describe", table, err)
	}
	var data []string
	missing := slices.Clone(metadataFamilies)
	for _, f := range info.FamilyInfos {
		if err := checkPolicy(table, f); err != nil {
			return nil, err
		}
		if f.GCPolicy == emptyPolicy {
			log.WarnContext(ctx, "family has an empty garbage-collection rule instead of none", "table", table, "family", f.Name)
		}
		missing = slices.DeleteFunc(missing, func(m string) bool { return m == f.Name })
		if !isMetadataFamily(f.Name) {
			data = append(data, f.Name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("txn: table %q: %w: it lacks the metadata families %s; run `percctl table init %s` or txn.InitTable", table, ErrSchema, strings.Join(missing, ", "), table)
	}
	slices.Sort(data)
	return data, nil
}

const (
	noPolicy    = "<never>"
	emptyPolicy = ""
)

// checkPolicy refuses a policy that could delete live versions, locks or
// commit records (design §3).
func checkPolicy(table string, f bigtable.FamilyInfo) error {
	switch f.GCPolicy {
	case noPolicy:
		return nil
	case emptyPolicy:
		// None in Cloud Bigtable. In the emulator it arms a collector that can
		// lose acknowledged writes.
		if os.Getenv("BIGTABLE_EMULATOR_HOST") == "" {
			return nil
		}
		return fmt.Errorf("txn: table %q, family %s: %w: its garbage-collection rule is empty instead of absent, with which the emulator can lose acknowledged writes; create the family with AdminClient.CreateColumnFamily or `percctl table init` instead of `cbt createfamily` or TableConf", table, f.Name, ErrSchema)
	}
	return fmt.Errorf("txn: table %q, family %s: %w: garbage-collection policy %q would delete live versions; clear it with `cbt setgcpolicy %s %s never` or AdminClient.SetGCPolicy(ctx, %q, %q, bigtable.NoGcPolicy())", table, f.Name, ErrSchema, f.GCPolicy, table, f.Name, table, f.Name)
}

func columnOf(o *recordpb.ObservedColumn) Column {
	return Column{o.GetColumn().GetFamily(), string(o.GetColumn().GetQualifier())}
}

// replaceSchema edits a table's schema record. Others may edit it at the same
// time, so it is replaced only as it was read, and read again otherwise. edit
// gets an empty record where there is none.
func replaceSchema(ctx context.Context, meta bigtable.TableAPI, metadataTable, table string, timeout time.Duration, edit func(*recordpb.TableSchema) error) error {
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
	row := schemaRowPrefix + table
	stored, err := meta.ReadRow(rctx, row, bigtable.RowFilter(interleave(column(deployFamily, schemaQualifier))))
	if err != nil {
		return false, wrapRPC(ctx, "read of the schema record", metadataTable, err)
	}
	record, old := &recordpb.TableSchema{}, []byte(nil)
	if len(stored[deployFamily]) > 0 {
		old = stored[deployFamily][0].Value
		if err := proto.Unmarshal(old, record); err != nil {
			return false, fmt.Errorf("txn: table %q: %w: its schema record does not parse: %w", table, ErrCorrupt, err)
		}
		if err := checkFormat(record, fmt.Sprintf("schema record of table %q", table)); err != nil {
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
	m.Set(deployFamily, schemaQualifier, 0, marshal(record))
	// With a record: if it is the same. Without: if there is none.
	predicate, onMatch, onMiss := chain(column(deployFamily, schemaQualifier), bigtable.ValueRangeFilter(old, append(slices.Clone(old), 0))), m, (*bigtable.Mutation)(nil)
	if old == nil {
		predicate, onMatch, onMiss = column(deployFamily, schemaQualifier), nil, m
	}
	var matched bool
	if err := meta.Apply(rctx, row, bigtable.NewCondMutation(interleave(predicate), onMatch, onMiss), bigtable.GetCondMutationResult(&matched)); err != nil {
		// It may have been applied; the edit is idempotent.
		return false, wrapRPC(ctx, "schema record", metadataTable, err)
	}
	return matched == (old != nil), nil
}
