package consolecmd

import (
	"context"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
)

// A source is what pages are made of.
type source interface {
	Picture(context.Context) (*picture.Picture, error)
	Timeline(ctx context.Context, table, row string) ([]readcmd.Event, error)
}

// fresh is how long one picture serves every load of the page.
const fresh = time.Second

// live takes pictures, each once for all who ask at the same time.
type live struct {
	keeper  *picture.Keeper
	options picture.Options

	mu    sync.Mutex
	last  *picture.Picture
	taken time.Time
}

func (l *live) Picture(ctx context.Context) (*picture.Picture, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil && time.Since(l.taken) < fresh {
		return l.last, nil
	}
	p, err := l.keeper.Picture(ctx, l.options)
	if err != nil {
		return nil, err
	}
	p.Since(l.last)
	l.last, l.taken = p, time.Now()
	return p, nil
}

func (l *live) Timeline(ctx context.Context, table, row string) (events []readcmd.Event, err error) {
	err = l.keeper.Do(ctx, func(ctx context.Context, s *session.Session) (err error) {
		events, err = readcmd.Timeline(ctx, s, table, row)
		return err
	})
	return events, err
}
