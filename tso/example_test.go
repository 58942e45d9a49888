package tso_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
)

func ExampleDirect() {
	ctx := context.Background()

	// An emulator in place of Bigtable, with a metadata table.
	emulator, err := bttest.NewServer("localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	defer emulator.Close()
	conn, err := grpc.NewClient(emulator.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	admin, err := bigtable.NewAdminClient(ctx, "project", "instance", option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "percolator"); err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "percolator", "tso"); err != nil {
		log.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(ctx, "project", "instance", bigtable.ClientConfig{
		MetricsProvider: bigtable.NoopMetricsProvider{},
		DisableSession:  true,
	}, option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	// Two processes would each do this:
	here := tso.NewDirect(client.Open("percolator"), tso.DirectConfig{})
	defer here.Close()
	there := tso.NewDirect(client.Open("percolator"), tso.DirectConfig{})
	defer there.Close()

	first, err := here.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second, err := there.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first < second)
	// Output: true
}

func ExampleClient() {
	ctx, stop := context.WithCancel(context.Background())

	// An emulator in place of Bigtable, with a metadata table in served mode.
	emulator, err := bttest.NewServer("localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	defer emulator.Close()
	conn, err := grpc.NewClient(emulator.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	admin, err := bigtable.NewAdminClient(ctx, "project", "instance", option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "percolator"); err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "percolator", "tso"); err != nil {
		log.Fatal(err)
	}
	bt, err := bigtable.NewClientWithConfig(ctx, "project", "instance", bigtable.ClientConfig{
		MetricsProvider: bigtable.NoopMetricsProvider{},
		DisableSession:  true,
	}, option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	defer bt.Close()
	metadata := bt.Open("percolator")
	if _, err := tso.SetMode(ctx, metadata, tso.RowConfig{}, tso.ModeServed); err != nil {
		log.Fatal(err)
	}

	// What `percctl tso serve` does:
	srv, err := server.New(metadata, server.Config{})
	if err != nil {
		log.Fatal(err)
	}
	lis, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, lis) }()

	// What a service does, with the addresses of all servers:
	oracle, err := tso.NewClient(tso.ClientConfig{Addresses: []string{lis.Addr().String()}})
	if err != nil {
		log.Fatal(err)
	}
	first, err := oracle.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second, err := oracle.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first < second)

	_ = oracle.Close()
	stop() // releases the lease
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: true
}
