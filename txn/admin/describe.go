package admin

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A TableDescription is what a table's schema record says.
type TableDescription struct {
	Name          string
	FormatVersion uint32
	// Families are the user's families when the record was written.
	Families []string
	// Observed are the observed columns.
	Observed []changes.ObservedColumn
	// AdoptedTS is the oracle time of the table's adoption; 0 if [InitTable] made it
	// transactional.
	AdoptedTS tso.Timestamp
	// Expiries are how long the values of families last; nil without any limit.
	Expiries map[string]time.Duration
}

// Describe reads a table's schema record. It does not read the table itself. It
// fails with txn.ErrNotInitialized if there is no record, and with
// txn.ErrFormatVersion or txn.ErrCorrupt if it cannot read it.
func Describe(ctx context.Context, client *txn.Client, table string) (TableDescription, error) {
	return describe(ctx, access.ResolverOf(client), table)
}

func describe(ctx context.Context, c *recovery.Resolver, table string) (TableDescription, error) {
	d := TableDescription{Name: table}
	row, err := c.Metadata.ReadRow(ctx, store.SchemaRowPrefix+table, store.Interleave(store.ExactColumn(store.DeployFamily, store.SchemaQualifier)))
	if err != nil {
		return d, err
	}
	if len(row[store.DeployFamily]) == 0 {
		return d, fmt.Errorf("admin: table %q: %w: it has no schema record in metadata table %q; run `percctl table init %s` or admin.InitTable", table, format.ErrNotInitialized, c.Metadata.Name, table)
	}
	value := row[store.DeployFamily][0].Value
	var m recordpb.TableSchema
	if err := proto.Unmarshal(value, &m); err != nil {
		return d, fmt.Errorf("admin: table %q: %w: its schema record does not parse: %w", table, format.ErrCorrupt, err)
	}
	d.FormatVersion, d.AdoptedTS, d.Families = m.FormatVersion, tso.Timestamp(m.AdoptedTs), m.Families
	for _, o := range m.Observed {
		d.Observed = append(d.Observed, changes.ObservedColumn{Table: table, Column: store.ColumnOf(o), Observers: o.Observers, Weak: o.Weak})
	}
	for _, x := range m.Expiries {
		if d.Expiries == nil {
			d.Expiries = map[string]time.Duration{}
		}
		d.Expiries[x.Family] = format.Micros(x.AfterMicros)
	}
	_, err = store.DecodeSchema(table, value)
	return d, err
}

// UnfinishedAdoptions lists the tables whose adoption, the undo of one, or [Leave] was
// interrupted or is still running; true: Leave.
func UnfinishedAdoptions(ctx context.Context, client *txn.Client) (map[string]bool, error) {
	c := access.ResolverOf(client)
	leaving := map[string]bool{}
	err := c.Metadata.ReadRows(ctx, bigtable.PrefixRange(adoptionRowPrefix), func(r bigtable.Row) bool {
		leaving[r.Key()[len(adoptionRowPrefix):]] = slices.ContainsFunc(r[store.DeployFamily], func(i bigtable.ReadItem) bool { return i.Column == store.DeployFamily+":"+leavingQualifier })
		return true
	}, bigtable.RowFilter(store.Interleave(store.Chain(store.WholeFamily(store.DeployFamily), bigtable.StripValueFilter()))))
	return leaving, err
}

// A RawWrite is a cell that a plain writer wrote into a table after it became
// transactional.
type RawWrite struct {
	Cell format.Cell
	// At is the cell's own timestamp, in microseconds.
	At tso.Timestamp
	// Since is an earlier time at which the table was transactional: its adoption,
	// or the first stored commit of the column.
	Since tso.Timestamp
	// Hidden is set if a transaction has committed the column. Then no transaction
	// sees the raw write. Otherwise all transactions see it, even those that began
	// before it, so that their reads are not repeatable.
	Hidden bool
}

// RawWrites iterates over the raw writes in rows of a table (nil: all rows), in
// order of row keys. It finds plain cells whose timestamps are later than the
// table's adoption, or than a commit of the same column. It relies on the clocks of
// the writers, which set these timestamps. [InitTable] records no time: in tables
// that it made transactional, RawWrites finds nothing in columns without a commit.
func RawWrites(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[RawWrite, error] {
	c := access.ResolverOf(client)
	return func(yield func(RawWrite, error) bool) {
		d, err := describe(ctx, c, table)
		if err != nil {
			yield(RawWrite{}, err)
			return
		}
		filter := func(t *store.Table) bigtable.Filter {
			var data []bigtable.Filter
			for _, f := range t.Schema.Current().DataFamilies() {
				data = append(data, store.WholeFamily(f))
			}
			return store.Interleave(
				store.Chain(store.AnyOf(data), bigtable.TimestampRangeFilterMicros(0, format.PlainBefore), bigtable.StripValueFilter()),
				store.Chain(store.WholeFamily(format.WriteFamily), bigtable.StripValueFilter()),
			)
		}
		err = c.Pages(ctx, table, rs, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				for _, w := range rawWrites(t, raw, d.AdoptedTS) {
					if !yield(w, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(RawWrite{}, err)
		}
	}
}

func rawWrites(t *store.Table, raw bigtable.Row, adopted tso.Timestamp) (found []RawWrite) {
	first := map[string]tso.Timestamp{} // the first commit by column
	for _, item := range raw[format.WriteFamily] {
		key := item.Column[len(format.WriteFamily)+1:]
		if ts := tso.FromCell(item.Timestamp); first[key] == 0 || ts < first[key] {
			first[key] = ts
		}
	}
	for family, items := range raw {
		if format.IsMetadataFamily(family) {
			continue
		}
		for _, item := range items {
			since, committed := first[item.Column]
			if adopted > 0 && (!committed || adopted < since) {
				since = adopted
			}
			if at := tso.Timestamp(item.Timestamp); since > 0 && at > since {
				col, _ := format.SplitColumn(item.Column)
				found = append(found, RawWrite{format.Cell{Table: t.Name, Row: raw.Key(), Family: col.Family, Qualifier: col.Qualifier}, at, since, committed})
			}
		}
	}
	slices.SortFunc(found, func(a, b RawWrite) int {
		return cmp.Or(strings.Compare(a.Cell.Column().Key(), b.Cell.Column().Key()), cmp.Compare(a.At, b.At))
	})
	return found
}

// Tables lists the transactional tables of the deployment.
func Tables(ctx context.Context, client *txn.Client) ([]string, error) {
	c := access.ResolverOf(client)
	return c.TableNames(ctx)
}
