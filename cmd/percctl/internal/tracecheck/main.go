// Command tracecheck shows, on real processes and with the environment's
// exporters, that a trace leads where docs/observability.md says:
//
//	go run ./cmd/percctl/internal/tracecheck
//
// A writer commits, an observer in another process runs for it, a client is
// killed in the middle of a commit and a reader cleans up behind it. All of
// them send their spans over OTLP, to a receiver in this process or, with
// -jaeger, to a Jaeger that is then asked through its query API:
//
//	jaeger &
//	go run ./cmd/percctl/internal/tracecheck -jaeger http://localhost:16686 -otlp http://localhost:4317
//
// With -images it draws the commit and the recovery as SVG pictures.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(exit(runRole(ctx, role)))
	}
	var o options
	flag.StringVar(&o.jaeger, "jaeger", "", "address of Jaeger's query API; default: a receiver in this process")
	flag.StringVar(&o.otlp, "otlp", "http://localhost:4317", "where children send their spans over gRPC, with -jaeger")
	flag.StringVar(&o.images, "images", "", "directory for pictures of the traces")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	os.Exit(exit(run(ctx, o, os.Stdout)))
}

func exit(err error) int {
	if err != nil {
		fmt.Fprintf(os.Stderr, "tracecheck: %v\n", err)
		return 1
	}
	return 0
}
