package connect

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// TestUnreachable: nothing listens at the address of Cloud Bigtable. Two attempts of a
// request end the command.
func TestUnreachable(t *testing.T) {
	f := Flags{Project: "p", Instance: "i", endpoint: "127.0.0.1:1"}
	attempts := 0
	err := f.Answered(t.Context(), func(ctx context.Context) error {
		conn, err := grpc.NewClient("passthrough:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(f.answers))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		for ctx.Err() == nil {
			attempts++
			if _, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err == nil {
				return errors.New("there was an answer")
			}
		}
		return ctx.Err()
	})
	want := "Bigtable at 127.0.0.1:1, project p, instance i: connection refused; check the network"
	if err == nil || !strings.HasPrefix(err.Error(), want) || attempts != refusals {
		t.Errorf("%v after %d attempts", err, attempts)
	}
}
