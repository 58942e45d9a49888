// Package strict makes Bigtable's emulator refuse what Cloud Bigtable refuses, so that tests
// find requests that only an emulator accepts.
package strict

import (
	"context"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// A Rule is something that Cloud Bigtable refuses and the emulator accepts.
type Rule struct {
	ID     string
	Text   string // what is refused
	Code   codes.Code
	Source string // a public document, or "assumed" and why
}

// Public documents.
const (
	dataAPI  = "https://cloud.google.com/bigtable/docs/reference/data/rpc/google.bigtable.v2"
	adminAPI = "https://cloud.google.com/bigtable/docs/reference/admin/rpc/google.bigtable.admin.v2"
	quotas   = "https://cloud.google.com/bigtable/quotas"
)

// The ids of the rules.
const (
	EmptyCondition = "empty-condition"
	EmptyMutation  = "empty-mutation"
	ManyChanges    = "many-changes"
	RowKey         = "row-key"
	Qualifier      = "qualifier"
	Value          = "value"
	FilterSize     = "filter-size"
	FilterDepth    = "filter-depth"
	ReadSize       = "read-size"
	UnknownFamily  = "unknown-family"
	FilterFamily   = "filter-family"
	FamilyName     = "family-name"
	TableName      = "table-name"
	Tables         = "tables"
	RowSize        = "row-size"
	AdminQuota     = "admin-quota"
	SingleRow      = "single-row"
)

// Rules are all rules.
var Rules = []Rule{
	{EmptyCondition, "a conditional mutation without changes in either branch", codes.InvalidArgument, dataAPI + "#checkandmutaterowrequest"},
	{EmptyMutation, "a mutation without changes, also as one entry of many; an increment without rules", codes.InvalidArgument, dataAPI + "#mutaterowrequest"},
	{ManyChanges, "more than 100,000 changes in one request, or in one branch of a condition", codes.InvalidArgument, dataAPI + "#mutaterowsrequest"},
	{RowKey, "a mutation of a row whose key is empty or longer than 4 KB", codes.InvalidArgument, quotas + "#limits-data-size"},
	{Qualifier, "a qualifier longer than 16 KB in a change", codes.InvalidArgument, quotas + "#limits-data-size"},
	{Value, "a value larger than 100 MB", codes.InvalidArgument, quotas + "#limits-data-size"},
	{FilterSize, "a filter larger than 20,480 bytes", codes.InvalidArgument, dataAPI + "#rowfilter"},
	{FilterDepth, "filters nested more than 20 deep", codes.InvalidArgument, dataAPI + "#rowfilter"},
	{ReadSize, "a read request larger than 512 KB", codes.InvalidArgument, "assumed; seen: https://github.com/googleapis/google-cloud-python/issues/6836"},
	{UnknownFamily, "a mutation with an unknown family. None of its changes applies", codes.NotFound, "https://cloud.google.com/bigtable/docs/writes (no partial changes of a row); the code was seen: https://github.com/googleapis/java-bigtable/issues/32"},
	{FilterFamily, "a filter with a column range in an unknown family", codes.NotFound, "assumed; seen for a filter by the family's name: https://github.com/googleapis/java-bigtable/issues/32"},
	{FamilyName, "a new family whose name has characters other than letters, digits, -, _ and ., or more than 64", codes.InvalidArgument, dataAPI + "#family; the 64 is assumed"},
	{TableName, "a new table whose name has such characters, begins with - or ., or has more than 50", codes.InvalidArgument, adminAPI + "#createtablerequest"},
	{Tables, "a table beyond 1,000 in an instance", codes.ResourceExhausted, quotas + "; the code is assumed"},
	{RowSize, "a read that returns more than 256 MB of one row. Writes of larger rows are accepted, which is assumed", codes.FailedPrecondition, quotas + "#limits-data-size; code and text were seen: https://github.com/GoogleCloudPlatform/DataflowTemplates/issues/188"},
	{AdminQuota, "more than 100 changes of tables in a minute, or more than 1,000 reads of their configuration", codes.ResourceExhausted, quotas + " (quotas of one user); the code is assumed"},
	{SingleRow, "a conditional mutation or an increment with an app profile that routes to several clusters", codes.FailedPrecondition, "https://cloud.google.com/bigtable/docs/app-profiles; the text was seen: https://github.com/googleapis/google-cloud-python/issues/10018"},
}

// The limits of the rules.
const (
	maxChanges     = 100_000
	maxKey         = 4 << 10
	maxQualifier   = 16 << 10
	maxValue       = 100 << 20
	maxFilter      = 20_480
	maxDepth       = 20
	maxReadRequest = 512 << 10
	maxFamily      = 64
	maxTable       = 50
	maxTables      = 1000
	maxRow         = 256 << 20
	maxAdminWrites = 100  // in a minute
	maxAdminReads  = 1000 // in a minute
)

// Config says which rules hold.
type Config struct {
	// Without are the ids of rules that do not hold.
	Without []string
	// SeveralClusters are app profiles that route to several clusters. All others allow
	// single-row transactions.
	SeveralClusters []string
	// MaxRow is the limit of [RowSize] in bytes, and MaxTables that of [Tables]. They default
	// to the documented ones.
	MaxRow, MaxTables int
	// Repeat is after how many mutations the server applies one twice before it answers, as a
	// service does that retries inside. It repeats no conditional mutation, and none with a
	// timestamp of the server. 0 is never.
	Repeat int
	// AdminTime is how long changes of tables take. Until then, requests see the table with
	// some of the changes, and a new table not at all.
	AdminTime time.Duration
}

// Front returns the front that enforces the rules.
func Front(cfg Config) front.Front {
	s := &server{cfg: cfg, without: map[string]bool{}, several: map[string]bool{}, born: map[string]time.Time{}}
	if s.cfg.MaxRow == 0 {
		s.cfg.MaxRow = maxRow
	}
	if s.cfg.MaxTables == 0 {
		s.cfg.MaxTables = maxTables
	}
	for _, id := range cfg.Without {
		s.without[id] = true
	}
	for _, p := range cfg.SeveralClusters {
		s.several[p] = true
	}
	return front.Front{Unary: s.unary, Request: s.request, Answer: s.answer}
}

type server struct {
	cfg              Config
	without, several map[string]bool
	mutations        atomic.Int64

	mu       sync.Mutex
	minute   time.Time                  // when the present minute of quotas began
	used     map[bool]int               // requests of the admin service in it, by whether they change tables
	born     map[string]time.Time       // when new tables can be used
	families map[string]map[string]bool // by table
}

// refuse returns the error of a rule if it holds and is violated.
func (s *server) refuse(violated bool, id, format string, args ...any) error {
	if !violated || s.without[id] {
		return nil
	}
	for _, r := range Rules {
		if r.ID == id {
			return status.Errorf(r.Code, format, args...)
		}
	}
	return status.Errorf(codes.Internal, "strict: no rule %s", id)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *server) unary(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
	if err := s.checkUnary(ctx, c); err != nil {
		return nil, err
	}
	switch r := c.Request.(type) {
	case *btpb.MutateRowRequest:
		answer, err := next(ctx)
		if err == nil && s.repeats(r.Mutations) {
			answer, err = c.Server.MutateRow(ctx, r)
		}
		return answer, err
	case *btapb.CreateTableRequest, *btapb.ModifyColumnFamiliesRequest, *btapb.DeleteTableRequest:
		defer func() {
			s.mu.Lock()
			s.families = nil
			s.mu.Unlock()
		}()
		return s.change(ctx, c, next)
	}
	return next(ctx)
}

// change changes a table, which takes time.
func (s *server) change(ctx context.Context, c *front.Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
	if s.cfg.AdminTime == 0 {
		return next(ctx)
	}
	switch r := c.Request.(type) {
	case *btapb.CreateTableRequest:
		s.mu.Lock()
		s.born[r.Parent+"/tables/"+r.TableId] = time.Now().Add(s.cfg.AdminTime)
		s.mu.Unlock()
		return next(ctx)
	case *btapb.ModifyColumnFamiliesRequest:
		for ; len(r.Modifications) > 1; r.Modifications = r.Modifications[1:] {
			one := &btapb.ModifyColumnFamiliesRequest{Name: r.Name, Modifications: r.Modifications[:1]}
			if _, err := c.Server.ModifyColumnFamilies(ctx, one); err != nil {
				return nil, err
			}
			if err := s.pass(ctx); err != nil {
				return nil, err
			}
		}
	}
	if err := s.pass(ctx); err != nil {
		return nil, err
	}
	return next(ctx)
}

// pass waits while a change of a table is under way.
func (s *server) pass(ctx context.Context) error {
	s.mu.Lock()
	s.families = nil
	s.mu.Unlock()
	select {
	case <-time.After(s.cfg.AdminTime):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// repeats reports whether to apply a mutation once more.
func (s *server) repeats(all []*btpb.Mutation) bool {
	if s.cfg.Repeat == 0 {
		return false
	}
	for _, m := range all {
		if m.GetSetCell().GetTimestampMicros() < 0 || m.GetAddToCell() != nil || m.GetMergeToCell() != nil {
			return false
		}
	}
	return s.mutations.Add(1)%int64(s.cfg.Repeat) == 0
}

// checkAdmin enforces the quotas of the admin service.
func (s *server) checkAdmin(changes bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.used == nil || now.Sub(s.minute) >= time.Minute {
		s.minute, s.used = now, map[bool]int{}
	}
	s.used[changes]++
	return first(
		s.refuse(s.used[true] > maxAdminWrites, AdminQuota, "Quota exceeded for quota metric 'Table write requests'"),
		s.refuse(s.used[false] > maxAdminReads, AdminQuota, "Quota exceeded for quota metric 'Table read requests'"),
	)
}

// checkBorn refuses requests to a table that is being made.
func (s *server) checkBorn(table string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.born[table]) {
		return status.Errorf(codes.NotFound, "Table not found: %s", table)
	}
	return nil
}

// checkTables refuses a table too many.
func (s *server) checkTables(ctx context.Context, c *front.Call, parent string) error {
	all, err := c.Server.ListTables(ctx, &btapb.ListTablesRequest{Parent: parent})
	if err != nil {
		return err
	}
	return s.refuse(len(all.Tables) >= s.cfg.MaxTables, Tables, "The instance has %d tables, which is the limit", s.cfg.MaxTables)
}

func (s *server) checkUnary(ctx context.Context, c *front.Call) error {
	switch r := c.Request.(type) {
	case *btpb.MutateRowRequest:
		return first(
			s.checkBorn(r.TableName),
			s.checkKey(r.RowKey),
			s.refuse(len(r.Mutations) == 0, EmptyMutation, "No mutations provided"),
			s.refuse(len(r.Mutations) > maxChanges, ManyChanges, "Too many mutations: %d, at most %d are allowed", len(r.Mutations), maxChanges),
			s.checkChanges(ctx, c.Server, r.TableName, r.Mutations),
		)
	case *btpb.CheckAndMutateRowRequest:
		return first(
			s.checkBorn(r.TableName),
			s.checkProfile(r.AppProfileId),
			s.checkKey(r.RowKey),
			s.refuse(len(r.TrueMutations)+len(r.FalseMutations) == 0, EmptyCondition, "No mutations provided"),
			s.refuse(max(len(r.TrueMutations), len(r.FalseMutations)) > maxChanges, ManyChanges, "Too many mutations: at most %d are allowed", maxChanges),
			s.checkFilter(r.PredicateFilter),
			s.checkFilterFamilies(ctx, c.Server, r.TableName, r.PredicateFilter),
			s.checkChanges(ctx, c.Server, r.TableName, r.TrueMutations),
			s.checkChanges(ctx, c.Server, r.TableName, r.FalseMutations),
		)
	case *btpb.ReadModifyWriteRowRequest:
		families := make([]string, len(r.Rules))
		for i, rule := range r.Rules {
			families[i] = rule.FamilyName
		}
		return first(
			s.checkBorn(r.TableName),
			s.checkProfile(r.AppProfileId),
			s.checkKey(r.RowKey),
			s.refuse(len(r.Rules) == 0, EmptyMutation, "No rules provided"),
			s.checkFamilies(ctx, c.Server, r.TableName, UnknownFamily, families...),
		)
	case *btapb.CreateTableRequest:
		return first(
			s.checkAdmin(true),
			s.refuse(!tableName.MatchString(r.TableId) || len(r.TableId) > maxTable, TableName, "Invalid table id %q", r.TableId),
			s.checkTables(ctx, c, r.Parent),
		)
	case *btapb.GetTableRequest, *btapb.ListTablesRequest:
		return s.checkAdmin(false)
	case *btapb.DeleteTableRequest:
		return s.checkAdmin(true)
	case *btapb.ModifyColumnFamiliesRequest:
		if err := s.checkAdmin(true); err != nil {
			return err
		}
		for _, m := range r.Modifications {
			if err := s.refuse(m.GetCreate() != nil && (!familyName.MatchString(m.Id) || len(m.Id) > maxFamily), FamilyName, "Invalid column family id %q", m.Id); err != nil {
				return err
			}
		}
	}
	return nil
}

var (
	tableName  = regexp.MustCompile(`^[_a-zA-Z0-9][-_.a-zA-Z0-9]*$`)
	familyName = regexp.MustCompile(`^[-_.a-zA-Z0-9]+$`)
)

func (s *server) request(ctx context.Context, c *front.Call) error {
	switch r := c.Request.(type) {
	case *btpb.ReadRowsRequest:
		return first(
			s.checkBorn(r.TableName),
			s.checkFilter(r.Filter),
			s.checkFilterFamilies(ctx, c.Server, r.TableName, r.Filter),
			s.refuse(proto.Size(r) > maxReadRequest, ReadSize, "The request has more than %d bytes", maxReadRequest),
		)
	case *btpb.MutateRowsRequest:
		return first(s.checkBorn(r.TableName), s.checkEntries(ctx, c, r))
	case *btpb.SampleRowKeysRequest:
		return s.checkBorn(r.TableName)
	}
	return nil
}

// checkEntries refuses the whole request, or takes the changes out of entries that are to be
// refused. answer then says so.
func (s *server) checkEntries(ctx context.Context, c *front.Call, r *btpb.MutateRowsRequest) error {
	n := 0
	refused := map[int64]error{}
	for i, e := range r.Entries {
		n += len(e.Mutations)
		err := first(
			s.checkKey(e.RowKey),
			s.refuse(len(e.Mutations) == 0, EmptyMutation, "No mutations provided"),
			s.checkChanges(ctx, c.Server, r.TableName, e.Mutations),
		)
		if err != nil {
			refused[int64(i)] = err
		}
	}
	if err := s.refuse(n > maxChanges, ManyChanges, "Too many mutations: %d, at most %d are allowed", n, maxChanges); err != nil || len(refused) == 0 {
		return err
	}
	if len(refused) == len(r.Entries) {
		for _, err := range refused {
			if status.Code(err) == codes.InvalidArgument {
				return err // the emulator refuses a request without any change
			}
		}
	}
	for i := range refused {
		// A delete in a family that no table has.
		e := r.Entries[i]
		e.Mutations = []*btpb.Mutation{{Mutation: &btpb.Mutation_DeleteFromFamily_{DeleteFromFamily: &btpb.Mutation_DeleteFromFamily{}}}}
		if len(e.RowKey) == 0 {
			e.RowKey = []byte("refused")
		}
	}
	c.Note = refused
	return nil
}

func (s *server) answer(ctx context.Context, c *front.Call, answer proto.Message, send func(proto.Message) error) error {
	switch a := answer.(type) {
	case *btpb.ReadRowsResponse:
		if err := s.checkRows(a); err != nil {
			return err
		}
	case *btpb.MutateRowsResponse:
		refused, _ := c.Note.(map[int64]error)
		r, _ := c.Request.(*btpb.MutateRowsRequest)
		for _, e := range a.Entries {
			if err := refused[e.Index]; err != nil {
				e.Status = status.Convert(err).Proto()
			} else if all := r.Entries[e.Index].Mutations; e.Status.GetCode() == 0 && s.repeats(all) {
				if _, err := c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.Entries[e.Index].RowKey, Mutations: all}); err != nil {
					return err
				}
			}
		}
	}
	return send(answer)
}

// checkRows refuses rows that are too large. The emulator sends each row in one answer.
func (s *server) checkRows(a *btpb.ReadRowsResponse) error {
	size := 0
	for _, k := range a.Chunks {
		size += len(k.Value)
	}
	if size <= s.cfg.MaxRow {
		return nil
	}
	return s.refuse(true, RowSize, "Read returned %d bytes from row %q, which exceeds the limit of %d", size, a.Chunks[0].RowKey, s.cfg.MaxRow)
}

func (s *server) checkProfile(id string) error {
	return s.refuse(s.several[id], SingleRow, "Single-row transactions are not allowed by this app profile")
}

func (s *server) checkKey(key []byte) error {
	return s.refuse(len(key) == 0 || len(key) > maxKey, RowKey, "Row keys must have 1 to %d bytes, this one has %d", maxKey, len(key))
}

func (s *server) checkFilter(f *btpb.RowFilter) error {
	if f == nil {
		return nil
	}
	return first(
		s.refuse(proto.Size(f) > maxFilter, FilterSize, "Filters may have %d bytes, this one has %d", maxFilter, proto.Size(f)),
		s.refuse(depth(f) > maxDepth, FilterDepth, "Filters may be nested %d deep", maxDepth),
	)
}

func depth(f *btpb.RowFilter) int {
	n := 0
	for _, sub := range f.GetChain().GetFilters() {
		n = max(n, depth(sub))
	}
	for _, sub := range f.GetInterleave().GetFilters() {
		n = max(n, depth(sub))
	}
	if c := f.GetCondition(); c != nil {
		for _, sub := range []*btpb.RowFilter{c.PredicateFilter, c.TrueFilter, c.FalseFilter} {
			if sub != nil {
				n = max(n, depth(sub))
			}
		}
	}
	return n + 1
}

// checkFilterFamilies refuses column ranges in unknown families.
func (s *server) checkFilterFamilies(ctx context.Context, to front.Server, table string, f *btpb.RowFilter) error {
	if r := f.GetColumnRangeFilter(); r != nil {
		return s.checkFamilies(ctx, to, table, FilterFamily, r.FamilyName)
	}
	for _, all := range [][]*btpb.RowFilter{f.GetChain().GetFilters(), f.GetInterleave().GetFilters()} {
		for _, sub := range all {
			if err := s.checkFilterFamilies(ctx, to, table, sub); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *server) checkChanges(ctx context.Context, to front.Server, table string, all []*btpb.Mutation) error {
	last := ""
	for _, m := range all {
		family, qualifier, value := "", 0, 0
		switch m := m.Mutation.(type) {
		case *btpb.Mutation_SetCell_:
			family, qualifier, value = m.SetCell.FamilyName, len(m.SetCell.ColumnQualifier), len(m.SetCell.Value)
		case *btpb.Mutation_DeleteFromColumn_:
			family, qualifier = m.DeleteFromColumn.FamilyName, len(m.DeleteFromColumn.ColumnQualifier)
		case *btpb.Mutation_DeleteFromFamily_:
			family = m.DeleteFromFamily.FamilyName
		default:
			continue
		}
		if err := first(
			s.refuse(qualifier > maxQualifier, Qualifier, "Qualifiers may have %d bytes, this one has %d", maxQualifier, qualifier),
			s.refuse(value > maxValue, Value, "Values may have %d bytes, this one has %d", maxValue, value),
		); err != nil {
			return err
		}
		if family == last {
			continue
		}
		last = family
		if err := s.checkFamilies(ctx, to, table, UnknownFamily, family); err != nil {
			return err
		}
	}
	return nil
}

// checkFamilies asks the emulator for the families of a table, and remembers them until the
// next change of any table.
func (s *server) checkFamilies(ctx context.Context, to front.Server, table, rule string, names ...string) error {
	if s.without[rule] {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.families[table]
	if known == nil {
		t, err := to.GetTable(ctx, &btapb.GetTableRequest{Name: table})
		if err != nil {
			return nil //nolint:nilerr // the emulator refuses the request itself
		}
		known = map[string]bool{}
		for name := range t.ColumnFamilies {
			known[name] = true
		}
		if s.families == nil {
			s.families = map[string]map[string]bool{}
		}
		s.families[table] = known
	}
	for _, name := range names {
		if err := s.refuse(!known[name], rule, "Requested column family not found = %s", name); err != nil {
			return err
		}
	}
	return nil
}
