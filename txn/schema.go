package txn

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
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
	observed map[Column]observation
	// look numbers the reads of a table's schema by when they began. What a later
	// one has found is at least as new.
	look uint64
	// loaded: it has every change that was made by then, also of the families'
	// policies.
	loaded time.Time
}

// An observation says who watches a column.
type observation struct {
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

// reload reads the schema record and, where Config.Admin is set, verifies the
// table's families and policies.
func (t *table) reload(ctx context.Context) error {
	began := time.Now()
	s, err := t.readSchema(ctx)
	if err != nil {
		return err
	}
	if admin := t.client.cfg.Admin; admin != nil {
		if s.families, err = verifyFamilies(ctx, admin, t.name, t.client.log); err != nil {
			return err
		}
	}
	s.loaded = began
	t.replace(s)
	return nil
}

// replace stores what a look has found beside what others have found meanwhile: an
// answer may be late, and must not undo a registration, nor one of the families.
func (t *table) replace(s *schema) {
	for {
		old := t.schema.Load()
		if t.schema.CompareAndSwap(old, s.merge(old, t.client.cfg.Admin != nil)) {
			return
		}
	}
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

// reloadObserved reads which columns are observed, as of now. The families were
// verified when the table was opened, and are again when it is time to.
func (t *table) reloadObserved(ctx context.Context) (*schema, error) {
	old := t.schema.Load()
	s, err := t.readSchema(ctx)
	if err != nil {
		return nil, err
	}
	if t.client.cfg.Admin != nil {
		s.families = old.families
	}
	s.loaded = old.loaded
	t.replace(s)
	return s, nil
}

func (t *table) readSchema(ctx context.Context) (*schema, error) {
	meta := t.client.metadata
	look := t.looks.Add(1)
	row, err := meta.readRow(ctx, schemaRowPrefix+t.name, interleave(column(deployFamily, schemaQualifier)))
	if err != nil {
		return nil, err
	}
	if len(row[deployFamily]) == 0 {
		return nil, fmt.Errorf("txn: table %q: %w: it has no schema record in metadata table %q; run `percctl table init %s` or txn.InitTable", t.name, ErrNotInitialized, meta.name, t.name)
	}
	s, err := decodeSchema(t.name, row[deployFamily][0].Value)
	if err == nil {
		s.look = look
	}
	return s, err
}

func decodeSchema(table string, value []byte) (*schema, error) {
	var m recordpb.TableSchema
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, fmt.Errorf("txn: table %q: %w: its schema record does not parse: %w", table, ErrCorrupt, err)
	}
	if err := checkFormat(&m, fmt.Sprintf("schema record of table %q", table)); err != nil {
		return nil, fmt.Errorf("txn: %w", err)
	}
	s := &schema{families: append(m.Families, AckFamily), observed: map[Column]observation{}}
	for _, o := range m.Observed {
		s.observed[columnOf(o)] = observation{o.Observers, o.Weak}
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
