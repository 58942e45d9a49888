// Package bulkprewrite allows transactions to lock the rows of an existing table in bulk.
package bulkprewrite

import (
	"cmp"
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Allow lets transactions lock the rows of an existing table in bulk, which takes fewer
// requests from four rows on. It changes the format version of the table's schema record, and
// cannot be undone, except by admin.Leave.
//
// Upgrade all clients before, those that only read included: a client of an older release that has
// the table open could read wrong data. Allow fails with txn.ErrFormatVersion while the
// worker token of such a client is fresh. Clients without a token, which never write or have a
// negative Config.TokenTTL, it cannot see.
//
// Allow takes two minutes: first it announces the property, so that clients of this release expect
// such locks. After an error, call it again. The client needs Config.Admin: Allow creates a family,
// format.BulkFamily, which keeps the property if the schema record is lost.
func Allow(ctx context.Context, client *txn.Client, table string) error {
	c := access.ResolverOf(client)
	if c.Store.Config.Admin == nil {
		return fmt.Errorf("bulkprewrite: %w: set Config.Admin", format.ErrInvalid)
	}
	t, err := c.Table(ctx, table)
	if err != nil {
		return err
	}
	if err := t.Schema.Reload(ctx); err != nil || t.Schema.AllowsBulk(format.Never) {
		return err
	}
	if err := checkTokens(ctx, c, table); err != nil {
		return err
	}
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	allowed, from := false, int64(0)
	err = replace(ctx, c, table, func(m *recordpb.TableSchema) error {
		if m.BulkPrewriteFromTs == 0 {
			m.BulkPrewriteFromTs = int64(now)
		}
		allowed, from = m.BulkPrewrite, m.BulkPrewriteFromTs
		return nil
	})
	if allowed || err != nil {
		return err
	}
	// In real time: that of the oracle may jump.
	if store.Sleep(ctx, 2*store.SchemaNotice) != nil {
		return store.Ended(ctx, fmt.Sprintf("bulkprewrite: waiting until all clients know of it in table %q", table), nil)
	}
	// A client of an older release may have come meanwhile.
	if err := checkTokens(ctx, c, table); err != nil {
		return err
	}
	if err := families.Create(ctx, c.Store.Config.Admin, table, []string{format.BulkFamily}); err != nil {
		return err
	}
	err = replace(ctx, c, table, func(m *recordpb.TableSchema) error {
		if m.BulkPrewriteFromTs != from {
			return fmt.Errorf("bulkprewrite: table %q was replaced meanwhile; call Allow again", table)
		}
		m.BulkPrewrite = true
		return nil
	})
	if err != nil {
		return err
	}
	return t.Schema.Reload(ctx)
}

// replace edits the schema record of a table. The edit of one record is sent once, and does nothing to
// another one, however late it arrives.
func replace(ctx context.Context, c *recovery.Resolver, table string, edit func(*recordpb.TableSchema) error) error {
	return store.ReplaceSchema(ctx, c.Metadata.API, c.Metadata.Name, table, c.Store.Config.RPCTimeout, func(m *recordpb.TableSchema) error {
		if m.FormatVersion == 0 {
			return fmt.Errorf("bulkprewrite: table %q: %w", table, format.ErrNotInitialized)
		}
		return edit(m)
	})
}

// checkTokens fails if a client of an older release is alive.
func checkTokens(ctx context.Context, c *recovery.Resolver, table string) error {
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	var old error
	err = c.MetadataRows(ctx, recovery.TokenRowPrefix, recovery.TokenQualifier, func(r bigtable.Row, _ []byte) (bool, error) {
		w, ok := recovery.DecodeToken(r)
		if ok && tso.Timestamp(w.ExpiresTs) > now && w.SchemaVersion < format.BulkVersion {
			old = fmt.Errorf("bulkprewrite: table %q: %w: process %d on %s runs a release that does not know bulk prewrites; upgrade all clients first", table, format.ErrFormatVersion, w.Pid, w.Host)
		}
		return old == nil, nil
	})
	return cmp.Or(old, err)
}
