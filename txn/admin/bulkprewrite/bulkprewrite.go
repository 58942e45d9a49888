// Package bulkprewrite allows transactions to lock the rows of an existing table in bulk.
package bulkprewrite

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Allow lets transactions lock the rows of an existing table in bulk, which takes fewer
// requests from three rows on. It changes the format version of the table's schema record, and
// cannot be undone, except by admin.Leave.
//
// Upgrade all clients before, those that only read included: a client of an older release that has
// the table open could read wrong data. Allow fails with txn.ErrFormatVersion while the
// worker token of such a client is fresh, but clients that only read have no token. Clients of this
// release learn of the change within Config.SchemaMaxAge. So bulk prewrites begin wait from now on
// (0: admin.DefaultUndoWait), but at least twice the longest SchemaMaxAge of all worker tokens. from is
// that time; if it is set already, it stays.
func Allow(ctx context.Context, client *txn.Client, table string, wait time.Duration) (from tso.Timestamp, err error) {
	if wait < 0 {
		return 0, format.Invalidf("wait of %v; it must not be negative", wait)
	}
	if wait == 0 {
		wait = admin.DefaultUndoWait
	}
	c := access.ResolverOf(client)
	t, err := c.Table(ctx, table)
	if err != nil {
		return 0, err
	}
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	wait = max(wait, 2*c.Store.Config.SchemaMaxAge)
	var old error
	err = c.MetadataRows(ctx, recovery.TokenRowPrefix, recovery.TokenQualifier, func(r bigtable.Row, _ []byte) (bool, error) {
		w, ok := recovery.DecodeToken(r)
		if !ok || tso.Timestamp(w.ExpiresTs) <= now {
			return true, nil
		}
		if w.SchemaVersion < format.BulkVersion {
			old = fmt.Errorf("bulkprewrite: table %q: %w: process %d on %s runs a release that does not know bulk prewrites; upgrade all clients first", table, format.ErrFormatVersion, w.Pid, w.Host)
		}
		wait = max(wait, 2*time.Duration(w.SchemaMaxAgeMicros)*time.Microsecond)
		return true, nil
	})
	if err = cmp.Or(old, err); err != nil {
		return 0, err
	}
	err = store.ReplaceSchema(ctx, c.Metadata.API, c.Metadata.Name, table, c.Store.Config.RPCTimeout, func(m *recordpb.TableSchema) error {
		if m.FormatVersion == 0 {
			return fmt.Errorf("bulkprewrite: table %q: %w", table, format.ErrNotInitialized)
		}
		if m.BulkPrewriteFromTs == 0 {
			// The timestamp is from just before the record is replaced.
			now, err := c.Clock.Timestamp(ctx)
			if err != nil {
				return err
			}
			// A client may replace the record up to Config.RPCTimeout later.
			m.BulkPrewriteFromTs = int64(now) + (wait + c.Store.Config.RPCTimeout).Microseconds()
			store.SetSchemaVersion(m)
		}
		from = tso.Timestamp(m.BulkPrewriteFromTs)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return from, t.Schema.Reload(ctx)
}
