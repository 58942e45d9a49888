package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// leader returns a service that leads, with oracle time ahead of the clock, and its log. The context is
// of one connection.
func leader(t *testing.T, ahead time.Duration) (*service, context.Context, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	s, err := New(nil, Config{Name: "a", Address: "here", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.service.alloc.log = slog.New(slog.DiscardHandler) // its timer may run later
	now := tso.FromTime(time.Now())
	s.service.alloc.begin(1, now.Add(ahead)-1)
	s.service.alloc.lead(tso.Max)
	return s.service, conns{s.service.limit}.TagConn(t.Context(), &stats.ConnTagInfo{}), &log
}

// TestPaceOfRequests: the answer waits as long as the limits say, or until the request ends; a request
// that would wait too long is refused, which is logged once a minute. Only a leader waits.
func TestPaceOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx, log := leader(t, allAhead*time.Microsecond+time.Minute)
		timed := func(ctx context.Context, count tso.Timestamp, want time.Duration, code codes.Code) {
			t.Helper()
			began := time.Now()
			if err := s.pace(ctx, count); status.Code(err) != code || time.Since(began) != want {
				t.Errorf("%d: %v after %v; want %v after %v", count, err, time.Since(began), code, want)
			}
		}
		timed(ctx, tso.MaxCount, 0, codes.OK)
		timed(ctx, 1000, 2*time.Millisecond, codes.OK) // half of what the clock makes
		timed(ctx, tso.MaxCount, 200*time.Millisecond, codes.OK)
		held, leave := context.WithTimeout(ctx, time.Millisecond)
		defer leave()
		timed(held, tso.MaxCount, time.Millisecond, codes.DeadlineExceeded)
		timed(ctx, tso.MaxCount, 0, codes.ResourceExhausted)
		timed(ctx, tso.MaxCount, 0, codes.ResourceExhausted)
		ended, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		timed(ended, 1000, time.Millisecond, codes.DeadlineExceeded)
		if n := strings.Count(log.String(), "limit=rate"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log)
		}
		<-time.After(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute - 1)))
		s.refused("rate")
		if n := strings.Count(log.String(), "limit=rate"); n != 1 {
			t.Errorf("%d warnings in a minute:\n%s", n, log)
		}
		<-time.After(1)
		for range 2 {
			s.refused("rate")
		}
		if n := strings.Count(log.String(), "limit=rate"); n != 2 {
			t.Errorf("%d warnings after a minute:\n%s", n, log)
		}
		s.alloc.lose(nil)
		timed(ctx, 100*clientAhead, 0, codes.OK)
	})
}

// A talk is the server's side of a stream. Its client sends requests, and then ends it with an error or
// waits. It takes so many messages.
type talk[Res any] struct {
	grpc.ServerStream
	ctx   context.Context
	asks  []*tsopb.TimestampsRequest
	end   error
	takes int
	got   []*Res
}

var errBroken = errors.New("the connection is broken")

func (s *talk[Res]) Context() context.Context { return s.ctx }

func (s *talk[Res]) RecvMsg(m any) error {
	if len(s.asks) == 0 {
		return s.end
	}
	req := m.(*tsopb.TimestampsRequest)
	req.FormatVersion, req.Count = s.asks[0].FormatVersion, s.asks[0].Count
	s.asks = s.asks[1:]
	return nil
}

func (s *talk[Res]) Recv() (*tsopb.TimestampsRequest, error) { panic("not used") }

func (s *talk[Res]) SendMsg(any) error { return s.Send(nil) }

func (s *talk[Res]) Send(m *Res) error {
	if len(s.got) == s.takes {
		return errBroken
	}
	s.got = append(s.got, m)
	return nil
}

// TestEndsOfTimestamps: how a stream of requests ends.
func TestEndsOfTimestamps(t *testing.T) {
	one := &tsopb.TimestampsRequest{FormatVersion: format.Version, Count: 1}
	for _, tt := range []struct {
		name  string
		asks  []*tsopb.TimestampsRequest
		end   error
		takes int
		ended bool // the context, before
		used  bool // the range that the connection cannot wait for
		want  error
		got   int
	}{
		{"client is done", []*tsopb.TimestampsRequest{one, one}, io.EOF, 9, false, false, nil, 2},
		{"client breaks", []*tsopb.TimestampsRequest{one}, errBroken, 9, false, false, errBroken, 1},
		{"answer breaks", []*tsopb.TimestampsRequest{one, one, one}, io.EOF, 1, false, false, errBroken, 1},
		{"ends in the pause", []*tsopb.TimestampsRequest{{FormatVersion: format.Version, Count: tso.MaxCount}, one}, io.EOF, 9, true, false, context.Canceled, 1},
		{"ends in the wait for a range", []*tsopb.TimestampsRequest{one}, io.EOF, 9, true, true, context.Canceled, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ahead := allAhead*time.Microsecond + time.Minute
			if tt.used {
				ahead = 0
			}
			s, ctx, _ := leader(t, ahead)
			if tt.used {
				s.alloc.lead(1)
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if tt.ended {
				cancel()
			}
			stream := &talk[tsopb.TimestampsResponse]{ctx: ctx, asks: tt.asks, end: tt.end, takes: tt.takes}
			err := s.Timestamps(stream)
			if want := tt.want; err != want && (want == nil || status.Code(err) != status.FromContextError(want).Code()) || len(stream.got) != tt.got {
				t.Errorf("%s: %v after %d answers; want %v after %d", tt.name, err, len(stream.got), want, tt.got)
			}
		})
	}
}
