// Package tsopb holds the generated code of the oracle's stored state and of
// its service, see tso.proto.
package tsopb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative tso.proto
