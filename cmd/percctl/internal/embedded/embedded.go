// Package embedded is a Bigtable for trying percctl: an emulator inside the
// process with a small deployment, new for each command.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Where percctl finds it.
const (
	Project  = "embedded"
	Instance = "embedded"
)

// What is in it, for help texts.
const Contents = `transactional tables accounts and journal, locks of two clients that died in the
middle of a commit, and a table legacy that is not transactional`

// Start starts the emulator and fills it. Close it when done.
func Start(ctx context.Context, metadataTable string) (*Deployment, error) {
	emulator, err := txntest.StartEmulator("")
	if err != nil {
		return nil, err
	}
	d := &Deployment{dial: emulator.Dial, project: Project, instance: Instance, metadataTable: metadataTable, ago: time.Hour, closers: []func(){emulator.Close}}
	bt, adminClient, err := d.Open(ctx)
	if err == nil {
		if err = legacy(ctx, bt, adminClient); err == nil {
			err = d.fill(ctx, bt, adminClient, txn.Column{Family: "bal", Qualifier: "usd"})
		}
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("filling the embedded emulator: %w", err)
	}
	return d, nil
}

// Strand makes the tables accounts and journal, with locks of two clients that died in the
// middle of a commit some time ago, in a deployment that exists.
func Strand(ctx context.Context, dial Dialer, project, instance string, ago time.Duration) error {
	d := &Deployment{dial: dial, project: project, instance: instance, ago: ago}
	defer d.Close()
	bt, adminClient, err := d.Open(ctx)
	if err != nil {
		return err
	}
	return d.fill(ctx, bt, adminClient)
}

// A Dialer connects to an emulator.
type Dialer func(...grpc.DialOption) (*grpc.ClientConn, error)

// A Deployment is a started emulator.
type Deployment struct {
	dial              Dialer
	project, instance string
	metadataTable     string
	ago               time.Duration // when the clients died
	closers           []func()
	last              atomic.Int64 // timestamps that were handed out
}

// Close closes all clients and the emulator.
func (d *Deployment) Close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
}

// Open opens clients over a connection of their own. Close closes them.
func (d *Deployment) Open(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, error) {
	conn, err := d.dial(opts...)
	if err != nil {
		return nil, nil, err
	}
	bt, adminClient, err := txntest.Open(ctx, conn, d.project, d.instance)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	d.closers = append(d.closers, func() {
		_ = bt.Close()
		_ = adminClient.Close()
		_ = conn.Close()
	})
	return bt, adminClient, nil
}

// Timestamp hands out timestamps of the past, a second apart: what dead clients leave is past
// its ttl at once.
func (d *Deployment) Timestamp(context.Context) (tso.Timestamp, error) {
	return tso.FromTime(time.Now().Add(-d.ago).Truncate(time.Second)) + tso.Timestamp(d.last.Add(1)*1_000_000), nil
}

func (d *Deployment) fill(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient, observed ...txn.Column) error {
	for _, spec := range []admin.TableSpec{
		{Name: "accounts", Families: []string{"bal", "info"}, Observed: observed},
		{Name: "journal", Families: []string{"entry"}},
	} {
		if err := admin.InitTable(ctx, adminClient, bt, d.metadataTable, spec); err != nil {
			return err
		}
	}
	for _, w := range []struct {
		diesAt txntest.Step
		cells  []string
	}{
		{"", []string{"accounts/ann/bal:usd=20", "accounts/bob/bal:usd=10", "accounts/ann/info:name=Ann", "accounts/bob/info:name=Bob"}},
		{"", []string{"accounts/bob/bal:usd=7", "accounts/joe/bal:usd=3", "journal/1/entry:text=bob pays 3 to joe"}},
		{txntest.StepSecondaries, []string{"accounts/ann/bal:usd=15", "accounts/joe/bal:usd=8", "journal/2/entry:text=ann pays 5 to joe"}},
		{txntest.StepCommit, []string{"accounts/bob/bal:usd=1", "accounts/eve/bal:usd=6", "journal/3/entry:text=bob pays 6 to eve"}},
	} {
		if err := d.write(ctx, w.diesAt, w.cells); err != nil {
			return err
		}
	}
	return nil
}

// legacy makes a table that is not transactional.
func legacy(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient) error {
	if err := adminClient.CreateTable(ctx, "legacy"); err != nil {
		return err
	}
	if err := adminClient.CreateColumnFamily(ctx, "legacy", "cf"); err != nil {
		return err
	}
	for i := range 20 {
		m := bigtable.NewMutation()
		m.Set("cf", "name", bigtable.Now(), fmt.Appendf(nil, "user %d", i))
		if err := bt.Open("legacy").Apply(ctx, fmt.Sprintf("user/%02d", i), m); err != nil {
			return err
		}
	}
	return nil
}

// write commits cells, written cell=value, in one transaction; its client dies
// before the step diesAt, "" for never.
func (d *Deployment) write(ctx context.Context, diesAt txntest.Step, cells []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	life := &life{diesAt: diesAt, died: cancel}
	bt, _, err := d.Open(ctx, txntest.ChooseFaults(life.choose).DialOptions()...)
	if err != nil {
		return err
	}
	c, err := txn.NewClient(ctx, bt, txn.Config{MetadataTable: d.metadataTable, Oracle: d, SyncSecondaries: true, TokenTTL: -1})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	_, err = c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for _, assignment := range cells {
			name, value, _ := strings.Cut(assignment, "=")
			cell, err := format.ParseCell(name)
			if err != nil {
				return err
			}
			tx.Table(cell.Table).Set(cell.Row, cell.Family, cell.Qualifier, []byte(value))
		}
		return nil
	})
	if life.dead.Load() {
		return nil
	}
	return err
}

// life ends a client at a step of the protocol: from then on nothing that it
// sends arrives.
type life struct {
	diesAt txntest.Step
	dead   atomic.Bool
	died   func()
}

func (l *life) choose(c txntest.Call) (txntest.Action, time.Duration, bool) {
	if l.diesAt != "" && txntest.Classify(c.Method, c.Request).Step == l.diesAt {
		l.dead.Store(true)
		l.died()
	}
	return txntest.Crash, 0, l.dead.Load()
}
