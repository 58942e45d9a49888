// Package recordpb holds the generated code of the stored records, see
// record.proto.
package recordpb

//go:generate go run -C ../../../.ci/tools ./protogen $PWD
