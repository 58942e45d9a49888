package gc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// inFlight counts the scans of table a that a client has begun and not ended.
type inFlight struct {
	mu        sync.Mutex
	now, most int
}

func (f *inFlight) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += n
	f.most = max(f.most, f.now)
}

func (f *inFlight) option() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &counted{ClientStream: s, of: f}, err
	})
}

type counted struct {
	grpc.ClientStream
	of    *inFlight
	scans bool
}

func (s *counted) SendMsg(m any) error {
	if r, ok := m.(*btpb.ReadRowsRequest); ok && len(r.GetRows().GetRowRanges()) > 0 && r.TableName[len(r.TableName)-2:] == "/a" {
		s.scans = true
		s.of.add(1)
	}
	return s.ClientStream.SendMsg(m)
}

func (s *counted) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && s.scans {
		s.scans = false
		s.of.add(-1)
	}
	return err
}

// TestScansAtATime: a run that reads every row reads all tablets at once if nobody waits for that, and few
// if requests for single rows take twice as long, because they share one node.
func TestScansAtATime(t *testing.T) {
	long.RacedAtNight(t)
	const tablets = 64
	for _, tt := range []struct{ nodes, least, most int }{{tablets, 16, 16}, {1, 1, 4}} {
		t.Run(fmt.Sprintf("%d nodes", tt.nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := model.New(model.Config{Nodes: tt.nodes, Tables: map[string]model.Table{"a": {Bytes: tablets * 220e6 * 3, Splits: model.HexSplits("", tablets)}}})
				env := newTable(t)
				for i := range tablets {
					set(t, env.Client, fmt.Sprintf("%02x800000", i*256/tablets), "1")
				}
				<-time.After(retention + time.Minute)
				var f inFlight
				c := env.NewClient(txn.Config{TokenTTL: -1}, append([]grpc.DialOption{f.option()}, cluster.Client("collector")...)...)
				r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention})
				if err != nil || !r.Finished || r.Total.Rows != tablets {
					t.Fatalf("%+v, %v", r, err)
				}
				if f.most < tt.least || f.most > tt.most || f.now != 0 {
					t.Errorf("%d scans at a time, %d left, want %d to %d; it took %v", f.most, f.now, tt.least, tt.most, r.Elapsed)
				}
				// A pass takes 3 s of node time for each tablet, twice. The fence takes 2 minutes.
				if all := time.Duration(tablets/min(tt.nodes, 16)) * 6 * time.Second; r.Elapsed > 2*time.Minute+all*5/4+10*time.Second {
					t.Errorf("it took %v, want about %v after the fence", r.Elapsed, all)
				}
			})
		})
	}
}

// TestScansWhileTabletsAreAway: scans of tablets that do not answer keep no other one waiting, although there are
// more of them than may scan at a time. Neither do the missing answers allow more scans.
func TestScansWhileTabletsAreAway(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		const tablets, away, outage = 64, 8, 20 * time.Minute
		cluster := model.New(model.Config{Nodes: 1, Tables: map[string]model.Table{"a": {Bytes: tablets * 220e6 * 3, Splits: model.HexSplits("", tablets)}}})
		env := newTable(t)
		for i := range tablets {
			set(t, env.Client, fmt.Sprintf("%02x800000", i*256/tablets), "1")
		}
		<-time.After(retention + time.Minute)
		var f inFlight
		c := env.NewClient(txn.Config{TokenTTL: -1}, append([]grpc.DialOption{f.option()}, cluster.Client("collector")...)...)
		var once sync.Once
		var back time.Time
		during := -1 // parts that are left just before the tablets are back
		var scans int
		r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseLocks {
				once.Do(func() {
					for i := range away {
						cluster.Away("a", fmt.Sprintf("%02x8", i*256/tablets), outage)
					}
					back = time.Now().Add(outage)
					time.AfterFunc(outage-time.Second, func() {
						s := readStatus(t, env)
						during, scans = s.Run.Parts, s.Run.Collectors[0].Scans
					})
				})
			}
		}})
		if err != nil || !r.Finished || r.Total.Rows != tablets || !time.Now().After(back) {
			t.Fatalf("%+v, %v", r, err)
		}
		if during != away || scans < 1 || scans > 4 || f.most > away+4 {
			t.Errorf("%d parts left while the tablets are away, want %d; %d scans at a time allowed then, and %d at most", during, away, scans, f.most)
		}
	})
}
