// Package recordpb holds the generated code of the stored records, see
// record.proto.
package recordpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative record.proto
