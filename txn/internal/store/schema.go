package store

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// The families of the metadata table, and the place of schema records (design §3). A cell of
// the metadata table is at timestamp 0, so a new value replaces the old one;
// docs/storage-format.md lists the exceptions.
const (
	OracleFamily    = "tso"     // the timestamp oracle and advisory locks
	DeployFamily    = "meta"    // everything else
	SchemaRowPrefix = "schema/" // followed by the table's name
	SchemaQualifier = "schema"

	FamiliesRowPrefix = "families/" // followed by the table's name
	FamiliesQualifier = "families"
)

// A Schema is what a client knows about a table.
type Schema struct {
	// Families are the user's families and the acknowledgment family.
	Families []string
	// Observed are the columns and patterns that have observers.
	Observed map[format.Column]Registration
	patterns []format.Column // of Observed
	// Indexes are the indexes that commits have to maintain.
	Indexes []Index
	// Expiries say how long values last.
	Expiries Expiries
	// Adopted is when the table was adopted; 0 if it was not. It has no older records.
	Adopted tso.Timestamp
	// Journal says since when commits of observed columns have journal entries.
	Journal recordpb.Journal
	// read is when the request for the record was sent.
	read time.Time
	// readNumber counts the reads of the table's schema, in the order in which they began.
	// The answer to a later read is at least as new.
	readNumber uint64
	// loaded: the schema contains every change of the record that was made before this time.
	loaded time.Time
	// reloadAge is from when on Current reloads the schema. It is up to a tenth below
	// Config.SchemaMaxAge, so clients that started together do not stay in step.
	reloadAge time.Duration
	// check is the stored result of the last check of the families, as this client knows it.
	check string
}

// A Registration says which observers an observed column has. A weak column can be notified,
// but not written.
type Registration struct {
	Observers []string
	Weak      bool
}

// An Index is an index of columns of a table. Entries is where its entries are: TABLE/FAMILY.
type Index struct {
	Name    string
	Columns []format.Column
	Entries string
}

// DataFamilies returns the families that a read of a whole row returns: the user's.
func (s *Schema) DataFamilies() []string {
	return slices.DeleteFunc(slices.Clone(s.Families), func(f string) bool { return f == format.AckFamily })
}

// ReadFamilies returns the families that the filter of a whole row's read must name. It
// returns nil if the filter need not name any: a table without observed columns has hardly
// anything in its other families.
func (s *Schema) ReadFamilies() []string {
	if len(s.Observed) == 0 {
		return nil
	}
	return s.DataFamilies()
}

// HasFamily reports whether a transaction can write family f.
func (s *Schema) HasFamily(f string) bool { return slices.Contains(s.Families, f) }

// has reports whether the column itself is registered.
func (s *Schema) has(c format.Column) bool {
	_, ok := s.Observed[c]
	return ok
}

// IsObserved reports whether a commit of the column sets its notify cell.
func (s *Schema) IsObserved(c format.Column) bool {
	return s.has(c) || slices.ContainsFunc(s.patterns, func(p format.Column) bool {
		ids := s.Observed[p].Observers
		return p.Matches(c) && (len(ids) == 0 || len(format.Acknowledging(c, ids)) > 0)
	})
}

// Registration returns the observers of a column: its own, and those of the patterns that it is in.
// An observer that cannot acknowledge changes of the column is not among them.
func (s *Schema) Registration(c format.Column) (r Registration, ok bool) {
	r, ok = s.Observed[c]
	for _, p := range s.patterns {
		if p.Matches(c) {
			all := s.Observed[p].Observers
			own := format.Acknowledging(c, all)
			r.Observers, ok = slices.Concat(r.Observers, own), ok || len(own) > 0 || len(all) == 0
		}
	}
	return r, ok
}

// checkNames returns an error that matches format.ErrLimit if a pattern has an observer that
// cannot acknowledge changes of the cell.
func (s *Schema) checkNames(cell format.Cell) error {
	for _, p := range s.patterns {
		if !p.Matches(cell.Column()) {
			continue
		}
		for _, id := range s.Observed[p].Observers {
			if !format.CanAcknowledge(cell.Column(), id) {
				return format.Limitf("%s: the acknowledgment column of observer %s, which watches %s, would have %d bytes; %d are allowed. The cell can be read and deleted, without runs of this observer", cell, id, p, len(format.AckColumn(cell.Column(), id).Key()), format.MaxColumnKey)
			}
		}
	}
	return nil
}

// noFamily is the error of a read or write of a family that the table does not have.
func (s *Schema) noFamily(what, table, family string) error {
	return fmt.Errorf("percolator: %s: %w: table %q has no family %q, only %s. Create the family, and record it with `percctl table init %s` or admin.InitTable", what, format.ErrSchema, table, family, strings.Join(s.DataFamilies(), ", "), table)
}

// missing returns a family of the selection that the table does not have, or "".
func (s *Schema) missing(sel Selection) string {
	for _, r := range sel.Ranges {
		if !s.HasFamily(r.Family) {
			return r.Family
		}
	}
	for i := range sel.Columns {
		if f := sel.Columns[i].Family; !s.HasFamily(f) {
			return f
		}
	}
	return ""
}

// CheckRead returns an error that matches format.ErrSchema if the table does not have the
// families of the selection. Only then it makes a request: the family may have been added
// since the schema was read.
func (src *SchemaSource) CheckRead(ctx context.Context, sel Selection) error {
	s := src.latest.Load()
	if s.missing(sel) == "" {
		return nil
	}
	s, err := src.Newer(ctx, s)
	if err != nil {
		return err
	}
	if f := s.missing(sel); f != "" {
		return s.noFamily("read", src.table.Name, f)
	}
	return nil
}

// CheckWrite returns an error that matches format.ErrSchema if the table has no such family,
// if the column is only for weak notifications, or if it is in an index that the writer does
// not maintain: keeps are the places of the entries of those that it maintains.
func (s *Schema) CheckWrite(table string, w *Write, keeps []string) error {
	if !s.HasFamily(w.Cell.Family) {
		return s.noFamily("write of "+w.Cell.String(), table, w.Cell.Family)
	}
	if w.Kind != format.KindLock && s.Observed[w.Cell.Column()].Weak {
		return fmt.Errorf("percolator: write of %s: %w: the column is for weak notifications: transactions can notify it, but not write it", w.Cell, format.ErrSchema)
	}
	if w.Kind == format.KindPut {
		if err := s.checkNames(w.Cell); err != nil {
			return err
		}
	}
	for _, i := range s.Indexes {
		if w.Kind != format.KindLock && slices.Contains(i.Columns, w.Cell.Column()) && !slices.Contains(keeps, i.Entries) {
			return fmt.Errorf("percolator: write of %s: %w: the column is in index %s, whose entries are in %s, and this client does not maintain it; see package index (Indexes.Keep)", w.Cell, format.ErrSchema, i.Name, i.Entries)
		}
	}
	return nil
}

// merge returns the newest parts of two schemas. The record comes from the later read of it.
// If the client verifies families (verified), they come from the later verification;
// otherwise the record names them. What the record of the later read contains, it contained
// when the other verification began, or got later.
func (s *Schema) merge(old *Schema, verified bool) *Schema {
	if old == nil {
		return s
	}
	newer, checked := *s, s
	if old.readNumber > s.readNumber {
		newer = *old
	}
	if old.loaded.After(s.loaded) {
		checked = old
	}
	newer.loaded, newer.reloadAge, newer.check = checked.loaded, checked.reloadAge, checked.check
	if verified {
		newer.Families = checked.Families
	}
	return &newer
}

// A SchemaSource holds the schema of a table, and reads it again when it is too old.
type SchemaSource struct {
	table *Table

	latest    atomic.Pointer[Schema]
	reads     atomic.Uint64                 // number of reads that have begun
	news      atomic.Pointer[chan struct{}] // closed when latest changes
	reloading chan struct{}                 // holds one token while Current or Newer reloads
}

// Reload reads the schema record. If Config.Admin is set, it also verifies the families of the
// table and their policies.
func (src *SchemaSource) Reload(ctx context.Context) error { return src.reload(ctx, nil) }

// A quotaError says that the admin service answers no more requests for now.
type quotaError struct {
	error
	check string // the stored check that the client has seen by then
}

func (e *quotaError) Unwrap() error { return e.error }

// reload is Reload. If known is not nil, a check of another client counts that is not *known. If the
// quota of the admin service is used up, the error is a [quotaError].
func (src *SchemaSource) reload(ctx context.Context, known *string) error {
	began := time.Now()
	s, err := src.readSchema(ctx)
	if err == nil && src.table.store.Config.Admin != nil {
		if old := src.latest.Load(); old != nil {
			src.replace(s.unverified(old)) // reads do not wait for the admin service
		}
		if err = src.verify(ctx, s, known); status.Code(err) == codes.ResourceExhausted {
			err = &quotaError{err, s.check}
		}
	}
	if err != nil {
		return err
	}
	maxAge := src.table.store.Config.SchemaMaxAge
	s.loaded, s.reloadAge = began, maxAge-rand.N(maxAge/10+1)
	src.replace(s)
	return nil
}

// verify sets the families of a schema that was just read, and checks their policies.
//
// All clients of a deployment share one check in each Config.SchemaMaxAge. A client reads the
// stored result of the last check together with the record. If the client has not seen this
// result before, it uses it. Otherwise it asks the admin service, and stores the result. So no
// clocks are compared. A client stores its result only if the stored one is still the one that
// it read before its check. So each stored result is newer than the one before it, and at most
// twice Config.SchemaMaxAge old when a client begins to use it. A client whose check fails
// stores nothing, so each client gets the error.
func (src *SchemaSource) verify(ctx context.Context, s *Schema, known *string) error {
	st := src.table.store
	if known != nil && s.check != *known {
		if families, ok := checkedFamilies(s.check); ok {
			s.Families = families
			return nil
		}
	}
	families, err := VerifyFamilies(ctx, st.Config.Admin, src.table.Name, st.Log)
	if err != nil {
		return err
	}
	s.Families = families
	if stored, ok := checkedFamilies(s.check); known == nil && (!ok || slices.Equal(stored, families)) {
		return nil // the next shared check stores them
	}
	next := strings.Join(append([]string{"1", crand.Text()}, families...), " ")
	m := bigtable.NewMutation()
	m.Set(DeployFamily, FamiliesQualifier, 0, []byte(next))
	predicate, onMatch, onMiss := Chain(ExactColumn(DeployFamily, FamiliesQualifier), ExactValue([]byte(s.check))), m, (*bigtable.Mutation)(nil)
	if s.check == "" {
		predicate, onMatch, onMiss = ExactColumn(DeployFamily, FamiliesQualifier), nil, m
	}
	matched, err := st.Metadata.CheckAndMutate(ctx, FamiliesRowPrefix+src.table.Name, Interleave(predicate), onMatch, onMiss)
	if err != nil {
		// The next reload reads what is stored. If that is unchanged, it checks again.
		st.Log.DebugContext(ctx, "storing the families of a table failed", "table", src.table.Name, "error", err)
	}
	if matched == (s.check != "") { // stored, or a first result, which may be
		s.check = next
	}
	return nil
}

// checkedFamilies reads the stored result of a check: the format's version, a random number,
// and the families.
func checkedFamilies(check string) (families []string, ok bool) {
	parts := strings.Split(check, " ")
	if len(parts) < 3 || parts[0] != "1" {
		return nil, false
	}
	return parts[2:], true
}

// replace merges s with the current schema. An answer may arrive late, and must not undo what
// a later read found.
func (src *SchemaSource) replace(s *Schema) {
	for {
		old := src.latest.Load()
		if src.latest.CompareAndSwap(old, s.merge(old, src.table.store.Config.Admin != nil)) {
			next := make(chan struct{})
			close(*src.news.Swap(&next))
			return
		}
	}
}

// ReloadObserved reads which columns are observed now. It does not verify the families: that
// happened when the table was opened, and happens again in Reload.
func (src *SchemaSource) ReloadObserved(ctx context.Context) (*Schema, error) {
	old := src.latest.Load()
	s, err := src.readSchema(ctx)
	if err != nil {
		return nil, err
	}
	u := s.unverified(old)
	if src.table.store.Config.Admin == nil {
		u.Families = s.Families
	}
	src.replace(u)
	return u, nil
}

// unverified returns s with the families of old, and what is known of their check.
func (s *Schema) unverified(old *Schema) *Schema {
	u := *s
	u.Families, u.loaded, u.reloadAge, u.check = old.Families, old.loaded, old.reloadAge, old.check
	return &u
}

func (src *SchemaSource) readSchema(ctx context.Context) (*Schema, error) {
	meta := src.table.store.Metadata
	number, began := src.reads.Add(1), time.Now()
	rows := bigtable.RowList{SchemaRowPrefix + src.table.Name}
	columns := []bigtable.Filter{ExactColumn(DeployFamily, SchemaQualifier)}
	if src.table.store.Config.Admin != nil {
		rows = append(rows, FamiliesRowPrefix+src.table.Name)
		columns = append(columns, ExactColumn(DeployFamily, FamiliesQualifier))
	}
	found := map[string][]byte{}
	if err := meta.ReadRows(ctx, rows, func(r bigtable.Row) bool {
		for _, item := range r[DeployFamily] {
			found[r.Key()] = item.Value
		}
		return true
	}, bigtable.RowFilter(Interleave(columns...))); err != nil {
		return nil, err
	}
	record, ok := found[rows[0]]
	if !ok {
		return nil, fmt.Errorf("percolator: table %q: %w: it has no schema record in metadata table %q; run `percctl table init %s` or admin.InitTable", src.table.Name, format.ErrNotInitialized, meta.Name, src.table.Name)
	}
	s, err := DecodeSchema(src.table.Name, record)
	if err == nil {
		s.read, s.readNumber, s.check = began, number, string(found[FamiliesRowPrefix+src.table.Name])
	}
	return s, err
}

// Current returns the schema for the request of a read, and its age does not matter there. If the
// schema is almost as old as Config.SchemaMaxAge, the background reloads it. So FreshExpiries
// seldom waits for longer than the read itself takes.
func (src *SchemaSource) Current() *Schema {
	s := src.latest.Load()
	if age(s.loaded) <= s.reloadAge {
		return s
	}
	select {
	case src.reloading <- struct{}{}:
	default:
		return s
	}
	started := src.table.store.Background.Run(func(ctx context.Context) {
		defer func() { <-src.reloading }()
		if err := src.reload(ctx, &s.check); err != nil {
			src.table.store.Log.WarnContext(ctx, "reading the schema again failed", "table", src.table.Name, "error", err)
			_ = Sleep(ctx, time.Second) // otherwise every read would start another reload
		}
	})
	if !started {
		<-src.reloading
	}
	return s
}

// Expiries returns the table's expiries, as far as this client knows them.
func (src *SchemaSource) Expiries() Expiries {
	if s := src.latest.Load(); s != nil {
		return s.Expiries
	}
	return nil
}

// Journaled reports whether commits of the table's observed columns have journal entries.
func (src *SchemaSource) Journaled() bool { return src.Journal() != recordpb.Journal_JOURNAL_NONE }

// Journal says since when they have entries. It sends nothing.
func (src *SchemaSource) Journal() recordpb.Journal { return src.latest.Load().Journal }

// FreshExpiries returns expiries that are at most Config.SchemaMaxAge old. The answer to a read
// needs that: an idle client would show values that other clients do not show any more, and that
// garbage collection removes. Unlike a commit, a read does not need the families to be verified.
func (src *SchemaSource) FreshExpiries(ctx context.Context) (Expiries, error) {
	if src.latest.Load() == nil {
		return nil, nil // only for requests: it was not opened
	}
	s, err := src.recent(ctx, src.table.store.Config.SchemaMaxAge)
	if err != nil {
		return nil, err
	}
	return s.Expiries, nil
}

// recent returns a schema whose record was read at most maxAge ago. Of calls at the same time, one
// reads it.
func (src *SchemaSource) recent(ctx context.Context, maxAge time.Duration) (*Schema, error) {
	fresh := func() (*Schema, bool) {
		s := src.latest.Load()
		return s, age(s.read) <= maxAge
	}
	read := func() (*Schema, error) {
		defer func() { <-src.reloading }()
		if s, ok := fresh(); ok {
			return s, nil
		}
		return src.ReloadObserved(ctx)
	}
	for {
		news := *src.news.Load()
		if s, ok := fresh(); ok {
			return s, nil
		}
		select {
		case src.reloading <- struct{}{}:
			return read()
		case <-news: // a reload has read the record, and still verifies the families
		case <-ctx.Done():
			return nil, Ended(ctx, fmt.Sprintf("percolator: reading the schema of table %q", src.table.Name), nil)
		}
	}
}

// SchemaNotice is for how long a commit relies on a schema record at most, whatever
// Config.SchemaMaxAge is. The build of an index waits as long before it reads the rows.
const SchemaNotice = time.Minute

// Fresh returns a schema that is at most Config.SchemaMaxAge old, and whose record is at most
// SchemaNotice old. A commit needs that: a column that became observed must get its notify cells.
func (src *SchemaSource) Fresh(ctx context.Context) (*Schema, error) {
	s := src.latest.Load()
	if age(s.loaded) <= src.table.store.Config.SchemaMaxAge {
		return src.recent(ctx, SchemaNotice)
	}
	return src.newer(ctx, s, true)
}

// Recheck checks the rows of a commit again that were checked by a schema older than SchemaNotice:
// the commit has taken that long. It returns a cell that must not be written like this, if there is
// one: its column has got an index that is not in keeps, or an observer.
func Recheck(ctx context.Context, rows []*RowWrites, keeps []string) (changed *format.Cell, err error) {
	var last *Schema // most rows have the same one
	for _, r := range rows {
		if r.Checked == last {
			continue
		}
		if age(r.Checked.read) <= SchemaNotice {
			last = r.Checked
			continue
		}
		s, err := r.Table.Schema.recent(ctx, SchemaNotice)
		if err != nil {
			return nil, err
		}
		r.Checked = s
		for _, w := range r.Writes {
			if s.CheckWrite(r.Table.Name, w, keeps) != nil || !w.Observed && w.Kind != format.KindLock && s.IsObserved(w.Cell.Column()) {
				return &w.Cell, nil
			}
		}
	}
	return nil, nil
}

// age is how long ago t was. The monotonic clock stands still while a machine sleeps, so the wall
// clock counts too.
func age(t time.Time) time.Duration { return max(time.Since(t), time.Since(t.Round(0))) }

// Newer returns a schema that was read, and verified, after old.
func (src *SchemaSource) Newer(ctx context.Context, old *Schema) (*Schema, error) {
	return src.newer(ctx, old, false)
}

// open returns the first schema of a table. Of calls at the same time, one makes the requests.
func (src *SchemaSource) open(ctx context.Context) error {
	_, err := src.newer(ctx, nil, false)
	return err
}

// newer returns a schema that was loaded after old; nil: any. If shared is set, the check of another
// client counts.
//
// If the quota of the admin service is used up, it tries again until ctx ends: a fleet that starts
// asks for each table as often as it has clients. From then on it takes part in the shared check, so
// the fleet waits for one answer a table. And a client asks for one table at a time.
func (src *SchemaSource) newer(ctx context.Context, old *Schema, shared bool) (*Schema, error) {
	st := src.table.store
	var known *string
	if shared {
		known = &old.check
	}
	s, err := src.newerOnce(ctx, old, known)
	var quota *quotaError
	if !errors.As(err, &quota) {
		return s, err
	}
	ended := func() error {
		return Ended(ctx, fmt.Sprintf("percolator: verifying the families of table %q", src.table.Name), err)
	}
	select {
	case st.refused <- struct{}{}:
		defer func() { <-st.refused }()
	case <-ctx.Done():
		return nil, ended()
	}
	for pause := (Backoff{time.Second, 24 * time.Second}).Start(); ; {
		if s, err = src.newerOnce(ctx, old, &quota.check); !errors.As(err, &quota) {
			return s, err
		}
		st.Log.WarnContext(ctx, "the quota of the admin service is used up", "table", src.table.Name, "error", err)
		if pause.Wait(ctx, 0) != nil {
			return nil, ended()
		}
	}
}

func (src *SchemaSource) newerOnce(ctx context.Context, old *Schema, known *string) (*Schema, error) {
	select {
	case src.reloading <- struct{}{}:
		defer func() { <-src.reloading }()
	case <-ctx.Done():
		return nil, Ended(ctx, fmt.Sprintf("percolator: reading the schema of table %q", src.table.Name), nil)
	}
	if s := src.latest.Load(); s != nil && (old == nil || s.loaded.After(old.loaded)) {
		return s, nil // another call has just read it
	}
	if err := src.reload(ctx, known); err != nil {
		return nil, err
	}
	return src.latest.Load(), nil
}

// DecodeSchema reads the stored schema record of a table.
func DecodeSchema(table string, value []byte) (*Schema, error) {
	var m recordpb.TableSchema
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, fmt.Errorf("percolator: table %q: %w: its schema record does not parse: %w", table, format.ErrCorrupt, err)
	}
	if err := format.CheckVersion(&m, fmt.Sprintf("schema record of table %q", table)); err != nil {
		return nil, fmt.Errorf("percolator: %w", err)
	}
	s := &Schema{Families: append(m.Families, format.AckFamily), Observed: map[format.Column]Registration{}, Expiries: ExpiriesOf(&m), Adopted: tso.Timestamp(m.AdoptedTs), Journal: m.Journal}
	for _, o := range m.Observed {
		c := ColumnOf(o)
		s.Observed[c] = Registration{o.Observers, o.Weak}
		if c.IsPattern() {
			s.patterns = append(s.patterns, c)
		}
	}
	for _, i := range m.Indexes {
		s.Indexes = append(s.Indexes, IndexOf(i))
	}
	return s, nil
}

// VerifyFamilies returns the families of a table that transactions can write. It fails with
// format.ErrSchema if a metadata family is missing, or if CheckPolicy refuses a family's
// garbage-collection policy.
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
		return nil, fmt.Errorf("percolator: table %q: %w: the metadata families %s are missing; run `percctl table init %s` or admin.InitTable", table, format.ErrSchema, strings.Join(missing, ", "), table)
	}
	slices.Sort(data)
	return data, nil
}

// How bigtable.FamilyInfo shows a family without a garbage-collection policy, and one whose
// policy is an empty rule.
const (
	NoPolicy    = "<never>"
	EmptyPolicy = ""
)

// CheckPolicy returns an error that matches format.ErrSchema if a garbage-collection policy of
// Bigtable could delete live versions, locks or records (design §3).
func CheckPolicy(table string, f bigtable.FamilyInfo) error {
	switch f.GCPolicy {
	case NoPolicy:
		return nil
	case EmptyPolicy:
		// In Cloud Bigtable an empty rule deletes nothing. In the emulator it starts a
		// collector that can lose acknowledged writes.
		if os.Getenv("BIGTABLE_EMULATOR_HOST") == "" {
			return nil
		}
		return fmt.Errorf("percolator: table %q, family %s: %w: its garbage-collection rule is empty instead of absent, and then the emulator can lose acknowledged writes; create the family with AdminClient.CreateColumnFamily or `percctl table init`, not with `cbt createfamily` or TableConf", table, f.Name, format.ErrSchema)
	}
	return fmt.Errorf("percolator: table %q, family %s: %w: Bigtable's garbage-collection policy %q would delete live versions; clear it with `cbt setgcpolicy %s %s never` or AdminClient.SetGCPolicy(ctx, %q, %q, bigtable.NoGcPolicy())", table, f.Name, format.ErrSchema, f.GCPolicy, table, f.Name, table, f.Name)
}

// ColumnOf returns the column of an observed column's record.
func ColumnOf(o *recordpb.ObservedColumn) format.Column {
	return format.Column{Family: o.GetColumn().GetFamily(), Qualifier: string(o.GetColumn().GetQualifier())}
}

// IndexOf returns the index of a record.
func IndexOf(m *recordpb.ColumnIndex) Index {
	i := Index{Name: m.Name, Entries: m.Entries}
	for _, c := range m.Columns {
		i.Columns = append(i.Columns, format.Column{Family: c.GetFamily(), Qualifier: string(c.GetQualifier())})
	}
	return i
}

// ReplaceSchema edits the schema record of a table; edit gets an empty record if there is none.
// Other clients may edit the record at the same time. So ReplaceSchema replaces it only if it
// is still the same, and otherwise reads it and calls edit again. timeout is for each round.
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
	record, old := &recordpb.TableSchema{}, []byte(nil) // old: as stored; nil: no record
	if len(stored[DeployFamily]) > 0 {
		old = stored[DeployFamily][0].Value
		if err := proto.Unmarshal(old, record); err != nil {
			return false, fmt.Errorf("percolator: table %q: %w: its schema record does not parse: %w", table, format.ErrCorrupt, err)
		}
		if err := format.CheckVersion(record, fmt.Sprintf("schema record of table %q", table)); err != nil {
			return false, fmt.Errorf("percolator: %w", err)
		}
	}
	before := proto.Clone(record)
	if err := edit(record); err != nil {
		return false, err
	}
	record.FormatVersion = format.Version
	if proto.Equal(before, record) { // no record has no version
		return true, nil
	}
	m := bigtable.NewMutation()
	m.Set(DeployFamily, SchemaQualifier, 0, format.Marshal(record))
	// An existing record must be the same. Otherwise there must still be none.
	predicate, onMatch, onMiss := Chain(ExactColumn(DeployFamily, SchemaQualifier), ExactValue(old)), m, (*bigtable.Mutation)(nil)
	if old == nil {
		predicate, onMatch, onMiss = ExactColumn(DeployFamily, SchemaQualifier), nil, m
	}
	var matched bool
	if err := meta.Apply(rctx, row, bigtable.NewCondMutation(Interleave(predicate), onMatch, onMiss), bigtable.GetCondMutationResult(&matched)); err != nil {
		// Bigtable may have applied the mutation. The caller can repeat it: the edit is
		// idempotent.
		return false, WrapRPC(ctx, "schema record", metadataTable, err)
	}
	return matched == (old != nil), nil
}
