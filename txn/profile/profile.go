// Package profile sends the requests of chosen transactions through another app profile of
// Bigtable, for example one with a low priority for batch work:
//
//	batch := profile.New(low) // a *bigtable.Client with another ClientConfig.AppProfile
//	client, err := txn.NewClient(ctx, profile.Tables(bt), txn.Config{})
//	…
//	_, err = client.Update(batch.Context(ctx), func(ctx context.Context, tx *txn.Txn) error { …
//
// A *bigtable.Client has one app profile, so each further one needs a client of its own, which
// the caller closes after the txn.Client. All of them must be of the same instance, and every app
// profile must route to the same single cluster and allow single-row transactions. With another
// cluster, reads would miss commits.
//
// The context decides: a transaction, a snapshot's read, a job or an observer uses the app profile
// of the context it is given. What a client does for all its transactions together keeps the
// usual one: questions to the oracle, and commits of secondaries in the background.
package profile

import (
	"context"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Profile is an app profile for some requests. It may be used concurrently, and by several
// clients.
type Profile struct {
	tables txn.Tables

	mu   sync.Mutex
	open map[string]bigtable.TableAPI
}

// New returns a Profile whose requests go through tables.
func New(tables txn.Tables) *Profile {
	return &Profile{tables: tables, open: map[string]bigtable.TableAPI{}}
}

type key struct{}

// Context returns a context in which requests go through p. It has an effect only on clients over
// [Tables]. In the context of a nil *Profile, requests go the usual way.
func (p *Profile) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, key{}, p)
}

func (p *Profile) table(name string) bigtable.TableAPI {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.open[name]
	if t == nil {
		t = p.tables.OpenTable(name)
		p.open[name] = t
	}
	return t
}

// Tables returns tables for txn.NewClient. A request goes through the Profile of its context, and
// else through usual.
func Tables(usual txn.Tables) txn.Tables { return chooser{usual} }

type chooser struct{ usual txn.Tables }

func (c chooser) OpenTable(name string) bigtable.TableAPI {
	return &table{name, c.usual.OpenTable(name)}
}

type table struct {
	name  string
	usual bigtable.TableAPI
}

func (t *table) of(ctx context.Context) bigtable.TableAPI {
	if p, _ := ctx.Value(key{}).(*Profile); p != nil {
		return p.table(t.name)
	}
	return t.usual
}

func (t *table) ReadRows(ctx context.Context, rows bigtable.RowSet, f func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	return t.of(ctx).ReadRows(ctx, rows, f, opts...)
}

func (t *table) ReadRow(ctx context.Context, row string, opts ...bigtable.ReadOption) (bigtable.Row, error) {
	return t.of(ctx).ReadRow(ctx, row, opts...)
}

func (t *table) SampleRowKeys(ctx context.Context) ([]string, error) {
	return t.of(ctx).SampleRowKeys(ctx)
}

func (t *table) Apply(ctx context.Context, row string, m *bigtable.Mutation, opts ...bigtable.ApplyOption) error {
	return t.of(ctx).Apply(ctx, row, m, opts...)
}

func (t *table) ApplyBulk(ctx context.Context, keys []string, muts []*bigtable.Mutation, opts ...bigtable.ApplyOption) ([]error, error) {
	return t.of(ctx).ApplyBulk(ctx, keys, muts, opts...)
}

func (t *table) ApplyReadModifyWrite(ctx context.Context, row string, m *bigtable.ReadModifyWrite) (bigtable.Row, error) {
	return t.of(ctx).ApplyReadModifyWrite(ctx, row, m)
}
