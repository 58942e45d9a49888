package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// SetExpiry sets how long the values of a family last: reads do not show a value whose commit
// is as old as after, or older, by the read's timestamp. Garbage collection removes such values
// later. With 0, they last without limit.
//
// Running clients notice the change up to Config.SchemaMaxAge later. Until then, and in
// transactions and snapshots that are open, they may show other values than clients that know
// it. If the expiry becomes longer, expired values come back, except those that are so old that
// garbage collection may have removed some of them.
//
// SetExpiry fails with txn.ErrSchema if the table does not have the family, or if an index is on
// one of its columns or has its entries there.
func SetExpiry(ctx context.Context, client *txn.Client, table, family string, after time.Duration) error {
	if after != 0 && after < time.Second {
		return invalidf("expiry %v of family %q; set it to at least a second, or to 0 for none", after, family)
	}
	c := access.ResolverOf(client)
	t, err := c.Table(ctx, table)
	if err != nil {
		return err
	}
	if err := checkEntries(ctx, c.Metadata, table, family); after != 0 && err != nil {
		return err
	}
	err = store.ReplaceSchema(ctx, c.Metadata.API, c.Metadata.Name, table, c.Store.Config.RPCTimeout, func(m *recordpb.TableSchema) error {
		if !slices.Contains(m.Families, family) {
			return fmt.Errorf("admin: table %q: %w: it has no family %q", table, format.ErrSchema, family)
		}
		if int64(store.ExpiriesOf(m)[family].After) == after.Microseconds() {
			return nil
		}
		// The timestamp and the safe point are from just before the record is replaced. Garbage
		// collection relies on the expiry only a retention later or more, and no collector works
		// with a later safe point by then.
		now, err := c.Clock.Timestamp(ctx)
		if err != nil {
			return err
		}
		point, _, err := c.SafePoint.ReadRecord(ctx)
		if err != nil {
			return err
		}
		store.EndExpiry(m, family, point, now)
		if after == 0 {
			return nil
		}
		for _, i := range m.Indexes {
			for _, column := range i.Columns {
				if column.Family == family {
					return fmt.Errorf("admin: table %q: %w: the values of family %q cannot expire, because index %s is on its column %s", table, format.ErrSchema, family, i.Name, store.IndexOf(i).Columns[0])
				}
			}
		}
		m.Expiries = append(m.Expiries, &recordpb.FamilyExpiry{Family: family, AfterMicros: after.Microseconds(), SinceTs: int64(now)})
		return nil
	})
	if err != nil {
		return err
	}
	return t.Schema.Reload(ctx)
}

// checkEntries fails if the entries of an index are in a family.
func checkEntries(ctx context.Context, meta *store.Table, table, family string) error {
	name, err := indexWith(ctx, meta, func(entries string) bool { return entries == table+"/"+family })
	if err == nil && name != "" {
		err = fmt.Errorf("admin: table %q: %w: the values of family %q cannot expire, because they are the entries of index %s", table, format.ErrSchema, family, name)
	}
	return err
}

// indexWith returns the name of an index of any table whose place of entries (TABLE/FAMILY)
// matches, or "".
func indexWith(ctx context.Context, meta *store.Table, match func(entries string) bool) (name string, err error) {
	readErr := meta.ReadRows(ctx, bigtable.PrefixRange(store.SchemaRowPrefix), func(r bigtable.Row) bool {
		var m recordpb.TableSchema
		for _, item := range r[store.DeployFamily] {
			if err = proto.Unmarshal(item.Value, &m); err != nil {
				err = fmt.Errorf("admin: %w: row %q of the metadata table does not parse: %w", format.ErrCorrupt, r.Key(), err)
			}
		}
		for _, i := range m.Indexes {
			if match(i.Entries) {
				name = i.Name
			}
		}
		return err == nil && name == ""
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, store.SchemaQualifier))))
	return name, cmp.Or(readErr, err)
}

// expiryOf translates a garbage-collection policy: how long the newest value of a cell lasts
// under it; 0 if without limit. A limit of versions never removes the newest.
func expiryOf(r *recordpb.GCRule) (micros int64) {
	switch {
	case r.GetMaxAgeMicros() > 0:
		return r.GetMaxAgeMicros()
	case len(r.GetUnion()) > 0:
		for _, child := range r.GetUnion() {
			if x := expiryOf(child); x > 0 && (micros == 0 || x < micros) {
				micros = x
			}
		}
	case len(r.GetIntersection()) > 0:
		for _, child := range r.GetIntersection() {
			x := expiryOf(child)
			if x == 0 {
				return 0
			}
			micros = max(micros, x)
		}
	}
	return micros
}

// withoutExpiry returns what is left of a policy if the newest value of a cell stays without
// limit; nil if nothing is left.
func withoutExpiry(r *recordpb.GCRule) *recordpb.GCRule {
	switch {
	case r == nil, r.MaxAgeMicros > 0:
		return nil
	case expiryOf(r) == 0:
		return r
	case len(r.Intersection) > 0:
		return &recordpb.GCRule{Intersection: append([]*recordpb.GCRule{{MaxVersions: 1}}, r.Intersection...)}
	}
	var rest []*recordpb.GCRule
	for _, child := range r.Union {
		if child = withoutExpiry(child); child != nil {
			rest = append(rest, child)
		}
	}
	if len(rest) < 2 {
		return append(rest, nil)[0]
	}
	return &recordpb.GCRule{Union: rest}
}

// expiriesOf translates the policies that an adoption clears.
func expiriesOf(prior []*recordpb.PriorPolicy, since int64) (expiries []*recordpb.FamilyExpiry) {
	for _, p := range prior {
		if x := expiryOf(p.Rule); x > 0 && !slices.Contains(format.MetadataFamilies, p.Family) {
			expiries = append(expiries, &recordpb.FamilyExpiry{Family: p.Family, AfterMicros: x, SinceTs: since})
		}
	}
	return expiries
}
